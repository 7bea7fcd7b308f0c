"""The controller of a leaf: a switch whose jobs are parts of jobs at its parent.

Rules
-----
* A leaf decides nothing about who may join: it passes every Join on to its parent (Enlist) and the parent's answers
  back (Relayed), with the path and the buffers that a packet meets on its way up taken into account.
* Once the parent has placed the job, the leaf admits its own ranks to its own data plane: with an index, a generation
  and tokens of its own, its ranks in ascending order as workers 0, 1, ..., lanes sized for all ranks of the job.
* A worker of the leaf that is lost, or gives up, is told to the parent at once; one that leaves is not, until all have.
* A rank renews its Join until its own data path is open. By then another may have left, which frees the job's name; the
  one that renews is still in the old job, whose data path tells it what has happened.
* Whether the parent is there is asked all the time (switch/controller/parent_watch.py). While it is not, ranks that
  have waited for SILENCE_S are refused, with its address.
* What a leaf says to its parent about a job is sealed with the key of that job's ranks, which they have disclosed to
  it: nobody without their secret can pass for a leaf of theirs, and no leaf for one of another job.
* What became of a job is asked of the parent; if that is silent for PARENT_PATIENCE_S, its silence is the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import fanin
from fanin.errors import AdmissionError, ConfigurationError
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import Join, Placed, Refusal, Relayed
from fanin.protocol.events import SwitchEvent, WorkerJoined, WorkerSilent
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.protocol.seal import OPEN
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.switch.controller.admission import refuse
from fanin.switch.controller.data_plane import Limits
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import JobShape, SwitchBuffers
from fanin.switch.controller.job_table import JobTable
from fanin.switch.controller.jobs import Applicant, Job, State, ranks_of
from fanin.switch.controller.outbox import Outbox
from fanin.switch.controller.parent_watch import ParentWatch, no_leaves_here
from fanin.switch.controller.reports import admission, report_in_tree, seen_by
from fanin.switch.controller.resources import Resources
from fanin.switch.server.interface import Server

PARENT_PATIENCE_S = 0.7
"""How long the parent may take to explain: less than a failing worker waits for the leaf's answer."""
MAX_QUESTIONS = 256
"""Workers that wait for an explanation at one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentPath:
    """Where the parent is, and what the way there carries."""

    address: SwitchAddress
    host: str
    """Numeric address."""
    path_mtu: int
    receive_buffer_bytes: int
    own_address: str
    """This leaf's, for people."""


@dataclass(slots=True)
class LeafMember(Applicant):
    """One rank at this leaf."""

    peer: bytes
    """Where the answers go."""
    since_s: float
    """When it first said Join."""


@dataclass(slots=True)
class LeafJob(Job[LeafMember]):
    """This leaf's part of one job: its workers are the ranks at this leaf, `placed.ranks`."""

    placed: Placed | None = None
    """What the parent says that this part must look like."""
    started: control.Started | None = None


class LeafController:
    """Judges nothing, passes on, and keeps this leaf's part of each job. One thread drives it."""

    def __init__(
        self,
        limits: Limits,
        server: Server,
        parent: ParentPath,
        buffers: SwitchBuffers,
        *,
        random_bits: Callable[[int], int],
        started_s: float,
        engine: str,
    ) -> None:
        self._server, self._parent, self._buffers = server, parent, buffers
        self._started_s = started_s
        self.engine = engine
        """Which engine and data servers run, in words."""
        self._id = f"{random_bits(64):016x}"
        self.watch = ParentWatch(parent.address, self._id, parent.own_address, started_s)
        self._table: JobTable[LeafJob] = JobTable()
        self._resources = Resources(limits, (self._table,), random_bits)
        self._outbox = Outbox()
        self._upwards: deque[tuple[str, control.Request]] = deque()
        """What to say to the parent, each with the fingerprint of the key to seal it with."""
        self._questions: deque[tuple[bytes, int, float]] = deque()
        """Who waits for an explanation, of which generation at the parent, and until when; in the order asked."""

    # --- from workers and tools ---

    def receive(self, peer: bytes, request: control.Request, now: float, caller: Caller) -> None:
        """Act on a request of `peer`, whom the gate has found to be `caller`."""
        self._turn(now)
        if isinstance(request, Join):
            self._join(peer, request, now, caller)
        elif isinstance(request, control.Leave):
            self._leave(request, now, caller)
            self._outbox.send(peer, control.Left(job=request.job, rank=request.rank))
        elif isinstance(request, control.Explain):
            self._explain(peer, request, now, caller)
        elif isinstance(request, control.Ask):
            self._outbox.send(peer, seen_by(caller, self.stats(now)))
        elif isinstance(request, control.Attach):
            refused = no_leaves_here(request, self._id, self._parent.own_address, self._parent.address)
            self._outbox.refuse(peer, refused)
        else:
            what = "a tree of switches is synchronous" if isinstance(request, control.Tune) else "leaves have no leaves"
            remedy = f"ask the parent, {self._parent.address}"
            self._outbox.refuse(peer, refuse(Refusal.QUORUM, f"this switch is a leaf: {what}", remedy))

    def hung_up(self, peer: bytes, now: float) -> None:
        """The connection over which `peer` asked is closed: the rank behind it may have died."""
        for job in {id(job): job for job in [*self._table.open.values(), *self._table.placed.values()]}.values():
            for rank, member in job.members.items():
                if member.peer != peer or job.state is State.ENDED:
                    continue
                member.hung_up(now)
                if job.spec is None or job.placed is None:
                    continue
                worker = job.placed.ranks.index(rank)
                if not (job.lost | job.left) >> worker & 1:
                    self._server.suspect(job.spec.job, worker)

    def count_refusal(self, code: str) -> None:
        """Somebody was refused before the request came here."""
        self._outbox.count(code)

    def _join(self, peer: bytes, join: Join, now: float, caller: Caller) -> None:
        job = self._table.job_of(join, caller.key) or self._table.open.get((join.job, caller.key))
        if job is None:
            job = LeafJob(join.job, key=caller.key, source=caller.source)
        member = job.members.get(join.rank)
        if member is None:
            if (refused := self._judge_new(join, job, caller)) is not None:
                self._outbox.refuse(peer, refused)
                return
            self._table.open.setdefault(job.title, job)
            member = job.members[join.rank] = LeafMember(join, now, peer, now)
        elif member.join.nonce == join.nonce:
            member.peer, member.renewed_s = peer, now
            if job.started is not None:
                self._outbox.send(peer, job.started)
                return
        else:
            reason = f"rank {join.rank} of job {join.job!r} is taken at this leaf: {member.join.process} has it"
            self._outbox.refuse(peer, refuse(Refusal.RANK_TAKEN, reason, "give the job another name", [join.rank]))
            return
        objection = None if job.placed is not None else self.watch.objection(now, member.since_s)
        if objection is not None:
            self._outbox.refuse(peer, objection)
            self._drop(job, join.rank, now)
            return
        narrowed = replace(
            join,
            path_mtu=min(join.path_mtu, self._parent.path_mtu),
            receive_buffer_bytes=min(join.receive_buffer_bytes, self._parent.receive_buffer_bytes),
            words_per_packet=_least(join.words_per_packet, self._buffers.words_per_packet),
            slots=_least(join.slots, self._buffers.slots),
        )
        self._say_up(job, control.Enlist(leaf=self._id, address=self._parent.own_address, join=narrowed))

    def _judge_new(self, join: Join, job: LeafJob, caller: Caller) -> control.Refused | None:
        """Whether a rank may be kept here, for the parent to judge; None when it may."""
        if job.placed is not None and join.rank not in job.placed.ranks:
            text = f"rank {join.rank} of job {job.name!r} is none of those that it was placed at this leaf with"
            return refuse(Refusal.RANK, text, "give the job another name", [join.rank])
        if not job.members and (refused := self._resources.judge_new_job(caller.source)) is not None:
            return refused
        return self._resources.judge_new_rank(caller.source)

    def _leave(self, leave: control.Leave, now: float, caller: Caller) -> None:
        """A rank has given up, or left without a BYE that arrived."""
        # Also of a rank unknown here: its last Join may have reached the parent after the parent had refused it.
        self._upwards.append((caller.key, leave))
        job = self._table.job_of(leave, caller.key)
        if job is None:
            return
        if job.state is State.FORMING:
            self._table.drop(job, leave.rank)
        elif job.placed is not None and leave.rank in job.placed.ranks:
            job.left |= 1 << job.placed.ranks.index(leave.rank)
            self._end_if_empty(job, now)

    def _say_up(self, job: LeafJob, request: control.Request) -> None:
        self._upwards.append((job.key, request))

    def _explain(self, peer: bytes, request: control.Explain, now: float, caller: Caller) -> None:
        job = self._table.find((request.job, caller.key), request.generation)
        if job is not None and job.placed is not None and len(self._questions) < MAX_QUESTIONS:
            generation = job.placed.generation
            self._questions.append((peer, generation, now + PARENT_PATIENCE_S))
            self._say_up(job, control.Explain(job=job.name, generation=generation))
            return
        unknown = "this leaf does not have that job; it may have ended"
        self._outbox.send(peer, control.Explanation(known=False, text=unknown))

    # --- from the parent ---

    def receive_from_parent(self, reply: control.Reply, now: float, key: str) -> None:
        """Take in what the parent says, sealed with the key of that fingerprint (empty: not sealed)."""
        self._turn(now)
        if not isinstance(reply, control.Refused) or reply.code not in (Refusal.KEY.value, Refusal.INTERNAL.value):
            self.watch.take(reply, now)
        if isinstance(reply, control.Explanation):
            for question in [each for each in self._questions if each[1] == reply.generation]:
                self._questions.remove(question)
                self._outbox.send(question[0], reply)
        elif isinstance(reply, Relayed):
            job = self._table.open.get((reply.job, key))
            member = job.members.get(reply.rank) if job is not None else None
            if job is not None and member is not None:
                self._relay(job, member, reply, now)

    def _relay(self, job: LeafJob, member: LeafMember, relayed: Relayed, now: float) -> None:
        if relayed.waiting is not None:
            self._outbox.send(member.peer, relayed.waiting)
        elif relayed.placed is not None:
            if job.placed is None and not self._place(job, relayed.placed):
                return
            if job.placed is not None and relayed.rank in job.placed.ranks:
                self._outbox.send(member.peer, self._admitted(job, relayed.rank))
        elif relayed.started is not None:
            if job.placed is None:  # the parent has an earlier part in mind, of which nothing is left here
                return
            job.started, job.state = relayed.started, State.RUNNING
            self._outbox.send(member.peer, relayed.started)
        elif relayed.refused is not None:
            self._outbox.refuse(member.peer, relayed.refused)
            self._drop(job, relayed.rank, now)

    def _place(self, job: LeafJob, placed: Placed) -> bool:
        """Admit this leaf's part to the data plane; whether there was room."""
        ports = self._server.ports
        route = ParentRoute(
            host=self._parent.host,
            ports=placed.ports,
            job=placed.index,
            generation=placed.generation,
            worker=placed.branch,
            token=placed.token,
        )
        try:
            if len(placed.ports) != len(ports):
                raise ConfigurationError(
                    f"the parent {self._parent.address} has {len(placed.ports)} flows, this leaf {len(ports)}"
                )
            spec = self._spec(placed)
            self._server.admit_leaf(spec, route)
        except (AdmissionError, ConfigurationError) as error:
            remedy = "give the leaf as much --memory as its parent has, and the same --flows"
            refused = refuse(Refusal.MEMORY, f"leaf {self._parent.own_address}: {error}", remedy)
            for rank, member in job.members.items():
                self._outbox.send(member.peer, refused)
                reason = control.one_line(f"was refused by its leaf: {error}")
                self._say_up(job, control.Leave(job=job.name, rank=rank, nonce=member.join.nonce, reason=reason))
            del self._table.open[job.title]
            return False
        job.placed, job.spec, job.state = placed, spec, State.STARTING
        job.ring_bytes, job.wanted_ring_bytes = self._server.ring_bytes(spec.job)
        job.memory_bytes = spec.pool_bytes * len(ports) + job.ring_bytes
        self._table.placed[spec.job] = job
        return True

    def _spec(self, placed: Placed) -> JobSpec:
        shape = JobShape(
            slots=placed.slots,
            words_per_packet=placed.words_per_packet,
            codes_per_packet=placed.codes_per_packet,
            checksum=placed.checksum,
        )
        spec = self._resources.new_spec(shape, len(placed.ranks))
        return replace(spec, liveness_timeout_s=placed.liveness_timeout_s, total_workers=placed.size)

    def _admitted(self, job: LeafJob, rank: int) -> control.Admitted:
        spec, placed = job.spec, job.placed
        assert spec is not None
        assert placed is not None
        admitted = admission(job.name, rank, spec, placed.ranks.index(rank), "udp", self._server)
        return replace(admitted, ranks=placed.ranks, total_workers=placed.size)

    # --- from the data plane ---

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """Take in what the data plane reports."""
        job = self._table.placed.get(event.job)
        if job is None or job.placed is None:
            return
        bit, rank = 1 << event.worker, job.placed.ranks[event.worker]
        if isinstance(event, WorkerJoined):
            job.registered |= bit
            return
        if isinstance(event, WorkerSilent) and not job.left & bit:  # who has given up falls silent, and is not lost
            job.lost |= bit
            reason = f"is lost: its leaf, {self._parent.own_address}, heard nothing for {event.silent_s:.1f} s"
            nonce = job.members[rank].join.nonce if rank in job.members else ""
            self._say_up(job, control.Leave(job=job.name, rank=rank, nonce=nonce, reason=reason, lost=True))
        else:
            job.left |= bit
        if job.state is State.RUNNING:
            job.state = State.ENDING
            self._table.open.pop(job.title, None)
        self._end_if_empty(job, now)

    def _end_if_empty(self, job: LeafJob, now: float) -> None:
        if job.spec is not None and job.lost | job.left == job.spec.full_mask:
            if self._table.open.get(job.title) is job:
                del self._table.open[job.title]
            self._end(job, now)

    def _drop(self, job: LeafJob, rank: int, now: float) -> None:
        """A rank waits no more; without any, this part of the job is over."""
        self._table.drop(job, rank)
        if not job.members:
            self._end(job, now)

    def _end(self, job: LeafJob, now: float) -> None:
        if job.spec is not None and job.state is not State.ENDED:
            self._table.end(job, now)

    # --- time ---

    def handle_timer(self, now: float) -> None:
        """Ask for the parent, and let go of what has waited too long."""
        self._turn(now)
        if (attach := self.watch.due(now)) is not None:
            self._upwards.append((OPEN.name, attach))
        for job in list(self._table.open.values()):
            if job.state in (State.FORMING, State.STARTING):
                for rank in job.lapsed(now):
                    self._drop(job, rank, now)
        for job in self._table.forgettable(now):
            assert job.spec is not None
            self._server.remove(job.spec.job)
            del self._table.placed[job.spec.job]
        while self._questions and now >= self._questions[0][2]:
            peer, _, _ = self._questions.popleft()
            text = f"the parent switch, {self._parent.address}, does not answer its leaf {self._parent.own_address}"
            self._outbox.send(peer, control.Explanation(known=True, text=text))

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called, or None."""
        times = [*self._table.timers(), self.watch.next_timer()]
        times.extend(until for _, _, until in self._questions)
        return min(times)

    def _turn(self, now: float) -> None:
        if stopped_s := self._table.turn(now):
            self._questions = deque((peer, what, until + stopped_s) for peer, what, until in self._questions)

    # --- what goes out ---

    def messages_to_send(self) -> list[tuple[bytes, control.Reply]]:
        """What to send, in order, each with the peer that it is for."""
        return self._outbox.fetch()

    def messages_to_parent(self) -> list[tuple[str, control.Request]]:
        """What to send up, in order, each with the fingerprint of the key to seal it with."""
        messages = list(self._upwards)
        self._upwards.clear()
        return messages

    @property
    def live_jobs(self) -> int:
        """Jobs that some worker here still takes part in, or waits for."""
        return self._table.live

    def stats(self, now: float) -> control.Stats:
        """What `fanin stats` shows: this leaf's part of each job."""
        memory_bytes = self._resources.limits.memory_bytes
        return control.Stats(
            software=fanin.__version__,
            wire_version=WIRE_VERSION,
            engine=f"{self.engine}; a leaf of {self._parent.address}",
            uptime_s=now - self._started_s,
            memory_bytes=memory_bytes,
            memory_used_bytes=memory_bytes - self._resources.free_bytes,
            curve=False,
            data=(
                control.DataReport(
                    scheme="udp",
                    description=self._server.description,
                    ports=self._server.ports,
                    counters=self._server.counters(),
                ),
            ),
            jobs=tuple(self._report(job) for job in self._table.placed.values()),
            refused=dict(self._outbox.refused),
            parent=self.watch.report(now),
            job_count=self.live_jobs,
        )

    def _report(self, job: LeafJob) -> control.JobReport:
        placed = job.placed
        assert placed is not None
        states = {rank: "registered" if job.registered >> w & 1 else "joined" for w, rank in enumerate(placed.ranks)}
        states.update({placed.ranks[worker]: "left" for worker in ranks_of(job.left)})
        states.update({placed.ranks[worker]: "lost" for worker in ranks_of(job.lost)})
        return report_in_tree(job, placed.size, states, self._server)


def _least(*limits: int | None) -> int | None:
    """The smallest of those that are given."""
    return min((each for each in limits if each is not None), default=None)

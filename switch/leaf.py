"""The controller of a leaf: a switch whose jobs are parts of jobs at its parent.

Rules
-----
* A leaf decides nothing about who may join: it passes every Join on to its parent (Enlist) and the parent's answers
  back (Relayed), with the path and the buffers that a packet meets on its way up taken into account.
* Once the parent has placed the job, the leaf admits its own ranks to its own data plane: with an index, a generation
  and tokens of its own, its ranks in ascending order as workers 0, 1, ..., lanes sized for all ranks of the job.
* A worker of the leaf that is lost, or gives up, is told to the parent at once; one that leaves is not, until all have.
* What became of a job is asked of the parent; if that is silent for PARENT_PATIENCE_S, its silence is the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import fanin
from fanin import control
from fanin.control import JOIN_LEASE_S, Join, Placed, Refusal, Relayed
from fanin.errors import AdmissionError, ConfigurationError
from fanin.events import SwitchEvent, WorkerJoined, WorkerSilent
from fanin.job import JobSpec, ParentRoute
from fanin.options import SwitchAddress
from fanin.switch.admission import refuse
from fanin.switch.data_plane import Limits
from fanin.switch.jobs import State, ranks_of
from fanin.switch.server import LeafServer
from fanin.wire import VERSION as WIRE_VERSION

LINGER_S = 1.0
"""How long an ended job stays on the data plane, so that a BYE that is sent again still finds its echo."""
PARENT_PATIENCE_S = 0.7
"""How long the parent may take to explain: less than a failing worker waits for the leaf's answer."""
MAX_QUESTIONS = 256
"""Workers that wait for an explanation at one time."""
MAX_INDEX = 0xFFFF


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
class LeafMember:
    """One rank at this leaf."""

    join: Join
    peer: bytes
    renewed_s: float


@dataclass(slots=True)
class LeafJob:
    """This leaf's part of one job."""

    name: str
    state: State = State.FORMING
    members: dict[int, LeafMember] = field(default_factory=dict)
    placed: Placed | None = None
    spec: JobSpec | None = None
    started: control.Started | None = None
    registered: int = 0
    lost: int = 0
    left: int = 0
    forget_s: float = 0.0


class LeafController:
    """Judges nothing, passes on, and keeps this leaf's part of each job. One thread drives it."""

    def __init__(
        self,
        limits: Limits,
        server: LeafServer,
        parent: ParentPath,
        *,
        random_bits: Callable[[int], int],
        started_s: float,
        engine: str,
    ) -> None:
        self._limits, self._server, self._parent = limits, server, parent
        self._random_bits = random_bits
        self._started_s = started_s
        self.engine = engine
        """Which engine and data servers run, in words."""
        self._id = f"{random_bits(64):016x}"
        self._open: dict[str, LeafJob] = {}
        self._placed: dict[int, LeafJob] = {}
        self._last_index = -1
        self._outbox: deque[tuple[bytes, control.Reply]] = deque()
        self._upwards: deque[control.Request] = deque()
        self._questions: deque[tuple[bytes, float]] = deque()
        """Who waits for an explanation, in the order asked, and until when."""
        self._unanswered = 0
        """Explanations that the parent still owes to questions which were answered without it."""

    # --- from workers and tools ---

    def receive(self, peer: bytes, request: control.Request, now: float) -> None:
        """Act on a request of `peer`."""
        if isinstance(request, Join):
            self._join(peer, request, now)
        elif isinstance(request, control.Leave):
            self._upwards.append(request)
            self._departs(request, now)
            self._send(peer, control.Left(job=request.job, rank=request.rank))
        elif isinstance(request, control.Explain):
            self._explain(peer, request, now)
        elif isinstance(request, control.Ask):
            self._send(peer, self.stats(now))
        else:
            what = "a tree of switches is synchronous" if isinstance(request, control.Tune) else "leaves have no leaves"
            remedy = f"ask the parent, {self._parent.address}"
            self._send(peer, refuse(Refusal.QUORUM, f"this switch is a leaf: {what}", remedy))

    def receive_malformed(self, peer: bytes, error: control.ControlError) -> None:
        """Answer bytes that were no message."""
        code = Refusal.MALFORMED if error.version is None else Refusal.VERSION
        self._send(peer, refuse(code, str(error), "install the same fanin version on workers and switch"))

    def _join(self, peer: bytes, join: Join, now: float) -> None:
        job = self._open.setdefault(join.job, LeafJob(join.job))
        member = job.members.get(join.rank)
        if member is None:
            job.members[join.rank] = LeafMember(join, peer, now)
        elif member.join.nonce == join.nonce:
            member.peer, member.renewed_s = peer, now
            if job.state is State.RUNNING and job.started is not None:
                self._send(peer, job.started)
                return
        else:
            reason = f"rank {join.rank} of job {join.job!r} is taken at this leaf: {member.join.process} has it"
            self._send(peer, refuse(Refusal.RANK_TAKEN, reason, "give the job another name", [join.rank]))
            return
        narrowed = replace(
            join,
            path_mtu=min(join.path_mtu, self._parent.path_mtu),
            receive_buffer_bytes=min(join.receive_buffer_bytes, self._parent.receive_buffer_bytes),
        )
        self._upwards.append(control.Enlist(leaf=self._id, address=self._parent.own_address, join=narrowed))

    def _departs(self, leave: control.Leave, now: float) -> None:
        """A rank has given up, or left without a BYE that arrived."""
        for job in [*self._open.values(), *self._placed.values()]:
            member = job.members.get(leave.rank)
            if job.name != leave.job or member is None or member.join.nonce != leave.nonce:
                continue
            if job.state is State.FORMING:
                del job.members[leave.rank]
                if not job.members:
                    del self._open[job.name]
            elif job.placed is not None:
                job.left |= 1 << job.placed.ranks.index(leave.rank)
                self._end_if_empty(job, now)
            return

    def _explain(self, peer: bytes, request: control.Explain, now: float) -> None:
        for job in self._placed.values():
            if job.spec is None or job.placed is None or job.name != request.job:
                continue
            if job.spec.generation == request.generation and len(self._questions) < MAX_QUESTIONS:
                self._questions.append((peer, now + PARENT_PATIENCE_S))
                self._upwards.append(control.Explain(job=job.name, generation=job.placed.generation))
                return
        self._send(peer, control.Explanation(known=False, text="this leaf does not have that job; it may have ended"))

    # --- from the parent ---

    def receive_from_parent(self, reply: control.Reply, now: float) -> None:
        """Take in what the parent says."""
        if isinstance(reply, control.Explanation):
            if self._unanswered:
                self._unanswered -= 1
            elif self._questions:
                self._send(self._questions.popleft()[0], reply)
        elif isinstance(reply, Relayed):
            job = self._open.get(reply.job)
            member = job.members.get(reply.rank) if job is not None else None
            if job is not None and member is not None:
                self._relay(job, member, reply, now)

    def _relay(self, job: LeafJob, member: LeafMember, relayed: Relayed, now: float) -> None:
        if relayed.waiting is not None:
            self._send(member.peer, relayed.waiting)
        elif relayed.placed is not None:
            if job.placed is None and not self._place(job, relayed.placed):
                return
            self._send(member.peer, self._admitted(job, relayed.rank))
        elif relayed.started is not None:
            job.started, job.state = relayed.started, State.RUNNING
            self._send(member.peer, relayed.started)
        elif relayed.refused is not None:
            self._send(member.peer, relayed.refused)
            del job.members[relayed.rank]
            if not job.members:
                del self._open[job.name]
                self._end(job, now)

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
                self._send(member.peer, refused)
                reason = control.one_line(f"was refused by its leaf: {error}")
                self._upwards.append(control.Leave(job=job.name, rank=rank, nonce=member.join.nonce, reason=reason))
            del self._open[job.name]
            return False
        job.placed, job.spec, job.state = placed, spec, State.STARTING
        self._placed[spec.job] = job
        return True

    def _spec(self, placed: Placed) -> JobSpec:
        workers = len(placed.ranks)
        return JobSpec(
            job=self._next_index(),
            generation=self._random_bits(32),
            workers=workers,
            quorum=workers,
            slots=placed.slots,
            words_per_packet=placed.words_per_packet,
            codes_per_packet=placed.codes_per_packet,
            tokens=tuple(self._random_bits(64) for _ in range(workers)),
            checksum=placed.checksum,
            liveness_timeout_s=placed.liveness_timeout_s,
            total_workers=placed.size,
        )

    def _next_index(self) -> int:
        """The index longest unused."""
        while True:  # ends: there are more indices than jobs that fit into any memory
            self._last_index = (self._last_index + 1) & MAX_INDEX
            if self._last_index not in self._placed:
                return self._last_index

    def _admitted(self, job: LeafJob, rank: int) -> control.Admitted:
        spec, placed = job.spec, job.placed
        assert spec is not None
        assert placed is not None
        return control.Admitted(
            job=job.name,
            rank=rank,
            index=spec.job,
            generation=spec.generation,
            workers=spec.workers,
            quorum=spec.quorum,
            staleness=0,
            max_staleness=0,
            slots=spec.slots,
            words_per_packet=spec.words_per_packet,
            codes_per_packet=spec.codes_per_packet,
            checksum=spec.checksum,
            liveness_timeout_s=spec.liveness_timeout_s,
            on_worker_loss="raise",
            token=spec.tokens[placed.ranks.index(rank)],
            scheme="udp",
            ports=self._server.ports,
            shared_memory=self._server.shared_memory(spec.job),
            ranks=placed.ranks,
            total_workers=placed.size,
        )

    # --- from the data plane ---

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """Take in what the data plane reports."""
        job = self._placed.get(event.job)
        if job is None or job.placed is None:
            return
        bit, rank = 1 << event.worker, job.placed.ranks[event.worker]
        if isinstance(event, WorkerJoined):
            job.registered |= bit
            return
        if isinstance(event, WorkerSilent):
            job.lost |= bit
            reason = f"is lost: its leaf, {self._parent.own_address}, heard nothing for {event.silent_s:.1f} s"
            nonce = job.members[rank].join.nonce if rank in job.members else ""
            self._upwards.append(control.Leave(job=job.name, rank=rank, nonce=nonce, reason=reason))
        else:
            job.left |= bit
        if job.state is State.RUNNING:
            job.state = State.ENDING
            self._open.pop(job.name, None)
        self._end_if_empty(job, now)

    def _end_if_empty(self, job: LeafJob, now: float) -> None:
        if job.spec is not None and job.lost | job.left == job.spec.full_mask:
            if self._open.get(job.name) is job:
                del self._open[job.name]
            self._end(job, now)

    def _end(self, job: LeafJob, now: float) -> None:
        if job.spec is not None and job.state is not State.ENDED:
            job.state, job.forget_s = State.ENDED, now + LINGER_S

    # --- time ---

    def handle_timer(self, now: float) -> None:
        """Let go of what has waited too long."""
        for job in list(self._open.values()):
            if job.state in (State.FORMING, State.STARTING):
                for rank in [r for r, each in job.members.items() if now >= each.renewed_s + JOIN_LEASE_S]:
                    del job.members[rank]
                if not job.members:
                    del self._open[job.name]
                    self._end(job, now)
        for index, job in list(self._placed.items()):
            if job.state is State.ENDED and now >= job.forget_s:
                self._server.remove(index)
                del self._placed[index]
        while self._questions and now >= self._questions[0][1]:
            peer, _ = self._questions.popleft()
            self._unanswered += 1
            text = f"the parent switch, {self._parent.address}, does not answer its leaf {self._parent.own_address}"
            self._send(peer, control.Explanation(known=True, text=text))

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called, or None."""
        times = [job.forget_s for job in self._placed.values() if job.state is State.ENDED]
        times.extend(until for _, until in self._questions)
        for job in self._open.values():
            if job.state in (State.FORMING, State.STARTING):
                times.extend(member.renewed_s + JOIN_LEASE_S for member in job.members.values())
        return min(times, default=None)

    # --- what goes out ---

    def messages_to_send(self) -> list[tuple[bytes, control.Reply]]:
        """What to send, in order, each with the peer that it is for."""
        messages = list(self._outbox)
        self._outbox.clear()
        return messages

    def messages_to_parent(self) -> list[control.Request]:
        """What to send up, in order."""
        messages = list(self._upwards)
        self._upwards.clear()
        return messages

    @property
    def live_jobs(self) -> int:
        """Jobs that some worker here still takes part in, or waits for."""
        forming = sum(job.spec is None for job in self._open.values())
        return forming + sum(job.state is not State.ENDED for job in self._placed.values())

    def stats(self, now: float) -> control.Stats:
        """What `fanin stats` shows: this leaf's part of each job."""
        flows = len(self._server.ports)
        used = sum(job.spec.pool_bytes * flows for job in self._placed.values() if job.spec is not None)
        return control.Stats(
            software=fanin.__version__,
            wire_version=WIRE_VERSION,
            engine=f"{self.engine}; a leaf of {self._parent.address}",
            uptime_s=now - self._started_s,
            memory_bytes=self._limits.memory_bytes,
            memory_used_bytes=used,
            curve=False,
            data=(
                control.DataReport(
                    scheme="udp",
                    description=self._server.description,
                    ports=self._server.ports,
                    counters=self._server.counters(),
                ),
            ),
            jobs=tuple(self._report(job) for job in self._placed.values()),
            refused={},
        )

    def _report(self, job: LeafJob) -> control.JobReport:
        spec, placed = job.spec, job.placed
        assert spec is not None
        assert placed is not None
        states = {rank: "registered" if job.registered >> w & 1 else "joined" for w, rank in enumerate(placed.ranks)}
        states.update({placed.ranks[worker]: "left" for worker in ranks_of(job.left)})
        states.update({placed.ranks[worker]: "lost" for worker in ranks_of(job.lost)})
        return control.JobReport(
            name=job.name,
            state=job.state.value,
            index=spec.job,
            generation=spec.generation,
            scheme="udp",
            size=placed.size,
            quorum=placed.size,
            staleness=0,
            max_staleness=0,
            on_worker_loss="raise",
            slots=spec.slots,
            words_per_packet=spec.words_per_packet,
            flows=len(self._server.ports),
            memory_bytes=spec.pool_bytes * len(self._server.ports),
            age_s=0.0,
            members=tuple(
                control.MemberReport(
                    rank=rank, process=job.members[rank].join.process if rank in job.members else "", state=state
                )
                for rank, state in states.items()
            ),
            counters=self._server.job_counters(spec.job),
        )

    def _send(self, peer: bytes, reply: control.Reply) -> None:
        self._outbox.append((peer, reply))

"""The controller of a leaf: a switch whose jobs are parts of jobs at its parent.

Rules
-----
* A leaf decides nothing about who may join: it passes every Join on to its parent (Enlist) and the parent's answers
  back (Relayed), with the path and the buffers that a packet meets on its way up taken into account.
* Once the parent has placed the job, the leaf admits its own ranks to its own data plane: with an index, a generation
  and tokens of its own, its ranks in ascending order as workers 0, 1, ..., lanes sized for all ranks of the job.
* The leaf reports a worker that is lost, or gives up, to the parent at once; one that leaves only when all have left.
* A rank renews its Join until its own data path is open. By then another rank may have left, which frees the job's
  name; the renewing rank is still in the old job, whose data path tells it what has happened.
* The leaf asks all the time whether the parent is there (switch/controller/parent_watch.py). While the parent does not
  answer, ranks that have waited for SILENCE_S are refused, and the refusal names its address.
* A leaf seals its messages to the parent about a job with the key of that job's ranks, which they have disclosed to
  it: nobody without their secret can pass for their leaf, and no leaf can pass for one of another job.
* A rank's Explain is passed on to the parent; if that does not answer within PARENT_PATIENCE_S, the leaf explains that
  the parent is silent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fanin.errors import ConfigurationError
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import Join, Placed, Refusal, Refused, Relayed
from fanin.protocol.events import BranchNarrowed, SwitchEvent
from fanin.protocol.job import JobSpec, ParentRoute, Shape, facts_of
from fanin.protocol.seal import OPEN
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm
from fanin.schemes import tree_scheme
from fanin.switch.controller.admission import (
    judge_accumulators,
    judge_secret,
    judge_tags,
    refuse,
)
from fanin.switch.controller.controller import AnyController
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import JobShape, SwitchBuffers
from fanin.switch.controller.jobs import Attachment, Job, Member, ReplyTo, State
from fanin.switch.controller.parent_watch import ParentWatch, no_leaves_here
from fanin.switch.controller.reports import admission
from fanin.switch.controller.resources import Resources
from fanin.switch.server.any_server import Server

PARENT_PATIENCE_S = 0.7
"""How long the parent may take to explain: less than a failing worker waits for the leaf's answer."""
MAX_QUESTIONS = 256
"""Workers that wait for an explanation at one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentPath:
    """The path to the parent: its address, the addresses of the leaf, and the packets that the path carries."""

    address: SwitchAddress
    host: str
    """Numeric address of the leaf."""
    path_mtu: int
    receive_buffer_bytes: int
    own_address: str
    """Address of this leaf, for messages to people."""
    exposed: bool = False
    """Whether the path to the parent leaves this machine."""


class Part(Attachment):
    """This leaf's part of one job. Its workers are the ranks at this leaf."""

    tree = True
    decides = False

    def __init__(self, leaf: LeafController) -> None:
        self._leaf = leaf
        self.placed: Placed | None = None
        """The parent's reply that prescribes the shape of this part; None until it has come."""
        self.start: control.Started | None = None
        """The parent's message that names all processes; None until the job has started."""

    def judge(self, join: Join) -> Refused | None:
        """Object to nothing: the parent judges ranks."""
        return None

    def workers(self, job: Job) -> tuple[tuple[int, ...], ...]:
        """One worker for each rank that the parent has placed at this leaf."""
        assert self.placed is not None
        return tuple((rank,) for rank in self.placed.ranks)

    def spec(self, job: Job) -> JobSpec:
        """A specification with the parent's shape, and an index, generation and tokens of this leaf's own."""
        placed = self.placed
        assert placed is not None
        shape = JobShape(**facts_of(placed, Shape))
        spec = self._leaf.resources.new_spec(shape, len(placed.ranks), job.tagging)
        return replace(spec, liveness_timeout_s=placed.liveness_timeout_s, total_workers=placed.size)

    def admit(self, job: Job, spec: JobSpec, *, share_memory: bool) -> None:
        """Admit the part with its uplinks. ConfigurationError if the parent has another number of flows."""
        placed, parent, server = self.placed, self._leaf.parent, job.plane.server
        assert placed is not None
        if len(placed.ports) != len(server.ports):
            raise ConfigurationError(
                f"the parent {parent.address} has {len(placed.ports)} flows, this leaf {len(server.ports)}: --flows, "
                "which a leaf that starts after its parent needs not"
            )
        route = ParentRoute(
            host=parent.host,
            ports=placed.ports,
            job=placed.index,
            generation=placed.generation,
            worker=placed.branch,
            token=placed.token,
            data_key=placed.data_key(job.control_key),
            tag=placed.tag_algorithm,
        )
        server.admit_leaf(spec, route, share_memory=share_memory)

    def plane(self, scheme: control.Scheme) -> DataPlane:
        """The leaf's only data plane."""
        return self._leaf.plane

    def reply_for(self, job: str, rank: int, reply: control.Waiting | control.Started | Refused) -> control.Reply:
        """The reply unchanged, except that a refusal names this leaf."""
        if isinstance(reply, Refused):
            return replace(reply, reason=control.one_line(f"leaf {self._leaf.parent.own_address}: {reply.reason}"))
        return reply

    def admitted(self, job: Job, spec: JobSpec, rank: int) -> control.Admitted:
        """The reply with the specification of this part and the rank's token at this leaf."""
        assert self.placed is not None
        worker = self.placed.ranks.index(rank)
        admitted = admission(job.name, rank, spec, worker, tree_scheme(), job.plane.server)
        return replace(admitted, ranks=self.placed.ranks, total_workers=self.placed.size)

    def started(self, job: Job) -> control.Started:
        """The parent's message that names all processes of the job."""
        assert self.start is not None
        return self.start

    def report_departure(self, job: Job, ranks: tuple[int, ...], how: str, lost: bool) -> None:
        """Tell the parent of every rank that is lost, and, while the job starts, of every rank that is gone."""
        if lost or job.state is State.STARTING:
            told = f"its leaf, {self._leaf.parent.own_address}, says that it {how}"
            reason = control.one_line(f"is lost: {told}" if lost else told)
            for rank in ranks:
                nonce = job.members[rank].join.nonce if rank in job.members else ""
                leave = control.Leave(job=job.name, rank=rank, nonce=nonce, reason=reason, lost=lost)
                self._leaf.say_up(job.key, leave)


class LeafController(AnyController):
    """Passes requests on to the parent, which judges them; keeps this leaf's part of each job. One thread drives it."""

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
        tags: tuple[TagAlgorithm, ...] = (SIPHASH,),
    ) -> None:
        """`tags`: algorithms of keyed tags that the data plane computes."""
        self.server, self.parent = server, parent
        self.plane = DataPlane(server, buffers, tags=tags)
        super().__init__(
            limits,
            {tree_scheme(): self.plane},
            random_bits=random_bits,
            started_s=started_s,
            engine=f"{engine}; a leaf of {parent.address}",
        )
        self._id = f"{random_bits(64):016x}"
        self.watch = ParentWatch(parent.address, self._id, parent.own_address, started_s)
        self._upwards: deque[tuple[str, control.Request]] = deque()
        """Messages to the parent, each with the fingerprint of the key to seal it with."""
        self._questions: deque[tuple[bytes, int, float]] = deque()
        """Peers that wait for an explanation, with the generation at the parent and the deadline, in order."""

    @property
    def resources(self) -> Resources:
        """Resources that the leaf's jobs share."""
        return self._resources

    # --- from workers and tools ---

    def _join(self, peer: bytes, join: Join, now: float, caller: Caller) -> None:
        self._turn(now)
        self._jobs.catch_up((join.job, caller.key), now)
        job = self._table.job_of(join, caller.key) or self._table.open.get((join.job, caller.key))
        member = None if job is None else job.members.get(join.rank)
        if job is None or member is None:
            if (refused := self._judge_new(join, job, caller)) is not None:
                self._outbox.refuse(peer, refused)
                return
            job = job or self._jobs.open(Part(self), join, now, caller)
            member = job.members[join.rank] = Member(join, now, ReplyTo(peer), now)
        elif member.join.nonce == join.nonce:
            member.reply_to.peer, member.renewed_s = peer, now
            if _part(job).start is not None:
                self._jobs.tell(job, join.rank)
                return
        else:
            reason = f"rank {join.rank} of job {join.job!r} is taken at this leaf: {member.join.process} has it"
            self._outbox.refuse(peer, refuse(Refusal.RANK_TAKEN, reason, "give the job another name", [join.rank]))
            return
        objection = None if job.spec is not None else self.watch.objection(now, member.since_s)
        if objection is not None:
            self._outbox.refuse(peer, objection)
            self._jobs.drop(job, join.rank, now)
            return
        narrowed = replace(
            join,
            path_mtu=min(join.path_mtu, self.parent.path_mtu),
            receive_buffer_bytes=min(join.receive_buffer_bytes, self.parent.receive_buffer_bytes),
            words_per_packet=_least(join.words_per_packet, self.plane.buffers.words_per_packet),
            slots=_least(join.slots, self.plane.buffers.slots),
            exposed=join.exposed or self.parent.exposed,
            tags=tuple(each for each in self.plane.tags if each in join.tags),
            accumulators=join.accumulators if self.plane.buffers.accumulators else False,
        )
        self.say_up(job.key, control.Enlist(leaf=self._id, address=self.parent.own_address, join=narrowed))

    def _judge_new(self, join: Join, job: Job | None, caller: Caller) -> Refused | None:
        """The leaf's own objection to a new rank, before the parent judges it; None without one."""
        refused = judge_accumulators(join, able=self.plane.buffers.accumulators)
        if refused is not None:
            return refused
        if job is not None and job.spec is not None:
            text = f"rank {join.rank} of job {job.name!r} is none of those that it was placed at this leaf with"
            return refuse(Refusal.RANK, text, "give the job another name", [join.rank])
        refused = judge_tags(join, able=self.plane.tags) or judge_secret(join, open_job=caller.is_open)
        if refused is not None:
            return refused
        if job is None and (refused := self._resources.judge_new_job(caller.source)) is not None:
            return refused
        return self._resources.judge_new_rank(caller.source)

    def _leave(self, leave: control.Leave, now: float, caller: Caller) -> None:
        self._turn(now)
        # Also for a rank unknown here: its last Join may have reached the parent after the parent had refused it.
        self.say_up(caller.key, leave)
        self._jobs.leave(leave, now, caller)

    def say_up(self, key: str, request: control.Request) -> None:
        """Queue a request to the parent, to be sealed with the key of that fingerprint."""
        self._upwards.append((key, request))

    def _explain(self, peer: bytes, request: control.Explain, now: float, caller: Caller) -> None:
        self._turn(now)
        job = self._table.find((request.job, caller.key), request.generation)
        placed = None if job is None else _part(job).placed
        if job is None or placed is None:
            unknown = "this leaf never had that job, or long ago; it may have been restarted"
            self._outbox.send(peer, control.Explanation(known=False, text=unknown))
        elif len(self._questions) >= MAX_QUESTIONS:
            self._outbox.send(peer, control.Explanation(known=True, text="too many ranks ask this leaf at this time"))
        else:
            self._questions.append((peer, placed.generation, now + PARENT_PATIENCE_S))
            self.say_up(job.key, control.Explain(job=job.name, generation=placed.generation))

    def _regroup(self, peer: bytes, request: control.Regroup, now: float, caller: Caller) -> None:
        self._outbox.refuse(peer, self._not_here("a job through leaves ends with the first rank that it loses"))

    def _tune(self, peer: bytes, wish: control.Tune, caller: Caller) -> None:
        self._outbox.refuse(peer, self._not_here("a tree of switches is synchronous"))

    def _enlist(self, peer: bytes, request: control.Enlist, now: float, caller: Caller) -> None:
        self._outbox.refuse(peer, self._not_here("leaves have no leaves"))

    def _not_here(self, what: str) -> Refused:
        return refuse(Refusal.QUORUM, f"this switch is a leaf: {what}", f"ask the parent, {self.parent.address}")

    def _attach(self, peer: bytes, request: control.Attach) -> None:
        refused = no_leaves_here(request, self._id, self.parent.own_address, self.parent.address)
        self._outbox.refuse(peer, refused)

    # --- from the parent ---

    def receive_from_parent(self, reply: control.Reply, now: float, key: str) -> None:
        """Handle a reply of the parent, sealed with the key of that fingerprint (empty: not sealed)."""
        self._turn(now)
        if not isinstance(reply, control.Refused) or reply.code not in (Refusal.KEY.value, Refusal.INTERNAL.value):
            self.watch.take(reply, now)
        if isinstance(reply, control.Explanation):
            if not reply.known:
                text = f"the parent switch, {self.parent.address}, does not know the job any more: it was restarted"
                reply = replace(reply, known=True, text=text)
            for question in [each for each in self._questions if each[1] == reply.generation]:
                self._questions.remove(question)
                self._outbox.send(question[0], reply)
        elif isinstance(reply, Relayed):
            job = self._table.open.get((reply.job, key))
            member = job.members.get(reply.rank) if job is not None else None
            if job is not None and member is not None:
                self._relay(job, member, reply, now)

    def parent_hung_up(self) -> None:
        """The connection to the parent is closed: its process may have ended, and its jobs with it."""
        for index in self._table.placed:
            self.server.suspect_parent(index)

    def _relay(self, job: Job, member: Member, relayed: Relayed, now: float) -> None:
        part, rank = _part(job), relayed.rank
        if relayed.waiting is not None:
            self._outbox.send(member.reply_to.peer, relayed.waiting)
        elif relayed.placed is not None:
            if job.spec is None:
                self._place(job, part, relayed.placed, now)
            elif job.worker_of(rank) is not None:
                self._jobs.tell(job, rank)
        elif relayed.started is not None:
            if job.spec is None:  # the reply is for an earlier part of that name, which is forgotten here
                return
            part.start = relayed.started
            if job.state is State.STARTING:
                self._jobs.ready(job, now)
            else:
                self._jobs.tell(job, rank)
        elif relayed.refused is not None:
            self._outbox.refuse(member.reply_to.peer, relayed.refused)
            self._jobs.drop(job, rank, now)

    def _place(self, job: Job, part: Part, placed: Placed, now: float) -> None:
        """Put this part, with the ranks that `placed` names, on the data plane; tell the parent if that is refused."""
        part.placed = placed
        for rank in job.members.keys() - set(placed.ranks):
            self._jobs.drop(job, rank, now)
        if job.state is State.FORMING and not self._jobs.place(job, now):
            for rank, member in job.members.items():
                reason = "could not start: its leaf has refused it"
                self.say_up(job.key, control.Leave(job=job.name, rank=rank, nonce=member.join.nonce, reason=reason))

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """Handle an event of the switch. On BranchNarrowed, report all ranks here to the parent as lost."""
        job = self._table.placed.get(event.job)
        if not isinstance(event, BranchNarrowed):
            super().handle_event(event, now)
        elif job is not None and job.spec is not None:
            how = (
                f"lacks a way to its parent, {self.parent.address}: packets of {event.needed_bytes} bytes have not "
                f"passed for {job.spec.liveness_timeout_s:g} s, there and back, while ones of {event.passes_bytes} "
                "bytes do, so the MTU of that path has fallen"
            )
            for ranks in job.workers:
                job.attachment.report_departure(job, ranks, how, True)

    # --- time ---

    def handle_timer(self, now: float) -> None:
        """Ask whether the parent is there, and refuse, end or forget whatever has waited too long."""
        self._turn(now)
        super().handle_timer(now)
        if (attach := self.watch.due(now)) is not None:
            self.say_up(OPEN.name, attach)
        while self._questions and now >= self._questions[0][2]:
            peer, _, _ = self._questions.popleft()
            text = f"the parent switch, {self.parent.address}, does not answer its leaf {self.parent.own_address}"
            self._outbox.send(peer, control.Explanation(known=True, text=text))

    def next_timer(self) -> float | None:
        """Time at which `handle_timer` is due."""
        times = [super().next_timer(), self.watch.next_timer(), *(until for _, _, until in self._questions)]
        return min(at for at in times if at is not None)

    def _turn(self, now: float) -> None:
        if stopped_s := self._jobs.turn(now):
            self._questions = deque((peer, what, until + stopped_s) for peer, what, until in self._questions)

    # --- what goes out ---

    def messages_to_parent(self) -> list[tuple[str, control.Request]]:
        """The messages to send up, in order, each with the fingerprint of the key to seal it with."""
        messages = list(self._upwards)
        self._upwards.clear()
        return messages

    def stats(self, now: float) -> control.Stats:
        """The report for `fanin stats`: this leaf's part of each job, and its parent."""
        return replace(super().stats(now), parent=self.watch.report(now))

    def _ranks_here(self, job: Job) -> Iterable[int]:
        return job.ranks_at(job.full) if job.spec is not None else sorted(job.members)


def _part(job: Job) -> Part:
    assert isinstance(job.attachment, Part)
    return job.attachment


def _least(*limits: int | None) -> int | None:
    """The smallest of the limits that are not None; None if all are."""
    return min((each for each in limits if each is not None), default=None)

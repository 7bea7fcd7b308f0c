"""The root's side of jobs whose ranks are at leaves: one job of all ranks, in which each leaf is one worker.

Rules
-----
* A leaf passes on every Join of its ranks as Enlist, and says who it is; what each rank is to be told goes back to the
  leaf, as Relayed. The root judges ranks as if they had come directly: sizes, agreement, versions, ranks taken twice.
* Ranks are global: the job is of the size that its ranks say, and the root waits for all of them, wherever they are.
* Which leaf is which branch: in the order of the lowest rank that is at each.

    state    | leaves it when                                | next      | its leaves are told, for each rank
    ---------+-----------------------------------------------+-----------+------------------------------------
    FORMING  | every rank is enlisted                        | STARTING  | Placed
             | a rank is refused, the deadline passes,       | forgotten | Refused
             | memory is out                                 |           |
    STARTING | every leaf is registered, which it does once  | RUNNING   | Started
             | its own workers are                           |           |
             | a rank or a leaf is gone, or a rank asks      | ENDED     | Refused(member-lost)
             | through a leaf that was restarted             |           |
    RUNNING  | a rank or a leaf is gone                      | ENDING    | (the data plane tells them)
    ENDING   | every leaf is gone                            | ENDED     |
    ENDED    | LINGER_S later                                | forgotten | Explanation, to who asks
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fanin.errors import AdmissionError, ConfigurationError
from fanin.protocol import control
from fanin.protocol.control import JOIN_LEASE_S, Enlist, Join, Refusal, Refused, Relayed
from fanin.protocol.events import SwitchEvent, WorkerJoined, WorkerSilent
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import MAX_WORKERS
from fanin.switch.controller.admission import (
    in_words,
    judge_alone,
    judge_beside,
    patience_s,
    peer_refused,
    rank_taken,
    refuse,
)
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import choose_shape
from fanin.switch.controller.job_table import JobTable
from fanin.switch.controller.jobs import Applicant, Job, State, Title, ranks_of
from fanin.switch.controller.outbox import Outbox
from fanin.switch.controller.reports import report_in_tree
from fanin.switch.controller.resources import Resources


@dataclass(slots=True)
class Enlisted(Applicant):
    """One rank, and the leaf that it is at."""

    leaf: str
    gone: str = ""
    """How it went, once it has."""
    lost: bool = False
    """Whether others miss it: it is lost, or gave up before anybody else was missed. Who gives up because of that has
    merely left, and whoever asks late must not be told otherwise."""


@dataclass(slots=True)
class TreeJob(Job[Enlisted]):
    """One job over several leaves, which are its workers."""

    first: Join
    """What the others must agree with."""
    deadline_s: float
    """When it must have formed, and, after that, started."""
    peers: dict[str, bytes] = field(default_factory=dict)
    """Where the answers for each leaf go."""
    addresses: dict[str, str] = field(default_factory=dict)
    branches: tuple[str, ...] = ()
    """The leaves by branch, once the job is on the data plane."""
    epitaph: str = ""
    """What first went wrong, or, if nothing did, which leaf left first."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not been enlisted, or whose leaf is not on the data path yet."""
        if self.spec is None:
            return tuple(rank for rank in range(self.first.size) if rank not in self.members)
        return self.ranks_at(self.spec.full_mask & ~self.registered)

    def ranks_at(self, branches: int) -> tuple[int, ...]:
        """The ranks at the branches whose bits are set."""
        leaves = {self.branches[branch] for branch in ranks_of(branches)}
        return tuple(sorted(rank for rank, member in self.members.items() if member.leaf in leaves))

    def explanation(self) -> control.Explanation:
        """What became of it; the ranks of a leaf that is lost are lost."""
        lost = {rank for rank, member in self.members.items() if member.lost} | set(self.ranks_at(self.lost))
        gave_up = {rank for rank, member in self.members.items() if member.gone and not member.lost}
        because = f": {self.epitaph}" if self.epitaph else ""
        text = control.one_line(f"job {self.first.job!r} is {self.state.value}{because}")
        left = (gave_up | set(self.ranks_at(self.left))) - lost
        return control.Explanation(known=True, text=text, lost=tuple(sorted(lost)), left=tuple(sorted(left)))


class TreeJobs:
    """What happens to these jobs, one by one."""

    def __init__(self, table: JobTable[TreeJob], resources: Resources, plane: DataPlane, outbox: Outbox) -> None:
        self._table, self._resources, self._plane, self._outbox = table, resources, plane, outbox

    def holds(self, index: int) -> bool:
        """Whether the index is one of these jobs'."""
        return index in self._table.placed

    def forms(self, title: Title) -> bool:
        """Whether the title is in use here."""
        return title in self._table.open

    # --- joining ---

    def enlist(self, peer: bytes, request: Enlist, now: float, caller: Caller) -> None:
        """A leaf passes on a Join of one of its ranks, for the first time or again."""
        self._turn(now)
        join, leaf = request.join, request.leaf
        title = (join.job, caller.key)
        job = self._table.open.get(title)
        known = None if job is None else job.members.get(join.rank)
        if job is not None and known is not None and known.join.nonce == join.nonce:
            self._renew(job, known, peer, request, now)
            return
        refused = self._judge(join, job)
        if refused is None and job is None:
            refused = self._resources.judge_new_job(caller.source)
        if refused is None:
            refused = self._resources.judge_new_rank(caller.source if job is None else job.source)
        if refused is not None:
            self._refuse(peer, join, refused)
            private = refused.code in (Refusal.RANK_TAKEN.value, Refusal.QUOTA.value)
            if job is not None and job.state is State.FORMING and not private:
                self._disband(job, peer_refused(join, refused))
            return
        if job is None:
            job = TreeJob(join.job, join, now + patience_s(join), key=caller.key, source=caller.source)
            self._table.open[title] = job
        job.members[join.rank] = Enlisted(join, now, leaf)
        job.peers[leaf], job.addresses[leaf] = peer, request.address
        self._forget_leaves(job)
        if job.missing:
            self._tell(job, join.rank)
        else:
            self._place(job, now)

    def _refuse(self, peer: bytes, join: Join, refused: Refused) -> None:
        self._outbox.count(refused.code)
        self._outbox.send(peer, Relayed(job=join.job, rank=join.rank, refused=refused))

    def _renew(self, job: TreeJob, known: Enlisted, peer: bytes, request: Enlist, now: float) -> None:
        """A rank asks again, through the same leaf or, where that was restarted, through its successor."""
        leaf = request.leaf
        known.renewed_s = now
        if job.state is State.FORMING:
            known.leaf = leaf
        if known.leaf == leaf:
            job.peers[leaf], job.addresses[leaf] = peer, request.address
            self._forget_leaves(job)
            self._tell(job, known.join.rank)
            return
        ranks = tuple(sorted(rank for rank, member in job.members.items() if member.leaf == known.leaf))
        what = f"leaf switch {job.addresses[known.leaf]}, with {in_words(ranks)}, was restarted"
        refused = refuse(Refusal.MEMBER_LOST, f"job {job.name!r}: {what}", "start the job again", ranks)
        self._refuse(peer, known.join, refused)
        if job.state is State.STARTING:
            self._gone(job, what, ranks, now)

    def _forget_leaves(self, job: TreeJob) -> None:
        """Leaves that no rank is at any more: what a job remembers is bounded by its ranks."""
        there = {member.leaf for member in job.members.values()}
        for leaf in job.peers.keys() - there:
            del job.peers[leaf], job.addresses[leaf]

    def _judge(self, join: Join, job: TreeJob | None) -> Refused | None:
        synchronous = join.quorum in (None, join.size) and not join.staleness and not join.max_staleness
        if not synchronous or join.on_worker_loss != "raise":
            return refuse(
                Refusal.QUORUM,
                "a tree of switches is synchronous: every round waits for every worker, and a loss ends the job",
                "leave quorum, staleness and on_worker_loss alone, or use one switch without --parent",
            )
        if (refused := judge_alone(join, ("udp",), tree=True)) is not None or job is None:
            return refused
        if (refused := judge_beside(join, job.first)) is not None:
            return refused
        holder = job.members.get(join.rank)
        if holder is None:
            return None
        running = job.state is not State.FORMING
        free_after_s = self._resources.limits.liveness_timeout_s if running else JOIN_LEASE_S
        return rank_taken(join, holder.join, running, free_after_s)

    def _place(self, job: TreeJob, now: float) -> None:
        lowest: dict[str, int] = {}
        for rank in sorted(job.members):
            lowest.setdefault(job.members[rank].leaf, rank)
        job.branches = tuple(sorted(lowest, key=lambda leaf: lowest[leaf]))
        crowd = max(sum(member.leaf == leaf for member in job.members.values()) for leaf in job.branches)
        if len(job.branches) > MAX_WORKERS or crowd > MAX_WORKERS:
            reason = f"{len(job.branches)} leaves with up to {crowd} ranks each; a switch takes {MAX_WORKERS}"
            self._disband(job, refuse(Refusal.TOO_MANY_WORKERS, reason, "spread the ranks over more leaves"))
            return
        try:
            spec = self._spec(job)
            job.memory_bytes = spec.pool_bytes * len(self._plane.server.ports)
            refused = self._resources.judge_memory(job.memory_bytes, job.source, spec.slots)
            if refused is not None:
                self._disband(job, refused)
                return
            self._plane.server.admit(spec)
            job.ring_bytes, job.wanted_ring_bytes = self._plane.server.ring_bytes(spec.job)
            job.memory_bytes += job.ring_bytes
        except (AdmissionError, ConfigurationError) as error:
            remedy = "start the parent with more --memory, or set FANIN_SLOTS lower"
            self._disband(job, refuse(Refusal.MEMORY, str(error), remedy))
            return
        job.spec, job.state = spec, State.STARTING
        job.deadline_s = now + min(patience_s(member.join) for member in job.members.values())
        self._table.placed[spec.job] = job
        for rank, member in job.members.items():
            member.renewed_s = now
            self._tell(job, rank)

    def _spec(self, job: TreeJob) -> JobSpec:
        shape = choose_shape([member.join for member in job.members.values()], self._plane.buffers)
        spec = self._resources.new_spec(shape, len(job.branches))
        return replace(spec, total_workers=job.first.size, branches=True)

    def _tell(self, job: TreeJob, rank: int) -> None:
        """How far the job is, for one of its ranks."""
        relayed = Relayed(job=job.name, rank=rank)
        if job.spec is None:
            reply = control.Waiting(job=job.name, missing=job.missing)
            relayed = Relayed(job=job.name, rank=rank, waiting=reply)
        elif job.state is State.STARTING:
            relayed = Relayed(job=job.name, rank=rank, placed=self._placed_for(job, job.spec, rank))
        else:
            processes = tuple(job.members[each].join.process for each in range(job.first.size))
            started = control.Started(job=job.name, processes=processes)
            relayed = Relayed(job=job.name, rank=rank, started=started)
        self._outbox.send(job.peers[job.members[rank].leaf], relayed)

    def _placed_for(self, job: TreeJob, spec: JobSpec, rank: int) -> control.Placed:
        branch = job.branches.index(job.members[rank].leaf)
        return control.Placed(
            index=spec.job,
            generation=spec.generation,
            branch=branch,
            token=spec.tokens[branch],
            ranks=job.ranks_at(1 << branch),
            size=job.first.size,
            slots=spec.slots,
            words_per_packet=spec.words_per_packet,
            codes_per_packet=spec.codes_per_packet,
            checksum=spec.checksum,
            liveness_timeout_s=spec.liveness_timeout_s,
            ports=self._plane.server.ports,
        )

    def _disband(self, job: TreeJob, refused: Refused) -> None:
        for rank, member in job.members.items():
            self._outbox.send(job.peers[member.leaf], Relayed(job=job.name, rank=rank, refused=refused))
        del self._table.open[job.title]

    # --- leaving, and worse ---

    def leave(self, leave: control.Leave, now: float, caller: Caller) -> None:
        """A rank has left, or given up, or is lost to its leaf, if it was one of these jobs'."""
        job = self._table.job_of(leave, caller.key)
        if job is None:
            return
        if job.state is State.FORMING:
            self._table.drop(job, leave.rank)
        elif leave.reason or job.state is State.STARTING:
            member = job.members[leave.rank]
            member.gone = leave.reason or "left"
            member.lost = member.lost or leave.lost or job.state in (State.STARTING, State.RUNNING)
            self._gone(job, f"rank {leave.rank} ({member.join.process}) {member.gone}", (leave.rank,), now)

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """The data plane reports on a leaf."""
        job = self._table.placed[event.job]
        assert job.spec is not None
        bit = 1 << event.worker
        if isinstance(event, WorkerJoined):
            job.registered |= bit
            if job.state is State.STARTING and job.registered == job.spec.full_mask:
                job.state = State.RUNNING
                for rank in job.members:
                    self._tell(job, rank)
            return
        ranks = job.ranks_at(bit)
        leaf = f"leaf switch {job.addresses[job.branches[event.worker]]}, with {in_words(ranks)},"
        if isinstance(event, WorkerSilent):
            job.lost |= bit
            self._gone(job, f"{leaf} is lost: it was silent for {event.silent_s:.1f} s", ranks, now, worse=True)
        else:
            job.left |= bit
            self._gone(job, f"{leaf} has left", ranks, now)

    def _gone(self, job: TreeJob, what: str, ranks: tuple[int, ...], now: float, worse: bool = False) -> None:
        assert job.spec is not None
        if worse or not job.epitaph:
            job.epitaph = what
        if job.state is State.STARTING:
            text = f"job {job.name!r} did not start: {what}"
            refused = refuse(Refusal.MEMBER_LOST, text, "see that rank's own error; then start the job again", ranks)
            self._disband(job, refused)
            self._end(job, now)
            return
        if job.state is State.RUNNING:
            job.state = State.ENDING
            del self._table.open[job.title]
        if job.state is State.ENDING and job.lost | job.left == job.spec.full_mask:
            self._end(job, now)

    def _end(self, job: TreeJob, now: float) -> None:
        self._table.end(job, now)
        self._table.bury(job, job.explanation())

    def explain(self, title: Title, generation: int) -> control.Explanation | None:
        """What became of one of these jobs; None for one that is not, or is forgotten."""
        job = self._table.find(title, generation)
        return self._table.epitaph(title, generation) if job is None else job.explanation()

    def hung_up(self, peer: bytes, now: float) -> None:
        """The leaves that asked over this connection may have died."""
        for job in self._table.placed.values():
            for branch, leaf in enumerate(job.branches):
                if job.peers[leaf] == peer and job.state is not State.ENDED:
                    assert job.spec is not None
                    self._plane.server.suspect(job.spec.job, branch)

    # --- time ---

    def handle_timer(self, now: float) -> None:
        """Let go of what has waited too long."""
        self._turn(now)
        for job in list(self._table.open.values()):
            silent = job.lapsed(now)
            if job.state is State.FORMING:
                for rank in silent:
                    self._table.drop(job, rank)
                if job.members and now >= job.deadline_s:
                    reason = f"job {job.name!r}: {in_words(job.missing)} of {job.first.size} did not join in time"
                    remedy = f"see why {in_words(job.missing)} did not start, or allow more FANIN_JOIN_TIMEOUT_S"
                    self._disband(job, refuse(Refusal.JOIN_TIMEOUT, reason, remedy, job.missing))
            elif job.state is State.STARTING and (silent or now >= job.deadline_s):
                ranks = tuple(silent) or job.missing
                self._gone(job, f"{in_words(ranks)} did not reach the data path", ranks, now)
        for job in self._table.forgettable(now):
            assert job.spec is not None
            self._plane.server.remove(job.spec.job)
            del self._table.placed[job.spec.job]

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called."""
        times = self._table.timers()
        for job in self._table.open.values():
            if job.state in (State.FORMING, State.STARTING):
                times.append(job.deadline_s)
        return min(times, default=None)

    def _turn(self, now: float) -> None:
        if stopped_s := self._table.turn(now):
            for job in self._table.open.values():
                job.deadline_s += stopped_s

    def reports(self) -> list[control.JobReport]:
        """What `fanin stats` shows of them."""
        return [self._report(job) for job in [*self._table.placed.values(), *self._table.forming]]

    def _report(self, job: TreeJob) -> control.JobReport:
        explanation = job.explanation()

        def state(rank: int) -> str:
            if rank not in job.members:
                return "missing"
            if rank in explanation.lost:
                return "lost"
            if rank in explanation.left:
                return "left"
            return "waiting" if job.spec is None else "joined" if rank in job.missing else "registered"

        size = job.first.size
        return report_in_tree(job, size, {rank: state(rank) for rank in range(size)}, self._plane.server)

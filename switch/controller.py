"""The controller: forms jobs out of the workers that ask, puts them on the data plane, and knows who is still there.

Rules
-----
* A job is known by its name while ranks may still join, and by index and generation once it is on the data plane.
* Time, randomness and the data plane are passed in; messages go out through `messages_to_send`. No socket, no clock.
* The states of a job, and what moves it from one to the next, are the table in switch/jobs.py.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import fanin
from fanin import control
from fanin.control import JOIN_LEASE_S, Join, Refusal, Refused, Scheme
from fanin.errors import AdmissionError, ConfigurationError
from fanin.events import SwitchEvent, WorkerJoined, WorkerLeft, WorkerSilent
from fanin.job import JobSpec
from fanin.switch.admission import (
    MIN_PATH_MTU,
    in_words,
    judge_alone,
    judge_beside,
    judge_newcomer,
    judge_tune,
    no_memory,
    peer_refused,
    rank_taken,
    refuse,
)
from fanin.switch.data_plane import DataPlane, Limits
from fanin.switch.job_shape import choose_shape
from fanin.switch.jobs import Job, Member, State, explanation_of, ranks_of, report
from fanin.switch.trees import TreeJobs
from fanin.wire import VERSION as WIRE_VERSION

LINGER_S = 1.0
"""How long an ended job stays on the data plane, so that a BYE that is sent again still finds its echo."""
MAX_JOBS = 4096
"""Jobs at one time, forming ones included."""
MAX_EPITAPHS = 256
"""Ended jobs that `Explain` can be told about."""
MAX_INDEX = 0xFFFF
REFUSAL_MEMORY_S = 2.0
"""How long ranks that ask later are told that one of theirs was refused; a restarted job takes longer than that."""
PRIVATE_REFUSALS = (Refusal.RANK_TAKEN.value, Refusal.MEMBER_LOST.value, Refusal.TOO_MANY_JOBS.value)
"""Refusals that do not keep a job from forming without this process, or that its ranks are all told by themselves."""


class Controller:
    """Judges requests and keeps the table of jobs. One thread drives it."""

    def __init__(
        self,
        limits: Limits,
        planes: Mapping[Scheme, DataPlane],
        *,
        random_bits: Callable[[int], int],
        started_s: float,
        engine: str,
        curve: bool = False,
    ) -> None:
        """`random_bits(n)` draws generations and tokens; the rest is for Stats."""
        self._limits = limits
        self._planes = planes
        self._random_bits = random_bits
        self._started_s = started_s
        self.engine = engine
        """Which engine and data servers run, in words."""
        self._curve = curve
        self._open: dict[str, Job] = {}
        """Jobs whose name is in use, by name."""
        self._placed: dict[int, Job] = {}
        """Jobs on the data plane, by index."""
        self._last_index = -1
        self._recent_refusals: dict[str, tuple[float, int, Refused]] = {}
        """By job: until when to tell others that ask of a rank that was refused, that rank, and what they are told."""
        self._outbox: deque[tuple[bytes, control.Reply]] = deque()
        self._epitaphs: deque[tuple[str, int, control.Explanation]] = deque(maxlen=MAX_EPITAPHS)
        self._refused: Counter[str] = Counter()
        self._trees: TreeJobs | None = None
        """Jobs whose ranks are at leaves; they come over udp only."""
        if "udp" in planes:
            self._trees = TreeJobs(
                limits, planes["udp"], random_bits=random_bits, take_index=self._next_index, send=self._send
            )

    # --- what comes in ---

    def receive(self, peer: bytes, request: control.Request, now: float) -> None:
        """Act on a request of `peer`; the answers wait in `messages_to_send`."""
        if isinstance(request, Join):
            self._join(peer, request, now)
        elif isinstance(request, control.Leave):
            self._leave(peer, request, now)
        elif isinstance(request, control.Explain):
            self._send(peer, self._explain(request))
        elif isinstance(request, control.Tune):
            self._tune(peer, request)
        elif isinstance(request, control.Enlist):
            self._enlist(peer, request, now)
        else:
            self._send(peer, self.stats(now))

    def receive_malformed(self, peer: bytes, error: control.ControlError) -> None:
        """Answer bytes that were no message, so that a worker of another version learns why it gets nowhere."""
        remedy = "install the same fanin version on workers and switch"
        code = Refusal.MALFORMED if error.version is None else Refusal.VERSION
        self._refuse(peer, refuse(code, str(error), remedy))

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """Take in what the data plane reports."""
        if self._trees is not None and self._trees.holds(event.job):
            self._trees.handle_event(event, now)
            return
        job = self._placed.get(event.job)
        if job is None or job.spec is None:
            return
        bit = 1 << event.worker
        if isinstance(event, WorkerJoined):
            job.registered |= bit
            if job.state is State.STARTING and job.registered == job.spec.full_mask:
                job.state = State.RUNNING
                self._tell(job, self._standing(job, event.worker))
            elif job.state is State.RUNNING:  # a newcomer
                self._send(job.members[event.worker].peer, self._standing(job, event.worker))
        elif isinstance(event, WorkerSilent):
            if not job.lost:
                job.epitaph = ""
            job.lost |= bit
            self._member_gone(job, event.worker, f"was silent for {event.silent_s:.1f} s", now)
        else:
            assert isinstance(event, WorkerLeft)
            job.left |= bit
            self._member_gone(job, event.worker, "left", now)

    def handle_timer(self, now: float) -> None:
        """Let go of what has waited too long."""
        for job in list(self._open.values()):
            if job.state is State.FORMING:
                self._drop_silent(job, now)
                if job.members and now >= job.deadline_s:
                    self._give_up_forming(job)
            elif job.state is State.STARTING:
                self._check_start(job, now)
            elif job.state is State.RUNNING:
                self._check_arrivals(job, now)
        for job in list(self._placed.values()):
            if job.state is State.ENDED and now >= job.forget_s:
                self._forget(job)
        if self._trees is not None:
            self._trees.handle_timer(now)

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called, or None."""
        times = [job.forget_s for job in self._placed.values() if job.state is State.ENDED]
        for job in self._open.values():
            times.extend(job.members[rank].renewed_s + JOIN_LEASE_S for rank in job.arriving)
            if job.state in (State.FORMING, State.STARTING):
                times.append(job.deadline_s)
                times.extend(member.renewed_s + JOIN_LEASE_S for member in job.members.values())
        if self._trees is not None and (at := self._trees.next_timer()) is not None:
            times.append(at)
        return min(times, default=None)

    def messages_to_send(self) -> list[tuple[bytes, control.Reply]]:
        """What to send, in order, each with the peer that it is for."""
        messages = list(self._outbox)
        self._outbox.clear()
        return messages

    @property
    def live_jobs(self) -> int:
        """Jobs that some worker still takes part in, or waits for."""
        forming = sum(job.state is State.FORMING for job in self._open.values())
        trees = self._trees.live if self._trees is not None else 0
        return forming + trees + sum(job.state is not State.ENDED for job in self._placed.values())

    # --- joining ---

    def _enlist(self, peer: bytes, request: control.Enlist, now: float) -> None:
        """A leaf passes on a Join."""
        join = request.join
        if self._trees is not None and join.job not in self._open:
            self._trees.enlist(peer, request, now, self.memory_free_bytes)
            return
        text = f"other ranks of job {join.job!r} came to this switch directly, or it serves no udp://"
        refused = refuse(Refusal.DISAGREEMENT, text, "let all ranks use leaves, or none")
        self._send(peer, control.Relayed(job=join.job, rank=join.rank, refused=refused))

    def _join(self, peer: bytes, join: Join, now: float) -> None:
        self._catch_up(join.job, now)
        job = self._open.get(join.job)
        if job is not None and (member := job.members.get(join.rank)) and member.join.nonce == join.nonce:
            member.peer, member.renewed_s = peer, now
            self._send(peer, self._standing(job, join.rank))
            return
        refused = self._recently_refused(join, now) or judge_alone(join, self._planes.keys())
        if refused is None and job is not None:
            refused = self._judge_against(join, job)
        elif refused is None and self._trees is not None and self._trees.forms(join.job):
            text = f"other ranks of job {join.job!r} came through leaves of this switch"
            refused = refuse(Refusal.DISAGREEMENT, text, "let all ranks use leaves, or none")
        elif refused is None and len(self._open) + len(self._placed) >= MAX_JOBS:
            refused = refuse(Refusal.TOO_MANY_JOBS, f"{MAX_JOBS} jobs are on this switch", "use another switch")
        if refused is not None:
            self._refuse(peer, refused)
            self._tell_the_others(join, job, refused, now)
            return
        if job is not None and job.state is State.RUNNING:
            self._admit_newcomer(job, peer, join, now)
            return
        if job is None:
            job = self._open[join.job] = Job(join, opened_s=now, deadline_s=now + join.join_timeout_s)
        job.deadline_s = min(job.deadline_s, now + join.join_timeout_s)
        job.members[join.rank] = Member(join, peer, now)
        if job.missing:
            self._send(peer, self._standing(job, join.rank))
        else:
            self._place(job, now)

    def _tell_the_others(self, join: Join, job: Job | None, refused: Refused, now: float) -> None:
        """A rank that is refused never comes: those that wait for it, or will, need not find out by waiting."""
        if refused.code in PRIVATE_REFUSALS or (job is not None and job.state is not State.FORMING):
            return
        verdict = peer_refused(join, refused)
        if job is not None:
            self._disband(job, verdict)
        self._recent_refusals[join.job] = (now + REFUSAL_MEMORY_S, join.rank, verdict)
        while len(self._recent_refusals) > MAX_JOBS:
            del self._recent_refusals[next(iter(self._recent_refusals))]

    def _recently_refused(self, join: Join, now: float) -> Refused | None:
        """What another rank of the same job was just refused for; forgotten when that rank itself asks again."""
        until_s, rank, verdict = self._recent_refusals.get(join.job, (now, join.rank, None))
        if rank == join.rank or until_s <= now:
            self._recent_refusals.pop(join.job, None)
            return None
        return verdict

    def _catch_up(self, name: str, now: float) -> None:
        """Events lag behind: a job whose members have just left must not stand in the way of its successor."""
        job = self._open.get(name)
        if job is None or job.state is not State.RUNNING:
            return
        assert job.spec is not None
        _, lost, left = self._planes[job.first.scheme].server.members(job.spec.job)
        for rank in ranks_of(lost & ~job.lost):
            self.handle_event(WorkerSilent(job.spec.job, rank, job.spec.liveness_timeout_s), now)
        for rank in ranks_of(left & ~job.left):
            self.handle_event(WorkerLeft(job.spec.job, rank), now)

    def _judge_against(self, join: Join, job: Job) -> Refused | None:
        if (refused := judge_beside(join, job.first)) is not None:
            return refused
        if job.place_is_free(join.rank):
            assert job.spec is not None
            return judge_newcomer(join, job.spec)
        if (holder := job.members.get(join.rank)) is not None:
            running = job.state is not State.FORMING
            free_after_s = self._limits.liveness_timeout_s if running else JOIN_LEASE_S
            return rank_taken(join, holder.join, running, free_after_s)
        return None

    def _standing(self, job: Job, rank: int) -> control.Reply:
        """How far the job is, for one of its ranks."""
        if job.spec is None:
            return control.Waiting(job=job.name, missing=job.missing)
        if job.state is State.STARTING or rank in job.arriving:
            return self._admitted(job, job.spec, rank)
        processes = tuple(job.members[each].join.process for each in range(job.first.size))
        return control.Started(job=job.name, processes=processes)

    def _admitted(self, job: Job, spec: JobSpec, rank: int) -> control.Admitted:
        running = job.state is State.RUNNING
        return control.Admitted(
            job=job.name,
            rank=rank,
            index=spec.job,
            generation=spec.generation,
            workers=spec.workers,
            quorum=spec.quorum,
            staleness=spec.staleness,
            max_staleness=spec.largest_staleness,
            slots=spec.slots,
            words_per_packet=spec.words_per_packet,
            codes_per_packet=spec.codes_per_packet,
            checksum=spec.checksum,
            liveness_timeout_s=spec.liveness_timeout_s,
            on_worker_loss=job.first.on_worker_loss,
            token=spec.tokens[rank],
            scheme=job.first.scheme,
            ports=self._planes[job.first.scheme].server.ports,
            # A newcomer has no ring there: the rings' tokens are those of the processes that founded the job.
            shared_memory=() if running else self._planes[job.first.scheme].server.shared_memory(spec.job),
            running=running,
            data_host=self._planes[job.first.scheme].host,
        )

    def _place(self, job: Job, now: float) -> None:
        """All ranks are there: put the job on the data plane, or refuse all of them."""
        try:
            spec = self._make_spec(job)
        except ConfigurationError as error:
            self._disband(job, refuse(Refusal.SHAPE, str(error), "change or unset the options named"))
            return
        server, flows = self._planes[job.first.scheme].server, self._flows(job.first.scheme)
        job.memory_bytes = spec.pool_bytes * flows
        if job.memory_bytes > self.memory_free_bytes:
            for ended in [placed for placed in self._placed.values() if placed.state is State.ENDED]:
                self._forget(ended)
        holders = [placed.name for placed in self._placed.values()]
        if job.memory_bytes > (free := self.memory_free_bytes):
            self._disband(job, no_memory(job.memory_bytes, free, spec.slots, holders))
            return
        try:
            server.admit(spec)
        except AdmissionError as error:
            remedy = "start the switch with more --memory, or set FANIN_SLOTS lower"
            self._disband(job, refuse(Refusal.MEMORY, str(error), remedy))
            return
        except ConfigurationError as error:
            self._disband(job, refuse(Refusal.SHAPE, str(error), "change or unset the options named"))
            return
        job.spec, job.state = spec, State.STARTING
        job.deadline_s = now + min(member.join.join_timeout_s for member in job.members.values())
        self._placed[spec.job] = job
        for rank, member in job.members.items():
            member.renewed_s = now
            self._send(member.peer, self._admitted(job, spec, rank))

    def _make_spec(self, job: Job) -> JobSpec:
        first = job.first
        shape = choose_shape([member.join for member in job.members.values()], self._planes[first.scheme].buffers)
        return JobSpec(
            job=self._next_index(),
            generation=self._random_bits(32),
            workers=first.size,
            quorum=first.size if first.quorum is None else first.quorum,
            staleness=first.staleness,
            max_staleness=first.max_staleness,
            slots=shape.slots,
            words_per_packet=shape.words_per_packet,
            codes_per_packet=shape.codes_per_packet,
            tokens=tuple(self._random_bits(64) for _ in range(first.size)),
            checksum=shape.checksum,
            liveness_timeout_s=self._limits.liveness_timeout_s,
            survives_loss=job.survives_loss,
        )

    def _next_index(self) -> int:
        """The index longest unused: packets of a job that has just ended must not meet a new one."""
        index = self._last_index
        while True:  # ends: MAX_JOBS is below the number of indices
            index = (index + 1) & MAX_INDEX
            if index not in self._placed and not (self._trees is not None and self._trees.holds(index)):
                self._last_index = index
                return index

    # --- while it runs ---

    def _admit_newcomer(self, job: Job, peer: bytes, join: Join, now: float) -> None:
        """A new process takes the place of a rank that was lost or has left; it is live from its HELLO on."""
        spec, bit = job.spec, 1 << join.rank
        assert spec is not None
        token = self._random_bits(64)
        self._planes[job.first.scheme].server.admit_worker(spec.job, join.rank, token)
        job.spec = replace(spec, tokens=(*spec.tokens[: join.rank], token, *spec.tokens[join.rank + 1 :]))
        job.registered, job.lost, job.left = job.registered & ~bit, job.lost & ~bit, job.left & ~bit
        job.members[join.rank] = Member(join, peer, now)
        self._send(peer, self._standing(job, join.rank))

    def _check_arrivals(self, job: Job, now: float) -> None:
        """A newcomer that is silent before it reaches the data path: its place is free again."""
        for rank in job.arriving:
            if now >= job.members[rank].renewed_s + JOIN_LEASE_S:
                job.lost |= 1 << rank
                self._go_on_without(job, rank, now)

    def _go_on_without(self, job: Job, rank: int, now: float) -> None:
        """Rounds close without a rank; without any, the job ends."""
        assert job.spec is not None
        self._planes[job.first.scheme].server.evict(job.spec.job, rank)
        if job.departed == job.spec.full_mask:
            del self._open[job.name]
            self._end(job, now)

    def _tune(self, peer: bytes, tune: control.Tune) -> None:
        """Change K and S of a running job, or tell what they are."""
        job = self._open.get(tune.job)
        spec = job.spec if job is not None and job.state is State.RUNNING else None
        refused = judge_tune(tune, spec)
        if refused is not None:
            self._refuse(peer, refused)
            return
        assert job is not None
        assert spec is not None
        server = self._planes[job.first.scheme].server
        if tune.quorum is not None:
            server.set_quorum(spec.job, tune.quorum)
            spec = replace(spec, quorum=tune.quorum)
        if tune.staleness is not None:
            largest = spec.largest_staleness
            try:
                server.set_staleness(spec.job, tune.staleness)
            except ConfigurationError as error:  # not every switch can
                self._refuse(peer, refuse(Refusal.STALENESS, str(error), "start the job anew with that staleness"))
                return
            spec = replace(spec, staleness=tune.staleness, max_staleness=largest)
        job.spec = spec
        self._send(
            peer,
            control.Tuned(
                job=job.name, quorum=spec.quorum, staleness=spec.staleness, max_staleness=spec.largest_staleness
            ),
        )

    def adopt(self, spec: JobSpec, scheme: Scheme, now: float) -> None:
        """Take over a job that an earlier controller has put on the data plane, and that goes on meanwhile.

        Nobody knows its name any more, nor which processes its ranks are.
        """
        ranks = [
            Join(
                job=f"job {spec.job} of an earlier controller",
                rank=rank,
                size=spec.workers,
                nonce="",
                wire_version=WIRE_VERSION,
                software=fanin.__version__,
                process="unknown process",
                scheme=scheme,
                path_mtu=MIN_PATH_MTU,
                receive_buffer_bytes=0,
                quorum=spec.quorum,
                staleness=spec.staleness,
                max_staleness=spec.max_staleness,
            )
            for rank in range(spec.workers)
        ]
        registered, lost, left = self._planes[scheme].server.members(spec.job)
        job = Job(ranks[0], opened_s=now, deadline_s=now, state=State.RUNNING, spec=spec, memory_bytes=spec.pool_bytes)
        job.members = {each.rank: Member(each, b"", now) for each in ranks}
        job.registered, job.lost, job.left = registered, lost, left
        self._placed[spec.job] = self._open[job.name] = job
        self._last_index = max(self._last_index, spec.job)
        if gone := lost | left:
            self._member_gone(job, next(ranks_of(gone)), "had gone before this controller was started", now)

    # --- leaving, and worse ---

    def _leave(self, peer: bytes, leave: control.Leave, now: float) -> None:
        for job in [*self._open.values(), *self._placed.values()]:
            member = job.members.get(leave.rank)
            if job.name != leave.job or member is None or member.join.nonce != leave.nonce:
                continue
            if job.state is State.FORMING:
                self._drop(job, leave.rank)
            elif job.state is not State.ENDED:
                member.departed = True
                self._member_gone(job, leave.rank, f"gave up: {leave.reason}" if leave.reason else "left", now)
            break
        else:
            if self._trees is not None:
                self._trees.leave(leave, now)
        self._send(peer, control.Left(job=leave.job, rank=leave.rank))

    def _member_gone(self, job: Job, rank: int, how: str, now: float) -> None:
        if job.state is State.STARTING:
            self._abort(job, rank, how, now)
            return
        if job.state is State.RUNNING and job.survives_loss:
            job.epitaph = f"rank {rank} {how}"
            self._go_on_without(job, rank, now)
            return
        if job.state is State.RUNNING:
            job.state = State.ENDING
            del self._open[job.name]
        job.epitaph = job.epitaph or f"rank {rank} {how}"
        assert job.spec is not None
        if job.state is State.ENDING and job.departed == job.spec.full_mask:
            self._end(job, now)

    def _abort(self, job: Job, rank: int, how: str, now: float) -> None:
        """A job that was starting cannot start."""
        holder = job.members[rank].join.process
        job.epitaph = f"rank {rank} ({holder}) {how}"
        remedy = "see that rank's own error; then start the job again"
        refused = refuse(Refusal.MEMBER_LOST, f"job {job.name!r} did not start: {job.epitaph}", remedy, [rank])
        for other, member in job.members.items():
            if other != rank:
                self._refuse(member.peer, refused)
        del self._open[job.name]
        self._end(job, now)

    def _end(self, job: Job, now: float) -> None:
        job.state, job.forget_s = State.ENDED, now + LINGER_S
        assert job.spec is not None
        self._epitaphs.append((job.name, job.spec.generation, explanation_of(job)))

    def _forget(self, job: Job) -> None:
        """Take an ended job off the data plane."""
        assert job.spec is not None
        self._planes[job.first.scheme].server.remove(job.spec.job)
        del self._placed[job.spec.job]

    def _check_start(self, job: Job, now: float) -> None:
        """Whether a job that is starting has waited too long, for a process or for its data path."""
        for rank, member in job.members.items():
            if now >= member.renewed_s + JOIN_LEASE_S:
                job.lost |= 1 << rank
                self._abort(job, rank, "died or stopped while the job was starting", now)
                return
        if now >= job.deadline_s:
            self._abort(job, job.missing[0], "did not reach the data path in time", now)

    def _drop_silent(self, job: Job, now: float) -> None:
        for rank in [rank for rank, member in job.members.items() if now >= member.renewed_s + JOIN_LEASE_S]:
            self._drop(job, rank)

    def _drop(self, job: Job, rank: int) -> None:
        """A rank no longer waits for a job that is still forming."""
        del job.members[rank]
        if not job.members:
            del self._open[job.name]
        elif rank == job.first.rank:
            job.first = next(iter(job.members.values())).join

    def _give_up_forming(self, job: Job) -> None:
        missing = job.missing
        reason = f"job {job.name!r}: {in_words(missing)} of {job.first.size} did not join in time"
        remedy = f"see why {in_words(missing)} did not start, or give FANIN_JOIN_TIMEOUT_S more than now"
        self._disband(job, refuse(Refusal.JOIN_TIMEOUT, reason, remedy, missing))

    def _disband(self, job: Job, refused: Refused) -> None:
        """Refuse every rank of a job that is still forming, and forget it."""
        for member in job.members.values():
            self._refuse(member.peer, refused)
        del self._open[job.name]

    # --- answers ---

    def _explain(self, request: control.Explain) -> control.Explanation:
        for job in self._placed.values():
            if job.spec is not None and (job.name, job.spec.generation) == (request.job, request.generation):
                return explanation_of(job)
        for name, generation, explanation in self._epitaphs:
            if (name, generation) == (request.job, request.generation):
                return explanation
        if self._trees is not None:
            explanation_of_tree = self._trees.explain(request.job, request.generation)
            if explanation_of_tree is not None:
                return explanation_of_tree
        return control.Explanation(known=False, text="this switch never had that job; it may have been restarted")

    def stats(self, now: float) -> control.Stats:
        """Everything that `fanin stats` shows."""
        forming = [job for job in self._open.values() if job.spec is None]
        return control.Stats(
            software=fanin.__version__,
            wire_version=WIRE_VERSION,
            engine=self.engine,
            uptime_s=now - self._started_s,
            memory_bytes=self._limits.memory_bytes,
            memory_used_bytes=self._limits.memory_bytes - self.memory_free_bytes,
            curve=self._curve,
            data=tuple(
                control.DataReport(
                    scheme=scheme,
                    description=plane.server.description,
                    ports=plane.server.ports,
                    counters=plane.server.counters(),
                )
                for scheme, plane in self._planes.items()
            ),
            jobs=(
                *(self._report(job, now) for job in [*self._placed.values(), *forming]),
                *(self._trees.reports() if self._trees is not None else ()),
            ),
            refused=dict(self._refused),
        )

    def _report(self, job: Job, now: float) -> control.JobReport:
        server = self._planes[job.first.scheme].server
        counters = server.job_counters(job.spec.job) if job.spec else {}
        return report(job, now, len(server.ports), counters)

    @property
    def memory_free_bytes(self) -> int:
        """Of the pool, what no job holds."""
        trees = self._trees.memory_bytes if self._trees is not None else 0
        return self._limits.memory_bytes - trees - sum(job.memory_bytes for job in self._placed.values())

    def _flows(self, scheme: Scheme) -> int:
        return len(self._planes[scheme].server.ports) if scheme in self._planes else 0

    def _send(self, peer: bytes, reply: control.Reply) -> None:
        self._outbox.append((peer, reply))

    def _refuse(self, peer: bytes, refused: Refused) -> None:
        self._refused[refused.code] += 1
        self._send(peer, refused)

    def _tell(self, job: Job, reply: control.Reply) -> None:
        for member in job.members.values():
            self._send(member.peer, reply)

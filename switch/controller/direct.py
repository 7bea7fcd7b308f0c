"""Jobs whose ranks come to this switch themselves: formed, put on the data plane, watched, taken off it.

The states of such a job, and what moves it from one to the next, are the table in switch/controller/jobs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fanin.errors import AdmissionError, ConfigurationError
from fanin.protocol import control
from fanin.protocol.control import JOIN_LEASE_S, Join, Refusal, Refused, Scheme
from fanin.protocol.events import SwitchEvent, WorkerJoined, WorkerLeft, WorkerSilent
from fanin.protocol.job import JobSpec
from fanin.switch.controller.admission import (
    in_words,
    judge_alone,
    judge_beside,
    judge_newcomer,
    judge_tune,
    patience_s,
    rank_taken,
    refuse,
)
from fanin.switch.controller.adoption import adopted
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import choose_shape
from fanin.switch.controller.job_table import JobTable
from fanin.switch.controller.jobs import DirectJob, Member, State, Title, ranks_of
from fanin.switch.controller.outbox import Outbox
from fanin.switch.controller.recent_refusals import RecentRefusals
from fanin.switch.controller.reports import admission, report_direct
from fanin.switch.controller.resources import Resources

START_TIMEOUT_S = 60.0
"""Longest that a job may hold memory before all of its data paths are open: twelve times what a worker waits for its
own (connect_timeout_s)."""
HOLD_S = 5.0
"""As long as this it holds memory that others need before the first one is."""


class DirectJobs:
    """What happens to these jobs, one by one."""

    def __init__(
        self,
        table: JobTable[DirectJob],
        resources: Resources,
        planes: Mapping[Scheme, DataPlane],
        outbox: Outbox,
    ) -> None:
        self._table, self._resources, self._planes, self._outbox = table, resources, planes, outbox
        self._refusals = RecentRefusals()

    def forms(self, title: Title) -> bool:
        """Whether the title is in use here."""
        return title in self._table.open

    # --- joining ---

    def join(self, peer: bytes, join: Join, now: float, caller: Caller, *, through_leaves: bool) -> None:
        """A rank asks, for the first time or again. `through_leaves`: others of its job have come that way."""
        self._turn(now)
        title = (join.job, caller.key)
        self._catch_up(title, now)
        job = self._table.open.get(title)
        if job is not None and (member := job.members.get(join.rank)) and member.join.nonce == join.nonce:
            member.peer, member.renewed_s = peer, now
            self._outbox.send(peer, self._standing(job, join.rank))
            return
        refused = self._judge(join, job, now, caller, through_leaves)
        if refused is not None:
            self._outbox.refuse(peer, refused)
            if job is None or job.state is State.FORMING:
                verdict = self._refusals.remember(join, caller.key, refused, now)
                if verdict is not None and job is not None:
                    self._disband(job, verdict)
            return
        if job is not None and job.state is State.RUNNING:
            self._admit_newcomer(job, peer, join, now)
            return
        if job is None:
            job = DirectJob(
                join.job, join, key=caller.key, source=caller.source, opened_s=now, deadline_s=now + patience_s(join)
            )
            self._table.open[title] = job
        job.deadline_s = min(job.deadline_s, now + patience_s(join))
        job.members[join.rank] = Member(join, now, peer)
        if job.missing:
            self._outbox.send(peer, self._standing(job, join.rank))
        else:
            self._place(job, now)

    def _judge(
        self, join: Join, job: DirectJob | None, now: float, caller: Caller, through_leaves: bool
    ) -> Refused | None:
        """Why the rank may not join `job`, the one of that title (None: a new one); None when it may."""
        refused = self._refusals.judge(join, caller.key, now) or judge_alone(join, self._planes.keys())
        if refused is not None:
            return refused
        if job is not None:
            return self._judge_against(join, job) or self._resources.judge_new_rank(job.source)
        if through_leaves:
            text = f"other ranks of job {join.job!r} came through leaves of this switch"
            return refuse(Refusal.DISAGREEMENT, text, "let all ranks use leaves, or none")
        return self._resources.judge_new_job(caller.source)

    def _judge_against(self, join: Join, job: DirectJob) -> Refused | None:
        if (refused := judge_beside(join, job.first)) is not None:
            return refused
        if job.place_is_free(join.rank):
            assert job.spec is not None
            return judge_newcomer(join, job.spec)
        if (holder := job.members.get(join.rank)) is not None:
            running = job.state is not State.FORMING
            free_after_s = self._resources.limits.liveness_timeout_s if running else JOIN_LEASE_S
            return rank_taken(join, holder.join, running, free_after_s)
        return None

    def _catch_up(self, title: Title, now: float) -> None:
        """Events lag behind: a job whose members have just left must not stand in the way of its successor."""
        job = self._table.open.get(title)
        if job is None or job.state is not State.RUNNING:
            return
        assert job.spec is not None
        _, lost, left = self._plane(job).server.members(job.spec.job)
        for rank in ranks_of(lost & ~job.lost):
            self.handle_event(WorkerSilent(job.spec.job, rank, job.spec.liveness_timeout_s), now)
        for rank in ranks_of(left & ~job.left):
            self.handle_event(WorkerLeft(job.spec.job, rank), now)

    def _standing(self, job: DirectJob, rank: int) -> control.Reply:
        """How far the job is, for one of its ranks."""
        if job.spec is None:
            return control.Waiting(job=job.name, missing=job.missing)
        if job.state is State.STARTING or rank in job.arriving:
            return self._admitted(job, job.spec, rank)
        processes = tuple(job.members[each].join.process for each in range(job.first.size))
        return control.Started(job=job.name, processes=processes)

    def _admitted(self, job: DirectJob, spec: JobSpec, rank: int) -> control.Admitted:
        plane = self._plane(job)
        admitted = admission(job.name, rank, spec, rank, job.first.scheme, plane.server)
        if job.state is State.RUNNING:
            # A newcomer has no ring there: the rings' tokens are those of the processes that founded the job.
            admitted = replace(admitted, running=True, shared_memory=())
        return replace(admitted, data_host=plane.host)

    # --- onto the data plane ---

    def _place(self, job: DirectJob, now: float) -> None:
        """All ranks are there: put the job on the data plane, or refuse all of them."""
        try:
            spec = self._make_spec(job)
        except ConfigurationError as error:
            self._disband(job, refuse(Refusal.SHAPE, str(error), "change or unset the options named"))
            return
        server = self._plane(job).server
        job.memory_bytes = spec.pool_bytes * len(server.ports)
        if job.memory_bytes > self._resources.free_bytes:
            self._make_room(job.memory_bytes, now)
        refused = self._resources.judge_memory(job.memory_bytes, job.source, spec.slots)
        if refused is not None:
            self._disband(job, refused)
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
        job.ring_bytes, job.wanted_ring_bytes = server.ring_bytes(spec.job)
        job.memory_bytes += job.ring_bytes
        job.spec, job.state = spec, State.STARTING
        job.deadline_s = now + min(START_TIMEOUT_S, *(patience_s(member.join) for member in job.members.values()))
        job.placed_s = now
        self._table.placed[spec.job] = job
        for rank, member in job.members.items():
            member.renewed_s = now
            self._outbox.send(member.peer, self._admitted(job, spec, rank))

    def _make_room(self, needed_bytes: int, now: float) -> None:
        """Take off the data plane who has ended, and, oldest first, who keeps others waiting for its data path."""
        for ended in [placed for placed in self._table.placed.values() if placed.state is State.ENDED]:
            self._forget(ended)
        idle = [
            placed
            for placed in self._table.placed.values()
            if placed.state is State.STARTING and not placed.registered and now >= placed.placed_s + HOLD_S
        ]
        for placed in sorted(idle, key=lambda each: each.placed_s):
            if needed_bytes <= self._resources.free_bytes:
                return
            what = f"did not reach the data path within {HOLD_S:g} s, and another job needs the memory"
            self._abort(placed, placed.missing[0], what, now)
            self._forget(placed)

    def _make_spec(self, job: DirectJob) -> JobSpec:
        first = job.first
        shape = choose_shape([member.join for member in job.members.values()], self._plane(job).buffers)
        return replace(
            self._resources.new_spec(shape, first.size),
            quorum=first.size if first.quorum is None else first.quorum,
            staleness=first.staleness,
            max_staleness=first.max_staleness,
            survives_loss=job.survives_loss,
        )

    def adopt(self, spec: JobSpec, scheme: Scheme, now: float) -> None:
        """Take over a job that an earlier controller has put on the data plane, and that goes on meanwhile."""
        job = adopted(spec, scheme, now)
        job.registered, job.lost, job.left = self._planes[scheme].server.members(spec.job)
        self._table.placed[spec.job] = self._table.open[job.title] = job
        self._resources.pass_over(spec.job)
        if gone := job.lost | job.left:
            self._member_gone(job, next(ranks_of(gone)), "had gone before this controller was started", now)

    # --- while it runs ---

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """The data plane reports on a worker."""
        job = self._table.placed.get(event.job)
        if job is None or job.spec is None:
            return
        bit = 1 << event.worker
        if isinstance(event, WorkerJoined):
            job.registered |= bit
            if job.state is State.STARTING and job.registered == job.spec.full_mask:
                job.state = State.RUNNING
                for member in job.members.values():
                    self._outbox.send(member.peer, self._standing(job, event.worker))
            elif job.state is State.RUNNING:  # a newcomer
                self._outbox.send(job.members[event.worker].peer, self._standing(job, event.worker))
        elif isinstance(event, WorkerSilent):
            if not job.lost:
                job.epitaph = ""
            job.lost |= bit
            self._member_gone(job, event.worker, f"was silent for {event.silent_s:.1f} s", now)
        else:
            assert isinstance(event, WorkerLeft)
            job.left |= bit
            self._member_gone(job, event.worker, "left", now)

    def _admit_newcomer(self, job: DirectJob, peer: bytes, join: Join, now: float) -> None:
        """A new process takes the place of a rank that was lost or has left; it is live from its HELLO on."""
        spec, bit = job.spec, 1 << join.rank
        assert spec is not None
        token = self._resources.draw_token()
        self._plane(job).server.admit_worker(spec.job, join.rank, token)
        job.spec = replace(spec, tokens=(*spec.tokens[: join.rank], token, *spec.tokens[join.rank + 1 :]))
        job.registered, job.lost, job.left = job.registered & ~bit, job.lost & ~bit, job.left & ~bit
        job.members[join.rank] = Member(join, now, peer)
        self._outbox.send(peer, self._standing(job, join.rank))

    def tune(self, peer: bytes, tune: control.Tune, caller: Caller) -> None:
        """Change K and S of a running job, or tell what they are: for its own ranks, and for operators."""
        jobs = [job for job in self._table.open.values() if job.name == tune.job and job.state is State.RUNNING]
        if not caller.operator:
            jobs = [job for job in jobs if job.key == caller.key]
        if tune.index is not None:
            jobs = [job for job in jobs if job.spec is not None and job.spec.job == tune.index]
        if len(jobs) > 1:
            indices = ", ".join(str(job.spec.job) for job in jobs if job.spec is not None)
            self._outbox.refuse(
                peer,
                refuse(
                    Refusal.DISAGREEMENT,
                    f"{len(jobs)} jobs of different owners are called {tune.job!r}",
                    f"say which of them: --index {indices}",
                ),
            )
            return
        job = jobs[0] if jobs else None
        spec = None if job is None else job.spec
        refused = judge_tune(tune, spec)
        if refused is not None:
            self._outbox.refuse(peer, refused)
            return
        assert job is not None
        assert spec is not None
        server = self._plane(job).server
        if tune.quorum is not None:
            server.set_quorum(spec.job, tune.quorum)
            spec = replace(spec, quorum=tune.quorum)
        if tune.staleness is not None:
            largest = spec.largest_staleness
            try:
                server.set_staleness(spec.job, tune.staleness)
            except ConfigurationError as error:  # not every switch can
                refused = refuse(Refusal.STALENESS, str(error), "start the job anew with that staleness")
                self._outbox.refuse(peer, refused)
                return
            spec = replace(spec, staleness=tune.staleness, max_staleness=largest)
        job.spec = spec
        tuned = control.Tuned(
            job=job.name, quorum=spec.quorum, staleness=spec.staleness, max_staleness=spec.largest_staleness
        )
        self._outbox.send(peer, tuned)

    # --- leaving, and worse ---

    def leave(self, leave: control.Leave, now: float, caller: Caller) -> bool:
        """A rank has left, or has given up; whether it was one of these jobs'."""
        job = self._table.job_of(leave, caller.key)
        if job is None:
            return False
        if job.state is State.FORMING:
            self._drop(job, leave.rank)
        elif job.state is not State.ENDED:
            job.members[leave.rank].departed = True
            self._member_gone(job, leave.rank, f"gave up: {leave.reason}" if leave.reason else "left", now)
        return True

    def _member_gone(self, job: DirectJob, rank: int, how: str, now: float) -> None:
        if job.state is State.STARTING:
            self._abort(job, rank, how, now)
            return
        if job.state is State.RUNNING and job.survives_loss:
            job.epitaph = f"rank {rank} {how}"
            self._go_on_without(job, rank, now)
            return
        if job.state is State.RUNNING:
            job.state = State.ENDING
            del self._table.open[job.title]
        job.epitaph = job.epitaph or f"rank {rank} {how}"
        assert job.spec is not None
        if job.state is State.ENDING and job.departed == job.spec.full_mask:
            self._end(job, now)

    def _go_on_without(self, job: DirectJob, rank: int, now: float) -> None:
        """Rounds close without a rank; without any, the job ends."""
        assert job.spec is not None
        self._plane(job).server.evict(job.spec.job, rank)
        if job.departed == job.spec.full_mask:
            del self._table.open[job.title]
            self._end(job, now)

    def _abort(self, job: DirectJob, rank: int, how: str, now: float) -> None:
        """A job that was starting cannot start."""
        holder = job.members[rank].join.process
        job.epitaph = f"rank {rank} ({holder}) {how}"
        remedy = "see that rank's own error; then start the job again"
        refused = refuse(Refusal.MEMBER_LOST, f"job {job.name!r} did not start: {job.epitaph}", remedy, [rank])
        for other, member in job.members.items():
            if other != rank:
                self._outbox.refuse(member.peer, refused)
        del self._table.open[job.title]
        self._end(job, now)

    def _end(self, job: DirectJob, now: float) -> None:
        self._table.end(job, now)
        self._table.bury(job, job.explanation())

    def _drop(self, job: DirectJob, rank: int) -> None:
        """A rank no longer waits for a job that is still forming."""
        self._table.drop(job, rank)
        if job.members and rank == job.first.rank:
            job.first = next(iter(job.members.values())).join

    def _disband(self, job: DirectJob, refused: Refused) -> None:
        """Refuse every rank of a job that is still forming, and forget it."""
        for member in job.members.values():
            self._outbox.refuse(member.peer, refused)
        del self._table.open[job.title]

    def _forget(self, job: DirectJob) -> None:
        """Take an ended job off the data plane."""
        assert job.spec is not None
        self._plane(job).server.remove(job.spec.job)
        del self._table.placed[job.spec.job]

    # --- time ---

    def handle_timer(self, now: float) -> None:
        """Let go of what has waited too long."""
        self._turn(now)
        for job in list(self._table.open.values()):
            if job.state is State.FORMING:
                for rank in job.lapsed(now):
                    self._drop(job, rank)
                if job.members and now >= job.deadline_s:
                    self._give_up_forming(job)
            elif job.state is State.STARTING:
                self._check_start(job, now)
            elif job.state is State.RUNNING:
                self._check_arrivals(job, now)
        for job in self._table.forgettable(now):
            self._forget(job)

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called, or None."""
        times = self._table.timers()
        for job in self._table.open.values():
            times.extend(self._table.leases([job.members[rank].lapses_s for rank in job.arriving]))
            if job.state in (State.FORMING, State.STARTING):
                times.append(job.deadline_s)
        return min(times, default=None)

    def _turn(self, now: float) -> None:
        if stopped_s := self._table.turn(now):
            for job in self._table.open.values():
                job.deadline_s += stopped_s

    def _give_up_forming(self, job: DirectJob) -> None:
        missing = job.missing
        reason = f"job {job.name!r}: {in_words(missing)} of {job.first.size} did not join in time"
        remedy = f"see why {in_words(missing)} did not start, or give FANIN_JOIN_TIMEOUT_S more than now"
        self._disband(job, refuse(Refusal.JOIN_TIMEOUT, reason, remedy, missing))

    def _check_start(self, job: DirectJob, now: float) -> None:
        """Whether a job that is starting has waited too long, for a process or for its data path."""
        for rank in job.lapsed(now):
            job.lost |= 1 << rank
            self._abort(job, rank, "died or stopped while the job was starting", now)
            return
        if now >= job.deadline_s:
            self._abort(job, job.missing[0], "did not reach the data path in time", now)

    def _check_arrivals(self, job: DirectJob, now: float) -> None:
        """A newcomer that is silent before it reaches the data path: its place is free again."""
        for rank in job.arriving:
            if now >= job.members[rank].lapses_s:
                job.lost |= 1 << rank
                self._go_on_without(job, rank, now)

    def hung_up(self, peer: bytes, now: float) -> None:
        """Ranks that asked over this connection may have died: unless they give a sign of life soon, they have."""
        for job in {id(job): job for job in [*self._table.open.values(), *self._table.placed.values()]}.values():
            for rank, member in job.members.items():
                if member.peer != peer or job.state is State.ENDED:
                    continue
                member.hung_up(now)
                if job.spec is not None and not job.departed >> rank & 1:
                    self._plane(job).server.suspect(job.spec.job, rank)

    # --- what is asked of them ---

    def explain(self, title: Title, generation: int) -> control.Explanation | None:
        """What became of one of these jobs; None for one that is not, or is forgotten."""
        job = self._table.find(title, generation)
        return self._table.epitaph(title, generation) if job is None else job.explanation()

    def reports(self, now: float) -> list[control.JobReport]:
        """What `fanin stats` shows of them."""
        return [self._report(job, now) for job in [*self._table.placed.values(), *self._table.forming]]

    def _report(self, job: DirectJob, now: float) -> control.JobReport:
        server = self._plane(job).server
        counters = server.job_counters(job.spec.job) if job.spec else {}
        return report_direct(job, now, len(server.ports), counters)

    def _plane(self, job: DirectJob) -> DataPlane:
        return self._planes[job.first.scheme]

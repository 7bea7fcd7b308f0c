"""The life of every job at a switch, however its ranks are attached: formed, put on the data plane, watched, removed.

The rules are R-JOB in docs/control.md. `LIFE` (jobs.py) is the table of transitions, with the announcements to the
ranks; `_move` is the only place that changes a job's state, frees its id and takes it off the data plane. The job's
`attachment` holds all differences between ranks that reach this switch directly, through a leaf, or as their leaf.
Every refusal is counted under its code. Time, randomness and the data plane are passed in; messages wait in the
outbox.
"""

from __future__ import annotations

from dataclasses import replace

from fanin.errors import AdmissionError, ConfigurationError
from fanin.protocol import control
from fanin.protocol.control import JOIN_LEASE_S, Join, Refusal, Refused
from fanin.protocol.events import BranchNarrowed, SwitchEvent, WorkerJoined, WorkerLeft, WorkerSilent
from fanin.protocol.job import MAX_JOIN_TIMEOUT_S
from fanin.switch.controller.admission import (
    in_words,
    judge_beside,
    judge_newcomer,
    judge_secret,
    rank_taken,
    refuse,
)
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import without_accumulators
from fanin.switch.controller.job_table import JobTable
from fanin.switch.controller.jobs import (
    LIFE,
    OPEN,
    Announcement,
    Attachment,
    Job,
    JobId,
    Member,
    ReplyTo,
    State,
    Trigger,
    bits,
)
from fanin.switch.controller.outbox import Outbox
from fanin.switch.controller.recent_refusals import RecentRefusals
from fanin.switch.controller.resources import Resources

START_TIMEOUT_S = 60.0
"""Longest time that a job may hold memory before all of its data paths are open: twelve times as long as a worker
waits for its own (connect_timeout_s)."""
HOLD_S = 5.0
"""How long a job may hold memory that another job needs while none of its own data paths is open."""


class Lifecycle:
    """Moves the jobs of one switch through their lives. One thread drives it."""

    def __init__(self, table: JobTable, resources: Resources, outbox: Outbox) -> None:
        self.table, self.resources, self.outbox = table, resources, outbox
        self._refusals = RecentRefusals()

    # --- joining ---

    def join(self, attachment: Attachment, reply_to: ReplyTo, join: Join, now: float, caller: Caller) -> None:
        """Handle a Join, the first one of a rank or a renewal."""
        self.turn(now)
        job_id = (join.job, caller.key)
        self.catch_up(job_id, now)
        job = self.table.open.get(job_id)
        if job is not None and (member := job.members.get(join.rank)) and member.join.nonce == join.nonce:
            # The same process again: its first Join, or the answer to it, was lost, or it waits and renews its lease.
            if (refused := self._judge_successor(join, job)) is not None:
                self._refuse(attachment, reply_to, join, refused)
            else:
                self._renew(job, member, reply_to, now)
            return
        refused = self._judge(attachment, join, job, now, caller)
        if refused is not None:
            self._refuse(attachment, reply_to, join, refused)
            if job is None or job.state is State.FORMING:
                # R-JOB-2: if ranks of a forming job disagree, all fail. A running job must not fail: the refused
                # process is a stranger.
                verdict = self._refusals.remember(join, caller.key, refused, now)
                # Tell all ranks that wait which rank was refused, and why.
                if verdict is not None and job is not None:
                    self._move(job, Trigger.REFUSED, now, verdict)
            return
        if job is None:
            job = self.open(attachment, join, now, caller)
        arrives = job.state is State.RUNNING
        job.members[join.rank] = Member(join, now, self._shared(job, reply_to), now)
        if arrives:  # R-JOB-8
            self._open_place(job, join.rank)
        else:
            job.deadline_s = min(job.deadline_s, now + min(join.join_timeout_s, MAX_JOIN_TIMEOUT_S))
        if arrives or not self._complete(job, now):
            self.tell(job, join.rank)

    def _complete(self, job: Job, now: float) -> bool:
        """Place or refuse a forming job if no rank is missing; return whether none was. A leaf never does so itself."""
        if not job.attachment.decides:  # the parent decides, because it knows the ranks at other leaves
            return False
        succeeds = job.first.succeeds
        before = None if succeeds is None else self.table.open.get((succeeds.job, job.key))
        if succeeds is not None and before is not None and job.survives_loss:
            lost = before.lost_ranks  # R-JOB-11: nobody waits for these, in the successor as in the job itself
            job.excused = frozenset(rank for rank, place in enumerate(succeeds.ranks) if place in lost)
        if job.missing:  # R-JOB-4
            return False
        self.place(job, now)
        return True

    def open(self, attachment: Attachment, join: Join, now: float, caller: Caller) -> Job:
        """Open a forming job for its first rank."""
        job = Job(
            name=join.job,
            key=caller.key,
            control_key=b"" if caller.is_open else caller.control_key,
            source=caller.source,
            attachment=attachment,
            plane=attachment.plane(join.scheme),
            first=join,
            opened_s=now,
        )
        self.table.open[job.job_id] = job
        return job

    def _judge(self, attachment: Attachment, join: Join, job: Job | None, now: float, caller: Caller) -> Refused | None:
        """The objection to a rank that joins `job` (None: it opens a new one); None without one."""
        # R-JOB-2: after a refusal, the other ranks of the same job are refused for a while, with its reason.
        refused = (
            self._refusals.judge(join, caller.key, now)
            or attachment.judge(join)
            or judge_secret(join, open_job=caller.is_open)
        )
        if refused is not None:
            return refused
        if job is None:  # quotas: requests alone must not use up resources that others need
            return self.resources.judge_new_job(caller.source) or self.resources.judge_new_rank(caller.source)
        if job.attachment is not attachment:  # a job has one shape, and trees have another
            how = "through leaves of this switch" if job.attachment.tree else "to this switch directly"
            text = f"other ranks of job {join.job!r} came {how}"
            return refuse(Refusal.DISAGREEMENT, text, "let all ranks use leaves, or none")
        return (
            judge_beside(join, job.first) or self._judge_place(join, job) or self.resources.judge_new_rank(job.source)
        )

    @staticmethod
    def _judge_successor(join: Join, job: Job) -> Refused | None:
        if job.first.succeeds is None or not job.is_without(join.rank):  # R-JOB-11: it comes too late
            return None
        text = f"job {join.job!r} goes on at this switch without rank {join.rank}"
        return refuse(Refusal.EVICTED, text, "see the output of the other ranks", (join.rank,))

    def _judge_place(self, join: Join, job: Job) -> Refused | None:
        if (refused := self._judge_successor(join, job)) is not None:
            return refused
        if job.place_is_free(join.rank):  # R-JOB-8
            assert job.spec is not None
            return judge_newcomer(join, job.spec)
        if (holder := job.members.get(join.rank)) is None:  # it lapsed, or nobody has asked for it yet
            return None
        running = job.state is not State.FORMING
        free_after_s = self.resources.limits.liveness_timeout_s if running else JOIN_LEASE_S
        return rank_taken(join, holder.join, running, free_after_s)

    def _renew(self, job: Job, member: Member, reply_to: ReplyTo, now: float) -> None:
        """Renew a rank's lease: its Join came again, directly, through its leaf, or through a restarted leaf."""
        member.renewed_s = now
        if job.state is State.FORMING:  # afterwards its worker is fixed, and with it the leaf that it must come through
            member.reply_to = self._shared(job, reply_to)
        if member.reply_to.leaf == reply_to.leaf:  # the leaf was not restarted
            member.reply_to.peer, member.reply_to.address = reply_to.peer, reply_to.address
            self.tell(job, member.join.rank)
            return
        ranks = tuple(sorted(rank for rank, other in job.members.items() if other.reply_to is member.reply_to))
        who = f"leaf switch {member.reply_to.address}, with {in_words(ranks)},"
        refused = refuse(Refusal.MEMBER_LOST, f"job {job.name!r}: {who} was restarted", "start the job again", ranks)
        self._refuse(job.attachment, reply_to, member.join, refused)
        if job.state is State.STARTING:  # its workers cannot reach the data path through the new process
            self.handle_departure(job, ranks, "was restarted", now, who=who)

    def _shared(self, job: Job, reply_to: ReplyTo) -> ReplyTo:
        """The ReplyTo that all ranks at the same leaf share, updated with the leaf's latest address."""
        known = (member.reply_to for member in job.members.values() if reply_to.leaf)
        shared = next((each for each in known if each.leaf == reply_to.leaf), reply_to)
        shared.peer, shared.address = reply_to.peer, reply_to.address
        return shared

    def catch_up(self, job_id: JobId, now: float) -> None:
        """Handle losses and departures whose events are still queued: they may free the job's name for a successor."""
        job = self.table.open.get(job_id)
        if job is None or job.state is not State.RUNNING:
            return
        assert job.spec is not None
        # R-JOB-5: the name is free as soon as the data plane knows that the workers are gone.
        _, lost, left = job.plane.server.members(job.spec.job)
        for worker in bits(lost & ~job.lost):  # R-JOB-5
            self.handle_event(WorkerSilent(job.spec.job, worker, job.spec.liveness_timeout_s), now)
        for worker in bits(left & ~job.left):
            self.handle_event(WorkerLeft(job.spec.job, worker), now)

    # --- what ranks are told ---

    def tell(self, job: Job, rank: int) -> None:
        """Tell one of its ranks how far the job is: waiting, admitted or started."""
        if job.spec is None:
            reply = job.attachment.reply_for(job.name, rank, control.Waiting(job=job.name, missing=job.missing))
        elif job.state is State.STARTING or rank in job.arriving:  # told again, since a reply may be lost
            reply = job.attachment.admitted(job, job.spec, rank)
        else:
            reply = job.attachment.reply_for(job.name, rank, job.attachment.started(job))
        self.outbox.send(job.members[rank].reply_to.peer, reply)

    def _refuse(self, attachment: Attachment, reply_to: ReplyTo, join: Join, refused: Refused) -> None:
        self.outbox.count(refused.code)
        self.outbox.send(reply_to.peer, attachment.reply_for(join.job, join.rank, refused))

    def _move(self, job: Job, trigger: Trigger, now: float, refused: Refused | None = None) -> None:
        """Make the transition that LIFE prescribes. `refused`: the refusal to send, if it announces one."""
        before = job.state
        # R-JOB-1: a trigger that the state does not have raises KeyError.
        job.state, announcement = LIFE[before][trigger]
        # R-JOB-5: the id is free for a successor at once; the memory is held until the job is forgotten or another
        # job needs it.
        if job.state not in OPEN and self.table.open.get(job.job_id) is job:
            del self.table.open[job.job_id]
        for rank, member in job.members.items():  # R-JOB-2, R-JOB-4: each is told, itself or through its leaf
            if announcement is Announcement.STANDING and not member.gone:
                self.tell(job, rank)
            elif announcement is Announcement.REFUSAL:
                assert refused is not None
                self._refuse(job.attachment, member.reply_to, member.join, refused)
        if job.state is State.ENDED and before is not State.ENDED:  # once, and it can be explained from then on
            self.table.end(job, now)
        if job.state is State.FORGOTTEN and job.spec is not None:  # one that was never placed holds no memory
            job.plane.server.remove(job.spec.job)
            del self.table.placed[job.spec.job]

    # --- onto the data plane ---

    def place(self, job: Job, now: float) -> bool:
        """Put a complete job on the data plane and return True, or refuse all of its ranks and return False."""
        attachment = job.attachment
        refused = attachment.judge_all(job) or self._judge_only_successor(job)
        try:
            if refused is None:
                workers, spec, server = attachment.workers(job), attachment.spec(job), job.plane.server
                memory_bytes = spec.pool_bytes * len(server.ports)
                refused = self.resources.judge_memory(memory_bytes, job.source, spec.slots)
                if refused is not None:
                    # R-JOB-6: a job that only waits to be forgotten must not refuse a complete one, nor count in its
                    # quota.
                    self._make_room(memory_bytes, now)
                    refused = self.resources.judge_memory(memory_bytes, job.source, spec.slots)
                scarce = refused is not None or not self.resources.may_have_accumulators(job.source)
                # When memory is scarce, jobs run without accumulators and rings: sums are the same, but slower.
                if scarce and attachment.decides:
                    spec = without_accumulators(spec, job.joins)
                    memory_bytes = spec.pool_bytes * len(server.ports)
                    refused = self.resources.judge_memory(memory_bytes, job.source, spec.slots)
            if refused is None:
                attachment.admit(job, spec, share_memory=self.resources.may_have_rings(job.source))
        except AdmissionError as error:
            remedy = "start the switch with more --memory, or set FANIN_SLOTS lower"
            refused = refuse(Refusal.MEMORY, str(error), remedy)
        except ConfigurationError as error:
            refused = refuse(Refusal.SHAPE, str(error), "change or unset the options named")
        if refused is not None:
            self._move(job, Trigger.REFUSED, now, refused)
            return False
        job.spec, job.workers = spec, workers
        job.ring_bytes, job.wanted_ring_bytes = server.ring_bytes(spec.job)
        job.memory_bytes = memory_bytes + job.ring_bytes
        job.placed_s = now
        job.deadline_s = now + min(START_TIMEOUT_S, *(member.join.join_timeout_s for member in job.members.values()))
        for member in job.members.values():  # the wait for others is over: leases begin anew
            member.renewed_s = now
        self.table.placed[spec.job] = job
        self._move(job, Trigger.COMPLETE, now)
        return True

    def _judge_only_successor(self, job: Job) -> Refused | None:
        succeeds = job.first.succeeds
        other = None if succeeds is None else self.table.successor_of(succeeds.job, job.key)
        if succeeds is None or other is None:  # R-JOB-11: two parts of a network must not both go on
            return None
        text = f"job {succeeds.job!r} has gone on as {other.name!r}, without {in_words(job.members)}"
        return refuse(Refusal.MEMBER_LOST, text, "see the output of the other ranks", tuple(job.members))

    def _make_room(self, needed_bytes: int, now: float) -> None:
        """Remove ended jobs, then, oldest first, those that hold memory without having reached the data path."""
        placed = list(self.table.placed.values())
        for ended in [job for job in placed if job.state is State.ENDED]:  # R-JOB-6
            self._move(ended, Trigger.DUE, now)
        idle = [
            job for job in placed if job.state is State.STARTING and not job.registered and now >= job.placed_s + HOLD_S
        ]
        for job in sorted(idle, key=lambda each: each.placed_s):
            if needed_bytes <= self.resources.free_bytes:  # R-JOB-6: remove no more of them than necessary
                return
            what = f"did not reach the data path within {HOLD_S:g} s, and another job needs the memory"
            self.handle_departure(job, job.missing[:1], what, now)
            self._move(job, Trigger.DUE, now)

    def _open_place(self, job: Job, rank: int) -> None:
        """Admit a new process in the place of a rank that was lost or has left; it is live from its HELLO on."""
        spec, worker = job.spec, job.worker_of(rank)
        assert spec is not None
        assert worker is not None
        token = self.resources.draw_token()
        job.plane.server.admit_worker(spec.job, worker, token)
        job.spec = replace(spec, tokens=(*spec.tokens[:worker], token, *spec.tokens[worker + 1 :]))
        # Forget the previous process's state for this worker.
        others = ~(1 << worker)
        job.registered, job.lost, job.left = job.registered & others, job.lost & others, job.left & others

    # --- while it runs, and after ---

    def _begin(self, job: Job, now: float) -> None:
        """Begin the job, without the departed workers, once all others are on the data path."""
        if job.registered | job.departed == job.full:  # R-JOB-11
            # Evict no earlier: a worker that registers later would be told that all unregistered ones are gone.
            self._evict(job, job.departed)
            self.ready(job, now)

    def _evict(self, job: Job, workers: int) -> None:
        assert job.spec is not None
        for worker in bits(workers):
            job.plane.server.evict(job.spec.job, worker)

    def ready(self, job: Job, now: float) -> None:
        """Start the job: every worker, here and at other switches, is on the data path."""
        if job.state is State.STARTING:  # R-JOB-4
            self._move(job, Trigger.READY, now)

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """Handle a worker's arrival, silence or departure. BranchNarrowed is for the leaf's controller alone."""
        job = self.table.placed.get(event.job)
        if job is None or isinstance(event, BranchNarrowed):  # events lag behind a job that was removed
            return
        bit, ranks = 1 << event.worker, job.workers[event.worker]
        if isinstance(event, WorkerJoined):
            job.registered |= bit
            if job.attachment.decides and job.state is State.RUNNING:  # a newcomer: only it is told
                self.tell(job, ranks[0])
            elif job.attachment.decides and job.state is State.STARTING:  # R-JOB-4: perhaps it was the last one
                self._begin(job, now)
            return
        # R-JOB-9: a rank that gave up also falls silent: the silence is no second failure, and must not replace the
        # cause.
        lost = isinstance(event, WorkerSilent) and not job.departed & bit
        if lost and not job.lost:  # R-JOB-9: a loss says more than a departure before it
            job.epitaph = ""
        how = "left"
        if isinstance(event, WorkerSilent):
            how = f"was silent for {event.silent_s:.1f} s"
        if lost:
            job.lost |= bit
        else:
            job.left |= bit
        self.handle_departure(job, ranks, how, now, lost=lost, who=job.attachment.worker_name(job, event.worker))

    def note_spending(self, spent: control.Spent, caller: Caller) -> None:
        """Keep a rank's account of its time for the statistics; ignore it if the sender is in no job."""
        job = self.table.job_of(spent, caller.key)
        if job is not None:
            job.members[spent.rank].spending = spent.spending

    def leave(self, leave: control.Leave, now: float, caller: Caller) -> None:
        """Handle a Leave: the rank has left, has given up, or its leaf has lost it.

        A rank that leaves a running job in order only counts as gone once its worker has sent BYE.
        """
        job = self.table.job_of(leave, caller.key)
        if job is None or job.state is State.ENDED:  # a repeated Leave, or one of a rank that counts as lost already
            return
        if job.state is State.FORMING:  # nobody waits for it on the data plane yet
            self.drop(job, leave.rank, now)
            if job.state is State.FORMING:
                self._complete(job, now)
            return
        how = leave.reason if leave.lost else f"gave up: {leave.reason}" if leave.reason else "left"
        member = job.members[leave.rank]
        member.gone = how
        worker = job.worker_of(leave.rank)
        if leave.reason or job.state is State.STARTING or (worker is not None and job.departed >> worker & 1):
            # R-JOB-9: a rank gives up in a job that is ending because another rank is missed.
            missed = bool(leave.reason) and job.state is not State.ENDING
            who = f"rank {leave.rank} ({member.join.process})"
            if leave.own:  # R-JOB-9: this rank failed by itself, so that it is the cause
                job.gave_up = f"{who} {how}"
                # The process may live on without taking part: suspect it, so that the others soon miss it.
                departing = job.departed & ~(job.lost | job.left)
                if job.spec is not None and worker is not None and departing >> worker & 1:
                    job.plane.server.suspect(job.spec.job, worker)
            self.handle_departure(job, (leave.rank,), how, now, lost=leave.lost or missed, who=who, sent_leave=True)

    def handle_departure(
        self,
        job: Job,
        ranks: tuple[int, ...],
        how: str,
        now: float,
        *,
        lost: bool = False,
        who: str = "",
        sent_leave: bool = False,
    ) -> None:
        """Handle that ranks of a job on the data plane are lost (`lost`: others miss them), have left or given up.

        `how`: how they went, in words. `who`: their name in messages, instead of their ranks. `sent_leave`:
        they sent Leave.
        """
        for member in (job.members[rank] for rank in ranks if rank in job.members):
            member.gone, member.lost = member.gone or how, member.lost or lost
        if not sent_leave:  # a Leave came through the leaf, which has passed it on
            job.attachment.report_departure(job, ranks, how, lost)
        # R-JOB-7. A successor survives losses also while it starts: R-JOB-11.
        spared = job.survives_loss and (
            job.state is State.RUNNING or (job.state is State.STARTING and job.first.succeeds is not None)
        )
        if job.state is State.STARTING and not spared:  # R-JOB-4
            if len(ranks) == 1 and ranks[0] in job.members:
                who = f"rank {ranks[0]} ({job.members[ranks[0]].join.process})"
            job.epitaph = f"{who or in_words(ranks)} {how}"
            reason = f"job {job.name!r} did not start: {job.epitaph}"
            remedy = "see that rank's own error; then start the job again"
            self._move(job, Trigger.GONE, now, refuse(Refusal.MEMBER_LOST, reason, remedy, ranks))
            return
        # R-JOB-9: a job that goes on is described by its latest loss; one that ends keeps its first, which is the
        # cause.
        if spared or not job.epitaph:
            job.epitaph = f"{who or in_words(ranks)} {how}"
        if spared and job.state is State.RUNNING:  # R-JOB-7
            self._evict(
                job, sum(1 << worker for worker in {job.worker_of(rank) for rank in ranks} if worker is not None)
            )
        self._move(job, Trigger.SPARED if spared else Trigger.GONE, now)
        if job.state is not State.ENDED and job.departed == job.full:  # R-JOB-7: until none is left
            self._move(job, Trigger.EMPTY, now)
        elif job.state is State.STARTING:
            self._begin(job, now)
        if spared:  # R-JOB-11: its successor need not wait any longer either
            for other in list(self.table.open.values()):
                succeeds = other.first.succeeds
                if other.state is State.FORMING and succeeds is not None and (succeeds.job, other.key) == job.job_id:
                    self._complete(other, now)

    def drop(self, job: Job, rank: int, now: float) -> None:
        """Take a rank that no longer waits out of a forming job; a job without members is forgotten."""
        del job.members[rank]
        if not job.members:
            self._move(job, Trigger.DESERTED, now)
        elif rank == job.first.rank:  # the others must agree with one that is there
            job.first = next(iter(job.members.values())).join

    def hung_up(self, peer: bytes, now: float) -> None:
        """Suspect the ranks that asked over this closed connection: without a sign of life soon, they count as lost."""
        for job in self.table.all():
            if job.state is State.ENDED:
                continue
            behind = {rank for rank, member in job.members.items() if member.reply_to.peer == peer}
            for rank in behind:  # R-JOB-3
                job.members[rank].hung_up(now)
            for worker, ranks in enumerate(job.workers):  # R-JOB-10
                if job.spec is not None and behind.intersection(ranks) and not job.departed >> worker & 1:
                    job.plane.server.suspect(job.spec.job, worker)

    def explain(self, job_id: JobId, generation: int) -> control.Explanation | None:
        """The outcome of a job; None for one that was never here, or was forgotten."""
        job = self.table.find(job_id, generation)
        return None if job is None else job.explanation()

    # --- time ---

    def handle_timer(self, now: float) -> None:
        """Refuse, end or forget the jobs and ranks whose deadlines have passed."""
        self.turn(now)
        for job in list(self.table.open.values()):
            if job.state is State.FORMING:
                self._check_forming(job, now)
            elif job.state is State.STARTING:
                self._check_start(job, now)
            else:
                for rank in job.arriving:  # R-JOB-8: a newcomer that falls silent frees its place again
                    if now >= job.members[rank].lapses_s:
                        job.lost |= 1 << (job.worker_of(rank) or 0)
                        self.handle_departure(job, (rank,), "did not reach the data path", now, lost=True)
        for job in self.table.forgettable(now):
            self._move(job, Trigger.DUE, now)

    def _check_forming(self, job: Job, now: float) -> None:
        lapsed = job.lapsed(now)
        for rank in lapsed:  # R-JOB-3: it may have died, and another process may come for its place
            self.drop(job, rank, now)
        if lapsed and job.state is State.FORMING:  # R-JOB-11: a successor may be complete without them
            self._complete(job, now)
        if job.state is State.FORMING and now >= job.deadline_s:  # before the first of its ranks loses patience
            missing = job.missing
            reason = f"job {job.name!r}: {in_words(missing)} of {job.first.size} did not join in time"
            remedy = f"see why {in_words(missing)} did not start, or give FANIN_JOIN_TIMEOUT_S more than now"
            self._move(job, Trigger.LATE, now, refuse(Refusal.JOIN_TIMEOUT, reason, remedy, missing))

    def _check_start(self, job: Job, now: float) -> None:
        """End a starting job if a rank has lapsed, or if not all data paths are open by the deadline."""
        if lapsed := tuple(sorted(job.lapsed(now))):
            self.handle_departure(job, lapsed, "died or stopped while the job was starting", now, lost=True)
        elif now >= job.deadline_s:  # R-JOB-4
            who = "" if job.missing else "a rank at another switch"
            self.handle_departure(job, job.missing, "did not reach the data path in time", now, who=who)

    def next_timer(self) -> float | None:
        """Time at which `handle_timer` is due; None if nothing waits."""
        return self.table.next_timer()

    def turn(self, now: float) -> float:
        """Begin a turn of the controller; return for how many seconds its process was stopped, mostly 0."""
        return self.table.turn(now)

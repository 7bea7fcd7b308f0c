"""Continue a job over several shards when some are lost: a remaining shard decides which ranks go on, and from where.

R-JOB-11 and R-JOB-12 in docs/control.md; its section *Jobs that continue without a shard* has the messages, and says
what happens when the deciding shard dies. A switch admits only one successor of a job, the first one that is complete:
if the network is split, any two parts that may continue by the rule in host/machine/shard_agreement.py have a switch
in common, so that only one of them does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fanin.protocol import control
from fanin.protocol.control import Refusal, Regroup, Regrouped, successor_of
from fanin.switch.controller.admission import refuse
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.jobs import State
from fanin.switch.controller.lifecycle import Lifecycle

MAX_OPEN_REDUCTIONS = 4096
"""Largest span of tickets from the first reduction that a rank has not done to the last that a rank submitted."""
_REMEDY = "see the output of the other ranks, then start the job again"


def regroup(jobs: Lifecycle, peer: bytes, request: Regroup, now: float, caller: Caller) -> None:
    """Handle a rank's report on which shards it has lost, and which reductions it has done."""
    jobs.catch_up((request.job, caller.key), now)
    job = jobs.table.job_of(request, caller.key)
    worker = None if job is None else job.worker_of(request.rank)
    if job is not None and not job.survives_loss and (job.state is not State.RUNNING or job.departed):
        # R-JOB-7: such a job goes on with all of its ranks at other shards, or not at all.
        lost = tuple(sorted(job.lost_ranks)) or job.ranks_at(job.departed)
        jobs.outbox.refuse(peer, refuse(Refusal.MEMBER_LOST, job.explanation().text, _REMEDY, lost))
        return
    if job is None or worker is None or job.state is not State.RUNNING:
        text = f"job {request.job!r} goes on without rank {request.rank}, or has ended"
        jobs.outbox.refuse(peer, refuse(Refusal.MEMBER_LOST, text, _REMEDY, (request.rank,)))
        return
    # R-JOB-12: another shard, lost since, has told this rank its decision, which stays valid.
    if job.regrouped is None and request.decided is not None and request.decided.job == job.name:
        job.regrouped = request.decided
    # R-JOB-11: the job has been succeeded, as another shard decided.
    if job.regrouped is None and jobs.table.successor_of(job.name, job.key) is not None:
        _refuse_late(jobs, peer, request)
        return
    # R-JOB-12: nothing is decided yet, and the rank may be a member at another shard, where the others will ask.
    if job.regrouped is None and job.departed >> worker & 1:
        text = f"rank {request.rank} was taken out of job {request.job!r} at this switch"
        jobs.outbox.refuse(peer, refuse(Refusal.EVICTED, text, _REMEDY, (request.rank,)))
        return
    if job.regrouped is None:
        job.regrouping[request.rank] = request
        living = job.ranks_at(job.full & ~job.departed)
        # R-JOB-12: a rank that is lost here may be alive at another shard, where the others then ask, too.
        elsewhere = {rank for each in living if each in job.regrouping for rank in job.regrouping[each].members}
        missing = tuple(rank for rank in living if rank not in job.regrouping)
        missing += tuple(sorted(elsewhere.difference(living)))
        if missing:  # R-JOB-12: decide once, when all living ranks have reported
            jobs.outbox.send(peer, control.Waiting(job=job.name, missing=missing))
            return
        decided = decide(job.name, request.shard, {rank: job.regrouping[rank] for rank in living})
        if decided is None:
            text = f"the ranks of job {job.name!r} are more than {MAX_OPEN_REDUCTIONS:,} reductions apart"
            jobs.outbox.refuse(peer, refuse(Refusal.DISAGREEMENT, text, "start the job again"))
            return
        job.regrouped = decided
        job.regrouping.clear()
    if request.rank in job.regrouped.ranks:
        jobs.outbox.send(peer, job.regrouped)
        return
    _refuse_late(jobs, peer, request)


def _refuse_late(jobs: Lifecycle, peer: bytes, request: Regroup) -> None:
    text = f"job {request.job!r} has gone on without rank {request.rank}"
    jobs.outbox.refuse(peer, refuse(Refusal.MEMBER_LOST, text, _REMEDY, (request.rank,)))


def decide(job: str, shard: int, said: Mapping[int, Regroup]) -> Regrouped | None:
    """The decision, made at `shard`, how the job continues with the ranks that have reported.

    None if their reductions are MAX_OPEN_REDUCTIONS or more apart.
    """
    first, last = min(each.first for each in said.values()), max(each.last for each in said.values())
    if last - first >= MAX_OPEN_REDUCTIONS:  # bounds the reply; honest ranks are never that far apart
        return None
    again: list[int] = []
    holders: list[int] = []
    for ticket in range(first, last + 1):
        done = [rank for rank, each in sorted(said.items()) if _has_done(each, ticket)]
        held_back = [rank for rank, each in said.items() if _is_in(each.held_back, ticket)]
        # The lowest rank that has done it sends the result to those that lack it; who has held it back has the same
        # bits. If none has done it, the reduction is repeated.
        if not done or len(done) + len(held_back) < len(said):
            again.append(ticket)
            holders.append(done[0] if done else control.NOBODY)
    return Regrouped(
        job=job,
        successor=successor_of(job, shard),
        ranks=tuple(sorted(said)),
        lost=tuple(sorted({shard for each in said.values() for shard in each.lost})),
        dead=tuple(sorted({shard for each in said.values() for shard in each.dead})),
        first=first,
        again=tuple(again),
        holders=tuple(holders),
    )


def _has_done(said: Regroup, ticket: int) -> bool:
    return ticket < said.first or _is_in(said.done, ticket)


def _is_in(ranges: Sequence[int], ticket: int) -> bool:
    return any(first <= ticket <= last for first, last in zip(ranges[::2], ranges[1::2], strict=False))

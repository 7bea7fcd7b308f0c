"""Recent refusals: a refused rank never joins, so the others of its job are refused too instead of waiting for it."""

from __future__ import annotations

from fanin.protocol.control import Join, Refusal, Refused
from fanin.switch.controller.admission import peer_refused
from fanin.switch.controller.jobs import JobId

REFUSAL_MEMORY_S = 2.0
"""How long later ranks of a job are refused after one of them was; restarting a job takes longer than that."""
MAX_REMEMBERED = 1024
"""Jobs that are remembered; the oldest goes first."""
PRIVATE_REFUSALS = (
    Refusal.RANK_TAKEN.value,
    Refusal.MEMBER_LOST.value,
    Refusal.TOO_MANY_JOBS.value,
    Refusal.QUOTA.value,
)
"""Codes of refusals that are not passed on: the job can form without this process, or each rank gets its own."""


class RecentRefusals:
    """For each job, which rank was refused, the refusal for the others, and until when they get it."""

    def __init__(self) -> None:
        self._by_job: dict[JobId, tuple[float, int, Refused]] = {}

    def remember(self, join: Join, key: str, refused: Refused, now: float) -> Refused | None:
        """The notice of this refusal to the other ranks; None if it does not concern them."""
        if refused.code in PRIVATE_REFUSALS:
            return None
        verdict = peer_refused(join, refused)
        self._by_job[join.job, key] = (now + REFUSAL_MEMORY_S, join.rank, verdict)
        while len(self._by_job) > MAX_REMEMBERED:
            del self._by_job[next(iter(self._by_job))]
        return verdict

    def judge(self, join: Join, key: str, now: float) -> Refused | None:
        """The refusal that another rank of the same job just had; forgotten when that rank itself asks again."""
        until_s, rank, verdict = self._by_job.get((join.job, key), (now, join.rank, None))
        if rank == join.rank or until_s <= now:
            self._by_job.pop((join.job, key), None)
            return None
        return verdict

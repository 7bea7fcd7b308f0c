"""Losses that a job survives (on_worker_loss="continue"): nothing raises, but the flight recorder is told.

Rules
-----
* The watch thread looks at each of its turns (handles/failures.py), so that a rank that only computes notices.
* The loss of a rank is reported once, and once more if its successor is lost, too. That of a shard is reported once.
"""

from __future__ import annotations

from collections.abc import Iterator

from fanin.errors import FaninError, SwitchLostError, WorkerLostError
from fanin.host.session.any_session import AnySession


class SurvivedLosses:
    """Compares the present ranks and shards of one session with those of the last look; the first look is now."""

    def __init__(self, session: AnySession) -> None:
        self._session = session
        self._ranks, self._shards = self._present()

    def since_last(self) -> Iterator[FaninError]:
        """Losses since the last look, as the errors that they would be in a job that ends with them."""
        ranks, shards = self._present()
        gone, lost = self._ranks.difference(ranks), self._shards.difference(shards)
        self._ranks, self._shards = ranks, shards
        job = f"job {self._session.job_name!r} goes on"
        if gone:
            numbers = tuple(sorted(gone))
            yield WorkerLostError(numbers, f"{job} without rank {', '.join(map(str, numbers))}")
        for address in sorted(lost):
            yield SwitchLostError(address, f"{job} without the switch at {address}")

    def _present(self) -> tuple[frozenset[int], frozenset[str]]:
        return frozenset(self._session.members), frozenset(str(each.address) for each in self._session.sessions)

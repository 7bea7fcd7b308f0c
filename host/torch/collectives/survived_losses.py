"""Losses that a job survives (on_worker_loss="continue"): nothing raises, and the flight recorder is told all the same.

Rules
-----
* The watch thread looks at each of its turns (handles/failures.py), so that a rank that only computes notices.
* A rank that is gone is told once, and once more if its successor is gone, too. A shard is told once.
"""

from __future__ import annotations

from collections.abc import Iterator

from fanin.errors import FaninError, SwitchLostError, WorkerLostError
from fanin.host.session.any_session import AnySession


class SurvivedLosses:
    """Ranks and shards of one session that were there at the last look, at first now."""

    def __init__(self, session: AnySession) -> None:
        self._session = session
        self._ranks, self._shards = self._present()

    def since_last(self) -> Iterator[FaninError]:
        """Errors that these losses would be in a job that ends with them."""
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

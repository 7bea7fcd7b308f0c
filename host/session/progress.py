"""Events of a stale job over shards: those of several sessions as those of one.

A reduction is done when all of its parts are, and a round was heard of when every shard has closed it, just as an
engine adds up its flows. So nothing can be reported before the session that is furthest behind has an event: `next`
waits for that one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from fanin.host.session.session import WAIT_SLICE_S, Session
from fanin.protocol.events import ReductionDone, RoundHeard


class Progress:
    """Follows sessions that each get a part of every reduction. For one thread."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        """Follow these sessions from now on; before the first reduction."""
        self._sessions = tuple(sessions)
        self._done = [0] * len(sessions)
        """By session: number of its parts that are done."""
        self._heard = [0] * len(sessions)
        """By session: one past the newest round that it has reported."""
        self._events: deque[ReductionDone | RoundHeard] = deque()
        for session in self._sessions:
            session.follow()

    def next(self, timeout_s: float) -> ReductionDone | RoundHeard | None:
        """The next event, as of `Session.next_progress`; raises the failure of any session that has one, within
        WAIT_SLICE_S.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            for shard in range(len(self._sessions)):
                while self._take(shard, 0.0):
                    pass
            if self._events:
                return self._events.popleft()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            behind = min(range(len(self._sessions)), key=lambda shard: (self._done[shard], self._heard[shard]))
            self._take(behind, min(left_s, WAIT_SLICE_S))

    def _take(self, shard: int, timeout_s: float) -> bool:
        event = self._sessions[shard].next_progress(timeout_s)
        if event is None:
            return False
        done, heard = min(self._done), min(self._heard)
        if isinstance(event, RoundHeard):
            self._heard[shard] = event.base + 1
            if min(self._heard) > heard:
                self._events.append(RoundHeard(min(self._heard) - 1))
        else:
            self._done[shard] += 1
            if min(self._done) > done:
                self._events.append(ReductionDone(min(self._done)))
        return True

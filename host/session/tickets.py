"""The tickets of a session's reductions: which of them finished, told once each, to whoever asks in completion order.

Rules
-----
* A ticket is remembered from its submission until somebody has learned that it is done: `seen` after a wait, or `next`.
* An engine tells of finished tickets from `subscribe` on. Those that finished before are asked for then.
* Nobody need ever ask: beyond MAX_UNSEEN, done tickets are forgotten unless there is a subscriber.
"""

from __future__ import annotations

import threading
from collections import deque

from fanin.host.engines.engine import Engine
from fanin.numerics.reduction import Reduction

MAX_UNSEEN = 4096
"""Tickets that nobody has waited for yet and that are remembered for `next`."""


class Tickets:
    """Thread safe."""

    def __init__(self, engine: Engine) -> None:
        """For the reductions of one engine, all of which are submitted here, except those done at once."""
        self._engine = engine
        self._lock = threading.Lock()
        self._unseen: dict[int, None] = {}
        """Oldest first."""
        self._finished: deque[int] = deque()
        self.subscribed = False
        """Whether somebody asks `next`."""

    def submit(self, reduction: Reduction) -> int:
        """Have the engine start a reduction; returns its ticket."""
        with self._lock:  # around both: another thread may hear of the ticket's end before `submit` returns
            ticket = self._engine.submit(reduction)
            self._unseen[ticket] = None
            crowded = len(self._unseen) > MAX_UNSEEN and not self.subscribed
        if crowded:
            self._forget_done()
        return ticket

    def seen(self, ticket: int) -> None:
        """A thread has waited for it. With a subscriber, the ticket stays: the subscriber is told of every one."""
        if not self.subscribed:
            self.forget(ticket)

    def forget(self, ticket: int) -> None:
        """Its end was told in another way."""
        with self._lock:
            self._unseen.pop(ticket, None)

    def finish(self, ticket: int) -> None:
        """Have `next` report it, once."""
        with self._lock:
            if ticket in self._unseen:
                del self._unseen[ticket]
                self._finished.append(ticket)

    def next(self) -> int | None:
        """The ticket that finished first among those not yet reported."""
        with self._lock:
            return self._finished.popleft() if self._finished else None

    def subscribe(self) -> None:
        """Have the engine tell of finished tickets from here on, and make up for those that it did not tell of."""
        if self.subscribed:
            return
        self._engine.subscribe()
        with self._lock:
            self.subscribed = True
            tickets = list(self._unseen)
        for ticket in tickets:
            if self._engine.done(ticket):
                self.finish(ticket)

    def finish_all(self) -> None:
        """Nothing finishes any more: `next` reports what is left."""
        for ticket in list(self._unseen):
            self.finish(ticket)

    def _forget_done(self) -> None:
        with self._lock:
            tickets = list(self._unseen)
        done = [ticket for ticket in tickets if self._engine.done(ticket)]
        with self._lock:
            for ticket in done:
                self._unseen.pop(ticket, None)

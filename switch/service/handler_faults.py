"""Containment of exceptions in handlers: a bug must not end the switch, so it is counted, logged and answered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fanin.protocol.control import Refusal, Refused
from fanin.switch.controller.admission import refuse

LOG_INTERVAL_S = 10.0
"""At most one traceback is logged in this time, so that requests that make a handler raise cannot fill a disk."""
PAUSE_S = 1.0
"""Time after which timers that have raised run again; without a pause they would be due all the time."""

log = logging.getLogger("fanin.switch")


class Faults:
    """Counts exceptions of handlers, by the kind of work."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._log_s = float("-inf")
        self.counts: dict[str, int] = {}
        self.resume_s = float("-inf")
        """Time until which timers pause."""

    @contextmanager
    def contained(self, what: str, otherwise: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Contain an exception of the `with` block, which does `what`: count it, call `otherwise`, and go on."""
        try:
            yield
        except Exception as error:
            now = self._clock()
            self.counts[what] = self.counts.get(what, 0) + 1
            if now >= self._log_s:
                self._log_s = now + LOG_INTERVAL_S
                total = sum(self.counts.values())
                log.exception(
                    "a bug of fanin's, contained (%d so far): %s raised %s", total, what, type(error).__name__
                )
            otherwise()

    def pause(self) -> None:
        """Pause timers, because one has raised."""
        self.resume_s = self._clock() + PAUSE_S


def internal() -> Refused:
    """The reply to a request whose handler raised."""
    return refuse(
        Refusal.INTERNAL,
        "the switch met a bug of its own with this request, and goes on without it",
        "see the switch's log, and report what it says there",
    )

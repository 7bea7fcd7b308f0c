"""An observer of a session's reductions: it is told of each ticket, and of when the call for it began."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from fanin.numerics.reduction import Reduction

Observer = Callable[[int, Reduction, float], None]
"""Takes the ticket, the reduction, and when the call began, in seconds of CLOCK_MONOTONIC."""


class Observable(Protocol):
    """A session that may have an observer."""

    observer: Observer | None


SessionType = TypeVar("SessionType", bound=Observable)


def observed(submit: Callable[[SessionType, Reduction], int]) -> Callable[[SessionType, Reduction], int]:
    """Decorate `submit` of a session so that it tells the observer, if there is one, of every ticket."""

    @functools.wraps(submit)
    def submit_and_tell(self: SessionType, reduction: Reduction) -> int:
        if (observer := self.observer) is None:
            return submit(self, reduction)
        began_s = time.monotonic()
        ticket = submit(self, reduction)
        observer(ticket, reduction, began_s)
        return ticket

    return submit_and_tell

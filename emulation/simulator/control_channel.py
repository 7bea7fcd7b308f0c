"""A control connection as TCP shows it: messages arrive whole, in order and late, and wait while their path is cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fanin.emulation.simulator.event_queue import EventQueue

CONTROL_DELAY_S = 200e-6
CONTROL_RETRY_S = 0.05
"""Time between two attempts to deliver a message whose path is cut."""

Message = TypeVar("Message")


class ControlChannel(Generic[Message]):
    """One direction of a connection, until it is closed."""

    def __init__(self, queue: EventQueue, blocked: Callable[[], bool], deliver: Callable[[Message], None]) -> None:
        """`blocked` says whether nothing can arrive now; `deliver` gets every message that arrives."""
        self._queue, self._blocked, self._deliver = queue, blocked, deliver
        self._under_way: deque[tuple[float, Message]] = deque()
        self._armed = False
        self._closed = False

    def send(self, message: Message) -> None:
        """Deliver the message CONTROL_DELAY_S from now, or later while the path is blocked."""
        self._under_way.append((self._queue.now + CONTROL_DELAY_S, message))
        self._arm(CONTROL_DELAY_S)

    def close(self) -> None:
        """Close the direction: messages under way are lost."""
        self._closed = True
        self._under_way.clear()

    def _arm(self, delay_s: float) -> None:
        if not self._armed:
            self._armed = True
            self._queue.after(delay_s, self._arrive)

    def _arrive(self) -> None:
        self._armed = False
        while self._under_way and self._under_way[0][0] <= self._queue.now:
            if self._blocked():
                self._arm(CONTROL_RETRY_S)
                return
            self._deliver(self._under_way.popleft()[1])
        if self._under_way and not self._closed:
            self._arm(self._under_way[0][0] - self._queue.now)

"""A thread that runs actions one after the other, and ends after IDLE_THREAD_S without one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from fanin.host.session.threads import WORK
from fanin.host.torch.handles.completion import IDLE_THREAD_S


class Lane:
    """Runs actions in the order in which they were put, on one thread; actions must not raise.

    The queue has no bound of its own: each action belongs to a collective that the program has begun and still holds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actions: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = False

    def put(self, action: Callable[[], None]) -> None:
        """Run an action on the lane's thread, after those that were put before."""
        with self._changed:
            self._actions.append(action)
            if self._running:
                self._changed.notify()
                return
            self._running = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            with WORK:
                action()
                del action  # frees what it refers to before this thread waits

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._actions, IDLE_THREAD_S):
                self._running = False
                return None
            return self._actions.popleft()

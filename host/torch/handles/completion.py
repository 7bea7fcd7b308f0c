"""Completes the futures of collectives, never on an engine's thread.

Rules
-----
* A callback may issue collectives and await them, even through their futures (PowerSGD's does). So callbacks run on a
  pool that grows while its threads are blocked, and waiting for collectives happens elsewhere: on one thread per group.
* That thread waits in the order in which futures were asked for. It cannot wait for ever behind one that depends on a
  callback: a reduction ends when all ranks have submitted it, and they submit in the same order.
* All threads are daemons: a callback that never returns keeps no process from ending.
* `ordered`: `get_future` itself waits, and callbacks run in the thread that attaches them, in program order. Hooks that
  issue collectives in callbacks for several buckets need it, since otherwise ranks issue them in different orders.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

import torch
from torch.futures import Future

from fanin.host.session.threads import WORK

MAX_CALLBACK_THREADS = 64
"""Callbacks that may block at once; later ones wait for a thread."""
CLOSE_TIMEOUT_S = 2.0
"""Longest that closing waits for the thread; a wait on a closed session ends within half a second."""
KEPT_HANDLES = 64
"""Number of handles of small collectives that are kept: see `Completion.keep`."""
KEPT_BYTES = 1024
"""A collective is small up to so many bytes of outputs."""
IDLE_THREAD_S = 10.0
"""A thread of the pool without work for that long ends."""


class Pending(Protocol):
    """A collective in flight that is to be completed (work.py)."""

    orders_streams: bool
    """Whether `wait` only makes the current stream wait, and does not block: then the future is complete at once."""

    def wait(self) -> bool:
        """Return once the outputs hold the result; raise when they never will."""

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once."""

    def exception_when_over(self) -> BaseException | None:
        """Wait until it is over; what `wait` would raise."""

    def when_transported(self, then: Callable[[], None]) -> None:
        """Call `then` once `wait` would return or raise at once."""


class CallbackPool:
    """Runs actions on daemon threads, as many as are needed so that a blocked one delays no other."""

    def __init__(self, max_threads: int = MAX_CALLBACK_THREADS) -> None:
        self._max_threads = max_threads
        self._actions: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._threads = 0

    def forget(self) -> None:
        """Begin anew in a child of fork(), which has none of these threads."""
        self._actions = deque()
        self._changed = threading.Condition()
        self._idle = self._threads = 0

    def call(self, action: Callable[[], object]) -> None:
        """Run an action soon on a thread of the pool."""
        with self._changed:
            self._actions.append(action)
            if len(self._actions) <= self._idle or self._threads == self._max_threads:
                self._changed.notify()
                return
            self._threads += 1
        threading.Thread(target=self._work, name="fanin-callback", daemon=True).start()

    def _work(self) -> None:
        while (action := self._next()) is not None:
            with WORK:
                action()

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._idle += 1
            try:
                if not self._changed.wait_for(lambda: self._actions, IDLE_THREAD_S):
                    self._threads -= 1
                    return None
                return self._actions.popleft()
            finally:
                self._idle -= 1


_POOL = CallbackPool()
os.register_at_fork(after_in_child=_POOL.forget)
"""The process has one pool for all groups, since groups come and go."""


class Completion:
    """Makes and completes the futures of one group."""

    def __init__(self, *, ordered: bool = False) -> None:
        self._ordered = ordered
        self._turns: SimpleQueue[tuple[Pending, Callable[[], None]] | None] = SimpleQueue()
        self._waiter: threading.Thread | None = None
        self._lock = threading.Lock()
        self._kept: deque[tuple[Pending, Sequence[torch.Tensor]]] = deque(maxlen=KEPT_HANDLES)

    def keep(self, work: Pending, outputs: Sequence[torch.Tensor]) -> None:
        """Let a small collective's handle live on when Python is through with it.

        DDP's `join(divide_by_initial_world_size=False)` hands one to its reducer in C++, which holds only that part of
        it: without the object in Python a wait there would find no `wait` of ours, and last for ever.
        """
        if sum(tensor.numel() * tensor.element_size() for tensor in outputs) <= KEPT_BYTES:
            self._kept.append((work, outputs))

    def future_of(self, work: Pending, outputs: Sequence[torch.Tensor]) -> Future[list[torch.Tensor]]:
        """A future that gets the list of outputs, or the error that `work.wait` raises."""
        devices: list[int | str | torch.device] = list({tensor.device for tensor in outputs if tensor.is_cuda})
        promise: Future[None] = Future(devices=devices)

        def deliver(_: Future[None]) -> list[torch.Tensor]:
            work.wait()
            return list(outputs)

        # An exception of a callback becomes the error of the future that `then` returns, for C++ waiters too;
        # Future.set_exception is seen by Python waiters only.
        future = promise.then(deliver)
        if self._ordered:
            work.exception_when_over()  # here, where an interruption reaches the caller: `deliver` has it in the future
        if self._ordered or work.orders_streams or work.is_completed():
            promise.set_result(None)
        else:
            work.when_transported(lambda: promise.set_result(None))
        return future

    def call(self, action: Callable[[], object]) -> None:
        """Run an action on the process's pool of threads."""
        _POOL.call(action)

    def in_turn(self, work: Pending, then: Callable[[], None]) -> None:
        """Run `then` on the pool once `work` is over, waiting on this group's thread."""
        with self._lock:
            if self._waiter is None:
                self._waiter = threading.Thread(target=self._wait, name="fanin-futures", daemon=True)
                self._waiter.start()
        self._turns.put((work, then))

    def close(self) -> None:
        """End the thread, and wait until it is through with what was asked for: bounded, since sessions are closed."""
        self._kept.clear()
        if self._waiter is not None:
            self._turns.put(None)
            if self._waiter is not threading.current_thread():
                self._waiter.join(CLOSE_TIMEOUT_S)

    def _wait(self) -> None:
        while (turn := self._turns.get()) is not None:
            work, then = turn
            with WORK:
                work.exception_when_over()
                _POOL.call(then)

"""Handles of gloo's collectives, sends and receives."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError
from fanin.host.session.threads import WORK
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.work import CarriedWork, used_up

if TYPE_CHECKING:
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures


SETTLING_INTERVAL_S = 0.001
"""Interval between two looks at whether gloo has ended a collective: it wakes nobody for a bounded wait alone."""


class GlooWork(CarriedWork):
    """A collective of the inner gloo group."""

    def __init__(self, call: Call, failures: Failures, completion: Completion, inner: c10d.Work) -> None:
        super().__init__(call, failures, completion)
        self._inner = inner
        self._gloo_ends_at = time.monotonic() + call.timeout_s
        """Time, as time.monotonic(), at which gloo gives the collective up, whatever timeout a wait has."""

    @property
    def is_over(self) -> bool:
        """Whether gloo has nothing left to do for it."""
        return self._inner.is_completed()

    def _transported(self) -> bool:
        return self._inner.is_completed()

    def arrived(self) -> bool:
        """Whether gloo has completed it without an error, which only a wait tells; it does not block then."""
        if self._inner.is_completed():
            with contextlib.suppress(RuntimeError):
                self._inner.wait()
                return True
        return False

    def _await(self, timeout_s: float) -> None:
        ends_at = min(time.monotonic() + timeout_s, self._gloo_ends_at)
        try:
            self._inner.wait(timedelta(seconds=timeout_s))
        except Exception as error:
            self._failures.raise_of_gloo(error, self._name, timeout_s, late=used_up(ends_at))

    def when_transported(self, then: Callable[[], None]) -> None:
        """Call `then` through gloo's own future, so that it does not wait behind collectives of the switch."""
        self._inner.get_future().add_done_callback(lambda _: self._completion.call(then))

    def settle(self, timeout_s: float) -> None:
        """Wait at most so long for gloo to end it, with or without an error."""
        ends_at = time.monotonic() + timeout_s
        while not self.is_over and time.monotonic() < ends_at:
            time.sleep(SETTLING_INTERVAL_S)


class PeerWork(GlooWork):
    """A send or receive: gloo has no future for these, and only a wait learns that they are complete."""

    def __init__(self, call: Call, failures: Failures, completion: Completion, inner: c10d.Work) -> None:
        super().__init__(call, failures, completion, inner)
        self._waited = False
        self._given_up = False
        self._sender = call.root if call.collective.startswith("recv from rank") else None

    def _transported(self) -> bool:
        return self._waited

    @property
    def is_over(self) -> bool:
        """Whether a wait has returned, or `settle` has given it up: gloo then has closed its connections."""
        return self._waited or self._given_up

    def settle(self, timeout_s: float) -> None:
        """Wait at most so long, and give it up then."""
        try:
            self._await(timeout_s)
        except FaninError:
            self._given_up = True

    def source_rank(self) -> int:
        """Group rank of the sender, for a receive."""
        if self._sender is None:
            return super().source_rank()
        return self._sender

    def arrived(self) -> bool:
        """Whether a wait has returned: gloo has no other sign, and a second wait would be for another message."""
        return self._waited

    def _await(self, timeout_s: float) -> None:
        if not self._waited:
            super()._await(timeout_s)
            self._waited = True

    def when_transported(self, then: Callable[[], None]) -> None:
        """Call `then` after a wait on a thread of the pool, since peers may answer in any order."""
        self._after_a_wait(then)


class AnySourceWork(PeerWork):
    """A receive from any source. Nothing wakes gloo's wait for it when peers die, so a thread of its own waits."""

    def __init__(self, call: Call, failures: Failures, completion: Completion, inner: c10d.Work) -> None:
        super().__init__(call, failures, completion, inner)
        self._arrived = threading.Event()
        self._received = False
        self._raised: Exception | None = None
        self._late = False
        threading.Thread(target=self._receive, name="fanin-recv-anysource", daemon=True).start()

    def _receive(self) -> None:
        try:
            with WORK:
                self._inner.wait(timedelta(seconds=self.timeout_s))
            self._received = True
        except Exception as error:
            self._raised, self._late = error, used_up(self._gloo_ends_at)
        self._arrived.set()

    def _transported(self) -> bool:
        return self._arrived.is_set()

    @property
    def is_over(self) -> bool:
        """Whether it has arrived, has failed, or was given up."""
        return self._arrived.is_set()

    def settle(self, timeout_s: float) -> None:
        """Wait at most so long, and give it up then: threads that wait for it raise, since gloo's wait may go on till
        its timeout.
        """
        super().settle(timeout_s)
        self._arrived.set()

    def _await(self, timeout_s: float) -> None:
        if not self._failures.wait_unless_failed(self._arrived, timeout_s):
            failure = self._failures.failure
            raise (
                self._failures.explain(failure, self._name, timeout_s)
                if failure
                else self._failures.late(self._name, timeout_s)
            )
        if self._given_up and not self._received:
            raise self._failures.closed(self._name)
        if self._raised is not None:
            self._failures.raise_of_gloo(self._raised, self._name, timeout_s, late=self._late)

    def source_rank(self) -> int:
        """Group rank of the sender."""
        return int(self._inner._source_rank())

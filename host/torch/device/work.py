"""The handle of a reduction on a device: `wait` orders streams, futures are complete at once.

Rules
-----
* `wait` lets the caller's current stream wait for the result and returns; with a timeout of its own it blocks until the
  host's part is over, as NCCL's does. Where streams are threads (threads.py) it blocks always.
* Tensors of the program are held until `wait`, else until the device is through with them: the program's stream is then
  behind ours, and the allocator hands memory out again in the order of streams.
* An error is raised by `wait` if it is known by then. One that comes later has marked the outputs as NaN, and is raised
  by the group's next call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fanin.errors import CollectiveTimeoutError
from fanin.host.torch.device.device import Event
from fanin.host.torch.handles.call import Call, Tensors
from fanin.host.torch.handles.timeouts import Timeout
from fanin.host.torch.handles.work import NO_TIMEOUT, FaninWork, HostPart, QueuedWork

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession
    from fanin.host.torch.device.sight import Sight
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures


class Job:
    """A reduction's work that is still to be done by the host and the device."""

    def __init__(
        self, device: Any, name: str, timeout: Timeout, held: object, *, on_host: bool = False,
        sight: Sight | None = None,
    ) -> None:  # fmt: skip
        """`on_host`: it writes host memory as well, a residual, for which `wait` waits. `sight`: who spoils the sum."""
        self.sight = sight
        self.device, self.name, self.timeout, self.on_host = device, name, timeout, on_host
        self.held: object = held
        """Tensors that must live until the device is through with them."""
        self.done: Event = None
        """Event behind the result on the device."""
        self.host = HostPart()

    @property
    def through(self) -> bool:
        """Whether both host and device are done with the reduction."""
        return self.host.over.is_set() and self.done is not None and bool(self.device.done(self.done))


class DeviceWork(FaninWork):
    """A reduction on a device."""

    def __init__(self, job: Job, failures: Failures, completion: Completion, outputs: Tensors) -> None:
        super().__init__(completion, outputs, job.timeout)
        self._job, self._failures = job, failures
        self.orders_streams = job.device.way != "block" and not job.on_host and job.sight is None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Let the current stream wait for the result; returns True. Raises the typed error of a known failure."""
        if not self.orders_streams or timeout > NO_TIMEOUT:
            return super().wait(timeout)
        self._raise_if_failed(self.timeout_s)
        self._job.device.join(self._job.done, None)
        self._job.held = None
        return True

    def _transported(self) -> bool:
        return self._job.host.error is not None or self._job.through

    def arrived(self) -> bool:
        """Whether the host's part has ended without an error, and the device has the result."""
        return self._job.host.error is None and self._job.through

    def _await(self, timeout_s: float) -> None:
        job = self._job
        if not job.host.over.wait(timeout_s):
            raise self._failures.late(job.name, timeout_s)
        self._raise_if_failed(timeout_s)
        if not job.device.join(job.done, timeout_s):
            late = CollectiveTimeoutError(
                f"the result is here, and the device has not taken it in {timeout_s:g} s. Remedy: see what occupies "
                "the device's stream, or allow more time"
            )
            raise self._failures.explain(late, job.name, timeout_s)
        job.held = None
        if job.sight is not None and (spoilers := job.sight.spoilers):
            self._failures.nonfinite.report_spoiled(job.sight.key, job.name, spoilers)

    def _raise_if_failed(self, timeout_s: float) -> None:
        error = self._job.host.error
        if error is not None:
            self._error = explained = self._failures.explain(error, self._job.name, timeout_s)
            raise explained from error

    def when_transported(self, then: Callable[[], None]) -> None:
        """Call `then` after a wait on a thread of the pool."""
        self._after_a_wait(then)


class BehindPieces(QueuedWork):
    """A reduction of host memory that is queued behind a device's pieces."""

    def __init__(self, call: Call, failures: Failures, completion: Completion, session: AnySession) -> None:
        super().__init__(call, failures, completion)
        self._session = session

    def _await(self, timeout_s: float) -> None:
        super()._await(timeout_s)
        if self.host.ticket and self._session.spoiled:
            self._failures.nonfinite.report_if_spoiled(self._session, self.host.ticket, self._name)


def land_behind(session: AnySession, host: HostPart, timeout_s: float, ticket: int) -> None:
    """Wait for the ticket of a BehindPieces reduction, and note it in the handle's `host`; on the courier's thread."""
    session.wait(ticket, timeout_s)
    host.ticket = ticket

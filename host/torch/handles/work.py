"""Handles of collectives in flight, as torch.distributed wants them: `wait`, `is_completed`, `get_future`.

Rules
-----
* `wait` raises the typed error of what went wrong, in the thread that waits; it never hangs past the timeout.
* The steps after the transport is done (copying back into a tensor that could not be used in place, dividing) are
  `finish`: it runs once, in whichever thread learns first that the transport is done.
* Futures are made by the group's `Completion`, only when `get_future` is called.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler
from torch.futures import Future

from fanin.errors import CollectiveTimeoutError
from fanin.host.torch.handles.call import Call, Tensors
from fanin.host.torch.handles.host_tensor import beneath_layers, layers_active
from fanin.host.torch.handles.registered import Notes
from fanin.host.torch.handles.timeouts import Timeout, at_present, seconds_of
from fanin.interruptions import interrupts

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures

NO_TIMEOUT = timedelta(0)
"""Timeout that torch passes where the caller gave none; the collective's own timeout counts then."""
GLOO_CLOCK_S = 0.01
"""An error this shortly before a timeout counts as the timeout, since gloo counts in milliseconds, by its own clock."""
MIN_WAIT_S = 0.001
"""Least timeout of a wait whose time is over: gloo counts in milliseconds, and takes 0 for its default timeout."""

_Work: Any = dist.Work


def used_up(ends_at: float) -> bool:
    """Whether a collective of gloo's or NCCL's that raises now was given up: its time ends at `ends_at`, a
    time.monotonic(). Both raise one type for everything, so only the clock tells that from a peer that is gone.
    """
    return time.monotonic() >= ends_at - GLOO_CLOCK_S


class Once:
    """Runs an action once, whichever thread comes first; the others return when it is done.

    Tensors that were made under torch.inference_mode() can be written under that alone. So the action runs under it if
    this object, and its tensors with it, or one of `outputs` was made under it. Its work on CUDA tensors is queued on
    the first caller's stream; the current streams of all later callers wait for it.
    """

    __slots__ = ("_action", "_devices", "_done", "_infers", "_lock")

    def __init__(self, action: Callable[[], None], outputs: Tensors = ()) -> None:
        self._action: Callable[[], None] | None = action
        self._lock = threading.Lock()
        self._infers = torch.is_inference_mode_enabled() or any(output.is_inference() for output in outputs)
        self._devices = {output.device for output in outputs if output.is_cuda}
        self._done: list[torch.cuda.Event] = []

    def __call__(self) -> None:
        with self._lock:
            if self._action is not None:
                with contextlib.ExitStack() as around:
                    around.enter_context(torch.inference_mode() if self._infers else torch.no_grad())
                    if layers_active():  # of `wait`'s caller; these tensors are not torch.func's
                        around.enter_context(beneath_layers())
                    self._action()
                self._action = None
                self._done = [torch.cuda.current_stream(device).record_event() for device in self._devices]
        for device, done in zip(self._devices, self._done, strict=True):
            torch.cuda.current_stream(device).wait_event(done)


class Recorded(Protocol):
    """A record of a collective, which is told how the collective ends (collectives/flight_recorder.py)."""

    def complete(self) -> None:
        """The result is known to be there."""

    def failed(self, error: BaseException) -> None:
        """A wait has raised. A result may still come."""


class FaninWork(_Work):  # type: ignore[misc]
    """Common part of all handles. Subclasses implement the wait and the question whether the transport is done."""

    orders_streams = False
    """Whether `wait` without a timeout lets the current stream wait for the result, and does not block its caller."""
    _name = "collective"
    """Name of its waits in traces of torch.profiler (collectives/profiler_ranges.py)."""
    _finish: Once | None = None
    _notes: Notes | None = None
    _future: Future[list[torch.Tensor]] | None = None
    _error: BaseException | None = None
    record: Recorded | None = None
    """The flight recorder's record of the collective, where the group has a recorder."""

    def __init__(
        self, completion: Completion, outputs: Tensors, timeout: Timeout, finish: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._completion = completion
        self._outputs = outputs
        self._timeout = timeout
        if finish is not None:
            self._finish = Once(finish, outputs)
        completion.keep(self, outputs)

    def _transported(self) -> bool:
        """Whether the transport has nothing left to do, for better or worse; never blocks."""
        raise NotImplementedError

    def _await(self, timeout_s: float) -> None:
        """Return when the transport is done; raise the typed error when it cannot be."""
        raise NotImplementedError

    def arrived(self) -> bool:
        """Whether the transport is done without an error; never blocks, and changes nothing."""
        return self._error is None and self._transported()

    @property
    def timeout_s(self) -> float:
        """The timeout of a wait that is given none."""
        return at_present(self._timeout)

    def when_transported(self, then: Callable[[], None]) -> None:
        """Call `then` from a thread of the completion's pool once `wait` would return or raise at once."""
        self._completion.in_turn(self, then)

    def _after_a_wait(self, then: Callable[[], None]) -> None:
        """Call `then` after a wait on a thread of the pool: `when_transported` of works that may end in any order."""

        def wait_first() -> None:
            self.exception_when_over()
            then()

        self._completion.call(wait_first)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return True when the outputs hold the result; raise a FaninError when they never will."""
        if profiler._is_profiler_enabled:
            with _RecordFunctionFast(f"fanin:{self._name}:wait"):
                return self._wait(timeout)
        return self._wait(timeout)

    def _wait(self, timeout: timedelta) -> bool:
        try:
            self._await(self.timeout_s if timeout <= NO_TIMEOUT else seconds_of(timeout))
        except Exception as error:
            if not interrupts(error):
                self._error = error
                if self.record is not None:
                    self.record.failed(error)
            raise
        if self._finish is not None:
            self._finish()
        if self._notes is not None:
            notes, self._notes = self._notes, None
            notes.close()
        if self.record is not None:
            self.record.complete()
        return True

    def note(self, tensors: Tensors) -> None:
        """Let torch's `wait_tensor` of these tensors wait for this work."""
        self._notes = Notes(self, tensors)

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        if not self._transported():
            return False
        if self._finish is not None and self.is_success():
            self._finish()
        return True

    def is_success(self) -> bool:
        """Whether the collective has succeeded. False while it runs."""
        return self._transported() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that `wait` raises or would raise, or None."""
        return self.exception_when_over() if self._transported() else self._error

    def exception_when_over(self) -> BaseException | None:
        """Wait for the transport, and return what `wait` would raise, or None. Raises interruptions alone."""
        if self._error is None:
            try:
                self._await(self.timeout_s)
            except Exception as error:
                if interrupts(error):
                    raise
                self._error = error
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that the collective writes."""
        return list(self._outputs)

    def synchronize(self) -> None:
        """Wait: results are in place when it returns."""
        self.wait()

    def source_rank(self) -> int:
        """Group rank of the sender, for a receive from any source."""
        raise RuntimeError("only a receive from any source has a source rank")

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the list of outputs; its callbacks run on the completion's pool."""
        if self._future is None:
            self._future = self._completion.future_of(self, self._outputs)
        return self._future


class CarriedWork(FaninWork):
    """A collective that a switch, gloo or a thread of ours carries out; `failures` words its errors."""

    def __init__(self, call: Call, failures: Failures, completion: Completion) -> None:
        super().__init__(completion, call.outputs, call.timeout, call.finish)
        self._failures, self._name = failures, call.collective


class SwitchWork(CarriedWork):
    """A reduction that the switch carries out."""

    def __init__(
        self, call: Call, failures: Failures, completion: Completion, session: AnySession, ticket: int
    ) -> None:
        super().__init__(call, failures, completion)
        self._session, self._ticket = session, ticket

    def _transported(self) -> bool:
        return self._session.done(self._ticket) or self._session.failure is not None

    def arrived(self) -> bool:
        """Whether the session has done the reduction; a failure of the group, which ends waits, is no result."""
        return self._session.done(self._ticket)

    def _await(self, timeout_s: float) -> None:
        try:
            self._session.wait(self._ticket, timeout_s)
        except Exception as error:
            self._failures.raise_explained(error, self._name, timeout_s)
        if self._session.spoiled:
            self._failures.nonfinite.report_if_spoiled(self._session, self._ticket, self._name)


class LocalWork(FaninWork):
    """A collective that is done when its handle is made: of empty tensors, of one rank, or waited for already."""

    def __init__(self, completion: Completion, outputs: Tensors) -> None:
        super().__init__(completion, outputs, 0.0)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return True at once."""
        return True

    def note(self, tensors: Tensors) -> None:
        """Do nothing, since nobody need wait for a collective that is done."""

    def _transported(self) -> bool:
        return True

    def _await(self, timeout_s: float) -> None:
        """Nothing to wait for."""


class CombinedWork(FaninWork):
    """Several collectives behind one handle (coalescing), which has one timeout for all of them."""

    def __init__(self, works: Sequence[FaninWork], completion: Completion, outputs: Tensors, timeout: Timeout) -> None:
        super().__init__(completion, outputs, timeout)
        self._works = works
        self.orders_streams = all(work.orders_streams for work in works)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for every one of the works."""
        if self.orders_streams and timeout <= NO_TIMEOUT:
            return all(work.wait() for work in self._works)
        return super().wait(timeout)

    def _transported(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def arrived(self) -> bool:
        """Whether the transport is done without an error for all of the works."""
        return all(work.arrived() for work in self._works)

    def _await(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for work in self._works:
            try:
                work.wait(timedelta(seconds=max(MIN_WAIT_S, deadline - time.monotonic())))
            except CollectiveTimeoutError as error:  # its text has the time that was left for this work
                if interrupts(error):
                    raise
                together = f"{len(self._works)} collectives behind one handle had {timeout_s:g} s together"
                raise CollectiveTimeoutError(f"{together}: {error}") from error

    def when_transported(self, then: Callable[[], None]) -> None:
        """Call `then` after the last of the works."""

        def after(index: int) -> None:
            if index == len(self._works):
                then()
            else:
                self._works[index].when_transported(lambda: after(index + 1))

        after(0)


class HostPart:
    """The part of one collective that a thread of ours carries out, and how that ended.

    Threads may hold this in the place of the handle, which has the program's tensors.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.ticket = 0
        """The session's ticket of a reduction that is done and had just one; else 0."""
        self.over = threading.Event()
        """Set when it is done, for better or worse."""

    def end(self, error: BaseException | None) -> None:
        """Note that the part is over, with that error or well; later calls have no effect."""
        if not self.over.is_set():
            self.error = error
            self.over.set()


class QueuedWork(CarriedWork):
    """A collective that a thread of ours carries out (two levels; host memory behind pieces of a device's)."""

    def __init__(self, call: Call, failures: Failures, completion: Completion) -> None:
        super().__init__(call, failures, completion)
        self.host = HostPart()

    @property
    def is_over(self) -> bool:
        """Whether the carrying thread is done with it."""
        return self.host.over.is_set()

    def report(self, error: BaseException | None = None) -> None:
        """The carrying thread is done with it, with that error or well."""
        self.host.end(error)

    def _transported(self) -> bool:
        return self.is_over

    def arrived(self) -> bool:
        """Whether the carrying thread has ended it without an error."""
        return self.is_over and self.host.error is None

    def _await(self, timeout_s: float) -> None:
        if not self.host.over.wait(timeout_s):
            raise self._failures.late(self._name, timeout_s)
        if self.host.error is not None:
            raise self._failures.explain(self.host.error, self._name, timeout_s) from self.host.error

    def when_transported(self, then: Callable[[], None]) -> None:
        """Call `then` after a wait on a thread of the pool, since other collectives may end first."""
        self._after_a_wait(then)

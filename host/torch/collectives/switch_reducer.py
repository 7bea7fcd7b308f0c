"""Carries out requests through the session with the switch: host memory as it is, CUDA's through host/torch/device.

A group in which some rank has no CUDA device copies whole tensors to the host and back, so that all ranks submit alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fanin.errors import FaninError, UnsupportedError
from fanin.host.session.leased import LeasedSession
from fanin.host.torch.handles.host_tensor import copy_back, on_host
from fanin.host.torch.handles.request import Request
from fanin.host.torch.handles.work import FaninWork, LocalWork, SwitchWork, at_present
from fanin.numerics.reduction import Brief

if TYPE_CHECKING:
    from fanin.host.session.leased import AnySession
    from fanin.host.torch.device.arithmetic import Arithmetic
    from fanin.host.torch.device.reducer import DeviceReducer
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures


class SwitchReducer:
    """The reducer of a group with a switch. Fallback, where a group has one, hands over through it."""

    def __init__(
        self,
        session: AnySession,
        failures: Failures,
        completion: Completion,
        make_device: Callable[[SwitchReducer, torch.device], DeviceReducer | None],
    ) -> None:
        """`make_device` is asked once, at the first request on CUDA memory; None: it goes by the host."""
        self.session = session
        self._failures = failures
        self._completion = completion
        self._done = LocalWork(completion, [])
        # A group that goes on without a rank is not leased; 0: by the number of contributions
        survives = not isinstance(session, LeasedSession) and session.spec.survives_loss
        self.divisor = 0.0 if survives else float(session.size)
        self._make_device = make_device
        self._asked = False
        self.device: DeviceReducer | None = None
        """Made for the first CUDA request."""

    def submit(self, request: Request) -> FaninWork:
        """Start it; raise the group's failure when nothing can be started any more."""
        if request.device.type != "cpu":
            if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
                raise UnsupportedError(
                    f"{request.name}: a collective of fanin while a CUDA graph is captured, whose host's half would "
                    "not run when the graph is replayed. Remedy: leave collectives out of captured regions"
                )
            reducer = self._reducer_of(request.device)
            return self._on_host(_beside(request)) if reducer is None else reducer.submit(request)
        return self._on_host(request)

    def _on_host(self, request: Request) -> FaninWork:
        # Requests on host memory queue behind CUDA's: every rank must submit in the order of the calls.
        if self.device is not None and not self.free:
            return self.device.queue(request, self.hand_over)
        if request.source.numel() == 0 and request.count <= 0:
            return LocalWork(self._completion, request.outputs)
        return SwitchWork(
            self.session,
            self.hand_over(request),
            self._failures,
            request.name,
            self._completion,
            request.outputs,
            request.timeout_s,
            request.finish,
        )

    def hand_over(self, request: Request) -> int:
        """Give it to the session, and return the ticket. The request, and so its memory, lives until that is done."""
        try:
            ticket = self.session.submit(request.reduction(self.divisor))
        except Exception as error:
            self._failures.raise_explained(error, request.name, request.timeout_s)
        self._failures.nonfinite.submitted(ticket, request.source.nbytes)
        return ticket

    def arithmetic_on(self, device: torch.device) -> Arithmetic[torch.Tensor] | None:
        """Arithmetic for codes and words on that device; None: the host does. Every rank asks at the same point."""
        reducer = self._reducer_of(device)
        return None if reducer is None else reducer.arithmetic

    def _reducer_of(self, device: torch.device) -> DeviceReducer | None:
        if not self._asked:
            self.device, self._asked = self._make_device(self, device), True
        return self.device

    @property
    def free(self) -> bool:
        """Whether `at_once` may be called: no pieces of CUDA tensors wait, behind which all others queue."""
        return self.device is None or (not self.device.busy and self.device.error is None)

    def at_once(self, name: str, brief: Brief, owner: object, timeout_s: Callable[[], float]) -> FaninWork:
        """A reduction of dense host memory that is done, or has raised, when this returns. `owner` has the memory.

        It has neither a request nor a handle of its own, and the timeout is asked for only when a moment has not been
        enough. ReduceCollectives.sum_at_once has the measurement that keeps this beside `submit`.
        """
        if brief[2] == 0:  # no elements
            return self._done
        session = self.session
        try:
            ticket = session.at_once(brief, owner)
            if ticket:
                session.wait(ticket, at_present(timeout_s()))
        except Exception as error:
            self._failures.raise_explained(error, name, timeout_s())
        if ticket and session.spoiled:
            self._failures.nonfinite.look(session, ticket, name)
        return self._done

    def drain(self) -> None:
        """Wait for what devices have still to give and to take."""
        if self.device is not None:
            self.device.drain()

    def close(self) -> None:
        """End what carries CUDA tensors. The session is closed by the group."""
        if self.device is not None:
            self.device.close()
        self._make_device = _made_no_more  # it leads back to who holds this


def _beside(request: Request) -> Request:
    """The same on host memory: the call copies the tensors out, and the wait brings the result back."""
    source = on_host(request.source)
    residual = None if request.residual is None else on_host(request.residual)
    asked = request.kept
    kept = None if asked is None else torch.empty_like(asked, device="cpu", pin_memory=asked.is_cuda)

    def finish() -> None:
        if request.kept is not None and kept is not None:
            copy_back(request.kept, kept)
        if request.residual is not None and residual is not None and residual is not request.residual:
            copy_back(request.residual, residual)
        if request.finish is not None:
            request.finish()

    return replace(request, source=source, kept=kept, residual=residual, finish=finish)


def _made_no_more(_reducer: SwitchReducer, _device: torch.device) -> DeviceReducer | None:
    raise FaninError("the group has been left: no collectives after shutdown or abort")

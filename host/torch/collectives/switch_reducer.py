"""Carries out calls through the session with the switch: host memory as it is, CUDA's through host/torch/device.

A group in which some rank has no CUDA device copies whole tensors to the host and back, so that all ranks submit alike.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fanin.errors import FaninError
from fanin.host.session.leased import LeasedSession
from fanin.host.session.shards import MAX_UNSEEN_TICKETS
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.host_tensor import copy_back, on_host
from fanin.host.torch.handles.work import FaninWork, LocalWork, SwitchWork
from fanin.numerics.reduction import PackedReduction

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession
    from fanin.host.torch.device.arithmetic import Arithmetic
    from fanin.host.torch.device.reducer import DeviceReducer
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures


class SwitchReducer:
    """The reducer of a group with a switch. A group's Fallback, if it has one, submits by its `hand_over`."""

    def __init__(
        self,
        session: AnySession,
        failures: Failures,
        completion: Completion,
        make_device: Callable[[SwitchReducer, torch.device], DeviceReducer | None],
    ) -> None:
        """`make_device` is called once, at the first call on CUDA memory; None: such calls go by the host."""
        self.session = session
        self._failures = failures
        self._completion = completion
        self._done = LocalWork(completion, [])
        self._latest = 0
        """Ticket of the latest reduction that has a handle."""
        # 0 divides by the number of contributions, in a job that continues without a rank. Leased jobs never do, and
        # reading their `spec` would join them.
        survives = not isinstance(session, LeasedSession) and session.spec.survives_loss
        self.divisor = 0.0 if survives else float(session.size)
        self._make_device = make_device
        self._asked = False
        self.device: DeviceReducer | None = None
        """The reducer of CUDA memory, made for the first CUDA tensor; None before, and where all go by the host."""

    def submit(self, call: Call) -> FaninWork:
        """Start a reduction; raise the group's failure when nothing can be started any more."""
        if call.device.type != "cpu":
            reducer = self._reducer_of(call.device)
            if reducer is not None:
                return reducer.submit(call)
            call = _beside(call)
        # Calls on host memory queue behind CUDA's: every rank must submit in the order of the calls.
        if self.device is not None and not self.may_submit_and_wait:
            return self.device.queue(call, self.hand_over)
        if call.empty:
            return LocalWork(self._completion, call.outputs)
        return SwitchWork(call, self._failures, self._completion, self.session, self.hand_over(call))

    def hand_over(self, call: Call) -> int:
        """Submit a call to the session, which keeps it, and so its memory, until it is done; returns the ticket."""
        try:
            ticket = self.session.submit(call.reduction(self.divisor))
        except Exception as error:
            self._failures.raise_explained(error, call.collective, call.timeout_s)
        self._failures.nonfinite.submitted(ticket, call.source.nbytes)
        self._latest = ticket
        return ticket

    def arithmetic_on(self, device: torch.device) -> Arithmetic[torch.Tensor] | None:
        """Arithmetic for codes and words on that device; None: the host does. Every rank asks at the same point."""
        reducer = self._reducer_of(device)
        return None if reducer is None else reducer.arithmetic

    @property
    def device_in_words(self) -> str:
        """How CUDA tensors go, for a description; empty before the first."""
        if self.device is not None:
            return self.device.describe()
        return "CUDA tensors go by the host, since some rank of the group has no CUDA device" if self._asked else ""

    def _reducer_of(self, device: torch.device) -> DeviceReducer | None:
        if not self._asked:
            self.device, self._asked = self._make_device(self, device), True
        return self.device

    @property
    def may_submit_and_wait(self) -> bool:
        """Whether `submit_and_wait` may be called: no pieces of CUDA tensors wait, behind which all others queue."""
        return self.device is None or (not self.device.busy and self.device.error is None)

    def submit_and_wait(self, call: Call, packed: PackedReduction) -> FaninWork:
        """A reduction of dense host memory that is done, or has raised, when this returns; without a handle of its own.

        With one these sums took 1.5 to 1.6 times as long at 1 and 4 KiB (4 workers on 2 cores, medians of 400
        interleaved runs of 20 sums): processes that alternate on a core find every line of Python cold.
        """
        if packed[2] == 0:  # no elements
            return self._done
        try:
            ticket = self.session.submit_and_wait(packed, call)
            if ticket:
                self.session.wait(ticket, call.timeout_s)
        except Exception as error:
            self._failures.raise_explained(error, call.collective, call.timeout_s)
        if ticket and self.session.spoiled:
            self._failures.nonfinite.report_if_spoiled(self.session, ticket, call.collective)
        return self._done

    def drain(self) -> None:
        """Wait until devices have given all contributions and taken all results."""
        if self.device is not None:
            self.device.drain()

    def finish(self, timeout_s: float) -> None:
        """Wait for reductions under way, at most so long; returns at once where the session has failed."""
        ends_at = time.monotonic() + timeout_s
        with contextlib.suppress(FaninError):
            for ticket in range(max(1, self._latest - MAX_UNSEEN_TICKETS), self._latest + 1):
                if not self.session.done(ticket):
                    self.session.wait(ticket, max(0.0, ends_at - time.monotonic()))

    def close(self) -> None:
        """Close the reducer of CUDA memory. The group closes the session."""
        if self.device is not None:
            self.device.close()
        self._make_device = _made_no_more  # the function refers back to the group's resources


def _beside(call: Call) -> Call:
    """The call on host memory: this copies its tensors to the host, and `finish` brings the result back."""
    residual = None if call.residual is None else on_host(call.residual)
    asked = call.kept
    kept = None if asked is None else torch.empty_like(asked, device="cpu", pin_memory=asked.is_cuda)

    def finish() -> None:
        if call.kept is not None and kept is not None:
            copy_back(call.kept, kept)
        if call.residual is not None and residual is not None and residual is not call.residual:
            copy_back(call.residual, residual)
        if call.finish is not None:
            call.finish()

    return call.but(source=on_host(call.source), kept=kept, residual=residual, finish=finish)


def _made_no_more(reducer: SwitchReducer, _device: torch.device) -> DeviceReducer | None:
    raise FaninError(
        f"rank {reducer.session.rank} has left its group: no collectives after shutdown or abort. Remedy: leave it last"
    )

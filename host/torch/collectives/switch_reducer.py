"""Carries out requests through the session with the switch: host memory as it is, CUDA memory through staging.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fanin.host.session.leased import LeasedSession
from fanin.host.torch.collectives.request import Request
from fanin.host.torch.collectives.staging import Staging
from fanin.host.torch.handles.work import FaninWork, LocalWork, SwitchWork, at_present
from fanin.numerics.reduction import Brief

if TYPE_CHECKING:
    from fanin.host.session.leased import AnySession
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures


class SwitchReducer:
    """The reducer of a group with a switch. Fallback, where a group has one, hands over through it."""

    def __init__(self, session: AnySession, failures: Failures, completion: Completion) -> None:
        self.session = session
        self._failures = failures
        self._completion = completion
        self._done = LocalWork(completion, [])
        # A group that goes on without a rank is not leased; 0: by the number of contributions
        survives = not isinstance(session, LeasedSession) and session.spec.survives_loss
        self._divisor = 0.0 if survives else float(session.size)
        self.staging: Staging | None = None
        """Made for the first CUDA request."""

    def submit(self, request: Request) -> FaninWork:
        """Start it; raise the group's failure when nothing can be started any more."""
        # Requests on host memory queue behind CUDA's: every rank must submit in the order of the calls.
        if request.source.is_cuda or not self.free:
            return self._staged(request)
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
            return self.session.submit(request.reduction(self._divisor))
        except Exception as error:
            self._failures.raise_explained(error, request.name, request.timeout_s)

    @property
    def free(self) -> bool:
        """Whether `at_once` may be called: staging is not busy, behind whose requests all others queue."""
        return self.staging is None or not self.staging.busy

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
        return self._done

    def _staged(self, request: Request) -> FaninWork:
        if self.staging is None:
            self.staging = Staging(self.session, self.hand_over, self._failures, self._completion)
        return self.staging.submit(request)

    def close(self) -> None:
        """End the thread of staging, if there is one. The session is closed by the group."""
        if self.staging is not None:
            self.staging.close()
            self.staging = None

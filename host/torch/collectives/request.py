"""From a torch reduction to reductions of the switch, and who carries them out.

A `Request` is what every reducer takes: dense host or CUDA memory, already in an element type that the switch adds.
`Direct` hands it to the session as it is. Staging (CUDA) and fallback have their own files and the same `start`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from fanin.host.torch.collectives.work import FaninWork, LocalWork, SwitchWork, Tensors
from fanin.numerics.reduction import Element, Operator, Reduction

if TYPE_CHECKING:
    from fanin.host.session.shards import AnySession
    from fanin.host.torch.collectives.completion import Completion
    from fanin.host.torch.collectives.failures import Failures

_COLLECTIVES = {"all_reduce": 1, "reduce": 2, "reduce_scatter": 3, "barrier": 4}


def tag_of(name: str, average: bool) -> int:
    """What ranks must agree in beside the sum itself: which collective it is for, and what becomes of it."""
    return _COLLECTIVES[name] * 2 + average


SUM_TAG = tag_of("all_reduce", average=False)


@dataclass(slots=True, kw_only=True)
class Request:
    """One reduction. `source` has every element; `kept` receives elements [keep_first, keep_first + kept.numel())."""

    name: str
    """all_reduce, reduce, reduce_scatter or barrier."""
    source: torch.Tensor
    kept: torch.Tensor | None
    """Contiguous; None when this rank keeps nothing. May be the source's own memory at keep_first."""
    keep_first: int = 0
    element: Element
    lanes: int = 32
    operator: Operator = Operator.SUM
    """Another one only where `lanes` is EXACT."""
    average: bool = False
    factor: float = 1.0
    residual: torch.Tensor | None = None
    """Error feedback: as many float32 as the source has elements, on the host."""
    outputs: Tensors = field(default_factory=list)
    """What the work's future yields."""
    timeout_s: float
    finish: Callable[[], None] | None = None

    @property
    def kept_count(self) -> int:
        """Elements of the result that this rank keeps."""
        return 0 if self.kept is None else self.kept.numel()


class Reducer(Protocol):
    """Carries out requests in the order of the calls."""

    def start(self, request: Request) -> FaninWork:
        """Start it; raise the group's failure when nothing can be started any more."""

    def close(self) -> None:
        """Give up threads and memory."""


class Direct:
    """Host memory straight to the session."""

    def __init__(self, session: AnySession, failures: Failures, completion: Completion) -> None:
        self.session = session
        self._failures = failures
        self._completion = completion
        self._done = LocalWork(completion, [])
        self._divisor = 0.0 if session.spec.survives_loss else float(session.size)  # 0: by who is there

    def submit(self, request: Request, owner: object = None) -> int:
        """Hand it to the session and return the ticket."""
        source, kept = request.source, request.kept
        reduction = Reduction(
            source=source.data_ptr(),
            destination=0 if kept is None else kept.data_ptr(),
            count=source.numel(),
            element=request.element,
            lanes=request.lanes,
            operator=request.operator,
            divisor=self._divisor if request.average else 1.0,
            factor=request.factor,
            residual=0 if request.residual is None else request.residual.data_ptr(),
            keep_first=request.keep_first,
            keep_count=request.kept_count,
            tag=tag_of(request.name, request.average),
            owner=owner or request,
        )
        try:
            return self.session.submit(reduction)
        except Exception as error:
            raise self._failures.explain(error, request.name, request.timeout_s) from error

    def start(self, request: Request) -> FaninWork:
        """Start it on host memory."""
        if request.source.numel() == 0:
            return LocalWork(self._completion, request.outputs)
        ticket = self.submit(request)
        return SwitchWork(
            self.session,
            ticket,
            self._failures,
            request.name,
            self._completion,
            request.outputs,
            request.timeout_s,
            request.finish,
        )

    def all_reduce_in_place(
        self, tensor: torch.Tensor, tensors: Tensors, element: Element, lanes: int, timeout_s: float
    ) -> FaninWork:
        """The shortest way for the commonest request: a sum of a dense host tensor, in place."""
        count = tensor.numel()
        if count == 0:
            return LocalWork(self._completion, tensors)
        reduction = Reduction.in_place(tensor.data_ptr(), count, element, lanes, SUM_TAG, tensor)
        try:
            ticket = self.session.submit(reduction)
        except Exception as error:
            raise self._failures.explain(error, "all_reduce", timeout_s) from error
        return SwitchWork(self.session, ticket, self._failures, "all_reduce", self._completion, tensors, timeout_s)

    def all_reduce_at_once(
        self, tensor: torch.Tensor, element: Element, lanes: int, timeout_s: Callable[[], float]
    ) -> FaninWork:
        """The same for who would wait for it at once: it is done, or has raised, when this returns.

        Every microsecond of Python counts here: the switch's part of a small sum takes no longer. So the timeout is
        asked for only when a moment has not been enough, and the handle is always the same one, without outputs.
        """
        count = tensor.numel()
        if count == 0:
            return self._done
        session = self.session
        try:
            ticket = session.sum_in_place(tensor.data_ptr(), count, element, lanes, tag=SUM_TAG, owner=tensor)
            if ticket:
                session.wait(ticket, timeout_s())
        except Exception as error:
            raise self._failures.explain(error, "all_reduce", timeout_s()) from error
        return self._done

    def close(self) -> None:
        """The session is closed by the group."""

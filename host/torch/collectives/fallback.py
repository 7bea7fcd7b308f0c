"""`fallback="gloo"`: when the switch is lost, the group says so once, loudly, and goes on over gloo.

Rules
-----
* Replicas stay bit-identical. A reduction that any rank has finished counts: its bits are broadcast to the ranks that
  lack them. One that nobody has finished is reduced anew, over gloo, from the inputs, which all ranks still have.
* So until a reduction is known to be finished everywhere, its input is left alone (the switch's result goes to memory
  of our own and is copied out by `wait`) and its result is kept.
* host/session/finished.py tells when a reduction is finished everywhere; host/session/reduction_log.py keeps it till
  then.
* Ranks agree over a separate gloo group, so that nothing the program does on the inner group comes in between: first
  on the first unfinished and the last finished reduction, then on which rank has finished which of those in between. A
  thread of ours does it, so that a rank that computes, or waits for something else, takes part.
* Over shards the same holds for the flows of each. When one is lost, all sessions are stopped before the ranks agree
  (host/session/shards.py), so that nothing is finished, or written, while they do.
* Only the loss of a switch is survived. When a rank is gone, gloo cannot go on either.

| state | a new reduction | why the state ends |
|---|---|---|
| LIVE | goes to the session, and into the log | the session fails with SwitchLostError |
| AGREEING | goes into the log | the ranks have agreed, or cannot |
| GLOO | goes to gloo | never |
| BROKEN | raises | never |
"""

from __future__ import annotations

import enum
import logging
import threading
import time
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, FaninError, SwitchLostError
from fanin.host.session.any_session import AnySession
from fanin.host.session.finished import Ends
from fanin.host.session.reduction_log import ReductionLog
from fanin.host.session.threads import WORK
from fanin.host.torch.collectives.routing import GLOO_OPERATORS, MIN
from fanin.host.torch.collectives.switch_reducer import SwitchReducer
from fanin.host.torch.gloo.gloo_devices import DEVICES
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.failures import Failures
from fanin.host.torch.handles.host_tensor import copy_back, on_host
from fanin.host.torch.handles.work import MIN_WAIT_S, FaninWork, LocalWork, Once, used_up
from fanin.interruptions import interrupts
from fanin.numerics.reduction import EXACT

if TYPE_CHECKING:
    from fanin.host.torch.handles.completion import Completion

ACCUMULATE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int16: torch.int32}
"""Element types that gloo adds too coarsely or not at all, and what they are added in."""


class State(enum.Enum):
    """The path of reductions; see the table above."""

    LIVE = enum.auto()
    AGREEING = enum.auto()
    GLOO = enum.auto()
    BROKEN = enum.auto()


@dataclass(slots=True, eq=False)
class LoggedReduction:
    """One reduction in the log."""

    index: int
    call: Call | None
    """The call; None once the reduction is finished everywhere or delivered, to hold a user's tensors no longer."""
    source: torch.Tensor | None
    """The input on the host, untouched until the operation is delivered."""
    residual: torch.Tensor | None
    """Copy of the residual from before the reduction."""
    result: torch.Tensor
    """All elements of the result, on the host."""
    ends: Ends = field(default_factory=dict)
    """Ends of the reduction's parts at each flow, by which host/session/finished.py tells it."""
    ticket: int = 0
    """The session's ticket; 0 if the reduction was never submitted to a session."""
    session: AnySession | None = None
    may_go: bool = False
    """Whether this rank has seen that it is finished here, and all before it."""
    over_gloo: c10d.Work | None = None
    settle: Once | None = None
    """Makes `result` of the sum that gloo has brought."""
    error: FaninError | None = None
    issued: threading.Event = field(default_factory=threading.Event)
    """Set when `over_gloo` or `error` is, or nothing more is needed."""

    @property
    def has_come(self) -> bool:
        """Whether the session has finished it here."""
        return bool(self.ticket) and self.session is not None and self.session.done(self.ticket)


class FallbackWork(FaninWork):
    """A reduction that may end through the switch or through gloo."""

    def __init__(self, fallback: Fallback, operation: LoggedReduction, completion: Completion, call: Call) -> None:
        super().__init__(completion, call.outputs, call.timeout, lambda: fallback.deliver(operation))
        self._fallback, self._operation = fallback, operation

    def _transported(self) -> bool:
        return self._fallback.transported(self._operation)

    def _await(self, timeout_s: float) -> None:
        self._fallback.wait(self._operation, timeout_s)


class Fallback:
    """Carries out one group's reductions, through the switch once it is attached and while it is there."""

    def __init__(
        self,
        store: c10d.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        failures: Failures,
        completion: Completion,
    ) -> None:
        self._switch: SwitchReducer | None = None
        self._devices = DEVICES.open()
        self._gloo: Any = self._devices.group(store, rank, size, timeout)
        self._rank = rank
        self._size = size
        self._timeout_s = timeout.total_seconds()
        self._failures = failures
        self._completion = completion
        self._log: ReductionLog[LoggedReduction] = ReductionLog()
        self._next_index = 0
        self._state = State.GLOO
        self._broken: FaninError | None = None
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """The present path of reductions."""
        return self._state

    @property
    def over_gloo(self) -> bool:
        """Whether new reductions go to gloo."""
        return self._state is State.GLOO

    def joined_everywhere(self, joined: bool) -> bool:
        """Whether every rank has joined the switch; collective. If not, this group starts on gloo."""
        flag = torch.tensor([int(joined)], device="cpu")
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(MIN)
        self._gloo.allreduce([flag], options).wait()
        return bool(flag.item())

    def attach(self, switch: SwitchReducer) -> None:
        """Start to use the switch, since every rank has joined it."""
        self._switch = switch
        self._log.restart(switch.session.sessions)
        self._state = State.LIVE

    def survives(self, failure: FaninError) -> bool:
        """Whether the group goes on after that failure of its session."""
        return isinstance(failure, SwitchLostError) and self._state is not State.BROKEN

    def close(self) -> None:
        """Forget all kept reductions."""
        with self._lock:
            self._log.keep_only(())

    # --- one reduction ---

    def submit(self, call: Call) -> FaninWork:
        """Start a reduction by the present path (the table above). Raises the group's failure where it is BROKEN."""
        if call.empty:
            return LocalWork(self._completion, call.outputs)
        source = on_host(call.source).reshape(-1)
        residual = call.residual.clone() if call.residual is not None else None
        with self._lock:
            operation = LoggedReduction(self._next_index, call, source, residual, torch.empty_like(source))
            self._next_index += 1
            if self._state is State.LIVE:
                self._submit(operation, call)
                self._log.append(operation)
                for come in self._log.take_come():
                    come.may_go = True
                self._log.forget()
            elif self._state is State.AGREEING:
                self._log.append(operation)
            elif self._state is State.GLOO:
                self._reduce_over_gloo(operation)
            else:
                assert self._broken is not None
                raise self._failures.explain(self._broken, call.collective, call.timeout_s)
        return FallbackWork(self, operation, self._completion, call)

    def _submit(self, operation: LoggedReduction, call: Call) -> None:
        assert self._switch is not None
        assert operation.source is not None
        assert call.lanes is not None, "the route has decided"
        whole = call.but(source=operation.source, kept=operation.result, keep_first=0, finish=None, outputs=())
        try:
            operation.ticket, operation.session = self._switch.hand_over(whole), self._switch.session
        except FaninError as error:
            if not self.survives(self._switch.session.failure or error):
                raise
            return
        counts = self._switch.session.counts_at(operation.ticket, call.source.numel(), call.element, call.lanes)
        self._log.dealt(operation, counts, call.element, call.lanes, call.operator)

    def transported(self, operation: LoggedReduction) -> bool:
        """Whether `wait` would not block."""
        if operation.has_come:
            return True
        if not operation.issued.is_set():
            return False
        return operation.over_gloo is None or operation.over_gloo.is_completed()

    def wait(self, operation: LoggedReduction, timeout_s: float) -> None:
        """Return when `operation.result` is there; raise when it never will be."""
        call = operation.call
        name = call.collective if call is not None else "all_reduce"
        deadline = time.monotonic() + timeout_s
        try:
            if operation.session is not None:
                try:
                    operation.session.wait(operation.ticket, timeout_s)
                    return
                except FaninError as error:
                    if interrupts(error) or isinstance(error, CollectiveTimeoutError) or not self.survives(error):
                        raise
            if not operation.issued.wait(max(0.0, deadline - time.monotonic())):
                raise CollectiveTimeoutError(
                    "the ranks have not yet agreed how to go on over gloo. Remedy: allow more time"
                )
            if operation.error is not None:
                raise operation.error
        except Exception as error:
            self._failures.raise_explained(error, name, timeout_s)
        if operation.over_gloo is not None:
            try:
                operation.over_gloo.wait(timedelta(seconds=max(MIN_WAIT_S, deadline - time.monotonic())))
            except Exception as error:
                self._failures.raise_of_gloo(error, name, timeout_s, late=used_up(deadline))
            if operation.settle is not None:
                operation.settle()

    def deliver(self, operation: LoggedReduction) -> None:
        """Copy the kept part of the result to where the user wants it, and let go of the user's tensors."""
        call = operation.call
        assert call is not None
        if call.kept is not None:
            part = operation.result[call.keep_first : call.keep_first + call.kept_count]
            copy_back(call.kept, part.view(call.kept.shape))
        if call.finish is not None:
            call.finish()
        operation.call = operation.source = operation.residual = None

    # --- going on without the switch ---

    def recover(self, failure: FaninError) -> None:
        """Agree with the other ranks and go on over gloo; in a thread of its own. Never raises."""
        assert self._switch is not None
        with self._lock:
            if self._state is not State.LIVE:
                return
            self._state = State.AGREEING
            log = list(self._log)
        warn_once(f"the switch at {self._switch.session.address} is lost", f"rank {self._rank}: {failure}")
        try:
            finished = {operation.index for operation in log if operation.has_come}
            with WORK:
                first, have = self._agree(log, finished)
                self._go_on(first, have)
        except Exception as error:
            self._give_up(
                FaninError(
                    f"the switch is lost ({failure}) and the ranks cannot go on over gloo: {error}. "
                    "Remedy: start the job again"
                )
            )

    def _go_on(self, first: int, have: dict[int, list[int]]) -> None:
        """The ranks have agreed: what is not finished everywhere goes to gloo, in the same order on every rank."""
        with self._lock:
            for operation in self._log:
                holders = have.get(operation.index, [])
                if operation.index < first or len(holders) == self._size:
                    operation.issued.set()
                elif holders:
                    self._broadcast(operation, holders[0])
                else:
                    self._reduce_over_gloo(operation)
            self._log.keep_only(())
            self._state = State.GLOO

    def _agree(self, log: list[LoggedReduction], finished: set[int]) -> tuple[int, dict[int, list[int]]]:
        """The first operation that any rank has not finished, and the ranks that have finished each one after it."""
        first = next((operation.index for operation in log if operation.index not in finished), self._next_index)
        beyond = max(finished, default=first - 1) + 1
        bounds = self._gather(torch.tensor([first, max(beyond, first)], device="cpu"))
        first = min(int(bound[0]) for bound in bounds)
        beyond = max(int(bound[1]) for bound in bounds)
        if beyond <= first:
            return first, {}
        kept_from = log[0].index if log else first
        if first < kept_from:
            raise FaninError(
                f"reduction {first} is needed by another rank, and rank {self._rank} keeps {kept_from} and later. "
                "Remedy: start the job again"
            )
        mine = torch.tensor([index in finished for index in range(first, beyond)], dtype=torch.uint8, device="cpu")
        masks = self._gather(mine)
        return first, {
            first + offset: [rank for rank in range(self._size) if masks[rank][offset]]
            for offset in range(beyond - first)
        }

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        everyone = [torch.empty_like(mine) for _ in range(self._size)]
        self._gloo.allgather([everyone], [mine]).wait(timedelta(seconds=self._timeout_s))
        return everyone

    def _broadcast(self, operation: LoggedReduction, root: int) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        operation.over_gloo = self._gloo.broadcast([operation.result], options)
        operation.issued.set()

    def _reduce_over_gloo(self, operation: LoggedReduction) -> None:
        """Sum the inputs over gloo (called with the lock held, so in the same order on every rank)."""
        call, source = operation.call, operation.source
        assert call is not None
        assert source is not None
        exact = call.lanes == EXACT and source.is_floating_point()
        total = source.to(torch.float64 if exact else ACCUMULATE.get(source.dtype, source.dtype), copy=True)
        if call.factor != 1.0:
            total *= call.factor
        if call.residual is not None and operation.residual is not None:
            total += operation.residual.view_as(total)
            call.residual.zero_()

        def settle() -> None:
            if call.average:
                total.div_(self._size)
            copy_back(operation.result, total)

        operation.settle = Once(settle)
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(GLOO_OPERATORS[call.operator])
        operation.over_gloo = self._gloo.allreduce([total], options)
        operation.issued.set()

    def _give_up(self, error: FaninError) -> None:
        with self._lock:
            self._broken, self._state = error, State.BROKEN
            for operation in self._log:
                if not operation.issued.is_set():  # those that were issued to gloo end there
                    operation.error = error
                    operation.issued.set()
            self._log.keep_only(())


_WARNED: set[str] = set()


def warn_once(what: str, reason: str) -> None:
    """Say loudly, once per event and process, that gloo does the sums from here on."""
    if what in _WARNED:
        return
    _WARNED.add(what)
    text = f"fanin: {what}; reductions go over gloo from here on, which is slower (fallback='gloo'). Reason: {reason}"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        logging.getLogger("fanin").exception("warnings are errors here")

"""All-reduces of two levels: scattered inside a host, each part summed between hosts, gathered inside again.

A host of L ranks then sends and receives one tensor's worth between hosts, from L processes, and each of them quantizes
1/L of it. Inside, NCCL or gloo moves 2 (L - 1) / L tensors per rank (the hierarchy of BytePS, OSDI 2020, and of
NCCL's own trees).

Rules
-----
* Two lanes, a thread each, work off the sums in the order of the calls: the first waits for the reduce-scatter and
  starts the sum between hosts, the second waits for that and gathers. So each of the three groups (inside twice, and
  between) sees one order on all ranks, whatever the timing, and a sum's parts travel while the next one is scattered.
* Parts are equal: a tensor that cannot be divided is padded with zeros in memory of its own.
* CUDA tensors: each lane has a stream of its own, behind the caller's at the time of the call. A sum is over when its
  gather has ended on the device, which the second lane waits for; so `wait` blocks its thread, as without two levels,
  and `get_future` blocks nobody.
* A sum that fails breaks the groups inside: the host's other ranks would wait for this one until their timeouts. Every
  later sum of two levels raises at once. The rank that was lost is named by a session, or by the first rank whose
  session has named it (first_cause.py).
* A failed CUDA sum leaves NaN in its output, since a stream may have read it already.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from fanin.errors import FaninError, WorkerLostError
from fanin.host.torch.collectives.inside import Inside
from fanin.host.torch.collectives.lane import Lane
from fanin.host.torch.collectives.routing import AVG, PREMUL_SUM, SUM, factor_of
from fanin.host.torch.handles.call import Call, Tensors
from fanin.host.torch.handles.host_tensor import writing_to
from fanin.host.torch.handles.timeouts import Timeout, at_present
from fanin.host.torch.handles.work import FaninWork, QueuedWork, used_up

if TYPE_CHECKING:
    from collections import Counter

    from fanin.host.torch.collectives.first_cause import FirstCause
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures
    from fanin.host.torch.meeting.levels import Levels

DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
"""Element types whose sums take two levels; integers, complex numbers and everything small take one."""

Waiting = Callable[[], object]
"""Returns when the part holds its sum; raises when it never will."""
Starting = Callable[[torch.Tensor], Waiting]
"""Starts the sum of this rank's part between hosts, in place."""


class Between(Protocol):
    """The process group between hosts, as far as sums of two levels need it: a FaninProcessGroup, which is made of
    parts that know TwoLevels."""

    def allreduce(self, tensors: Any, opts: Any = ..., timeout: timedelta | None = None) -> FaninWork:
        """All-reduce the tensors in place."""

    def abort(self, reason: FaninError | None = None) -> None:
        """Drop out at once; whatever waits raises. `reason`: a failure elsewhere."""

    def shutdown(self) -> None:
        """Leave the job once its sums have ended."""

    def counters(self) -> dict[str, int | float]:
        """Counters of the group's own."""


def waiting_for(work: FaninWork, timeout: Timeout) -> Waiting:
    """A `Waiting` for a sum between hosts. It passes a timeout, since `wait` without one may only order streams."""
    return lambda: work.wait(timedelta(seconds=at_present(timeout)))


class TwoLevels:
    """The sums of two levels of one group. Ranks are group ranks, timeouts seconds."""

    def __init__(
        self,
        levels: Levels,
        inside: Inside,
        between: Between | None,
        failures: Failures,
        completion: Completion,
        counters: Counter[str],
        cause: FirstCause,
    ) -> None:
        """`inside`: this host's ranks, at least two. `between`: None where all ranks are on one host. `cause`: of
        failures of the whole group."""
        self.levels = levels
        self.between = between
        self.inside = inside
        self._cause = cause
        self.failures, self._completion, self._counters = failures, completion, counters
        self._scattering, self._gathering = Lane("fanin-scatter"), Lane("fanin-gather")
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        self._failed: BaseException | None = None
        self._works: weakref.WeakSet[QueuedWork] = weakref.WeakSet()

    def takes(self, call: Call) -> bool:
        """Whether an all-reduce of a tensor that is not small has two levels: dense floats of the right device."""
        tensor = call.source
        return (
            tensor.dtype in DTYPES
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and tensor.device.type == self.inside.device_type
            and any(call.op.op == each for each in (SUM, AVG, PREMUL_SUM))
        )

    def all_reduce(self, call: Call) -> FaninWork:
        """Sum or average in place. The sum between hosts has that group's lanes, and its codec."""

        def start(part: torch.Tensor) -> Waiting:
            if self.between is not None:
                return waiting_for(self.between.allreduce([part], call.op), call.timeout)
            factor = factor_of(call.op)
            return lambda: part.mul_(factor) if factor != 1.0 else part

        return self.reduce(call.source, call.outputs, start, call.timeout, average=call.op == AVG)

    def reduce(
        self, tensor: torch.Tensor, outputs: Tensors, start: Starting, timeout: Timeout, *, average: bool
    ) -> FaninWork:
        """Sum or average in place, with the caller's sum between hosts (`start`), which averages over hosts itself.

        Every rank calls it for the same tensors in the same order. Raises the group's failure when nothing can be
        started any more; what happens later is raised by the work's `wait`.
        """
        call = Call("all_reduce", tensor, outputs, timeout_s=timeout)
        failure = self.failures.failure or self._failed
        if failure is not None:
            raise self.failures.explain(failure, call.collective, call.timeout_s)
        self._counters["two_levels.all_reduce"] += 1
        self._counters["two_levels.bytes"] += tensor.nbytes
        summed = _Sum(self, tensor.detach().view(-1), start, call.timeout_s, average=average)
        work = QueuedWork(call, self.failures, self._completion)
        self._works.add(work)
        self._scattering.put(lambda: self._scatter(summed, work))
        return work

    # --- on the lanes ---

    def _scatter(self, summed: _Sum, work: QueuedWork) -> None:
        try:
            summed.scatter()
        except Exception as error:
            self._fail(summed, work, error)
        else:
            self._gathering.put(lambda: self._gather(summed, work))

    def _gather(self, summed: _Sum, work: QueuedWork) -> None:
        try:
            summed.gather()
            if self.failures.failure is not None:  # a gather of NCCL's that was aborted ends like any other
                raise self.failures.failure
        except Exception as error:
            self._fail(summed, work, error)
        else:
            work.report()

    def _fail(self, summed: _Sum, work: QueuedWork, error: Exception) -> None:
        self.break_connections()
        explained = self.failures.explain(self._cause_of(error), "all_reduce", summed.timeout_s)
        self._failed = self._failed or explained
        if self.between is not None:  # its ranks on other hosts wait for this one's next part
            self.between.abort(explained)
        summed.spoil()
        work.report(explained)

    def _cause_of(self, error: Exception) -> Exception:
        """The first cause of an error, in ranks of this group: the loss of a rank that died, not of one that left."""
        if isinstance(error, FaninError) and not isinstance(error, WorkerLostError):
            return error
        own = None
        if isinstance(error, WorkerLostError):
            own = WorkerLostError(tuple(self.levels.between[rank] for rank in error.ranks), str(error))
        return self._cause.found(own) or error

    def streams(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream] | None:
        """Streams of the two lanes on a device; None for host memory."""
        if device.type != "cuda":
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device), torch.cuda.Stream(device)
        return self._streams[device]

    # --- life ---

    @property
    def in_words(self) -> str:
        """Both levels in a few words, for `describe`."""
        across = f", and fanin between {self.levels.hosts} hosts" if self.between is not None else ""
        return f"; large sums: {self.inside.kind} over the {len(self.levels.inside)} ranks of this host{across}"

    def counters_between(self) -> dict[str, int | float]:
        """Counters of the group between hosts, whose names begin with `between.`."""
        return {} if self.between is None else {f"between.{each}": n for each, n in self.between.counters().items()}

    def break_connections(self) -> None:
        """Make whatever waits inside this host raise."""
        with contextlib.suppress(RuntimeError):  # of a group that has ended meanwhile
            self.inside.break_connections()

    def close(self, *, breaking: bool) -> None:
        """Leave both levels; sums under way raise. Idempotent."""
        if self._failed is None:
            self._failed = FaninError("the group was shut down. Remedy: wait for collectives before the group is left")
        breaking = breaking or any(not work.is_over for work in list(self._works))
        if self.between is not None:
            self.between.abort() if breaking else self.between.shutdown()
        self.inside.break_connections() if breaking else self.inside.close()


class _Sum:
    """One all-reduce on its way over both levels."""

    def __init__(
        self, owner: TwoLevels, flat: torch.Tensor, start: Starting, timeout_s: float, *, average: bool
    ) -> None:
        """`flat`: shape (n,), the caller's memory. Its elements are made by what the current stream holds now."""
        self.timeout_s = timeout_s
        self._owner, self._flat, self._start, self._average = owner, flat, start, average
        self._streams = owner.streams(flat.device)
        self._ready = None if self._streams is None else torch.cuda.current_stream(flat.device).record_event()
        """Event that the next lane's stream waits for: the caller's elements, and later this rank's part, are made."""
        self._whole = self._part = flat
        self._wait: Waiting | None = None

    def scatter(self) -> None:
        """Reduce inside, and start the sum of this rank's part between hosts."""
        inside, ranks, flat = self._owner.inside, len(self._owner.levels.inside), self._flat
        # A sum of float16 may overflow inside where the average would not.
        divides_first = self._average and flat.dtype is torch.float16
        with self._on_stream(0):
            if flat.numel() % ranks:
                self._whole = nn.functional.pad(flat, (0, -flat.numel() % ranks))
            if divides_first:
                self._whole = self._whole / ranks
            self._part = torch.empty(self._whole.numel() // ranks, dtype=flat.dtype, device=flat.device)
            self._await_inside(inside.reduce_scatter(self._part, self._whole, self.timeout_s))
            if self._average and not divides_first:
                self._part.div_(ranks)
            self._wait = self._start(self._part)
            if self._streams is not None:
                self._ready = self._streams[0].record_event()

    def gather(self) -> None:
        """Wait for the sum between hosts, gather the parts, and wait until they have arrived."""
        assert self._wait is not None
        with self._on_stream(1):
            self._wait()
            self._await_inside(self._owner.inside.all_gather(self._whole, self._part, self.timeout_s))
            if self._whole is not self._flat:
                self._flat.copy_(self._whole[: self._flat.numel()])
        if self._streams is not None:
            self._streams[1].record_event().synchronize()

    def _await_inside(self, work: Any) -> None:
        """Wait for a collective of NCCL's or gloo's; raises CollectiveTimeoutError where it has used up its time."""
        ends_at = time.monotonic() + self.timeout_s
        try:
            work.wait()
        except RuntimeError as error:
            failures = self._owner.failures
            if not used_up(ends_at) or failures.failure is not None:
                raise
            raise failures.late("all_reduce", self.timeout_s) from error

    def spoil(self) -> None:
        """Fill the output of a failed CUDA sum with NaN: a stream may read it without asking whether the sum failed."""
        if self._streams is not None:
            with contextlib.suppress(RuntimeError), torch.cuda.stream(self._streams[1]), writing_to(self._flat):
                self._flat.fill_(float("nan"))

    @contextlib.contextmanager
    def _on_stream(self, lane: int) -> Iterator[None]:
        """Run on the lane's stream, after `_ready`, and without gradients; on host memory without gradients alone."""
        with writing_to(self._flat):
            if self._streams is None or self._ready is None:
                yield
                return
            with torch.cuda.stream(self._streams[lane]):
                self._streams[lane].wait_event(self._ready)
                yield

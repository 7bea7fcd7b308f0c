"""The gloo group inside a fanin group: it carries what the switch does not, also element types that gloo lacks."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from fanin.host.torch.gloo.gloo_devices import DEVICES
from fanin.host.torch.gloo.gloo_works import AnySourceWork, GlooWork, PeerWork
from fanin.host.torch.handles.call import Call, Tensors
from fanin.host.torch.handles.completion import Completion
from fanin.host.torch.handles.failures import Failures, break_connections
from fanin.host.torch.handles.host_tensor import as_bytes, copy_back, copy_bytes_back, movable, on_host, restore_all
from fanin.host.torch.handles.overlap import apart
from fanin.host.torch.handles.work import FaninWork

Finish = Callable[[], None]
BREAKING_S, BREAKING_INTERVAL_S = 3.0, 0.05
"""Longest time for which connections are broken again while collectives are pending, and how long each time may take to
end them."""


class Inner:
    """Collectives by gloo, whose arguments have been checked. Outputs are written by `Work.wait`."""

    def __init__(
        self, store: c10d.Store, rank: int, size: int, timeout: timedelta, failures: Failures, completion: Completion
    ) -> None:
        self._devices = DEVICES.open()
        self.gloo: Any = self._devices.group(store, rank, size, timeout)
        self._rank = rank
        self._size = size
        self._failures = failures
        self._completion = completion
        self._works: weakref.WeakSet[GlooWork] = weakref.WeakSet()

    def end(self, timeout_s: float) -> None:
        """Let pending collectives end, at most so long, and make the others raise.

        gloo's group would wait for them when its last reference goes. It may begin one after its connections were
        broken, and wait for it in spite of that, so they are broken until nothing is left.
        """
        ends_at = time.monotonic() + timeout_s
        for work in list(self._works):
            work.settle(max(0.0, ends_at - time.monotonic()))
        pending = [work for work in list(self._works) if not work.is_over]
        ends_at = time.monotonic() + BREAKING_S
        while pending and time.monotonic() < ends_at:
            self.break_connections()
            for work in pending:
                work.settle(BREAKING_INTERVAL_S / len(pending))
            pending = [work for work in pending if not work.is_over]

    def drop(self) -> None:
        """End at once: whatever waits raises, receives from any source too, which broken connections do not wake."""
        self.break_connections()
        for work in list(self._works):
            if isinstance(work, AnySourceWork):
                work.settle(0.0)

    def break_connections(self) -> None:
        """Make everything that waits on this group raise."""
        break_connections(self.gloo, self._rank, self._size)

    def _work(self, call: Call, inner: c10d.Work, finish: Finish | None, kind: Any = GlooWork) -> FaninWork:
        work: GlooWork = kind(call.but(finish=finish), self._failures, self._completion, inner)
        self._works.add(work)
        return work

    def all_reduce(self, call: Call, op: Any) -> FaninWork:
        """Reduce the source, a dense host tensor or a sparse one, in place on every rank, with gloo's operator."""
        options = _timed(c10d.AllreduceOptions, call)
        options.reduceOp = op
        return self._work(call, self.gloo.allreduce([call.source], options), call.finish)

    def broadcast(self, call: Call) -> FaninWork:
        """Copy the root's tensor to everybody."""
        host_tensor = movable(call.source)
        options = _timed(c10d.BroadcastOptions, call)
        options.rootRank, options.rootTensor = call.root, 0
        inner = self.gloo.broadcast([host_tensor.tensor], options)
        return self._work(call, inner, host_tensor.restore if self._rank != call.root else None)

    def all_gather(self, call: Call) -> FaninWork:
        """`outputs[r]` becomes rank r's tensor. All ranks' tensors must have one shape, as gloo wants."""
        host_tensors = [movable(output) for output in call.outputs]
        lists = [[host_tensor.tensor for host_tensor in host_tensors]]
        inner = self.gloo.allgather(lists, [movable(call.source).tensor], _timed(c10d.AllgatherOptions, call))
        return self._work(call, inner, restore_all(host_tensors))

    def all_gather_single(self, call: Call) -> FaninWork:
        """The output becomes all ranks' tensors, one after the other."""
        (output,) = call.outputs
        host_tensor = movable(output)
        if output.is_inference():  # gloo's thread, which is not in inference mode, writes to parts of it
            with torch.inference_mode(False):
                host_tensor.tensor = whole = torch.empty_like(host_tensor.tensor)
            host_tensor.restore = partial(_restore_bits, output, whole)
        given = movable(call.source).tensor.reshape(-1)
        inner = self.gloo._allgather_base(host_tensor.tensor.reshape(-1), given, _timed(c10d.AllgatherOptions, call))
        return self._work(call, inner, host_tensor.restore)

    def gather(self, call: Call) -> FaninWork:
        """`outputs[r]` becomes rank r's tensor on the root; `outputs` is empty elsewhere."""
        host_tensors = [movable(output) for output in call.outputs]
        options = _timed(c10d.GatherOptions, call)
        options.rootRank = call.root
        lists = [[host_tensor.tensor for host_tensor in host_tensors]] if self._rank == call.root else []
        own = movable(call.source).tensor
        inner = self.gloo.gather(lists, [apart(own, *lists) if lists else own], options)
        return self._work(call, inner, restore_all(host_tensors))

    def scatter(self, call: Call, parts: Tensors) -> FaninWork:
        """The output becomes the root's `parts[rank]`."""
        host_tensor = movable(call.source)
        options = _timed(c10d.ScatterOptions, call)
        options.rootRank = call.root
        given = [apart(movable(part).tensor, [host_tensor.tensor]) for part in parts]
        inner = self.gloo.scatter([host_tensor.tensor], [given] if self._rank == call.root else [], options)
        return self._work(call, inner, host_tensor.restore)

    def all_to_all_single(self, call: Call, output_splits: Sequence[int], input_splits: Sequence[int]) -> FaninWork:
        """Rows of the source go to ranks by `input_splits` (even when empty), rows come by `output_splits`."""
        (output,) = call.outputs
        host = on_host(output)
        shares = host.data_ptr() == output.data_ptr()
        inner = self._exchange(
            call,
            as_bytes(host),
            as_bytes(apart(on_host(call.source), [host])),
            _byte_splits(output, output_splits, self._size),
            _byte_splits(call.source, input_splits, self._size),
        )
        return self._work(call, inner, None if shares else lambda: copy_back(output, host))

    def all_to_all(self, call: Call, parts: Tensors) -> FaninWork:
        """`parts[r]` goes to rank r, `outputs[r]` comes from it; sizes may differ. They travel as one flat tensor."""
        flat = [as_bytes(on_host(part)) for part in parts]
        output_splits = [output.nbytes for output in call.outputs]
        arrived = torch.empty(sum(output_splits), dtype=torch.uint8, device="cpu")
        inner = self._exchange(call, arrived, torch.cat(flat), output_splits, [part.numel() for part in flat])

        def scatter_out() -> None:
            for output, part in zip(call.outputs, arrived.split(output_splits), strict=True):
                if part.numel():
                    copy_bytes_back(output, part)

        return self._work(call, inner, scatter_out)

    def _exchange(
        self, call: Call, output: torch.Tensor, tensor: torch.Tensor, outputs: list[int], inputs: list[int]
    ) -> c10d.Work:
        options = _timed(c10d.AllToAllOptions, call)
        work: c10d.Work = self.gloo.alltoall_base(output, tensor, outputs, inputs, options)
        return work

    def send(self, call: Call, tag: int) -> FaninWork:
        """Send to a group rank; the receiver's tag and size must match."""
        named = call.but(collective=f"send to rank {call.root}")
        given = [movable(call.source).tensor]
        return self._work(named, self._begun(named, lambda: self.gloo.send(given, call.root, tag)), None, PeerWork)

    def recv(self, call: Call, tag: int) -> FaninWork:
        """Receive from a group rank."""
        host_tensor = movable(call.source)
        named = call.but(collective=f"recv from rank {call.root}")
        inner = self._begun(named, lambda: self.gloo.recv([host_tensor.tensor], call.root, tag))
        return self._work(named, inner, host_tensor.restore, PeerWork)

    def recv_anysource(self, call: Call, tag: int) -> FaninWork:
        """Receive from whoever sends first with this tag."""
        host_tensor = movable(call.source)
        named = call.but(collective="recv from any rank")
        inner = self._begun(named, lambda: self.gloo.recv_anysource([host_tensor.tensor], tag))
        return self._work(named, inner, host_tensor.restore, AnySourceWork)

    def _begun(self, call: Call, begin: Callable[[], c10d.Work]) -> c10d.Work:
        """Begin a send or receive, which gloo refuses at once where it knows that the peer has left."""
        try:
            return begin()
        except RuntimeError as error:
            self._failures.raise_of_gloo(error, call.collective, call.timeout_s, late=False)


def _timed(kind: Any, call: Call) -> Any:
    """gloo's options of that kind, with the call's timeout."""
    options = kind()
    options.timeout = timedelta(seconds=call.timeout_s)
    return options


def _restore_bits(output: torch.Tensor, arrived: torch.Tensor) -> None:
    """Copy what gloo has moved, in the element type that it moves or as bytes, into the user's tensor."""
    copy_back(output, as_bytes(arrived).view(output.dtype).view(output.shape))


def _byte_splits(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Split sizes in bytes; `splits` count rows of the first dimension, empty means even. They have been checked."""
    if not splits:
        return [tensor.nbytes // size] * size
    rows = tensor.shape[0] if tensor.dim() else 1
    return [count * (tensor.nbytes // rows) if rows else 0 for count in splits]

"""The gloo group inside a fanin group: what a switch does not speed up, with the element types that gloo lacks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from fanin.host.torch.gloo.gloo_devices import DEVICES
from fanin.host.torch.handles.completion import Completion
from fanin.host.torch.handles.failures import Failures, break_connections
from fanin.host.torch.handles.host_tensor import as_bytes, copy_back, movable, on_host, restore_all
from fanin.host.torch.handles.overlap import apart
from fanin.host.torch.handles.work import AnySourceWork, FaninWork, GlooWork, PeerWork, Tensors

Finish = Callable[[], None]


class Inner:
    """Collectives by gloo. Ranks are group ranks; `timeout_s` is in seconds; outputs are written by `Work.wait`."""

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

    def end(self) -> None:
        """Make pending collectives raise: gloo's group waits for them where it is given up, and nobody else does."""
        if any(not work.is_over for work in list(self._works)):
            self.break_connections()

    def break_connections(self) -> None:
        """Make everything that waits on this group raise."""
        break_connections(self.gloo, self._rank, self._size)

    def _work(
        self,
        inner: c10d.Work,
        name: str,
        outputs: Tensors,
        timeout_s: float,
        finish: Finish | None,
        kind: Any = GlooWork,
    ) -> FaninWork:
        work: GlooWork = kind(inner, self._failures, name, self._completion, outputs, timeout_s, finish)
        self._works.add(work)
        return work

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: Any,
        timeout_s: float,
        *,
        name: str,
        outputs: Tensors,
        finish: Finish | None = None,
    ) -> FaninWork:
        """Reduce a dense host tensor, or a sparse one, in place on every rank."""
        options = c10d.AllreduceOptions()
        options.reduceOp = op
        options.timeout = timedelta(seconds=timeout_s)
        return self._work(self.gloo.allreduce([tensor], options), name, outputs, timeout_s, finish)

    def broadcast(self, tensor: torch.Tensor, root: int, timeout_s: float) -> FaninWork:
        """Copy the root's tensor to everybody."""
        host_tensor = movable(tensor)
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        options.timeout = timedelta(seconds=timeout_s)
        inner = self.gloo.broadcast([host_tensor.tensor], options)
        finish = host_tensor.restore if self._rank != root else None
        return self._work(inner, "broadcast", [tensor], timeout_s, finish)

    def all_gather(self, outputs: Tensors, tensor: torch.Tensor, timeout_s: float) -> FaninWork:
        """`outputs[r]` becomes rank r's tensor. Shapes may differ between ranks only where gloo allows it (nowhere)."""
        host_tensors = [movable(output) for output in outputs]
        options = c10d.AllgatherOptions()
        options.timeout = timedelta(seconds=timeout_s)
        inner = self.gloo.allgather(
            [[host_tensor.tensor for host_tensor in host_tensors]], [movable(tensor).tensor], options
        )
        return self._work(inner, "all_gather", outputs, timeout_s, restore_all(host_tensors))

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, timeout_s: float) -> FaninWork:
        """`output` becomes all ranks' tensors, one after the other."""
        host_tensor = movable(output)
        if output.is_inference():  # gloo's thread, which is not in inference mode, writes to parts of it
            with torch.inference_mode(False):
                host_tensor.tensor = whole = torch.empty_like(host_tensor.tensor)
            host_tensor.restore = partial(_restore_bits, output, whole)
        options = c10d.AllgatherOptions()
        options.timeout = timedelta(seconds=timeout_s)
        inner = self.gloo._allgather_base(host_tensor.tensor.reshape(-1), movable(tensor).tensor.reshape(-1), options)
        return self._work(inner, "all_gather_into_tensor", [output], timeout_s, host_tensor.restore)

    def gather(self, outputs: Tensors, tensor: torch.Tensor, root: int, timeout_s: float) -> FaninWork:
        """`outputs[r]` becomes rank r's tensor on the root; empty elsewhere."""
        host_tensors = [movable(output) for output in outputs]
        options = c10d.GatherOptions()
        options.rootRank = root
        options.timeout = timedelta(seconds=timeout_s)
        lists = [[host_tensor.tensor for host_tensor in host_tensors]] if self._rank == root else []
        own = apart(movable(tensor).tensor, *lists) if lists else movable(tensor).tensor
        inner = self.gloo.gather(lists, [own], options)
        return self._work(inner, "gather", outputs, timeout_s, restore_all(host_tensors))

    def scatter(self, output: torch.Tensor, tensors: Tensors, root: int, timeout_s: float) -> FaninWork:
        """`output` becomes the root's `tensors[rank]`."""
        host_tensor = movable(output)
        options = c10d.ScatterOptions()
        options.rootRank = root
        options.timeout = timedelta(seconds=timeout_s)
        given = [apart(movable(tensor).tensor, [host_tensor.tensor]) for tensor in tensors]
        lists = [given] if self._rank == root else []
        inner = self.gloo.scatter([host_tensor.tensor], lists, options)
        return self._work(inner, "scatter", [output], timeout_s, host_tensor.restore)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        timeout_s: float,
    ) -> FaninWork:
        """Rows of `tensor` go to ranks by `input_splits` (even when empty), rows come by `output_splits`."""
        host = on_host(output)
        shares = host.data_ptr() == output.data_ptr()
        inner = self._exchange(
            as_bytes(host),
            as_bytes(apart(on_host(tensor), [host])),
            _byte_splits(output, output_splits, self._size),
            _byte_splits(tensor, input_splits, self._size),
            timeout_s,
        )
        finish = None if shares else lambda: copy_back(output, host)
        return self._work(inner, "all_to_all_single", [output], timeout_s, finish)

    def all_to_all(self, outputs: Tensors, tensors: Tensors, timeout_s: float) -> FaninWork:
        """`tensors[r]` goes to rank r, `outputs[r]` comes from it; sizes may differ. They travel as one flat tensor."""
        flat = [as_bytes(on_host(tensor)) for tensor in tensors]
        output_splits = [output.numel() * output.element_size() for output in outputs]
        arrived = torch.empty(sum(output_splits), dtype=torch.uint8, device="cpu")
        inner = self._exchange(arrived, torch.cat(flat), output_splits, [part.numel() for part in flat], timeout_s)

        def scatter_out() -> None:
            for output, part in zip(outputs, arrived.split(output_splits), strict=True):
                if part.numel():
                    # A part may start at an address that the element type cannot have: bytes into a fresh tensor first.
                    whole = torch.empty(output.shape, dtype=output.dtype, device="cpu")
                    as_bytes(whole).copy_(part)
                    copy_back(output, whole)

        return self._work(inner, "all_to_all", outputs, timeout_s, scatter_out)

    def _exchange(
        self, output: torch.Tensor, tensor: torch.Tensor, outputs: list[int], inputs: list[int], timeout_s: float
    ) -> c10d.Work:
        options = c10d.AllToAllOptions()
        options.timeout = timedelta(seconds=timeout_s)
        work: c10d.Work = self.gloo.alltoall_base(output, tensor, outputs, inputs, options)
        return work

    def send(self, tensor: torch.Tensor, peer: int, tag: int, timeout_s: float) -> FaninWork:
        """Send to a group rank; other ranks' tags and sizes must match."""
        inner = self.gloo.send([movable(tensor).tensor], peer, tag)
        return self._work(inner, f"send to rank {peer}", [tensor], timeout_s, None, PeerWork)

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, timeout_s: float) -> FaninWork:
        """Receive from a group rank."""
        host_tensor = movable(tensor)
        inner = self.gloo.recv([host_tensor.tensor], peer, tag)
        return self._work(inner, f"recv from rank {peer}", [tensor], timeout_s, host_tensor.restore, PeerWork)

    def recv_anysource(self, tensor: torch.Tensor, tag: int, timeout_s: float) -> FaninWork:
        """Receive from whoever sends first with this tag."""
        host_tensor = movable(tensor)
        inner = self.gloo.recv_anysource([host_tensor.tensor], tag)
        return self._work(inner, "recv from any rank", [tensor], timeout_s, host_tensor.restore, AnySourceWork)


def _restore_bits(output: torch.Tensor, arrived: torch.Tensor) -> None:
    """Copy what gloo has moved, in the element type that it moves or as bytes, into the user's tensor."""
    copy_back(output, as_bytes(arrived).view(output.dtype).view(output.shape))


def _byte_splits(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Split sizes in bytes; `splits` count rows of the first dimension, empty means even. They have been checked."""
    if not splits:
        return [tensor.nbytes // size] * size
    rows = tensor.shape[0] if tensor.dim() else 1
    return [count * (tensor.nbytes // rows) if rows else 0 for count in splits]

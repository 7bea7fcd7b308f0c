"""Checks of a collective's arguments, before anything is sent; gloo refuses the same arguments.

Rules
-----
* A rank whose arguments are refused has sent nothing and may go on. Ranks that make the same call are refused alike.
* Tensors on the meta device and fake tensors have no memory: collectives of them do nothing, as over gloo. A list with
  some tensors on the meta device and some elsewhere is an error.
* Element types are not converted: all inputs and outputs of a call have one type.
* Tensors that wrap others are refused where torch has not unwrapped them (layers.py), and so are those whose storage
  was freed: their elements are not where a transport would look for them.
* No two elements of the outputs share memory, by `expand`, an overlapping `as_strided`, or a tensor twice in a list.
  (gloo writes beyond such a tensor's memory, or loses values.)
* Sparse tensors are taken by all_reduce alone; quantized and nested ones are refused, as by gloo.
* Nothing is called while a CUDA graph is captured: its replay would not run the host's half. Host tensors are not
  asked about, since a program may well sum some of them beside a capture.
* Sizes are compared as numbers of elements where one tensor holds all ranks' parts, otherwise as shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fanin.errors import ArgumentError, UnsupportedError
from fanin.host.torch.handles.host_tensor import has_memory, lies_flat, plain, wraps
from fanin.host.torch.handles.overlap import share_memory

DEVICES = ("cpu", "cuda")
"""Types of devices that tensors may lie on."""
SPARSE = ("all_reduce", "all_reduce_coalesced")
"""Collectives that take sparse tensors."""


class Arguments:
    """Checks of the arguments of one group's collectives.

    Each method `of_...` raises ArgumentError or UnsupportedError, or returns whether there is anything to do: False
    where the tensors have no memory (meta and fake ones).
    """

    def __init__(self, rank: int, size: int, made_as: Callable[[], str]) -> None:
        """`made_as`: the group's backends as torch has them, such as `cpu:fanin,cuda:fanin`."""
        self._rank = rank
        self._size = size
        self._made_as = made_as

    def of_one(self, name: str, tensor: torch.Tensor, root: int = 0) -> bool:
        """Check a tensor that is reduced or copied in place, and the root, if the collective has one."""
        self._check_rank(name, "root", root)
        return self._has_memory(name, [tensor], written=[tensor])

    def of_several(self, name: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Check tensors that are reduced in place, one after the other; False for none, too."""
        return bool(tensors) and self._has_memory(name, tensors, written=tensors)

    def of_peer(self, name: str, tensor: torch.Tensor, peer: int) -> bool:
        """Check a tensor that is sent to, or received from, the rank `peer`."""
        self._check_rank(name, "peer", peer)
        return self._has_memory(name, [tensor], written=[tensor] if name == "recv" else [])

    def of_parts(self, name: str, whole: torch.Tensor, part: torch.Tensor, written: torch.Tensor) -> bool:
        """Check a tensor that holds every rank's part, and one part; `written` is one of the two."""
        if whole.is_meta or part.is_meta:
            return False
        self._check_types(name, [whole, part])
        if whole.numel() != part.numel() * self._size:
            raise ArgumentError(
                f"{name}: {whole.numel()} elements are not {self._size} ranks' parts of {part.numel()} each"
                ". Remedy: give the whole as many elements as all ranks' parts have"
            )
        return self._has_memory(name, [whole, part], written=[written])

    def of_pairs(
        self, name: str, wholes: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
    ) -> list[bool]:
        """Check several pairs as in `of_parts`, before the first is started: returns an answer for each pair."""
        if len(wholes) != len(parts):
            raise ArgumentError(
                f"{name}: {len(parts)} tensors and {len(wholes)} of all ranks do not make pairs"
                ". Remedy: give one tensor of all ranks for each part"
            )
        there = [self.of_parts(name, *pair) for pair in zip(wholes, parts, written, strict=True)]
        self._check_places(name, list(compress(written, there)))
        return there

    def of_list(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        own: torch.Tensor,
        *,
        gathers: bool,
        root: int | None = None,
        uneven: bool = False,
    ) -> bool:
        """Check a list with one tensor per rank, and this rank's `own` tensor.

        `root`: the only rank that gives a list; None: every rank gives one. `gathers`: the list is written; otherwise
        `own` is. `uneven`: tensors of the list may differ in size; this rank's has as many elements as `own`.
        """
        if root is not None:
            self._check_rank(name, "root", root)
        if root is not None and self._rank != root:
            if len(tensors):
                raise ArgumentError(
                    f"{name}: rank {self._rank} is not the root {root}, and gives {len(tensors)} tensors"
                    ". Remedy: give the list on the root alone"
                )
            return self._has_memory(name, [own], written=[] if gathers else [own])
        if len(tensors) != self._size:
            raise ArgumentError(
                f"{name}: {len(tensors)} tensors in the list of a group of {self._size} ranks"
                ". Remedy: give one tensor for each rank"
            )
        self._check_types(name, [*tensors, own])
        if not self._has_memory(name, [*tensors, own], written=tensors if gathers else [own]):
            return False
        for rank, tensor in enumerate(tensors):
            if uneven and rank != self._rank:
                continue
            if tensor.shape != own.shape and not (uneven and tensor.numel() == own.numel()):
                shapes = f"{tuple(tensor.shape)}, this rank's own {tuple(own.shape)}"
                raise ArgumentError(
                    f"{name}: the tensor of rank {rank} has shape {shapes}"
                    ". Remedy: give every rank's tensor the same shape"
                )
        return True

    def of_lists(self, name: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
        """Check one tensor from each rank (`outputs`) and one to each (`inputs`), of any sizes.

        Only the elements that a rank gives itself must be as many as it takes from itself.
        """
        if len(outputs) != self._size or len(inputs) != self._size:
            raise ArgumentError(
                f"{name}: {len(inputs)} tensors in and {len(outputs)} out in a group of {self._size} ranks"
                ". Remedy: give one of each for each rank"
            )
        self._check_types(name, [*outputs, *inputs])
        if not self._has_memory(name, [*outputs, *inputs], written=outputs):
            return False
        sent, kept = inputs[self._rank].numel(), outputs[self._rank].numel()
        if sent != kept:
            raise ArgumentError(
                f"{name}: rank {self._rank} gives itself {sent} elements and takes {kept}. Remedy: make the two equal"
            )
        return True

    def of_rows(
        self,
        name: str,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> bool:
        """Check rows of `tensor` that go to the ranks, and rows of `output` that come from them.

        The splits are the numbers of rows for each rank; empty: equal parts.
        """
        if output.is_meta or tensor.is_meta:
            return False
        self._check_types(name, [output, tensor])
        if not self._has_memory(name, [output, tensor], written=[output]):
            return False
        sent = self._elements(name, "input", tensor, input_splits)[self._rank]
        kept = self._elements(name, "output", output, output_splits)[self._rank]
        shapes = f"an input of shape {tuple(tensor.shape)} and an output of {tuple(output.shape)}"
        if sent != kept:
            raise ArgumentError(
                f"{name}: rank {self._rank} gives itself {sent} elements and takes {kept}, with {shapes}"
                ". Remedy: make the two equal"
            )
        by_rows = len(output_splits) or len(input_splits)
        if by_rows and tensor.numel() and output.numel() and tensor.shape[1:].numel() != output.shape[1:].numel():
            raise ArgumentError(f"{name}: {shapes}, whose rows differ. Remedy: give input and output rows of one shape")
        return True

    def _elements(self, name: str, which: str, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """Number of elements of `tensor` for each rank. `which`: its name in errors, "input" or "output"."""
        if not splits:
            if tensor.numel() % self._size:
                raise ArgumentError(
                    f"{name}: the {which}'s {tensor.numel()} elements are no {self._size} equal parts"
                    ". Remedy: pad the tensor, or give split sizes"
                )
            return [tensor.numel() // self._size] * self._size
        rows = tensor.shape[0] if tensor.dim() else 1
        if len(splits) != self._size or min(splits) < 0 or sum(splits) != rows:
            raise ArgumentError(
                f"{name}: the {which}'s split sizes {list(splits)} do not divide its {rows} rows among {self._size} "
                "ranks: there must be one for each, none below 0, and as many rows in all"
                ". Remedy: correct the split sizes"
            )
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in splits]

    def check_residual(self, name: str, residual: torch.Tensor, travelling: torch.Tensor) -> None:
        """Check the residual of error feedback: an engine has only its address, and would write beyond its end."""
        there = residual.is_cpu or residual.device == travelling.device
        if residual.dtype is torch.float32 and there and lies_flat(residual) and residual.numel() == travelling.numel():
            return
        given = f"{residual.numel()} elements of {str(residual.dtype).removeprefix('torch.')} on {residual.device}"
        given += "" if lies_flat(residual) else ", not contiguous"
        place = "the host" if travelling.is_cpu else f"the host or {travelling.device}"
        raise ArgumentError(
            f"{name}: the residual has {given}; it must be contiguous float32 on {place}, with the "
            f"{travelling.numel()} elements that are added"
            ". Remedy: make it so before the collective"
        )

    def _check_rank(self, name: str, what: str, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise ArgumentError(
                f"{name}: {what} {rank} is not a rank of a group of {self._size}"
                ". Remedy: give a rank of the group, as get_group_rank counts them"
            )

    def _check_backend(self, name: str, kind: str) -> None:
        """Raise ArgumentError where the group was asked for another backend for this kind of device.

        torch makes no other backend beside a process group that is a Python class.
        """
        made_as = self._made_as()
        backends = dict(each.split(":") for each in made_as.split(",") if ":" in each)
        if (backend := backends.get(kind, "fanin")) != "fanin":
            raise ArgumentError(
                f"{name}: a tensor on {kind} in a group made as {made_as!r}: fanin carries all devices of its groups, "
                f"and torch has made no {backend} beside it. Remedy: make the group as 'fanin', which takes tensors on "
                f"{kind} too, or a second one with new_group(backend={backend!r})"
            )

    def _check_types(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ArgumentError unless all tensors have one element type."""
        if all(tensor.dtype is tensors[0].dtype for tensor in tensors):
            return
        types = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))
        if len(types) > 1:
            raise ArgumentError(
                f"{name}: tensors of {' and '.join(types)} in one call. Remedy: convert them before or after it"
            )

    def _has_memory(self, name: str, tensors: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors of a call have memory. Raises unless all are on one device and outputs share none."""
        if all(map(plain, tensors)):  # nearly always; what follows takes as long as a small collective
            if len(written) > 1:
                self._check_places(name, written)
            return True
        kinds = list(dict.fromkeys(tensor.device.type for tensor in tensors))
        if kinds == ["meta"]:
            if any(tensor.layout is not torch.strided for tensor in tensors):
                raise UnsupportedError(f"{name}: sparse tensors on the meta device. Remedy: use dense ones there")
            return False
        if "meta" in kinds:
            raise ArgumentError(
                f"{name}: some tensors are on the meta device, which has no memory, and some are not"
                ". Remedy: move them to one device"
            )
        self.check_devices(name, kinds)
        places = list(dict.fromkeys(str(tensor.device) for tensor in tensors))
        if len(places) > 1:
            raise ArgumentError(
                f"{name}: tensors on {' and '.join(places)} in one call. Remedy: move them to one device"
            )
        if all(isinstance(tensor, FakeTensor) for tensor in tensors):
            return False
        if kinds == ["cuda"]:
            refuse_in_capture(name)
        for tensor in tensors:
            self._check_kind(name, tensor)
        self._check_places(name, [tensor for tensor in written if tensor.layout is torch.strided])
        return True

    def check_devices(self, name: str, kinds: Sequence[str]) -> None:
        """Raise ArgumentError for kinds of devices whose tensors this group does not take."""
        strange = [kind for kind in kinds if kind not in (*DEVICES, "meta")]
        if strange:
            raise ArgumentError(
                f"{name}: tensors on {strange[0]}; fanin takes {' and '.join(DEVICES)}"
                ". Remedy: move them to one of these"
            )
        for kind in kinds:
            self._check_backend(name, kind)

    def _check_kind(self, name: str, tensor: torch.Tensor) -> None:
        """Raise unless the tensor is strided, with memory of its own, or sparse COO where `name` is in SPARSE."""
        if tensor.is_nested or tensor.is_quantized:
            kind, remedy = ("nested", "values()") if tensor.is_nested else ("quantized", "int_repr() or dequantize()")
            raise UnsupportedError(f"{name}: a {kind} tensor. Remedy: its {remedy}")
        if tensor.layout is not torch.strided:
            if tensor.layout is torch.sparse_coo and name in SPARSE:
                return
            raise UnsupportedError(
                f"{name}: a tensor of layout {tensor.layout}; dense tensors are taken, and by all_reduce sparse COO "
                "ones. Remedy: to_dense()"
            )
        if has_memory(tensor):
            return
        if wraps(tensor):
            raise UnsupportedError(
                f"{name}: a {type(tensor).__name__}, which has no memory of its own. Remedy: the tensor inside it "
                "(of a DTensor to_local(), or redistribute() in the place of the collective), or a clone() of it"
            )
        raise ArgumentError(
            f"{name}: a tensor of {tensor.nbytes} bytes whose storage has {tensor.untyped_storage().nbytes()}: it was "
            "freed or shrunk (untyped_storage().resize_). Remedy: give it memory before the collective"
        )

    def _check_places(self, name: str, written: Sequence[torch.Tensor]) -> None:
        """Raise ArgumentError where two elements of the outputs share memory."""
        if share_memory(written):
            raise ArgumentError(
                f"{name}: elements of {'an output' if len(written) == 1 else 'outputs'} share memory (expand, "
                "as_strided, or one tensor twice in a list). Remedy: write into a clone()"
            )


def refuse_in_capture(name: str) -> None:
    """Raise UnsupportedError while the current stream is captured into a CUDA graph."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            f"{name}: a collective of fanin while a CUDA graph is captured, whose host's half would not run when the "
            "graph is replayed. Remedy: leave collectives out of captured regions"
        )

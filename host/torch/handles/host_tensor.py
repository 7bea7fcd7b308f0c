"""Tensors in a form that a transport can read and write: flat enough, on the host, of an element type that it knows.

A HostTensor shares the tensor's memory where that is possible and copies where it is not; `restore` then copies back.
Nothing here calls `.numpy()`: it would make a user's storage non-resizable, which FSDP does not forgive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from fanin.errors import ArgumentError

GLOO_DTYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)
"""Element types that gloo reduces (it moves others as bytes)."""

ORDINARY = (torch.Tensor, torch.nn.Parameter)
"""Classes whose tensors hold their own elements: nearly all that come."""

modes_active: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many modes (fake tensors, make_fx, CommDebugMode, ...) change this thread's operators now."""
transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
"""The innermost transform of torch.func that is active in this thread, or None."""


class HostTensor:
    """One tensor ready to travel as `tensor`; `restore` is None where the user's memory is used in place."""

    __slots__ = ("restore", "tensor")

    def __init__(self, tensor: torch.Tensor, restore: Callable[[], None] | None) -> None:
        self.tensor = tensor
        self.restore = restore


def concrete(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; for the result of a functional collective under way, the tensor inside, once it has come.

    torch's dispatcher does this between a caller and a group that C++ carries; one that is written in Python is called
    without it. Layers of tensor parallelism return such tensors, which wrap others and have no memory of their own.
    """
    if type(tensor) not in ORDINARY and isinstance(tensor, AsyncCollectiveTensor):
        return concrete(tensor.trigger_wait())
    return tensor


def layers_active() -> bool:
    """Whether a mode or a transform of torch.func changes this thread's operators now."""
    return modes_active() > 0 or transform() is not None


@contextlib.contextmanager
def beneath_layers() -> Iterator[None]:
    """Run operators without the modes and transforms that are active in this thread."""
    with torch._C._DisableFuncTorch(), torch._C._DisableTorchDispatch():
        yield


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a dense tensor's elements are in memory, within its storage.

    Tensors that wrap others, as a DTensor, a functional or a gradient-tracking one, and fake ones have none; nor has
    one whose storage was freed (`untyped_storage().resize_(0)`), as FSDP's and offloading do.
    """
    try:
        if tensor.data_ptr() == 0:
            return tensor.numel() == 0
        held = tensor.untyped_storage().nbytes()
        if tensor.is_contiguous():
            return (tensor.storage_offset() + tensor.numel()) * tensor.itemsize <= held
    except (RuntimeError, NotImplementedError):  # raised by torch for tensors without storage
        return False
    if tensor.numel() == 0:
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.itemsize <= held


def wraps(tensor: torch.Tensor) -> bool:
    """Whether the elements are in other tensors, as a DTensor's are, or nowhere, as a fake one's."""
    try:
        return tensor.numel() > 0 and tensor.data_ptr() == 0 and tensor.untyped_storage().nbytes() > 0
    except (RuntimeError, NotImplementedError):
        return True


def plain(tensor: torch.Tensor) -> bool:
    """Whether a transport can use the tensor's own memory: on the host, dense, contiguous, no lazy bits."""
    return tensor.is_cpu and lies_flat(tensor)


def lies_flat(tensor: torch.Tensor) -> bool:
    """Whether the tensor is dense and contiguous, without lazy bits, in the memory of any device."""
    return (
        tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
        and not tensor.is_nested
        and has_memory(tensor)
    )


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A dense contiguous tensor with the same values where the tensor lies; `tensor` itself where it is one."""
    if lies_flat(tensor):
        return tensor.detach()
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def room_for(output: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Dense contiguous memory for a result beside `output`, and the action that then brings it there.

    `output` itself and None where it lies flat.
    """
    if lies_flat(output):
        return output.detach(), None
    room = torch.empty(output.shape, dtype=output.dtype, device=output.device)
    return room, lambda: copy_back(output, room)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A dense contiguous tensor on the host with the same values; `tensor` itself where it is one.

    ArgumentError where the elements are nowhere: to read them would end the process.
    """
    if plain(tensor):
        return tensor.detach()
    if tensor.layout is torch.strided and not has_memory(tensor):
        raise ArgumentError(
            f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory, or was freed"
            ". Remedy: give it memory before the collective"
        )
    resolved = tensor.detach().resolve_conj().resolve_neg()
    if resolved.is_cpu:
        return resolved.contiguous()
    return beside(resolved).copy_(resolved)


def beside(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous memory of the same shape on the host; for a CUDA tensor pinned, so that copies run at the bus's speed
    and need not be waited for."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a flat tensor of bytes."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # of one element or none, which counts as contiguous with any stride
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def movable(tensor: torch.Tensor) -> HostTensor:
    """The tensor on the host, ready for gloo to move: in its own element type where gloo knows it, else as bytes."""
    host = on_host(tensor)
    shares = host.data_ptr() == tensor.data_ptr()
    carried = host if host.dtype in GLOO_DTYPES else as_bytes(host)
    if shares:
        return HostTensor(carried, None)
    return HostTensor(carried, lambda: copy_back(tensor, host))


def writing_to(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """A context for writing a program's tensor: inference_mode() for one that was made under it, else no_grad()."""
    return torch.inference_mode() if tensor.is_inference() else torch.no_grad()


def copy_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Write values that arrived on the host into the user's tensor, which may have been made in inference mode."""
    with writing_to(tensor):
        # A copy that does not block may read memory that is not pinned later, when that is in use again.
        tensor.detach().copy_(host, non_blocking=tensor.is_cuda and host.is_pinned())


def copy_bytes_back(tensor: torch.Tensor, arrived: torch.Tensor) -> None:
    """Write bytes that arrived into the user's tensor; they may not be aligned for its element type."""
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=arrived.device)
    as_bytes(whole).copy_(arrived)
    copy_back(tensor, whole)


def restore_all(host_tensors: Iterable[HostTensor]) -> Callable[[], None] | None:
    """One action that restores all that need it, or None."""
    actions = [host_tensor.restore for host_tensor in host_tensors if host_tensor.restore is not None]
    if not actions:
        return None

    def run() -> None:
        for action in actions:
            action()

    return run

"""Whether tensors that a collective writes overlap in memory, and copies of inputs that overlap its outputs.

torch leaves this open for strides that it finds too hard (`as_strided`), and gloo writes beyond such tensors or loses
values. Here it is decided exactly: by strides where they tell, by marking the places where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a dense tensor's elements, and the one behind the last."""
    first = tensor.data_ptr()
    if tensor.is_contiguous():
        return first, first + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()


def share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two elements of dense tensors, of one or of several, have a byte in common."""
    return any(map(_share, _touching([tensor for tensor in tensors if tensor.numel()])))


def apart(tensor: torch.Tensor, written: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor itself, or a copy of it where writing to `written` might change it."""
    first, end = span(tensor)
    for other in written:
        begins, ends = span(other)
        if begins < end and first < ends:
            return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def _touching(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Groups of tensors whose spans overlap."""
    together: list[torch.Tensor] = []
    reached = 0
    for (first, end), tensor in sorted(((span(tensor), tensor) for tensor in tensors), key=lambda each: each[0]):
        if together and first >= reached:
            yield together
            together = []
        reached = max(reached, end) if together else end
        together.append(tensor)
    if together:
        yield together


def _share(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors whose spans overlap have a byte in common."""
    if len(tensors) == 1 and _strides_tell_apart(tensors[0]):
        return False
    if all(tensor.is_contiguous() for tensor in tensors):
        return True
    if any(map(_repeats, tensors)):
        return True
    return _marked(tensors) < sum(tensor.nbytes for tensor in tensors)


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether a dimension of more than one element has stride 0, as after `expand`."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _strides_tell_apart(tensor: torch.Tensor) -> bool:
    """Whether each dimension's stride is beyond all that smaller strides reach, as in slices and transposed tensors.

    Then no two elements overlap.
    """
    reached = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride <= reached:
            return False
        reached += (size - 1) * stride
    return True


def _marked(tensors: list[torch.Tensor]) -> int:
    """Number of bytes that the tensors' elements cover, each counted once."""
    spans = [span(tensor) for tensor in tensors]
    start = min(first for first, _ in spans)
    sizes = [tensor.element_size() for tensor in tensors]
    unit = math.gcd(*sizes, *(first - start for first, _ in spans))
    marks = torch.zeros((max(end for _, end in spans) - start) // unit, dtype=torch.bool, device="cpu")
    for tensor, (first, _), size in zip(tensors, spans, sizes, strict=True):
        units = size // unit
        strides = [stride * units for stride in tensor.stride()]
        marks.as_strided([*tensor.shape, units], [*strides, 1], (first - start) // unit).fill_(True)
    return int(marks.count_nonzero()) * unit

"""A model's trained parameters in fragments of about equal size, each flat in the host's memory as float32.

A fragment is a run of rows of parameters, in the optimizer's order: a parameter that is larger than a fragment is
divided between rows, so that fragments are alike. Of a sharded parameter (DTensor) it is this rank's shard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch.distributed.tensor import DTensor

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import Floats


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one parameter."""

    parameter: torch.Tensor
    first: int
    """First element, in the parameter's flat form."""
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements of all rows together."""
        return math.prod(self.shape)

    def read(self) -> torch.Tensor:
        """The elements as they are, flat; perhaps a view."""
        return local(self.parameter).reshape(-1)[self.first : self.first + self.count]

    def write(self, values: torch.Tensor) -> None:
        """Replace the elements; `values` flat, of any type."""
        whole = local(self.parameter)
        if whole.is_contiguous():
            whole.view(-1)[self.first : self.first + self.count].copy_(values)
            return
        flat = whole.reshape(-1)  # a copy
        flat[self.first : self.first + self.count] = values.to(flat)
        whole.copy_(flat.view(whole.shape))


@dataclass(frozen=True, slots=True)
class Fragment:
    """Segments that meet together."""

    segments: tuple[Segment, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the segments, in the order in which they lie in flat arrays."""
        return tuple(each.shape for each in self.segments)

    @property
    def count(self) -> int:
        """Number of elements of all rows together."""
        return sum(each.count for each in self.segments)

    def weights(self) -> Floats:
        """The parameters now, shape (count,), a copy."""
        out = torch.empty(self.count, dtype=torch.float32, device="cpu")
        for part, each in self._parts(out):
            part.copy_(each.read())
        return cast(Floats, out.numpy())

    def delta(self, start: Floats) -> torch.Tensor:
        """Return the change that training has subtracted from `start`, shape (count,).

        `start` is rounded to each parameter's type first, since the worker began from that: rounding is no change.
        """
        out = torch.empty(self.count, dtype=torch.float32, device="cpu")
        begun = torch.from_numpy(start)
        for (part, each), (before, _) in zip(self._parts(out), self._parts(begun), strict=True):
            own = each.read().to("cpu")
            torch.sub(before.to(own.dtype).float(), own.float(), out=part)
        return out

    def write(self, start: Floats, mix: float = 0.0) -> None:
        """Set the parameters to mix x themselves + (1 - mix) x start."""
        with torch.no_grad():
            for part, each in self._parts(torch.from_numpy(start)):
                if mix:
                    part = part * (1 - mix) + each.read().to("cpu").float() * mix
                each.write(part)

    def _parts(self, flat: torch.Tensor) -> list[tuple[torch.Tensor, Segment]]:
        return list(zip(flat.split([each.count for each in self.segments]), self.segments, strict=True))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory at this rank, detached."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def divide(parameters: Sequence[torch.Tensor], fragments: int) -> list[Fragment]:
    """`fragments` runs of rows of about equal size; ConfigurationError where there are fewer rows."""
    rows: list[tuple[torch.Tensor, int, tuple[int, ...]]] = []  # parameter, number of rows, shape of a row
    for each in parameters:
        shape = tuple(local(each).shape)
        rows.append((each, shape[0], shape[1:]) if shape else (each, 1, ()))
    if sum(count for _, count, _ in rows) < fragments:
        raise ConfigurationError(f"{fragments} fragments of a model with fewer rows of parameters", "fragments")
    total = sum(count * math.prod(shape) for _, count, shape in rows)
    ends = [total * (number + 1) // fragments for number in range(fragments)]
    found: list[list[Segment]] = [[]]
    at = 0
    for parameter, count, shape in rows:
        size, row = math.prod(shape), 0
        while row < count:
            left = ends[len(found) - 1] - at
            take = count - row if len(found) == fragments else min(count - row, -(-left // size) if size else count)
            whole = (take, *shape) if local(parameter).dim() else ()
            found[-1].append(Segment(parameter, row * size, whole))
            row += take
            at += take * size
            if at >= ends[len(found) - 1] and len(found) < fragments:
                found.append([])
    if not all(found):
        raise ConfigurationError(
            f"{fragments} fragments of {total} elements: rows are too large to fill each", "fragments"
        )
    return [Fragment(tuple(each)) for each in found]

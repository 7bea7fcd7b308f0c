"""Tensors of ranks in virtual time, and what their sums come to on host memory, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fanin.numerics.reduction import Element
from tests.support.cluster import expected
from tests.support.virtual_ranks import ELEMENTS, VirtualWorld

KINDS = [(8, torch.float32), (4, torch.bfloat16), (16, torch.float16), (32, torch.float32), (32, torch.int32)]
"""Lanes and element types: with codes in packed lanes, and, for integers, as they are."""


def gradients(rank: int, number: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A rank's tensor of that number."""
    generator = torch.Generator().manual_seed(100 * rank + number)
    if not dtype.is_floating_point:
        return torch.randint(1000, (count,), dtype=dtype, generator=generator)
    return (torch.randn(count, generator=generator) ** 3).to(dtype)


def of_host(world: VirtualWorld, lanes: int, number: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The average, or the sum of integers, that the ranks' gradients have on host memory."""
    inputs = [gradients(rank, number, count, dtype) for rank in range(world.ranks)]
    element = ELEMENTS[dtype]
    arrays: list[Any] = [
        x.view(torch.int16).numpy().view(np.uint16) if element is Element.BFLOAT16 else x.numpy() for x in inputs
    ]
    divisor = float(world.ranks) if element.floating else 1.0
    return torch.from_numpy(expected(world.spec, arrays, element, lanes, divisor=divisor).copy()).view(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have the same elements, to the bit."""
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))

"""Memory of the gathers of one model, used again.

Fresh memory comes from the kernel page by page, cleared: for the codes of 25 MiB of weights that took four ranks on two
cores 2.1 ms, and decoding them 2.7 ms. The layers of a model are mostly of one size and gathered in turn, so a few
buffers serve all of them.
"""

from __future__ import annotations

import torch

MAX_SPARE = 2
"""Buffers that are kept for the next gathers: FSDP2 has one under way while another is waited for."""


class ByteBuffers:
    """Buffers that wait for their next use, MAX_SPARE at most: those that were given back last."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []

    def take(self, count: int) -> torch.Tensor:
        """uint8[count], whatever it holds: a spare buffer of that size, or a new one."""
        for place, each in enumerate(self._spare):
            if len(each) == count:
                return self._spare.pop(place)
        return torch.empty(count, dtype=torch.uint8)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Nobody reads or writes it any more."""
        self._spare = [*self._spare, buffer][-MAX_SPARE:]

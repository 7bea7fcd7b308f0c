"""The collective of a job's steps: which reduction a worker submits, and what its array must then hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.emulation.simulator.scenario import JobPlan
from fanin.numerics.reduction import COPIED, Element, Reduction, lanes_number

Array = npt.NDArray[Any]


class Rule:
    """The rule of a job whose collective is not all_reduce. Arrays are reduced in place, and divided among ranks as
    evenly as possible."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan

    def reduction(self, rank: int, step: int, array: Array) -> Reduction:
        """The reduction that a worker submits in a step."""
        plan = self._plan
        if plan.collective == "reduce_scatter":
            first, end = self._part(rank, len(array))
            return Reduction(
                source=array.ctypes.data, destination=array.ctypes.data + first * array.itemsize, count=len(array),
                element=Element[plan.element.upper()], lanes=lanes_number(plan.lanes or 32),
                keep_first=first, keep_count=end - first, tag=1, owner=array,
            )  # fmt: skip
        first, end = self._owned(rank, step, array.nbytes)
        return Reduction(
            source=array.ctypes.data + first, destination=array.ctypes.data, count=array.nbytes,
            element=Element.UINT8, lanes=COPIED, own_first=first, own_count=end - first, tag=2, owner=array,
        )  # fmt: skip

    def result(self, rank: int, step: int, inputs: Sequence[Array], total: Array | None) -> Array:
        """The array that a worker must hold after a step. `inputs`: all ranks'; `total`: their sum, None for moves."""
        after = np.array(inputs[rank])
        if total is not None:
            first, end = self._part(rank, len(after))
            after[first:end] = total[first:end]
            return after
        whole = after.view(np.uint8)
        for owner, given in enumerate(inputs):
            first, end = self._owned(owner, step, after.nbytes)
            whole[first:end] = given.view(np.uint8)[first:end]
        return after

    def _part(self, rank: int, count: int) -> tuple[int, int]:
        return rank * count // self._plan.workers, (rank + 1) * count // self._plan.workers

    def _owned(self, rank: int, step: int, count: int) -> tuple[int, int]:
        if self._plan.collective == "broadcast":
            return (0, count) if rank == step % self._plan.workers else (0, 0)
        return self._part(rank, count)

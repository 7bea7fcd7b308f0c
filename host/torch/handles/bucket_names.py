"""Names of parameters in the buckets of DistributedDataParallel, for reports of sums that are not finite.

torch's reducer hands a process group flat buckets without the names of their parameters. Its record of itself
(`_get_ddp_logging_data`) has the sizes of its final buckets and the order of the parameters in them. So a plain script
needs no call of ours: once, after the third step, the DDP module is looked for among the process's objects. It cannot
be asked when a report is made: a backward pass that waits for its sums holds the reducer's lock, for ever then.

Buckets travel in the order of their numbers, a sum each. Which bucket a sum was follows from its size and from those of
the sums before it in the step.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Layout = list[list[tuple[str, int]]]
"""By bucket: names and element counts of its parameters, in their order."""


class BucketNames:
    """Names the parameters of the DDP module that reduces over one group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self._layout: Layout = []
        self._buckets_bytes: list[int] = []

    def learn(self) -> None:
        """Look at the buckets of the group's DDP module, if there is one; between two steps."""
        module = self._find()
        if module is not None:
            self._layout, self._buckets_bytes = layout_of(module)

    def name(self, sizes_bytes: Sequence[int], at: int, first: int, count: int) -> str | None:
        """The parameter at elements [first, first + count) of the `at`-th sum, or several of them; None: not known.

        `sizes_bytes`: of the sums since the step began.
        """
        bucket = bucket_of(sizes_bytes, at, self._buckets_bytes)
        return None if bucket is None else name_at(self._layout[bucket], first, count)

    def _find(self) -> DistributedDataParallel | None:
        group = self._group()
        for each in gc.get_objects():
            if issubclass(type(each), DistributedDataParallel) and each.process_group is group:
                found: DistributedDataParallel = each
                return found
        return None


def layout_of(module: DistributedDataParallel) -> tuple[Layout, list[int]]:
    """The parameters of each final bucket, and the buckets' sizes in bytes.

    Modules that never make final buckets (find_unused_parameters) keep their first ones.
    """
    logged = module._get_ddp_logging_data()
    names = {id(parameter): name for name, parameter in module.module.named_parameters()}
    parameters = [(names.get(id(each), "?"), each) for each in module._module_parameters if each.requires_grad]
    sizes = [int(text) for text in str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]).split(",")]
    rebuilt = logged.get("rebuilt_per_bucket_param_indices")
    if rebuilt:
        order = [[parameters[int(index)] for index in text.split()] for text in str(rebuilt).split(",")]
    else:
        order = _first_buckets(parameters, sizes)
    return [[(name, parameter.numel()) for name, parameter in bucket] for bucket in order], sizes


def _first_buckets(
    parameters: list[tuple[str, torch.nn.Parameter]], sizes_bytes: list[int]
) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """Buckets of the first step: the parameters in their order, cut into buckets, the last bucket first."""
    left = list(parameters)
    order: list[list[tuple[str, torch.nn.Parameter]]] = []
    for size_bytes in reversed(sizes_bytes):
        bucket: list[tuple[str, torch.nn.Parameter]] = []
        while left and sum(each.nbytes for _, each in bucket) < size_bytes:
            bucket.append(left.pop(0))
        order.insert(0, bucket)
    return order


def bucket_of(sizes_bytes: Sequence[int], at: int, buckets_bytes: Sequence[int]) -> int | None:
    """The number of the bucket that the `at`-th sum of a step was; None if no bucket fits, or several do."""
    fitting = [
        bucket
        for bucket, size_bytes in enumerate(buckets_bytes)
        if size_bytes == sizes_bytes[at]
        and bucket <= at
        and list(sizes_bytes[at - bucket : at]) == list(buckets_bytes[:bucket])
    ]
    if len(fitting) > 1:  # alike buckets: the one whose first bucket began the step
        fitting = [bucket for bucket in fitting if (at - bucket) % len(buckets_bytes) == 0]
    return fitting[0] if len(fitting) == 1 else None


def name_at(bucket: Sequence[tuple[str, int]], first: int, count: int) -> str:
    """The names of parameters that have any of elements [first, first + count) of a bucket."""
    ends = accumulate(elements for _, elements in bucket)
    found = [
        name
        for (name, elements), end in zip(bucket, ends, strict=True)
        if end > first and end - elements < first + count
    ]
    return " or ".join(found)

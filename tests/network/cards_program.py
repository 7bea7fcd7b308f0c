"""One rank of a host with two network cards: it sums, and with `cut` sums on until a card has died.

It prints JSON: first that it is ready, then the sums and what ended them.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from fanin.emulation.process_output import print_object
from fanin.errors import FaninError
from fanin.host.torch import FaninProcessGroup

ELEMENTS = 1_000_000
LIMIT_S = 60.0
SUMS_AFTER = 3
"""Sums over what is left."""


def main() -> None:
    """`python -m tests.network.cards_program whole|cut`."""
    dist.init_process_group("fanin")
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)

    def totals() -> list[float]:
        """The values of a sum's elements: one, or those before and after a loss that came between two chunks."""
        tensor = torch.full((ELEMENTS,), dist.get_rank() + 1.0)
        dist.all_reduce(tensor)
        low, high = tensor.aminmax()
        if low == high:
            return [float(low)]
        return tensor.unique().tolist() if group.options.on_worker_loss == "continue" else [float("nan")]

    def any_rank(flag: bool) -> bool:
        """Whether any rank has given the flag: all do the same number of sums, whoever sees a change first."""
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags)
        return bool(flags.item())

    sums, error, before = totals(), "", group.describe()
    if sys.argv[1] == "cut":
        print_object({"event": "ready"})
        ends_at, left = time.monotonic() + LIMIT_S, SUMS_AFTER
        while left and time.monotonic() < ends_at:
            try:
                sums += totals()
                left -= any_rank(group.describe() != before)
            except FaninError as failure:
                error = f"{type(failure).__name__}: {failure}"
                break
    print_object({"event": "end", "sums": sorted(set(sums)), "error": error, "described": group.describe()})
    if not error:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

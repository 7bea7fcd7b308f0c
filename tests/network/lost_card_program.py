"""One rank of a host with two network cards that sums on when one dies (fallback="cards").

It prints JSON: a line per step until a rank has seen a change, or the file that is named; then what came of it.
Several sums are under way at a time, of sizes for all shards and for one, beside what the switch copies.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from fanin.emulation.process_output import print_object
from fanin.errors import FaninError
from fanin.host.torch import FaninProcessGroup

ELEMENTS = 300_000
PART = 10_000
STEPS_AFTER = 3
"""Steps over what is left, or after the file."""


class Warnings(logging.Handler):
    """Keeps what fanin warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Sums:
    """The steps of one rank, and what was wrong in them."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.step, self.wrong = 0, list[str]()
        self.digest = hashlib.sha256()

    def next(self, flag: bool) -> bool:
        """Do a step; whether any rank has given a flag."""
        self.step += 1
        random = torch.Generator().manual_seed(1000 * self.step + self.rank)
        whole = torch.full((ELEMENTS,), float(self.rank + self.step))
        noise = torch.randn(ELEMENTS, generator=random)
        small = torch.full((5,), self.rank + self.step)
        flags = torch.tensor([int(flag)])
        parts = torch.full((self.size * PART,), float(self.rank + self.step))
        own, all_parts = torch.zeros(PART), torch.zeros(self.size * PART)
        told = torch.full((PART,), float(self.step) if self.rank == 0 else 0.0)
        works = [dist.all_reduce(each, async_op=True) for each in (whole, noise, small, flags)]
        works += [
            dist.reduce_scatter_tensor(own, parts, async_op=True),
            dist.all_gather_into_tensor(all_parts, torch.full((PART,), float(self.rank)), async_op=True),
            dist.broadcast(told, 0, async_op=True),
        ]
        for work in works:
            work.wait()
        total = self.size * self.step + sum(range(self.size))
        gathered = all_parts.view(self.size, PART).sum(0)
        for name, tensor, expected in (
            ("all_reduce", whole, total), ("small", small, total), ("reduce_scatter", own, total),
            ("broadcast", told, self.step), ("all_gather", gathered, sum(range(self.size))),
        ):  # fmt: skip
            if not bool((tensor == expected).all()):
                self.wrong.append(f"step {self.step}: {name} {tensor.unique()[:4].tolist()}, expected {expected}")
        self.digest.update(noise.numpy().tobytes())
        return bool(flags.item())


def main() -> None:
    """`python -m tests.network.lost_card_program FILE`."""
    over = Path(sys.argv[1])
    warnings = Warnings()
    logging.getLogger("fanin").addHandler(warnings)
    dist.init_process_group("fanin")
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    before, error, left = group.describe(), "", STEPS_AFTER
    sums = Sums()
    try:
        while left:
            left -= sums.next(over.exists() or group.describe() != before)
            print_object({"event": "step"})
    except FaninError as failure:
        error = f"{type(failure).__name__}: {failure}"
    print_object({
        "event": "end", "wrong": sums.wrong, "error": error, "described": group.describe(), "steps": sums.step,
        "digest": sums.digest.hexdigest(), "warnings": warnings.texts,
    })  # fmt: skip
    sys.stdout.flush()
    if error:
        os._exit(0)  # not before its words are out; the others have errors of their own
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What all ranks of a group can do with CUDA tensors: each tells it when the group is made, and the least counts.

So a rank without a device, or without Triton, finds the others submitting what it submits itself.
"""

from __future__ import annotations

import enum
import importlib.util
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

PREFIX = "device"
"""Of the store's keys."""


class Level(enum.IntEnum):
    """What a rank can do; more includes less."""

    HOST = 0
    """No CUDA device: whole tensors, through host memory."""
    COPIES = 1
    """Pieces through pinned memory; numbers are made on the host."""
    NUMBERS = 2
    """Codes and words are made on the device, by Triton."""


def own_level() -> Level:
    """This process's."""
    if not torch.cuda.is_available():
        return Level.HOST
    return Level.NUMBERS if importlib.util.find_spec("triton") is not None else Level.COPIES


def tell(store: c10d.Store, rank: int, level: Level) -> None:
    """For the others, before any of them asks."""
    store.set(f"{PREFIX}/{rank}", str(int(level)))


def least(store: c10d.Store, size: int, timeout: timedelta) -> Level:
    """The least of all ranks, who have told it when they came into the group."""
    keys = [f"{PREFIX}/{rank}" for rank in range(size)]
    store.wait(keys, timeout)
    return min(Level(int(store.get(key))) for key in keys)

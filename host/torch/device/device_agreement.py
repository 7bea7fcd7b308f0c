"""Agreement of a group's ranks on their work with CUDA tensors: each tells the store what it can; all use what all can.

So where one rank has no device, or its Triton does not work, all other ranks submit what that rank submits. That there
is a device is told when the group is made; that kernels work, at the group's first CUDA tensor, when they have been
tried. Ranks announce that they come there (announcement.py), so that one that sums a host tensor meanwhile is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError
from fanin.host.torch.meeting.side_store import SideStore

DEVICE, NUMBERS = "device", "numbers"
"""Questions: is there a CUDA device, and do its kernels make the host's numbers?"""
FIRST_LOOK_S, LAST_LOOK_S = 0.005, 0.25
"""Time between two looks for the others' answers, at first and in the end."""


def tell(store: c10d.Store, group: str, rank: int, question: str, answer: bool) -> None:
    """Tell the other ranks this one's answer. `store`: without prefixes, so `group` is the name of the group's job."""
    store.set(_key(group, rank, question), str(int(answer)))


def all_say(
    side: SideStore, group: str, rank: int, size: int, question: str, timeout: timedelta,
    check: Callable[[], None] = lambda: None,
) -> bool:  # fmt: skip
    """Whether every rank has said yes; waits for all answers. `rank`: this one.

    Raises CollectiveTimeoutError, with the ranks that have not answered, and what `check` raises, which is called
    before every look.
    """
    keys = [_key(group, each, question) for each in range(size)]
    ends_s, look_s = time.monotonic() + timeout.total_seconds(), FIRST_LOOK_S
    while not side.ask(rank, lambda store: store.check(keys)):
        check()
        if time.monotonic() >= ends_s:
            come = side.ask(rank, lambda store: [store.check([key]) for key in keys])
            silent = ", ".join(str(each) for each, here in enumerate(come) if not here)
            raise CollectiveTimeoutError(
                f"Timed out on rank {rank}: ranks {silent} of this group have not come to its first CUDA tensor in "
                f"{timeout.total_seconds():g} s. Remedy: every rank calls a collective with tensors on the same kind "
                "of device; a rank that has no GPU makes all go by the host by itself"
            )
        time.sleep(look_s)
        look_s = min(2 * look_s, LAST_LOOK_S)
    return side.ask(rank, lambda store: all(store.get(key) == b"1" for key in keys))


def _key(group: str, rank: int, question: str) -> str:
    return f"fanin/device/{group}/{question}/{rank}"


def has_device() -> bool:
    """Whether this process may have CUDA tensors."""
    return bool(torch.cuda.is_available())

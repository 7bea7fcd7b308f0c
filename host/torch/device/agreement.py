"""Agreement of a group's ranks on their work with CUDA tensors: each tells the others, by the store; the least counts.

So a rank without a device, or one whose Triton does not work, finds the others submitting what it submits itself. That
there is a device is told when the group is made; that kernels work, at the group's first CUDA tensor, when they have
been tried.
"""

from __future__ import annotations

from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError

DEVICE, NUMBERS = "device", "numbers"
"""Questions: is there a CUDA device, and do its kernels make the host's numbers?"""


def tell(store: c10d.Store, rank: int, question: str, answer: bool) -> None:
    """Tell the other ranks this one's answer."""
    store.set(f"{question}/{rank}", str(int(answer)))


def all_say(store: c10d.Store, size: int, question: str, timeout: timedelta) -> bool:
    """Whether every rank has said yes; waits for all answers.

    Raises CollectiveTimeoutError, with the ranks that have not answered.
    """
    keys = [f"{question}/{rank}" for rank in range(size)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        silent = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise CollectiveTimeoutError(
            f"Timed out: ranks {', '.join(map(str, silent))} of this group have not come to its first CUDA tensor in "
            f"{timeout.total_seconds():g} s. Remedy: every rank calls a collective with tensors on the same kind of "
            "device; a rank that has no GPU makes all go by the host by itself"
        ) from error
    return all(store.get(key) == b"1" for key in keys)


def has_device() -> bool:
    """Whether this process may have CUDA tensors."""
    return bool(torch.cuda.is_available())

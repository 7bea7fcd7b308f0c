"""The ranks of `fanin advise` meet in a store; who does not come is named, instead of a silence of minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError

SAY_AFTER_S = 5.0
"""Importing torch takes some seconds, and from a file server more."""
GIVE_UP_AFTER_S = 120.0
LOOK_EVERY_S = 0.2
VERDICT = "verdict"
"""Key of rank 0's word: empty if all have come, or what is wrong."""


def meet(names: Sequence[str], say: Callable[[str], None]) -> c10d.Store:
    """The store in which all ranks are, once they are. `names` are of their hosts, by rank, where somebody knows them.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set. On rank 0 `say` is told whom it waits for.
    Raises FaninError with the ranks that have not come, or with the address at which rank 0 was not found.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        bare = c10d.TCPStore(
            # To itself it goes the shortest way, and says who has not come where the others go a wrong one.
            "localhost" if serves else host, port, size, is_master=serves, timeout=timedelta(seconds=GIVE_UP_AFTER_S),
            wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
    except RuntimeError as error:
        act, remedy = (
            ("listen", "name a free port with --master-port")
            if serves
            else ("reach rank 0", "see that its rank has started, and let hosts reach each other's TCP ports")
        )
        raise FaninError(f"rank {rank} cannot {act} at {host}:{port}: {first_line(error)}. Remedy: {remedy}") from None
    store = c10d.PrefixStore(f"fanin advise {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", bare)
    store.set(_key(rank), "")
    if rank == 0:
        problem = missing(store, size, names, say)
        store.set(VERDICT, problem)
    else:
        store.set_timeout(timedelta(seconds=2 * GIVE_UP_AFTER_S))  # rank 0 may have come as late as is allowed
        try:
            problem = store.get(VERDICT).decode()
        except RuntimeError as error:
            problem = f"rank 0, at {host}:{port}, has ended: {first_line(error)}. Remedy: see what it printed"
    if problem:
        raise FaninError(problem)
    return store


def missing(
    store: c10d.Store,
    size: int,
    names: Sequence[str],
    say: Callable[[str], None],
    *,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until all ranks are in the store; empty, or, after GIVE_UP_AFTER_S, who is not and what to do.

    `say` is told after SAY_AFTER_S, and again after twice, four times, ... as long.
    """
    began, say_at = now(), SAY_AFTER_S
    while absent := [rank for rank in range(size) if not store.check([_key(rank)])]:
        waited = now() - began
        who = ", ".join(f"rank {rank}" + (f" ({names[rank]})" if names else "") for rank in absent)
        if waited >= GIVE_UP_AFTER_S:
            return (
                f"{who}: not there after {GIVE_UP_AFTER_S:g} s. Remedy: see that commands can be run there, that "
                "Python and fanin are at the same paths, and that MASTER_ADDR is rank 0's and can be reached from there"
            )
        if waited >= say_at:
            say(f"waiting for {who}")
            say_at *= 2
        pause(LOOK_EVERY_S)
    return ""


def first_line(error: BaseException) -> str:
    """Without the stack that PyTorch's C++ appends."""
    return str(error).partition("\n")[0].rstrip(". ")


def _key(rank: int) -> str:
    return f"rank {rank}"

"""The store in which the ranks of `fanin advise` meet; ranks that do not come are named, not waited for in silence."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.addresses import host_and_port
from fanin.errors import FaninError
from fanin.host.torch.collectives.timeline import RESTART_VARIABLE
from fanin.host.torch.meeting.store_host import AGENT_STORE

PATIENCE_S = (5.0, 5.0, 10.0, 20.0, 40.0, 40.0)
"""Waits for the ranks; after each but the last, `say` names the missing ones. Importing torch takes some seconds."""
GIVE_UP_AFTER_S = sum(PATIENCE_S)
VERDICT = "verdict"
"""Key of rank 0's verdict: an empty text if all ranks have come, else what is wrong."""


def meet(rank: int, size: int, names: Sequence[str], say: Callable[[str], None]) -> c10d.Store:
    """Wait until all ranks are in the store, and return it. `names`: of their hosts, by rank, where they are known.

    MASTER_ADDR and MASTER_PORT are set. On rank 0 `say` is told which ranks are waited for.
    Raises FaninError with the ranks that have not come, or with the address at which rank 0 was not found.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    at = host_and_port(host, port)
    serves = rank == 0 and os.environ.get(AGENT_STORE) != "True"
    try:
        bare = c10d.TCPStore(
            # Rank 0 reaches its own store by loopback, so it names missing ranks even if MASTER_ADDR is wrong.
            "localhost" if serves else host, port, size, is_master=serves, timeout=timedelta(seconds=GIVE_UP_AFTER_S),
            wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
    except RuntimeError as error:
        act, remedy = (
            ("listen", "name a free port with --master-port")
            if serves
            else ("reach rank 0", "see that its rank has started, and let hosts reach each other's TCP ports")
        )
        raise FaninError(f"rank {rank} cannot {act} at {at}: {_first_line(error)}. Remedy: {remedy}") from None
    store = c10d.PrefixStore(f"fanin advise {os.environ.get(RESTART_VARIABLE, '0')}", bare)
    store.set(_key(rank), "")
    if rank == 0:
        problem = missing(store, size, names, say)
        store.set(VERDICT, problem)
    else:
        store.set_timeout(timedelta(seconds=2 * GIVE_UP_AFTER_S))  # rank 0 may have come as late as is allowed
        try:
            problem = store.get(VERDICT).decode()
        except RuntimeError as error:
            problem = f"rank 0, at {at}, has ended: {_first_line(error)}. Remedy: see what it printed"
    if problem:
        raise FaninError(problem)
    return store


def missing(
    store: c10d.Store,
    size: int,
    names: Sequence[str],
    say: Callable[[str], None],
    patience_s: Sequence[float] = PATIENCE_S,
) -> str:
    """Wait until all ranks are in the store; return an empty text, or after all of `patience_s` who is missing.

    The text ends with a remedy.
    """
    keys = [_key(rank) for rank in range(size)]
    absent = ""
    for number, seconds in enumerate(patience_s, 1):
        try:
            store.wait(keys, timedelta(seconds=seconds))
            return ""
        except dist.DistStoreError:
            ranks = [rank for rank, key in enumerate(keys) if not store.check([key])]
        absent = ", ".join(f"rank {rank}" + (f" ({names[rank]})" if names else "") for rank in ranks)
        if absent and number < len(patience_s):
            say(f"waiting for {absent}")
    if not absent:  # the last one came at the last moment
        return ""
    return (
        f"{absent}: not there after {sum(patience_s):g} s. Remedy: see that commands can be run there, that Python and "
        "fanin are at the same paths, and that MASTER_ADDR is rank 0's and can be reached from there"
    )


def _first_line(error: BaseException) -> str:
    """First line of an error, without the stack that PyTorch's C++ appends."""
    return str(error).partition("\n")[0].rstrip(". ")


def _key(rank: int) -> str:
    return f"rank {rank}"

"""The incarnation of a group: its name is used again after destroy and init, and a store keeps old keys.

Rules
-----
* Each rank counts in the store itself, per name (the store's prefix) and members: those who were members of one group
  of that name need not be of the next, and a new store starts afresh.
* A process in the place of one that is gone (on_worker_loss="continue") finds that its rank was counted before, and
  takes the incarnation that rank 0 was in last. Its job may run without this process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

_LIVED: set[tuple[str, str, int, int]] = set()
"""Incarnations that this process was a member of: the group's name and members, its rank there, and their number."""


def find_incarnation(
    store: c10d.Store, group_name: str, rank: int, global_ranks: Sequence[int], patience: timedelta | None = None
) -> tuple[c10d.Store, bool]:
    """The store of this incarnation of the group, and whether this process replaces another one of this rank.

    `patience`: longest wait of a replacement for rank 0's incarnation, or its renewal, which it takes; None: the group
    takes no replacements, and the answer is False.
    """
    members = _members(global_ranks)
    own, newest = f"fanin/{members}/{rank}", _newest(members)
    number = store.add(own, 1)
    place = f"fanin/{members}/{number}"
    replaces = False
    if patience is not None and number > 1 and (group_name, members, rank, number - 1) not in _LIVED:
        replaces = True
        store.wait([newest], patience)
        told = json.loads(store.get(newest))
        store.add(own, told["number"] - number)  # so that it counts like the others from here on
        number, place = told["number"], told["place"]
    elif rank == 0:
        store.set(newest, json.dumps({"number": number, "place": place}))
    _LIVED.add((group_name, members, rank, number))
    return c10d.PrefixStore(place, store), replaces


def renewed_store(store: c10d.Store, rank: int, global_ranks: Sequence[int], name: str) -> c10d.Store:
    """A store for a group that is made whole again within its incarnation; `name` tells one renewal from others."""
    place = f"fanin/renewed/{name}"
    if rank == 0:
        newest = _newest(_members(global_ranks))
        store.set(newest, json.dumps(json.loads(store.get(newest)) | {"place": place}))
    return c10d.PrefixStore(place, store)


def _members(global_ranks: Sequence[int]) -> str:
    return ".".join(map(str, global_ranks)) or "world"


def _newest(members: str) -> str:
    """Key under which rank 0 tells the number of its incarnation, and the prefix of that incarnation's keys."""
    return f"fanin/{members}/newest"

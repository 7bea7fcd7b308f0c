"""The check that all ranks of a group run versions of fanin that understand each other, before any waits for another.

Each rank tells its versions in the group's store before anything else. A rank that has come and has told none runs a
fanin from before this rule.
"""

from __future__ import annotations

import json

from torch._C import _distributed_c10d as c10d

import fanin
from fanin.errors import ConfigurationError
from fanin.protocol import control, wire

MEETING = 2
"""Version of what ranks tell each other in the store (rendezvous.py). Ranks refuse every other one."""


def own_versions() -> dict[str, object]:
    """Everything in which ranks of one group must agree, and, for people, the version of fanin."""
    return {"fanin": fanin.__version__, "meeting": MEETING, "control": control.VERSION, "wire": wire.VERSION}


def tell_versions(store: c10d.Store, rank: int) -> None:
    """Tell the other ranks this one's versions."""
    store.set(_key(rank), json.dumps(own_versions()))


class Versions:
    """Compares the versions that other ranks have told with this rank's, each rank's once."""

    def __init__(self, store: c10d.Store, rank: int) -> None:
        self._store, self._rank, self._seen = store, rank, {rank}

    def check(self, came: dict[int, str]) -> None:
        """Raise ConfigurationError for a rank of another version. `came`: a key that each rank sets after its versions,
        whatever its version is."""
        for rank, key in came.items():
            if rank not in self._seen and self._store.check([key]):
                self._check(rank)
                self._seen.add(rank)

    def _check(self, rank: int) -> None:
        own = own_versions()
        said = json.loads(self._store.get(_key(rank))) if self._store.check([_key(rank)]) else {}
        if all(said.get(name) == version for name, version in own.items() if name != "fanin"):
            return
        raise ConfigurationError(
            f"rank {rank} runs fanin {said.get('fanin', 'of an earlier version')}, rank {self._rank} fanin "
            f"{own['fanin']}, and they do not understand each other ({_in_words(said)}; {_in_words(own)}). Remedy: "
            "install the same fanin on all hosts"
        )


def _in_words(versions: dict[str, object]) -> str:
    return ", ".join(f"{name} {versions.get(name, '?')}" for name in ("meeting", "control", "wire"))


def _key(rank: int) -> str:
    return f"fanin/version/{rank}"

"""Sums that lack a rank, in a job over shards that goes on without lost ranks (survivor.py), and when they count.

Each shard evicts lost ranks by itself. So a shard that cannot be reached by a rank goes on without it while the rank is
a member at the others: where a network card of its host, a cable or a path is dead. Sums at such a shard lack a rank
that is there.

Rules
-----
* A sum that lacks ranks is *in doubt* until every shard is known to have lost them, and is not done meanwhile.
* Doubts end when the other shards lose these ranks, too: then the sum counts as it is. If a shard is lost first, the
  ranks that are left agree on what has come (host/machine/shard_agreement.py), and sum again what nobody has done.
* What a sum lacks is seen by its own contributors, packet by packet: news of members may come later than results.
* The contributors' identities count, not their number. A sum may hold the contribution of a rank that was lost since,
  and lack that of one that was lost after that, and is there at other shards: as many as members are known to be left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Membership(Protocol):
    """The part of a session at a shard that is needed here."""

    @property
    def known_members(self) -> tuple[int, ...]:
        """The ranks that the shard waits for, as far as this rank knows, in ascending order."""


class Doubt:
    """Doubts about the sums of one job over these shards, which began with these ranks."""

    def __init__(self, ranks: Sequence[int], shards: Sequence[Membership]) -> None:
        """`ranks`: those behind the job's workers."""
        self._ranks, self._shards = tuple(ranks), shards

    def about(self, arrived: int | None) -> bool:
        """Whether a sum is in doubt; `arrived`: bitmap of the workers whose contributions are in all of its packets.
        None: it is not known, and the sum may lack whom any shard has lost."""
        here = None if arrived is None else [rank for at, rank in enumerate(self._ranks) if arrived >> at & 1]
        if here == list(self._ranks):
            return False
        first, *others = (each.known_members for each in self._shards)
        return (here is not None and not set(first).issubset(here)) or any(each != first for each in others)

    @property
    def dissenters(self) -> tuple[int, ...]:
        """Positions of the shards whose members are not those of the one that has most (of several, the first)."""
        members = [each.known_members for each in self._shards]
        most = max(members, key=len)
        return tuple(at for at, each in enumerate(members) if each != most)

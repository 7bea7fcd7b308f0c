"""Algorithms of the keyed tag of data packets (fanin/protocol/packet_tag.py), by the names that messages carry.

The controller chooses one for a job from those that all of its ranks and its own data plane can compute. A packet does
not name it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

TagAlgorithm = Literal["siphash", "gcm-siv"]
SIPHASH: TagAlgorithm = "siphash"
"""SipHash-2-4 in four lanes: quick on any processor."""
GCM_SIV: TagAlgorithm = "gcm-siv"
"""AES-128-GCM-SIV's tag (RFC 8452): quicker on processors with AES and carry-less multiplication."""
TAG_ALGORITHMS: tuple[TagAlgorithm, ...] = (GCM_SIV, SIPHASH)
"""All of them, the preferred one first."""


def preferred(parties: Iterable[Collection[str]]) -> TagAlgorithm | None:
    """The first algorithm that every party names; None if they have none in common. Unknown names are passed over."""
    named = [set(party) for party in parties]
    return next((each for each in TAG_ALGORITHMS if all(each in party for party in named)), None)

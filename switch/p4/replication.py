"""Multicast groups and mirror sessions: where copies of a packet go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Replica(NamedTuple):
    """One copy: the port that it leaves through, and what the program reads as egress_rid."""

    port: int
    instance: int


@dataclass(frozen=True, slots=True)
class MirrorSession:
    """Where a clone goes."""

    replicas: tuple[Replica, ...]
    cut: int = 0
    """Bytes that are kept of it; 0: all."""

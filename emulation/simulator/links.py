"""A link: what it does to packets, and how busy it is.

Rules of this file
------------------
* A pipe is one direction of a link. It passes packets on one after another at its rate; a packet that does not fit into
  its queue is lost (tail drop), as in a switch port or a network card. A long queue may mark packets.
* A packet that has passed the queue may be lost, repeated, held back, damaged or stray, each with its own probability.
  A stray is a second copy that arrives much later, perhaps in another life of the job.
* Damage is one to three flipped bits or, one time in eight, a tail cut off; checksums must detect it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from fanin.errors import ConfigurationError
from fanin.protocol.ecn import Marked
from fanin.settings import Bounds, check_bounds

CUT_SHORT = 1 / 8
"""Share of damaged packets that lose their tail instead of some bits."""
MAX_FLIPPED_BITS = 3
"""CRC-32 finds every error of up to three bits in packets of any length that fanin sends (Koopman, DSN 2002)."""


Chance = Annotated[float, Bounds(0, 1)]
"""A probability per packet."""
Seconds = Annotated[float, Bounds(0, 60)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Properties of a path between a worker and the switch, the same in each direction."""

    delay_s: Seconds = 50e-6
    bytes_per_s: float = 1.25e9
    """Rate of the link; 10 Gbit/s by default."""
    queue_bytes: Annotated[int, Bounds(1)] = 1 << 20
    """Most bytes that wait in the queue; further packets are lost."""
    mark_bytes: int = 0
    """Waiting bytes above which a datagram is marked (fanin/protocol/ecn.py); 0: none is marked."""
    loss: Chance = 0.0
    duplicate: Chance = 0.0
    """Probability that a second copy follows at once."""
    reorder: Chance = 0.0
    """Probability that a packet is held back, by up to `reorder_s`."""
    reorder_s: Seconds = 500e-6
    stray: Chance = 0.0
    """Probability that one more copy arrives, up to `stray_s` later."""
    stray_s: Seconds = 2.0
    corrupt: Chance = 0.0
    """Probability that a packet is damaged; needs jobs with checksums."""

    def __post_init__(self) -> None:
        check_bounds(self, "link: ")
        if self.bytes_per_s <= 0:
            raise ConfigurationError("link: bytes_per_s must be positive", "bytes_per_s")

    @property
    def clean(self) -> bool:
        """Whether the link only delays packets."""
        return not (self.loss or self.duplicate or self.reorder or self.stray or self.corrupt)


class Pipe:
    """One direction of a link, with the time at which it is free again."""

    __slots__ = ("blocked", "clogged_until", "free_at", "lost", "marked", "overflows")

    def __init__(self) -> None:
        self.free_at = 0.0
        self.clogged_until = 0.0
        self.blocked = 0
        """Number of faults that cut it at the moment; it passes nothing unless 0."""
        self.overflows = 0
        """Packets lost because the queue was full."""
        self.lost = 0
        """Packets lost by the probability `loss`."""
        self.marked = 0
        """Packets that the queue has marked."""

    def clog(self, until: float) -> None:
        """Pass nothing on before `until`; packets wait in the queue as far as it has room."""
        self.clogged_until = max(self.clogged_until, until)
        self.free_at = max(self.free_at, until)

    def carry(self, data: bytes, now: float, link: Link, dice: random.Random) -> list[tuple[float, bytes]]:
        """Arrivals of a packet that is sent `now`: (time, bytes) of each copy; empty if it is lost."""
        begins = max(now, self.free_at)
        waiting_s = max(0.0, begins - max(now, self.clogged_until))
        if waiting_s * link.bytes_per_s + len(data) > link.queue_bytes:
            self.overflows += 1
            return []
        if 0 < link.mark_bytes < waiting_s * link.bytes_per_s:
            data = Marked(data)
            self.marked += 1
        self.free_at = begins + len(data) / link.bytes_per_s
        at = self.free_at + link.delay_s
        if link.clean:
            return [(at, data)]
        return self._suffer(data, at, link, dice)

    def _suffer(self, data: bytes, at: float, link: Link, dice: random.Random) -> list[tuple[float, bytes]]:
        chance = dice.random
        arrivals = []
        for _ in range(2 if chance() < link.duplicate else 1):
            if chance() < link.loss:
                self.lost += 1
                continue
            late_s = chance() * link.reorder_s if chance() < link.reorder else 0.0
            arrivals.append((at + late_s, damaged(data, dice) if chance() < link.corrupt else data))
        if chance() < link.stray:
            arrivals.append((at + chance() * link.stray_s, data))
        return arrivals


class SharedLink:
    """A link shared by several addresses: one queue for what they send, another for what they receive."""

    __slots__ = ("down", "link", "up")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.up = Pipe()
        """The direction away from the nodes."""
        self.down = Pipe()


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The packet with one to MAX_FLIPPED_BITS bits flipped, or with its tail cut off."""
    if dice.random() < CUT_SHORT:
        return data[: dice.randrange(len(data))]
    changed = bytearray(data)
    for bit in dice.sample(range(8 * len(data)), dice.randint(1, MAX_FLIPPED_BITS)):
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)

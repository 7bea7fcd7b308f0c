"""A link: its effect on packets, and how much of its capacity is used.

Rules of this file
------------------
* A pipe is one direction of a link. It passes packets on one after another at its rate; what does not fit into its
  queue is lost (tail drop), as in a switch port or a network card. A queue may mark what it has to keep for long.
* What has passed the queue is then lost, repeated, held back, damaged or strays, by chance: each with a probability of
  its own, per packet. A stray is a second copy that turns up long after, in another life of the job perhaps.
* Damage is one to three flipped bits or, one time in eight, a tail that is cut off: what the job's checksums are for.
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
    """Qualities of a path between a worker and the switch, the same for each direction."""

    delay_s: Seconds = 50e-6
    bytes_per_s: float = 1.25e9
    """Rate of the link; 10 Gbit/s by default."""
    queue_bytes: Annotated[int, Bounds(1)] = 1 << 20
    """Most bytes that wait for the rate; further ones are lost."""
    mark_bytes: int = 0
    """A datagram that finds more waiting is marked (fanin/protocol/ecn.py); 0: none is."""
    loss: Chance = 0.0
    duplicate: Chance = 0.0
    """A second copy follows at once."""
    reorder: Chance = 0.0
    """Probability of being held back, by up to `reorder_s`."""
    reorder_s: Seconds = 500e-6
    stray: Chance = 0.0
    """Probability that another copy arrives, up to `stray_s` later."""
    stray_s: Seconds = 2.0
    corrupt: Chance = 0.0
    """Only where jobs have checksums."""

    def __post_init__(self) -> None:
        check_bounds(self, "link: ")
        if self.bytes_per_s <= 0:
            raise ConfigurationError("link: bytes_per_s must be positive")

    @property
    def clean(self) -> bool:
        """Whether it does nothing to packets but delay them."""
        return not (self.loss or self.duplicate or self.reorder or self.stray or self.corrupt)


class Pipe:
    """One direction of a link, and when it is free again."""

    __slots__ = ("blocked", "clogged_until", "free_at", "lost", "marked", "overflows")

    def __init__(self) -> None:
        self.free_at = 0.0
        self.clogged_until = 0.0
        self.blocked = 0
        """Partitions that it is subject to at the moment."""
        self.overflows = 0
        """Packets that its queue had no room for."""
        self.lost = 0
        """Packets lost by chance."""
        self.marked = 0
        """Packets that its queue has marked."""

    def clog(self, until: float) -> None:
        """Pass nothing on until then; packets wait in the queue as far as it has room."""
        self.clogged_until = max(self.clogged_until, until)
        self.free_at = max(self.free_at, until)

    def carry(self, data: bytes, now: float, link: Link, dice: random.Random) -> list[tuple[float, bytes]]:
        """When copies of a packet that is sent `now` arrive, and as what: none if it is lost."""
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
    """A link that several addresses are behind: what they send meets in one queue, what they get in another."""

    __slots__ = ("down", "link", "up")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.up = Pipe()
        """The direction away from the nodes."""
        self.down = Pipe()


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The packet with some bits flipped, or cut short."""
    if dice.random() < CUT_SHORT:
        return data[: dice.randrange(len(data))]
    changed = bytearray(data)
    for bit in dice.sample(range(8 * len(data)), dice.randint(1, MAX_FLIPPED_BITS)):
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)

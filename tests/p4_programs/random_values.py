"""Values that random frames and random entries have in common, so that packets find entries."""

from __future__ import annotations

from random import Random

SMALL = 3


def value(random: Random, bits: int) -> int:
    """A number of `bits` bits: mostly a small one, sometimes the largest, sometimes any."""
    whole = (1 << bits) - 1
    kind = random.random()
    if kind < 0.75:
        return random.randrange(SMALL) & whole
    if kind < 0.8:
        return whole - random.randrange(2) & whole
    if kind < 0.85:
        return 1 << random.randrange(bits)
    return random.getrandbits(bits)

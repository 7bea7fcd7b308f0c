"""Processor time of a sum by bytes and packets, on one machine (docs/performance.md, *Prices*).

`fanin advise` predicts with these, after it has compared the cores of a host with that machine's; `fanin doctor` tells
with their ratios what longer packets would save.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.protocol.window import packet_shape


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a core per byte of float32."""

    inside: float
    """Per rank: what the sum takes of a host without the network, in the rank and in a switch beside it."""
    crossing: float
    """In addition, per tensor that crosses the host's link each way."""

    def between(self, other: Price, share: float) -> Price:
        """The price at `share` of the way to another one."""
        return Price(
            self.inside + (other.inside - self.inside) * share,
            self.crossing + (other.crossing - self.crossing) * share,
        )


PRICED_MTUS = (1500, 9000)
"""MTUs of the prices. Between them, prices follow the number of packets."""
GLOO = Price(0.10e-9, 0.75e-9)
"""Price of gloo's ring, whose packets the kernel cuts: the MTU hardly matters."""
GLOO_ON_LOOPBACK = Price(0.10e-9, 0.52e-9)
"""Price of gloo's ring where all ranks are on one host, and a tensor crosses loopback."""
FANIN = {
    32: (Price(0.44e-9, 0.94e-9), Price(0.44e-9, 0.66e-9)),
    16: (Price(0.38e-9, 0.47e-9), Price(0.38e-9, 0.35e-9)),
    8: (Price(0.34e-9, 0.22e-9), Price(0.34e-9, 0.16e-9)),
    4: (Price(0.31e-9, 0.13e-9), Price(0.31e-9, 0.07e-9)),
}
"""Prices of fanin, by lane width and PRICED_MTUS."""
KERNELS_S = 0.13e-9
"""Seconds per byte of the kernels alone (fanin/advice/own_processors.py), by which cores are compared."""
JUMBO_MTU = 9000
"""MTU that network cards and switches usually carry where they carry more than 1500."""


def price(lanes: int, mtu: int) -> Price:
    """Price of fanin's sum with lanes of this width, over paths of this MTU."""
    many, few = FANIN[lanes]
    at_many, at_few, here = (1 / packet_shape(each)[0] for each in (*PRICED_MTUS, mtu))
    # A path of a small MTU has a price beyond the first one; beyond the last one it stays.
    return many.between(few, min(1.0, (at_many - here) / (at_many - at_few)))


def hosts_price(lanes: int, mtu: int) -> float:
    """Seconds of a core per byte of a host with one rank, where a tensor crosses its link, as between two hosts."""
    cost = price(lanes, mtu)
    return cost.inside + cost.crossing

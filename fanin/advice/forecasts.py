"""Conclusions of `fanin advise` from its measurements: the hosts that share an uplink, and the time of a step in each
placement.

Closed forms throughout: a sum takes as long as the busiest link is busy with it, or the processors are, and a round
trip on top; a ring takes 2 (n - 1) hops. docs/emulation.md has the loads of links, docs/performance.md the
processor time.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fanin.benchmarks.ideal import tensor_bytes
from fanin.benchmarks.rivals import Rival
from fanin.emulation.network.topology import MAX_MTU, MIN_MTU, Link
from fanin.protocol.racks import RackPlan
from fanin.protocol.spread import link_loads, optimal_parts
from fanin.protocol.wire import MAX_WORKERS

RACK_CONTRAST = 1.8
"""Factor by which pairs within a rack must be faster than pairs across racks, when all hosts send to all."""
AGREEING = 0.9
"""Share of the pairs of hosts whose rates must agree with the racks that are found."""
FANIN_S_PER_BYTE, GLOO_S_PER_BYTE = 0.94e-9, 0.75e-9
"""Processor time per rank and byte of float32 with shards or a ring over sockets: 25 MiB, 4 workers, two cores."""
FIXED_PART = 0.5
"""Share of our processor time that does not depend on the width of lanes: reading and writing the tensor."""
NEARLY = 0.15
"""Links whose rates differ by no more count as alike."""
MIN_GAIN = 1.05
"""Least gain over gloo that is worth another backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Measurements of hosts and links. Lists are by host."""

    ranks: tuple[int, ...]
    """Ranks on each host."""
    rates: tuple[float, ...]
    """Bits per second of each host's link, in the slower direction, of TCP payload."""
    cores: tuple[float, ...]
    """Processors that each host has to itself."""
    round_trip_s: float
    """Median round trip between hosts."""
    mtu: int = 1500
    racks: tuple[tuple[int, ...], ...] = ()
    """Hosts of each rack, where hosts share uplinks."""
    uplinks: tuple[float, ...] = ()
    """Bits per second of each rack's uplink."""
    spares: int = 0
    """Number of dedicated switches that were named."""
    spare_weight: float = 1.0
    """Rate of the links of these switches, as a multiple of the hosts'."""

    @property
    def hosts(self) -> int:
        """Number of hosts with ranks."""
        return len(self.ranks)

    @property
    def size(self) -> int:
        """Number of ranks in all."""
        return sum(self.ranks)


@dataclass(frozen=True, slots=True)
class Choice:
    """A placement of sums and a lane width, which variables give to the ranks; `place` empty: gloo."""

    place: str = ""
    """`rank0`, `hosts`, `racks`, `spares` (and hosts) or `switch` (given ones alone)."""
    lanes: int = 32

    @property
    def in_words(self) -> str:
        """The placement in words, for tables."""
        places = {
            "rank0": "a switch beside rank 0",
            "hosts": "a shard on every host",
            "racks": "shards within racks first",
            "spares": "hosts' shards and the switches",
            "switch": "the switches alone",
        }
        return f"fanin, {places[self.place]}, {self.lanes}-bit lanes" if self.place else "gloo"


GLOO = Choice()


@dataclass(frozen=True, slots=True)
class Profile:
    """A training step: when each bucket is ready, in seconds from its beginning, and its bytes; in order."""

    buckets: tuple[tuple[float, int], ...]
    compute_s: float = 0.0

    @property
    def bytes(self) -> int:
        """Bytes of all buckets together."""
        return sum(size for _, size in self.buckets)


def find_racks(together: Mapping[tuple[int, int], float], hosts: int) -> tuple[tuple[int, ...], ...]:
    """The hosts of each rack, from the rates of all pairs (sender, receiver) while all hosts send to all; empty: none.

    Streams between racks share the uplinks and are slow then, and those within a rack have what is left of the hosts'
    own links. A host that is slow towards everybody is no rack.
    """
    pairs = {
        (one, two): (together.get((one, two), 0.0) + together.get((two, one), 0.0)) / 2
        for one, two in itertools.combinations(range(hosts), 2)
    }
    speeds = sorted(max(rate, 1.0) for rate in pairs.values())
    if len(speeds) < 2:
        return ()
    contrast, slow, fast = max((fast / slow, slow, fast) for slow, fast in itertools.pairwise(speeds))
    if contrast < RACK_CONTRAST:
        return ()
    border = math.sqrt(slow * fast)
    rack = list(range(hosts))
    for (one, two), rate in pairs.items():
        if rate > border:
            rack = [rack[one] if each == rack[two] else each for each in rack]
    racks = tuple(tuple(host for host in range(hosts) if rack[host] == name) for name in dict.fromkeys(rack))
    fitting = sum((rate > border) == (rack[one] == rack[two]) for (one, two), rate in pairs.items())
    shared = [each for each in racks if len(each) > 1]
    return racks if len(racks) > 1 and len(shared) > 1 and fitting >= AGREEING * len(pairs) else ()


def choices(network: Network, lanes: Sequence[int]) -> list[Choice]:
    """All choices that are possible in this network, gloo first."""
    places = []
    if network.size <= MAX_WORKERS:
        places.append("rank0")
    if network.hosts > 1:
        places.append("hosts")
    crowd = max((sum(network.ranks[host] for host in rack) for rack in network.racks), default=0)
    if 1 < len(network.racks) < network.hosts and crowd <= MAX_WORKERS:
        places.append("racks")
    if network.spares:
        places += ["switch"] if network.hosts == 1 else ["spares", "switch"]
        if network.size > MAX_WORKERS:
            places.remove("switch")
    return [GLOO, *(Choice(place, width) for place in places for width in lanes)]


def link_copies(network: Network, choice: Choice) -> list[tuple[float, float]]:
    """Tensors that each link carries each way, with its rate in bits per second."""
    n, ranks, rates = network.hosts, network.ranks, network.rates
    spare_rate = statistics.median(rates) * network.spare_weight if rates else 0.0
    if choice.place == "racks":
        plan = RackPlan.of(network.racks)
        found = [(plan.link_load(host, ranks[host]), rates[host]) for host in range(n)]
        return found + [(plan.uplink_load(rack), rate) for rack, rate in enumerate(network.uplinks)]
    if choice.place in ("hosts", "spares"):
        extra = network.spares if choice.place == "spares" else 0
        parts = optimal_parts([1.0] * n, [network.spare_weight] * extra)
        found = list(zip(link_loads(parts, n), [*rates, *[spare_rate] * extra], strict=True))
        for rack, rate in zip(network.racks, network.uplinks, strict=True):
            within = sum(parts[host] for host in rack)
            found.append((len(rack) * (1 - within) + within * (n - len(rack)), rate))
        return found
    if choice.place == "rank0":
        found = [(float(network.size - ranks[0] if host == 0 else ranks[host]), rates[host]) for host in range(n)]
        outside = [sum(ranks[host] for host in rack) for rack in network.racks]
        for number, rate in enumerate(network.uplinks):
            own = outside[number]
            found.append((float(network.size - own if 0 in network.racks[number] else own), rate))
        return found
    if choice.place == "switch":
        found = [(float(ranks[host]), rates[host]) for host in range(n)]
        return found + [(network.size / network.spares, spare_rate)] * network.spares
    ring = 2 * (network.size - 1) / network.size if n > 1 else 0.0
    return [(ring, rate) for rate in (*rates, *network.uplinks)]


def sum_s(network: Network, choice: Choice, size: int) -> float:
    """Seconds of one all-reduce of so many bytes of float32."""
    rival = Rival("fanin", choice.lanes) if choice.place else Rival("gloo")
    link = Link(mtu=min(MAX_MTU, max(MIN_MTU, network.mtu)))
    wire = tensor_bytes(link, rival, network.size, size) * 8 * _tcp_payload(link)
    links_s = max((copies * wire / rate for copies, rate in link_copies(network, choice) if rate), default=0.0)
    busiest = max(range(network.hosts), key=lambda host: network.ranks[host] / network.cores[host])
    per_byte = GLOO_S_PER_BYTE
    if choice.place:
        per_byte = FANIN_S_PER_BYTE * (FIXED_PART + (1 - FIXED_PART) * choice.lanes / 32)
    processors_s = size * per_byte * network.ranks[busiest] / network.cores[busiest]
    hops = 2 if choice.place == "racks" else 1
    trips = hops if choice.place else network.size - 1
    return max(links_s, processors_s) + trips * network.round_trip_s


def _tcp_payload(link: Link) -> float:
    """Share of a frame that is TCP payload, in which rates were measured."""
    return 1 / (tensor_bytes(link, Rival("gloo"), 2, 1 << 20) / (1 << 20))


def step_s(network: Network, choice: Choice, profile: Profile) -> float:
    """Seconds of a step: buckets are summed one after the other, each when it is ready."""
    now = 0.0
    for ready_s, size in profile.buckets:
        now = max(now, ready_s) + sum_s(network, choice, size)
    return max(now, profile.compute_s)


def spare_weight(network: Network, size: int, took_s: float) -> float:
    """Least rate of the switches' links, as a multiple of the hosts', from the time of a sum at the switches alone."""
    link = Link(mtu=min(MAX_MTU, max(MIN_MTU, network.mtu)))
    wire = tensor_bytes(link, Rival("fanin"), network.size, size) * 8 * _tcp_payload(link)
    return network.size / network.spares * wire / took_s / statistics.median(network.rates)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A choice, with the predicted time of a step and the measured time of a sum."""

    choice: Choice
    predicted_s: float
    measured_s: float | None = None
    gloo_s: float | None = field(default=None)
    """gloo's time in the same run."""

    @property
    def gain(self) -> float | None:
        """gloo's time over this choice's, as measured; None if it was not measured."""
        return None if not self.measured_s or not self.gloo_s else self.gloo_s / self.measured_s


def forecasts(network: Network, lanes: Sequence[int], profile: Profile) -> list[Forecast]:
    """All choices, the quickest first."""
    found = [Forecast(choice, step_s(network, choice, profile)) for choice in choices(network, lanes)]
    return sorted(found, key=lambda each: each.predicted_s)


def recommended(found: Sequence[Forecast]) -> Forecast | None:
    """The best of the choices that were measured, or, where none was, of all; None: stay with gloo."""
    measured = [each for each in found if each.gain is not None]
    if not any(each.measured_s for each in found):
        gloo_s = next(each.predicted_s for each in found if not each.choice.place)
        quickest = found[0]
        return quickest if gloo_s >= quickest.predicted_s * MIN_GAIN else None
    best = max(measured, key=lambda each: each.gain or 0.0, default=None)
    return best if best is not None and (best.gain or 0.0) >= MIN_GAIN else None


def settings(choice: Choice, network: Network, addresses: Sequence[str]) -> dict[str, str]:
    """Variables to set on all ranks, without FANIN_RACK, which differs between racks."""
    weight = "" if abs(network.spare_weight - 1) < NEARLY else f"={network.spare_weight:.2g}"
    words = {
        "hosts": "hosts",
        "racks": "hosts",
        "rank0": "rank0",
        "spares": ",".join(["hosts", *(f"{address}{weight}" for address in addresses)]),
        "switch": ",".join(addresses),
    }
    return {"FANIN_SWITCH": words[choice.place]} | ({"FANIN_LANES": str(choice.lanes)} if choice.lanes != 32 else {})

"""Conclusions of `fanin advise` from its measurements: the hosts that share an uplink, and the time of a step in each
placement.

Closed forms throughout: a sum takes as long as the busiest link is busy with it, or the processors of a host are, and
a round trip on top; a ring takes 2 (n - 1) hops. docs/emulation.md has the loads of links, processor_prices.py the
processor time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fanin.benchmarks.ideal import tensor_bytes
from fanin.benchmarks.rivals import Rival
from fanin.emulation.network.topology import MAX_MTU, MIN_MTU, Link
from fanin.processor_prices import GLOO as GLOO_PRICE
from fanin.processor_prices import GLOO_ON_LOOPBACK, price
from fanin.protocol.racks import RackPlan
from fanin.protocol.spread import link_loads, optimal_parts
from fanin.protocol.wire import MAX_WORKERS

Bound = Literal["links", "processors", "round trips"]
RACK_CONTRAST = 1.8
"""Factor by which pairs within a rack must be faster than pairs across racks, when all hosts send to all."""
AGREEING = 0.9
"""Share of the pairs of hosts whose rates must agree with the racks that are found."""
LEAST_FREE_CORES = 0.1
"""Cores that a host has for sums at least: the scheduler gives a busy machine's processes their turns."""
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
    idle: tuple[float, ...] = ()
    """Share of each host's processor time that nobody used before the measurements, 0..1; empty: all of it."""
    core_speeds: tuple[float, ...] = ()
    """Speed of each host's cores, as a multiple of those in processor_prices.py; empty: as fast."""
    mtu: int = 1500
    """Longest IP packet that passes between all hosts, of those that were tried."""
    interface_mtus: tuple[int, ...] = ()
    """MTU of each host's interface on the way to the others, or less where a router has said so; empty: not known."""
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

    @property
    def capacities(self) -> tuple[float, ...]:
        """Seconds of a core in processor_prices.py that each host can spend on sums in a second."""
        idle = self.idle or (1.0,) * self.hosts
        speeds = self.core_speeds or (1.0,) * self.hosts
        return tuple(
            max(cores * share, LEAST_FREE_CORES) * speed
            for cores, share, speed in zip(self.cores, idle, speeds, strict=True)
        )


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


@dataclass(frozen=True, slots=True)
class SumTimes:
    """Predicted seconds of one all-reduce, by what they are spent on."""

    links: float
    """The busiest link, in its busier direction."""
    processors: float
    """The host whose processors take longest."""
    round_trips: float

    @property
    def whole(self) -> float:
        """Seconds of the all-reduce: links and processors work at the same time."""
        return max(self.links, self.processors) + self.round_trips

    @property
    def bound(self) -> Bound:
        """Name of the largest part: the one that a faster network or host would shorten."""
        if self.round_trips > max(self.links, self.processors):
            return "round trips"
        return "links" if self.links >= self.processors else "processors"


def sum_times(network: Network, choice: Choice, size: int) -> SumTimes:
    """Predicted times of one all-reduce of so many bytes of float32."""
    rival = Rival("fanin", choice.lanes) if choice.place else Rival("gloo")
    link = _link(network)
    wire = tensor_bytes(link, rival, network.size, size) * 8 * _tcp_payload(link)
    copies = link_copies(network, choice)
    links_s = max((each * wire / rate for each, rate in copies if rate), default=0.0)
    hops = 2 if choice.place == "racks" else 1
    trips = hops if choice.place else network.size - 1
    return SumTimes(links_s, _processors_s(network, choice, size), trips * network.round_trip_s)


def _processors_s(network: Network, choice: Choice, size: int) -> float:
    """Return the processor time, in seconds of wall time, of the host that takes longest."""
    if choice.place:
        cost = price(choice.lanes, network.mtu)
        # The first links are those of the hosts. A host's link carries the traffic of its switch as well.
        crossing = [copies for copies, _ in link_copies(network, choice)][: network.hosts]
        if network.hosts == 1:
            crossing = [0.0]
    else:  # a ring goes through sockets inside a host as well
        cost = GLOO_PRICE if network.hosts > 1 else GLOO_ON_LOOPBACK
        crossing = [ranks * 2 * (network.size - 1) / network.size for ranks in network.ranks]
    return max(
        size * (cost.inside * ranks + cost.crossing * copies) / capacity
        for ranks, copies, capacity in zip(network.ranks, crossing, network.capacities, strict=True)
    )


def sum_s(network: Network, choice: Choice, size: int) -> float:
    """Predicted seconds of one all-reduce of so many bytes of float32."""
    return sum_times(network, choice, size).whole


def with_mtu(network: Network, mtu: int) -> Network:
    """The same links and processors with another MTU; rates, of TCP payload, change with the share of headers."""
    gain = _tcp_payload(Link(mtu=mtu)) / _tcp_payload(_link(network))
    return dataclasses.replace(
        network, mtu=mtu, rates=tuple(rate * gain for rate in network.rates),
        uplinks=tuple(rate * gain for rate in network.uplinks),
    )  # fmt: skip


def _link(network: Network) -> Link:
    """A link with the network's MTU, or the nearest that links may have."""
    return Link(mtu=min(MAX_MTU, max(MIN_MTU, network.mtu)))


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
    link = _link(network)
    wire = tensor_bytes(link, Rival("fanin"), network.size, size) * 8 * _tcp_payload(link)
    return network.size / network.spares * wire / took_s / statistics.median(network.rates)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A choice, with the predicted time of a step and the measured time of a sum."""

    choice: Choice
    predicted_s: float
    measured_s: float | None = None
    gloo_s: float | None = None
    """gloo's time in the same run."""
    bound: Bound | None = None
    """Largest part of the predicted time of the step's largest sum."""

    @property
    def gain(self) -> float | None:
        """gloo's time over this choice's, as measured; None if it was not measured."""
        return None if not self.measured_s or not self.gloo_s else self.gloo_s / self.measured_s


def forecasts(network: Network, lanes: Sequence[int], profile: Profile) -> list[Forecast]:
    """All choices, the quickest first."""
    largest = max(size for _, size in profile.buckets)
    found = [
        Forecast(choice, step_s(network, choice, profile), bound=sum_times(network, choice, largest).bound)
        for choice in choices(network, lanes)
    ]
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

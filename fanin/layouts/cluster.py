"""Hosts, links and racks of a cluster, read from the JSON object of `fanin advise --json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fanin.errors import ConfigurationError

MAX_RANKS = 1024
NO_RACK = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Ranks and links, by host. Ranks of a host are consecutive, as torchrun numbers them."""

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    """Ranks on each host."""
    rates: tuple[float, ...]
    """Bits per second of each host's link, each way."""
    speeds: tuple[float, ...]
    """Relative speed of the computing of each host's ranks."""
    round_trip_s: float
    racks: tuple[tuple[int, ...], ...] = ()
    """Hosts behind each uplink; a host in none has no uplink but its own link."""
    uplinks: tuple[float, ...] = ()
    """Bits per second of each rack's uplink, each way."""

    @property
    def size(self) -> int:
        """Ranks of all hosts together."""
        return sum(self.ranks)

    @property
    def rack_of(self) -> tuple[int, ...]:
        """Rack of each host, or NO_RACK."""
        found = [NO_RACK] * len(self.ranks)
        for rack, hosts in enumerate(self.racks):
            for host in hosts:
                found[host] = rack
        return tuple(found)

    @property
    def host_of(self) -> tuple[int, ...]:
        """Host of each rank."""
        return tuple(host for host, ranks in enumerate(self.ranks) for _ in range(ranks))

    def with_speeds(self, speeds: tuple[float, ...]) -> Cluster:
        """The same cluster with relative speeds by host. ConfigurationError unless there is one per host."""
        if len(speeds) != len(self.ranks):
            raise ConfigurationError(
                f"--speeds has {len(speeds)} numbers for {len(self.ranks)} hosts. Remedy: one for each of "
                f"{', '.join(self.names)}"
            )
        return replace(self, speeds=speeds)


@dataclass(frozen=True, slots=True)
class Measured:
    """The facts of one `fanin advise --json`."""

    cluster: Cluster
    gradient_bytes: int | None
    """Bytes of the profiled program's sums; None where no program was profiled."""
    compute_s: float | None
    """Computing of a step of the profiled program, all ranks' together."""


def read_measured(text: str | bytes, source: str) -> Measured:
    """The measurements in the output of `fanin advise --json`. `source` names them in errors.

    Raises ConfigurationError where it is something else, or where the rate of a link is missing.
    """
    reader = _Reader(source)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        raise reader.error("it is no JSON") from None
    network = reader.table(whole, "network")
    ranks = reader.wholes(network.get("ranks"), "ranks")
    names = tuple(map(str, reader.items(whole, "hosts")))
    if not ranks or min(ranks) < 1 or len(names) != len(ranks):
        raise reader.error("`hosts` and `network.ranks` are not of the same hosts")
    if sum(ranks) > MAX_RANKS:
        raise ConfigurationError(f"{source}: {sum(ranks)} ranks. Remedy: plan for at most {MAX_RANKS}")
    racks = tuple(reader.wholes(each, "racks") for each in reader.items(network, "racks"))
    members = [host for rack in racks for host in rack]
    if len(set(members)) < len(members) or not set(members) <= set(range(len(ranks))):
        raise reader.error("`network.racks` names a host twice, or one that is not there")
    rates = reader.numbers(network, "rates")
    uplinks = reader.numbers(network, "uplinks")
    if len(rates) > len(ranks) or len(uplinks) > len(racks):
        raise reader.error("it has rates of more links than hosts and racks")
    _require_rates(source, names, racks, rates, uplinks)
    cluster = Cluster(
        names=names, ranks=ranks, rates=rates, speeds=(1.0,) * len(ranks), racks=racks, uplinks=uplinks,
        round_trip_s=reader.number(network.get("round_trip_s"), "network.round_trip_s"),
    )  # fmt: skip
    profile = reader.table(whole, "profile")
    compute_s = reader.number(profile.get("compute_s", 0.0), "profile.compute_s")
    if not compute_s:
        return Measured(cluster, None, None)
    sizes = [reader.number(reader.pair(each)[1], "profile.buckets") for each in reader.items(profile, "buckets")]
    return Measured(cluster, int(sum(sizes)), compute_s * cluster.size)


def _require_rates(
    source: str,
    names: tuple[str, ...],
    racks: tuple[tuple[int, ...], ...],
    rates: tuple[float, ...],
    uplinks: tuple[float, ...],
) -> None:
    """ConfigurationError that names the hosts between which no rate is known."""
    again = "measure again with `fanin advise --json`, and let all hosts reach each other's TCP ports"
    for host, name in enumerate(names):
        if len(names) > 1 and (host >= len(rates) or rates[host] < 1):
            raise ConfigurationError(f"{source}: no rate between {name} and other hosts. Remedy: {again}")
    for rack, hosts in enumerate(racks):
        if rack >= len(uplinks) or uplinks[rack] < 1:
            inside = ", ".join(names[host] for host in hosts)
            raise ConfigurationError(f"{source}: no rate between {inside} and hosts of other racks. Remedy: {again}")


class _Reader:
    """Values of a JSON object, with errors that name the file."""

    def __init__(self, source: str) -> None:
        self.source = source

    def error(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.source} is no result of `fanin advise --json`: {reason}. Remedy: fanin advise --json --hosts A,B "
            "> advice.json"
        )

    def table(self, whole: Any, name: str) -> Mapping[str, Any]:
        found = whole.get(name) if isinstance(whole, dict) else None
        if not isinstance(found, dict):
            raise self.error(f"`{name}` is missing")
        return found

    def items(self, table: Mapping[str, Any], name: str) -> list[Any]:
        found = table.get(name)
        if not isinstance(found, list):
            raise self.error(f"`{name}` is no list")
        return found

    def pair(self, value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise self.error("`profile.buckets` are not of times and bytes")
        return value

    def number(self, value: Any, name: str) -> float:
        # An integer of hundreds of digits has no float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e300:
            raise self.error(f"`{name}` is no number from 0 on")
        return float(value)

    def wholes(self, value: Any, name: str) -> tuple[int, ...]:
        if not isinstance(value, list) or any(type(each) is not int or each < 0 for each in value):
            raise self.error(f"`{name}` is no list of whole numbers")
        return tuple(value)

    def numbers(self, table: Mapping[str, Any], name: str) -> tuple[float, ...]:
        return tuple(self.number(each, name) for each in self.items(table, name))


def read_speeds(name: str, text: str) -> tuple[float, ...]:
    """Read relative speeds separated by commas: `1,1,0.5`."""
    try:
        found = tuple(float(each) for each in text.split(",") if each.strip())
    except ValueError:
        found = (0.0,)
    if not all(math.isfinite(each) and each > 0 for each in found):
        raise ConfigurationError(f"{name} = {text!r}; expected numbers above 0, separated by commas", name)
    return found

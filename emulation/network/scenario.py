"""The plan of a run: a TOML file, and the options of the command line, which win.

Keys are the long options of `fanin emulate`. `[links.3]` and `[uplink]` are tables of rate, delay, loss, duplicate,
reorder, mtu and queue; `[stragglers]` maps ranks to factors. The files in emulation/network/scenarios are shipped and
are known by their names.

A wrong value raises a ConfigurationError that names the file or the option, the key, the value, and the legal values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from fanin.emulation.network import units
from fanin.emulation.network.cross_traffic import MAX_FLOWS, check_flows
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.switches import TARGETS
from fanin.emulation.network.topology import MAX_CARDS, MAX_MTU, MAX_RACKS, MAX_TOTAL_WORKERS, MIN_MTU, Link, Topology
from fanin.errors import ConfigurationError
from fanin.faults import FaultSchedule
from fanin.options import Options
from fanin.protocol.wire import MAX_WORKERS
from fanin.records.dataclass_files import load_toml, read_dataclass
from fanin.records.record import Scalar
from fanin.settings import Bounds, OneOf, settings_of

SHIPPED = Path(__file__).with_name("scenarios")
MAX_RESTARTS = 8
MAX_SEED = 2**32 - 1
RANK = re.compile(r"0|[1-9][0-9]{0,3}")


class ScenarioError(ConfigurationError):
    """An illegal value; `key` names its place in the scenario, such as `links.3.rate`."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text if text.startswith(f"{key} = ") else f"{key}: {text}", key)
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """Properties of one link that replace those of the cluster's links; None keeps the cluster's value."""

    rate: str | None = None
    delay: str | None = None
    loss: str | None = None
    duplicate: str | None = None
    reorder: str | None = None
    mtu: int | None = None
    queue: str | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(self).items() if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts and links that are all alike; texts are as on the command line, where each field is an option."""

    workers: Annotated[int, Bounds(1, MAX_TOTAL_WORKERS)] = 4
    """Number of ranks in all."""
    ranks_per_host: Annotated[int, Bounds(1, MAX_WORKERS)] = 1
    """Ranks that share a namespace and a link."""
    switch_at: str = "own"
    """Place of the switch: own (a port per host), rank0, hosts (a shard on each), spare:K (K further hosts too) or
    spare-only:K (these)."""
    racks: Annotated[int, Bounds(1, MAX_RACKS)] = 1
    """Racks of hosts, each behind an uplink, with a switch each if `own`."""
    cards: Annotated[int, Bounds(1, MAX_CARDS)] = 1
    """Network cards of every host, each with a link on a network of its own; needs switch_at = hosts."""
    rate: str = "1gbit"
    """Rate of every link, each way: 100mbit, 1gbit, none."""
    delay: str = "0us"
    """Delay of every link, one way: 50us."""
    loss: str = "0%"
    """Loss of every link, per frame and direction: 0.1%."""
    mtu: Annotated[int, Bounds(MIN_MTU, MAX_MTU)] = 1500
    """MTU of every link."""
    queue: str = "1mib"
    """Queue at either end of every link: 512kib."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Cluster):
    """The plan of a run, without the command. Texts are as on the command line."""

    name: str = ""
    target: Annotated[str, OneOf(*TARGETS)] = "native"
    """The switch: native, python, p4 or bmv2."""
    lanes: Annotated[int, Bounds(4, 32)] = 32
    """Bits per lane: 32, 16, 8 or 4."""
    duplicate: str = "0%"
    """Share of frames that every link sends twice."""
    reorder: str = "0%"
    """Share of frames that every link sends three frames late."""
    links: dict[str, LinkTable] = field(default_factory=dict)
    """By host, which with one rank on each is the rank."""
    uplink: LinkTable | None = None
    """Between a rack's bridge and the root; only with racks."""
    tcp_flows: Annotated[int, Bounds(0, MAX_FLOWS)] = 0
    """TCP flows from host to host that share the links."""
    stragglers: dict[str, str] = field(default_factory=dict)
    """Factor of each slow rank, by rank."""
    faults: tuple[str, ...] = ()
    """Clauses of the schedule of faults (fanin/faults.py)."""
    restarts: Annotated[int, Bounds(0, MAX_RESTARTS)] = 0
    """How often torchrun starts all workers anew."""
    fallback: str = "raise"
    """When the switch is lost: raise or gloo."""
    seed: Annotated[int, Bounds(0, MAX_SEED)] = 0
    """Seed of the links' dice, and of every other random draw."""

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)):
            with _at(setting.field):
                setting.check(getattr(self, setting.field))
        if self.restarts and self.ranks_per_host > 1:
            raise ScenarioError("restarts", "torchrun starts workers anew only with ranks_per_host = 1")
        with _at("lanes"):
            Options(lanes=self.lanes)
        with _at("fallback"):
            Options(fallback=self.fallback)  # type: ignore[arg-type]
        if self.uplink is not None and self.racks == 1:
            raise ScenarioError("uplink", "there is none with racks = 1; expected racks = 2 or more")
        topology = self.topology
        with _at("tcp_flows"):
            check_flows(self.tcp_flows, topology.hosts)
        for rank in self.slowdowns:
            with _at("stragglers"):
                topology.check_worker(rank)
        if self.fallback == "gloo" and topology.switch_at.on_hosts:
            raise ScenarioError("fallback", "gloo cannot be fallen back to from shards; expected switch_at = 'rank0'")
        with _at("faults"):
            for each in self.schedule.scheduled:
                if each.target == "switch" and topology.switch_at.started_by_ranks:
                    raise ConfigurationError(
                        f"{each.text!r}: with switch_at = {self.switch_at} ranks start the switch", "faults"
                    )
                if each.index is not None:
                    (topology.check_host if each.target == "link" else topology.check_worker)(each.index)
                    if each.action == "slow" and topology.link_of(each.index).rate_bit_s is None:
                        raise ConfigurationError(
                            f"{each.text!r}: worker {each.index}'s link has no rate to slow down", "faults"
                        )

    @property
    def topology(self) -> Topology:
        """Hosts, workers, racks, links, and where the switch is."""
        common = self._link("")
        with _at("switch_at"):
            place = SwitchPlace.parse(self.switch_at)
        shape: dict[str, Any] = {
            "workers": self.workers,
            "racks": self.racks,
            "ranks_per_host": self.ranks_per_host,
            "switch_at": place,
            "cards": self.cards,
        }
        try:
            Topology(**shape)
        except ConfigurationError as error:
            raise ScenarioError(error.text.split()[0], error.text) from None
        uplink = common if self.uplink is None else self._link("uplink", self.uplink)
        links = {_rank("links", rank): self._link(f"links.{rank}", own) for rank, own in self.links.items()}
        with _at("links"):
            return Topology(**shape, link=common, links=links, uplink=uplink, seed=self.seed)

    @property
    def slowdowns(self) -> dict[int, float]:
        """Slowdown factors of the stragglers, by rank."""
        found = {}
        for rank, text in self.stragglers.items():
            with _at(f"stragglers.{rank}"):
                found[_rank("stragglers", rank)] = units.factor(text)
        return found

    @property
    def schedule(self) -> FaultSchedule:
        """The faults of the run, with their times."""
        return FaultSchedule.parse(self.faults_text)

    @property
    def faults_text(self) -> str:
        """All clauses of the schedule as one text."""
        return ";".join(self.faults)

    def settings(self) -> dict[str, Scalar]:
        """The scenario as flat names and values, for a record."""
        flat: dict[str, Scalar] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, dict):
                flat |= {f"{each.name}.{key}": str(inner) for key, inner in value.items()}
            elif isinstance(value, LinkTable):
                flat[each.name] = str(value)
            elif value is not None:
                flat[each.name] = "; ".join(value) if isinstance(value, tuple) else value
        return flat

    def _link(self, key: str, own: LinkTable | None = None) -> Link:
        """The properties of all links, replaced by those that `own` sets; `key` is its place, for errors."""
        values: dict[str, Any] = {}
        for name, (argument, read) in _LINK_FIELDS.items():
            mine = None if own is None else getattr(own, name)
            with _at(f"{key}.{name}" if mine is not None else name):
                values[argument] = read(getattr(self, name) if mine is None else mine)
                Link(**{argument: values[argument]})
        return Link(**values)


_LINK_FIELDS: dict[str, tuple[str, Any]] = {
    "rate": ("rate_bit_s", units.rate_bit_s),
    "delay": ("delay_s", units.duration_s),
    "loss": ("loss", units.probability),
    "duplicate": ("duplicate", units.probability),
    "reorder": ("reorder", units.probability),
    "mtu": ("mtu", int),
    "queue": ("queue_bytes", units.size_bytes),
}
"""By key of a scenario: the field of Link, and the function that parses its text."""

_HINTS = typing.get_type_hints(Scenario)
_File = dataclasses.make_dataclass(
    "_File",
    [(each.name, _HINTS[each.name] | None, field(default=None)) for each in fields(Scenario)],
    frozen=True,
    kw_only=True,
)
"""The keys of a scenario file; each may be missing, since options of the command line complete it."""


def load(source: str) -> dict[str, Any]:
    """Read the fields that a scenario file sets; `source`: a path, or the name of a shipped scenario.
    ConfigurationError says what is wrong.

    Types are checked here; Scenario checks values against each other, such as a rank and the number of workers.
    """
    path = path_of(source)
    if not path.exists():
        shipped = ", ".join(sorted(found.stem for found in SHIPPED.glob("*.toml")))
        raise ConfigurationError(f"scenario {source!r}: no such file; shipped are {shipped}", "the path or the name")
    body = load_toml(path, "scenario")
    try:
        read: Any = read_dataclass(body, _File, "scenario")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"scenario {path}: {error.text.removeprefix('scenario').lstrip('.: ')}", "that field"
        ) from None
    return {"name": path.stem} | {key: getattr(read, key) for key in body}


def path_of(source: str) -> Path:
    """Path of a scenario: the file itself, or a shipped one of that name."""
    path, shipped = Path(source), SHIPPED / f"{source}.toml"
    return shipped if not path.exists() and shipped.exists() else path


def compose(source: str | None, options: Mapping[str, Any]) -> Scenario:
    """The scenario of a file, if one is given, in which the command line's options replace the file's keys."""
    body = {} if source is None else load(source)
    try:
        return Scenario(**{**body, **options})
    except ScenarioError as error:
        key = error.key.partition(".")[0]
        if source is not None and key in body and key not in options:
            raise ConfigurationError(f"scenario {path_of(source)}: {error.text}", error.key) from None
        raise


def straggler(text: str) -> tuple[str, str]:
    """Split `3:2x` into rank and factor, as text; ConfigurationError without a colon."""
    rank, colon, factor = text.partition(":")
    if not colon:
        raise ConfigurationError(f"--straggler {text!r}: expected RANK:FACTOR, as in 3:2x", "--straggler")
    return rank, factor


def link(text: str) -> tuple[str, LinkTable]:
    """Split `3:rate=500mbit,delay=1ms` into host, as text, and LinkTable."""
    rank, colon, settings = text.partition(":")
    if not colon:
        settings = ""
    return rank, _link_table("--link", text, settings, "RANK:NAME=VALUE,..., as in 3:rate=500mbit,delay=1ms")


def uplink(text: str) -> LinkTable:
    """Parse `100mbit`, or `rate=100mbit,queue=256kib`."""
    settings = text if "=" in text else f"rate={text}"
    return _link_table("--uplink", text, settings, "a rate or NAME=VALUE,..., as in 100mbit or rate=1gbit,delay=1ms")


def _link_table(option: str, text: str, settings: str, expected: str) -> LinkTable:
    pairs = [part.partition("=") for part in settings.split(",") if part]
    if not pairs or not all(equals for _, equals, _ in pairs):
        raise ConfigurationError(f"{option} {text!r}: expected {expected}", option)
    body: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
    if body.get("mtu", "").isdecimal():
        body["mtu"] = int(body["mtu"])
    try:
        return read_dataclass(body, LinkTable, "link")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{option} {text!r}: {error.text.removeprefix('link').lstrip('.: ')}", option
        ) from None


@contextlib.contextmanager
def _at(key: str) -> Iterator[None]:
    """Name `key` in any ConfigurationError that is raised inside."""
    try:
        yield
    except ScenarioError:
        raise
    except ConfigurationError as error:
        raise ScenarioError(key, error.text) from None


def _rank(key: str, text: str) -> int:
    if not RANK.fullmatch(text):
        raise ScenarioError(key, f"{text!r} is no rank; expected 0, 1, ...")
    return int(text)

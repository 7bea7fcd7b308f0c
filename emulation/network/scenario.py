"""What a run is to be: a TOML file, and the options of the command line, which win.

Keys are the long options of `fanin emulate`. `[links.3]` and `[uplink]` are tables of rate, delay, loss, duplicate,
reorder, mtu and queue; `[stragglers]` maps ranks to factors. The files in emulation/network/scenarios are shipped and
are known by their names.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fanin.emulation.network import units
from fanin.emulation.network.switches import TARGETS
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.record import Scalar
from fanin.errors import ConfigurationError
from fanin.faults import FaultSchedule
from fanin.options import Options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = Path(__file__).with_name("scenarios")
MAX_RESTARTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything about a run but the command. Texts are as on the command line."""

    name: str = ""
    workers: int = 4
    racks: int = 1
    target: str = "native"
    """Of the switch: one of switches.TARGETS."""
    lanes: int = 32
    rate: str = "1gbit"
    delay: str = "0us"
    loss: str = "0%"
    duplicate: str = "0%"
    reorder: str = "0%"
    mtu: int = 1500
    queue: str = "1mib"
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    uplink: dict[str, Any] = field(default_factory=dict)
    stragglers: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    restarts: int = 0
    """How often torchrun starts the workers anew after a failure, 0..8."""
    fallback: str = "raise"
    """Of the workers when the switch is lost: `raise` or `gloo`."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigurationError(f"target = {self.target!r}; must be one of {', '.join(TARGETS)}")
        if not 0 <= self.restarts <= MAX_RESTARTS:
            raise ConfigurationError(f"restarts = {self.restarts}; must be in 0..{MAX_RESTARTS}")
        Options(lanes=self.lanes, fallback=self.fallback)  # type: ignore[arg-type]
        topology = self.topology
        named = [*self.slowdowns, *(each.index for each in self.schedule.happenings if each.index is not None)]
        for rank in named:
            topology.check_worker(rank)

    @property
    def topology(self) -> Topology:
        """Workers, racks and links."""
        common = {
            name: getattr(self, name) for name in ("rate", "delay", "loss", "duplicate", "reorder", "mtu", "queue")
        }
        links = {_rank(rank): link_from({**common, **own}) for rank, own in self.links.items()}
        return Topology(
            workers=self.workers,
            racks=self.racks,
            link=link_from(common),
            links=links,
            uplink=link_from({**common, **self.uplink}),
            seed=self.seed,
        )

    @property
    def slowdowns(self) -> dict[int, float]:
        """By rank."""
        return {_rank(rank): units.factor(text) for rank, text in self.stragglers.items()}

    @property
    def schedule(self) -> FaultSchedule:
        """What is to go wrong."""
        return FaultSchedule.parse(self.faults_text)

    @property
    def faults_text(self) -> str:
        """All clauses."""
        return ";".join(self.faults)

    def settings(self) -> dict[str, Scalar]:
        """Flat, for a record."""
        flat: dict[str, Scalar] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, dict):
                flat |= {f"{each.name}.{key}": str(inner) for key, inner in value.items()}
            else:
                flat[each.name] = "; ".join(value) if isinstance(value, tuple) else value
        return flat


def link_from(table: dict[str, Any]) -> Link:
    """A link from texts by name; ConfigurationError names an unknown key."""
    known = {"rate", "delay", "loss", "duplicate", "reorder", "mtu", "queue"}
    if unknown := table.keys() - known:
        raise ConfigurationError(f"a link has no {min(unknown)!r}; it has {', '.join(sorted(known))}")
    return Link(
        rate_bit_s=units.rate_bit_s(str(table["rate"])),
        delay_s=units.duration_s(str(table["delay"])),
        loss=units.probability(str(table["loss"])),
        duplicate=units.probability(str(table["duplicate"])),
        reorder=units.probability(str(table["reorder"])),
        mtu=int(table["mtu"]),
        queue_bytes=units.size_bytes(str(table["queue"])),
    )


def load(source: str) -> dict[str, Any]:
    """The fields of a scenario file: a path, or the name of a shipped one. ConfigurationError says what is wrong."""
    path = Path(source)
    if not path.exists() and (SHIPPED / f"{source}.toml").exists():
        path = SHIPPED / f"{source}.toml"
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        shipped = ", ".join(sorted(found.stem for found in SHIPPED.glob("*.toml")))
        raise ConfigurationError(f"scenario {source!r}: {error.strerror}; shipped are {shipped}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"scenario {path}: {error}") from None
    if unknown := body.keys() - {each.name for each in fields(Scenario)}:
        raise ConfigurationError(f"scenario {path}: unknown key {min(unknown)!r}")
    if "faults" in body:
        body["faults"] = tuple(body["faults"])
    return {"name": path.stem, **body}


def straggler(text: str) -> tuple[str, str]:
    """`3:2x` as a pair."""
    rank, colon, factor = text.partition(":")
    if not colon:
        raise ConfigurationError(f"--straggler {text!r}: expected RANK:FACTOR, as in 3:2x")
    return rank, factor


def link(text: str) -> tuple[str, dict[str, Any]]:
    """`3:rate=500mbit,delay=1ms` as a pair."""
    rank, colon, settings = text.partition(":")
    pairs = [part.partition("=") for part in settings.split(",") if part]
    if not colon or not pairs or not all(equals for _, equals, _ in pairs):
        raise ConfigurationError(f"--link {text!r}: expected RANK:NAME=VALUE,..., as in 3:rate=500mbit,delay=1ms")
    return rank, {name.strip(): value.strip() for name, _, value in pairs}


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"{text!r} is no rank")
    return int(text)

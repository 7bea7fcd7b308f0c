"""The place of a group's sums: at one switch, or at a shard on every host.

| FANIN_SWITCH | sums are made |
|---|---|
| not set | at a switch beside rank 0 if all ranks are on one host, else at a shard on every host |
| `hosts` | at a shard on every host |
| `hosts` and addresses, separated by commas | at a shard on every host, and at these switches: spare hosts', say |
| `rank0` | at a switch beside rank 0 |
| an address | there |
| several addresses, separated by commas | at all of them, in that order on every rank |

How much each of several shards sums follows from the rates of their links (fanin/protocol/spread.py), which are alike
unless weights in FANIN_SWITCH or a host's FANIN_LINK say otherwise. A host whose shard would get nothing has none.

A host whose FANIN_INTERFACES names several network cards has a shard at the address of each. The host's part is
dealt to them in proportion to their rates: those that are given, or, where every card of every host reports one, that.

Where hosts are in racks (FANIN_RACK on each), sums are made inside a rack first (fanin/protocol/racks.py): its ranks
meet at shards on its own hosts, which are leaves of shards that add up the racks. They take the place of hosts' leaves.

Ranks are on one host if they could share memory: the same boot of the same kernel, and one namespace of process
numbers, since shared memory is found through them. FANIN_HOST overrides it: any text, the same for ranks of one host.

Where a host has several ranks, every host has a leaf of each shard as well, at which its ranks meet: one stream leaves
the host, whatever the number of its ranks.

In a job that must survive the loss of ranks or shards (on_worker_loss="continue") every rank goes to the shards itself:
a leaf would end with the first of its ranks. Each rank's stream leaves the host then, and 32 ranks are the most. With
fallback="gloo" as well, which goes on over gloo instead of over the other shards, it is kept at one switch.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fanin.addresses import HOSTS, RANK0, SwitchAddress, SwitchList
from fanin.errors import ConfigurationError, UnsupportedError
from fanin.host.torch.meeting.network_interfaces import NetworkCard, network_cards
from fanin.host.torch.meeting.reachable import is_loopback, own_address_at_meeting
from fanin.options import Options
from fanin.protocol.spread import optimal_parts, weights_of
from fanin.protocol.wire import MAX_WORKERS

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
NETWORK_NAMESPACE = Path("/proc/self/ns/net")

log = logging.getLogger("fanin")

Where = Literal["hosts", "rank0", "auto"]


@dataclass(frozen=True, slots=True)
class Hosts:
    """The ranks of a group, by host; in the order of each host's lowest rank."""

    ranks: tuple[tuple[int, ...], ...]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The lowest rank of every host: it starts the host's shard."""
        return tuple(each[0] for each in self.ranks)

    def leader_of(self, rank: int) -> int:
        """The lowest rank on that rank's host."""
        return self.ranks[self.of(rank)][0]

    def of(self, rank: int) -> int:
        """The number of the host that a rank is on."""
        return next(number for number, each in enumerate(self.ranks) if rank in each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A rank's report on its host and its options."""

    host: str
    """Identity of the host, different from that of every other."""
    rack: str | None = None
    """Identity of its rack, different from that of every other."""
    link: float | None = None
    """Rate of the host's link, in any unit that all hosts share; None: not given."""
    switch: str = ""
    """Value of the rank's FANIN_SWITCH."""
    interfaces: str | None = None
    """Value of the rank's FANIN_INTERFACES."""
    cards: tuple[tuple[float | None, int | None], ...] = ()
    """Rate and speed of each of the network cards that it names, as `NetworkCard` has them."""
    unusable: str = ""
    """Why its FANIN_INTERFACES cannot be used."""
    network: str = ""
    """Identity of its network: ranks that have the same one reach each other's loopback addresses."""
    loopback: str = ""
    """The first of the cards whose address no other network reaches; empty: there is none."""

    @classmethod
    def of(cls, options: Options) -> Facts:
        """The report of this rank."""
        cards: tuple[NetworkCard, ...] = ()
        unusable = ""
        try:
            cards = cards_of(options)
        except ConfigurationError as error:
            unusable = str(error)
        return cls(
            host=host_identity(options), rack=options.rack, link=options.link, switch=options.switch or "",
            interfaces=options.interfaces, cards=tuple((card.rate, card.speed_mbps) for card in cards),
            unusable=unusable, network=network_identity(),
            loopback=next((card.name for card in cards if is_loopback(card.address)), ""),
        )  # fmt: skip

    def text(self) -> str:
        """The report as text for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: bytes) -> Facts:
        """Read a report from the store."""
        told = json.loads(text)
        return cls(**told | {"cards": tuple(map(tuple, told["cards"]))})


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a group: those that ranks start on their hosts first, then switches that run already."""

    leaders: tuple[int, ...]
    """Ranks that start them on their hosts, each as often as its host has shards."""
    addresses: tuple[SwitchAddress, ...]
    weights: tuple[int, ...]
    """Weights of the shards: of those of `leaders` first, then of those at `addresses`."""


def judge(facts: Sequence[Facts]) -> None:
    """Raise ConfigurationError unless ranks name the same kind and number of switches, a link and a rack per host.

    Racks are given to all ranks or to none, and not beside addresses of switches.
    """
    first = SwitchList.parse(facts[0].switch) if facts[0].switch else SwitchList()
    first_of: dict[str, int] = {}
    for rank, each in enumerate(facts):
        said = SwitchList.parse(each.switch) if each.switch else first
        if (said.word == HOSTS, len(said.addresses)) != (first.word == HOSTS, len(first.addresses)):
            raise ConfigurationError(
                f"rank {rank} was given FANIN_SWITCH={each.switch}, and rank 0 "
                f"{f'FANIN_SWITCH={facts[0].switch}' if facts[0].switch else 'none'}. Remedy: the same on all ranks"
            )
        if each.unusable:
            raise ConfigurationError(f"rank {rank}: {each.unusable}")
        if each.loopback and (others := [other for other, of in enumerate(facts) if of.network != each.network]):
            raise ConfigurationError(
                f"rank {rank} was given FANIN_INTERFACES={each.interfaces}, and rank {others[0]} on another machine "
                f"cannot reach the loopback interface {each.loopback}. Remedy: name interfaces with which the "
                "machines reach each other; `ip address` lists them"
            )
        other = first_of.setdefault(each.host, rank)
        for name in ("LINK", "RACK", "INTERFACES"):
            one, two = (getattr(which, name.lower()) for which in (facts[other], each))
            if one != two:
                raise ConfigurationError(
                    f"ranks {other} and {rank} are on one host, and were given FANIN_{name}={one} and {two}. Remedy: "
                    "the same for all ranks of a host"
                )
    without = [rank for rank, each in enumerate(facts) if each.rack is None]
    if without and len(without) < len(facts):
        raise ConfigurationError(
            f"ranks {', '.join(map(str, without))} were given no FANIN_RACK, and others were. Remedy: give it to all "
            "ranks, or to none"
        )
    with_rates = [rank for rank, each in enumerate(facts) if any(rate is not None for rate, _ in each.cards)]
    if with_rates and len(with_rates) < len(facts) and any(len(each.cards) > 1 for each in facts):
        rank = next(rank for rank in range(len(facts)) if rank not in with_rates)
        raise ConfigurationError(
            f"rank {with_rates[0]} was given FANIN_INTERFACES={facts[with_rates[0]].interfaces}, and rank {rank} "
            f"{facts[rank].interfaces or 'none'}: rates can be compared only if all hosts give them. Remedy: rates on "
            "all hosts, or on none"
        )
    if not without and (several := [rank for rank, each in enumerate(facts) if len(each.cards) > 1]):
        raise ConfigurationError(
            f"rank {several[0]} was given FANIN_INTERFACES={facts[several[0]].interfaces} with FANIN_RACK: in racks a "
            "host has one shard. Remedy: one interface, or no FANIN_RACK"
        )
    if first.addresses and not without:
        raise ConfigurationError(
            f"FANIN_SWITCH={facts[0].switch} with FANIN_RACK: in racks sums are made by the hosts' own shards alone. "
            "Remedy: leave out the addresses, or FANIN_RACK"
        )


def shards_for(hosts: Hosts, facts: Sequence[Facts], said: SwitchList) -> Shards:
    """A shard for every network card of every host, and every address, unless its part of a sum would be nothing."""
    cards = card_rates([facts[rank] for rank in hosts.leaders])
    rates = [
        link if (link := facts[rank].link) is not None else said.hosts_weight * sum(cards[number])
        for number, rank in enumerate(hosts.leaders)
    ]
    parts = optimal_parts(rates, said.weights)
    dealt = [
        part * rate / sum(of_host) for part, of_host in zip(parts[: len(cards)], cards, strict=True) for rate in of_host
    ]
    weights = weights_of([*dealt, *parts[len(cards) :]])
    everywhere = [*(rank for rank, each in zip(hosts.leaders, cards, strict=True) for _ in each), *said.addresses]
    worth = {where for where, weight in zip(everywhere, weights, strict=True) if weight}
    used = [(where, max(weight, 1)) for where, weight in zip(everywhere, weights, strict=True) if where in worth]
    return Shards(
        tuple(where for where, _ in used if isinstance(where, int)),
        tuple(where for where, _ in used if isinstance(where, SwitchAddress)),
        tuple(weight for _, weight in used),
    )


def card_rates(leaders: Sequence[Facts]) -> list[tuple[float, ...]]:
    """Rates of the network cards of each host, from its leader's report; a host that names none has one of 1.

    They are in the unit of FANIN_INTERFACES; where speeds are known instead, the slowest card has 1.
    """
    cards = [each.cards or ((None, None),) for each in leaders]
    every = [card for each in cards for card in each]
    if all(rate is not None for rate, _ in every):
        return [tuple(rate or 1.0 for rate, _ in each) for each in cards]
    speeds = [speed for _, speed in every if speed is not None]
    if len(speeds) == len(every):
        return [tuple((speed or 1) / min(speeds) for _, speed in each) for each in cards]
    return [tuple(1.0 for _ in each) for each in cards]


def cards_of(options: Options) -> tuple[NetworkCard, ...]:
    """The network cards that FANIN_INTERFACES names; none where it is not set. ConfigurationError: one is unusable."""
    chosen = options.interface_list
    return () if chosen is None else network_cards(chosen, options.interfaces or "", own_address_at_meeting())


def racks_for(hosts: Hosts, facts: Sequence[Facts], options: Options) -> tuple[tuple[int, ...], ...]:
    """The numbers of each rack's hosts; empty where racks make no difference or, with a warning, cannot be used."""
    found: dict[str | None, list[int]] = {}
    for number, leader in enumerate(hosts.leaders):
        found.setdefault(facts[leader].rack, []).append(number)
    racks = tuple(map(tuple, found.values()))
    if None in found or not 1 < len(racks) < len(hosts.ranks):
        return ()
    crowd = max(sum(len(hosts.ranks[number]) for number in rack) for rack in racks)
    why = ""
    if options.on_worker_loss != "raise":
        why = "on_worker_loss='continue' keeps ranks out of leaves, which end with the first rank that is lost"
    elif crowd > MAX_WORKERS or len(racks) > MAX_WORKERS:
        why = f"{len(racks)} racks with up to {crowd} ranks each are too many: a switch takes {MAX_WORKERS}"
    if why:
        log.warning("FANIN_RACK has no effect, and racks' uplinks carry what all hosts exchange: %s", why)
        return ()
    return racks


def host_identity(options: Options) -> str:
    """Identity of this process's host, different from that of every other."""
    if options.host is not None:
        return options.host
    seen = _seen_here(PID_NAMESPACE)
    return platform.node() if seen is None else f"{seen} {os.getuid()}"


def network_identity() -> str:
    """Identity of the network stack that this process sees, different from that of every other."""
    return _seen_here(NETWORK_NAMESPACE) or platform.node()


def _seen_here(namespace: Path) -> str | None:
    """Identity of a namespace of this boot; None where there is no Linux, and every machine has a name."""
    try:
        return f"{BOOT_ID.read_text(encoding='ascii').strip()} {os.readlink(namespace)}"
    except OSError:
        return None


def hosts_of(identities: Sequence[str]) -> Hosts:
    """The ranks by host, from the identity of each rank's host."""
    found: dict[str, list[int]] = {}
    for rank, identity in enumerate(identities):
        found.setdefault(identity, []).append(rank)
    return Hosts(tuple(tuple(ranks) for ranks in found.values()))


def where_to_sum(options: Options, *, one_machine: bool) -> Where:
    """The place of the sums of a job without addresses, or `auto` if that depends on where the ranks are.

    `one_machine`: the ranks can only reach each other on this machine. Raises ConfigurationError for shards in a job
    with on_worker_loss="continue" and fallback="gloo".
    """
    twice = options.on_worker_loss == "continue" and options.fallback == "gloo"
    if options.switch_list.word == HOSTS:
        if twice:
            raise ConfigurationError(
                "FANIN_SWITCH=hosts with on_worker_loss='continue' and fallback='gloo': a job goes on over the shards "
                "that are left, or over gloo. Remedy: unset FANIN_FALLBACK, or FANIN_SWITCH=rank0"
            )
        return "hosts"
    if options.switch_list.word == RANK0 or (one_machine and options.host is None):
        return "rank0"
    if twice:
        log.warning(
            "on_worker_loss='continue' and fallback='gloo' together keep all sums at rank 0's switch: over several "
            "hosts, its link carries everybody's"
        )
        return "rank0"
    return "auto"


def check_size(size: int, *, leaves: bool) -> None:
    """Raise UnsupportedError for more ranks than one switch takes, unless hosts have leaves."""
    if size > MAX_WORKERS and not leaves:
        raise UnsupportedError(
            f"{size} ranks; one switch takes at most {MAX_WORKERS}, and a world on several hosts may have "
            f"{MAX_WORKERS} on each of them. Remedy: on one host make the world with another backend, and groups of up "
            "to that many ranks with new_group(ranks, backend='fanin')"
        )

"""The agreement of a group's ranks before they join: the job's name, its switches, and who runs them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fanin.host.session.card_survivor import Ways
from fanin.host.torch.meeting.network_interfaces import card_towards
from fanin.host.torch.meeting.placement import Hosts
from fanin.host.torch.meeting.started_switches import STARTED
from fanin.options import SwitchAddress
from fanin.protocol.racks import RackPlan
from fanin.protocol.seal import Credentials
from fanin.protocol.spread import Spread

log = logging.getLogger("fanin")


@dataclass(slots=True)
class Meeting:
    """The ranks' agreement: the job's name, its switches, and whether this process holds one of them."""

    job_name: str
    secret: str
    discloses: bool
    """Whether a switch may be told the job's key; one that a rank started has it already."""
    shards: tuple[SwitchAddress, ...]
    """Switches that make the sums, in the same order on every rank; a single one makes all of them."""
    weights: tuple[int, ...] = ()
    """How much of a large sum each of them gets (fanin/protocol/spread.py); empty: all alike."""
    hosts: Hosts | None = None
    """Ranks of each host, if they were gathered."""
    leaders: tuple[int, ...] = ()
    """The rank that has started each of the first shards, in this order; the other shards ran before. A host with
    several network cards has a shard at each of them."""
    homes: tuple[int, ...] = ()
    """The numbers of the shards on this rank's own host."""
    leaves: tuple[SwitchAddress, ...] = ()
    """This host's leaf of every shard, where hosts have several ranks, whose contributions are added there first."""
    racks: RackPlan | None = None
    """Racks of the hosts, if any: then `leaves` are those of this rank's rack, on its hosts, and `shards` add them up.
    """
    own: tuple[SwitchAddress, ...] = ()
    """In racks, the shards that `leaders` have started, of which `shards` are some."""
    holds_switch: bool = False
    lost: frozenset[int] = frozenset()
    """The numbers of shards that were lost since."""

    @property
    def credentials(self) -> Credentials:
        """Keys that seal the ranks' requests to the job's switches."""
        return Credentials.of_job(self.secret, discloses=self.discloses)

    @property
    def switches(self) -> tuple[SwitchAddress, ...]:
        """Switches that this rank itself talks to: the shards, or its host's leaves of them."""
        return self.leaves or self.shards

    @property
    def spread(self) -> Spread:
        """How much of a sum each of the shards gets."""
        return Spread(self.weights or (1,) * len(self.shards))

    @property
    def address(self) -> SwitchAddress:
        """The first of `switches`."""
        return self.switches[0]

    @property
    def local(self) -> frozenset[SwitchAddress]:
        """The switches whose shared memory may be used: all of them where nobody has told hosts apart."""
        if self.racks is not None and self.leaves:
            assert self.hosts is not None
            (home,) = self.homes
            return frozenset(self.leaves[slice_] for slice_ in self.racks.leaves_on(home))
        return frozenset(self.leaves) or self.local_shards

    @property
    def local_shards(self) -> frozenset[SwitchAddress]:
        """The shards whose shared memory may be used: stale jobs use shards directly, not their leaves."""
        return frozenset(filter(self.is_local, self.shards))

    def is_local(self, shard: SwitchAddress) -> bool:
        """Whether a shard's shared memory may be used: it is on this host, or nobody has told hosts apart."""
        if self.hosts is None or len(self.hosts.ranks) == 1:
            return True
        return any((self.own or self.shards)[home] == shard for home in self.homes)

    @property
    def ways(self) -> Ways:
        """The ways of this rank to the shards, as the kernel has them now."""
        cards = tuple(card_towards(each.host) for each in self.shards)
        return Ways(shards=self.shards, cards=cards, homes=self.homes)

    def warn_of_one_card(self, rank: int) -> None:
        """Log that all shards are behind one network card, so that a job that was to go on over others ends with it."""
        log.warning(
            "FANIN_FALLBACK=cards: rank %d reaches %s through one network card, %s, and ends with it. Remedy: "
            "FANIN_INTERFACES with several, each on a network of its own",
            rank,
            ", ".join(map(str, self.shards)),
            self.ways.cards[0],
        )

    @property
    def in_words(self) -> str:
        """Text that names the parents of `switches`, if these are leaves; it follows the session's own description."""
        if not self.leaves:
            return ""
        where = "leaves on this host" if self.racks is None else f"leaves in this rack, one of {len(self.racks.racks)},"
        shards = (str(each) for number, each in enumerate(self.shards) if number not in self.lost)
        return f"; these are {where} of {', '.join(shards)}"

    def close(self) -> None:
        """Release the switch that this process has started, if this group holds it. Idempotent."""
        if self.holds_switch:
            self.holds_switch = False
            STARTED.release(self.secret)


def homes_of(hosts: Hosts, leaders: Sequence[int], rank: int) -> tuple[int, ...]:
    """The numbers of the shards that one of `leaders` runs on that rank's host."""
    own = hosts.leader_of(rank)
    return tuple(number for number, leader in enumerate(leaders) if leader == own)

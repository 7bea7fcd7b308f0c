"""The shape of a cluster: hosts, workers, switches, links. Descriptions only; fabric.py builds them.

Everything is one Ethernet segment. The root namespace holds a bridge with an address and a port per host. With racks,
each rack has a namespace and a bridge of its own, joined to the root's by an uplink, and ranks that start shards are
told their racks. gloo and MPI see an ordinary switched network. fanin's switch is where SwitchPlace says: by default in
the bridges' namespaces, where a real one would be, with a port to every host at that host's rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanin.addresses import HOSTS
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.units import rate_text
from fanin.errors import ConfigurationError
from fanin.faults import check_worker
from fanin.protocol import control
from fanin.protocol.racks import RackPlan
from fanin.protocol.spread import optimal_parts
from fanin.protocol.wire import MAX_WORKERS

ROOT_HOST = 1
FIRST_RACK_HOST = 2
FIRST_SPARE_HOST = 11
DATA_HOST = 100
FIRST_WORKER_HOST = 101
"""Last byte of the first worker host's address: with three digits each, addresses sort as text in order of rank."""
NETWORK = "10.77.0"
PREFIX_BITS = 24
CARD_NETWORKS = "10.78"
"""Network of the n-th further card of every host: the next byte is n."""
MAX_RACKS = 8
MAX_CARDS = 4
MAX_TOTAL_WORKERS = 100
MIN_MTU, MAX_MTU = 576, 9000


def card_device(card: int) -> str:
    """Name of a host's network card in its namespace."""
    return f"eth{card}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Properties of a link, the same both ways."""

    rate_bit_s: float | None = None
    """Bits per second of whole Ethernet frames (without preamble and gap), at least 100 kbit/s. None: no limit."""
    delay_s: float = 0.0
    """Delay each way, 0..10 s. More than 0 needs the wire element (docs/emulation.md), which costs processor time."""
    loss: float = 0.0
    """Probability that a frame is lost, per direction, 0..1; needs the wire element, too."""
    duplicate: float = 0.0
    """Share of frames that are sent twice, 0..1; needs the wire element, too."""
    reorder: float = 0.0
    """Probability that a frame leaves three frames late, 0..1; needs the wire element, too."""
    mtu: int = 1500
    """MTU: bytes of an IP packet, 576..9000."""
    queue_bytes: int = 1 << 20
    """Bytes that wait at either end before frames are dropped, 16 KiB..64 MiB."""
    bands: bool = False
    """Whether the host's end has Linux's default queue (pfifo_fast): three bands, by the sockets' priorities, each of
    1,000 trains of frames, instead of `queue_bytes`."""

    def __post_init__(self) -> None:
        def check(legal: bool, text: str) -> None:
            if not legal:
                raise ConfigurationError(text, "that property of the link")

        rate = self.rate_bit_s
        check(rate is None or 1e5 <= rate <= 1e11, f"rate {rate_text(rate)}; must be in 100kbit..100gbit")
        check(0 <= self.delay_s <= 10, f"delay {self.delay_s} s; must be in 0..10 s")
        for name in ("loss", "duplicate", "reorder"):
            check(0 <= getattr(self, name) <= 1, f"{name} {getattr(self, name)}; must be in 0..1")
        check(MIN_MTU <= self.mtu <= MAX_MTU, f"mtu {self.mtu}; must be in {MIN_MTU}..{MAX_MTU}")
        check(1 << 14 <= self.queue_bytes <= 1 << 26, f"queue {self.queue_bytes} bytes; must be in 16kib..64mib")

    @property
    def needs_wire(self) -> bool:
        """Whether the link needs the wire element, because queueing disciplines without netem cannot do it."""
        return any((self.delay_s, self.loss, self.duplicate, self.reorder))

    @property
    def frame_faults(self) -> bool:
        """Whether faults are drawn per frame, so that devices must pass single frames instead of trains."""
        return any((self.loss, self.duplicate, self.reorder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The cluster's hosts, racks, links and switches."""

    workers: int
    """Ranks in all: at most 32 per switch that adds their contributions, and at most 100."""
    ranks_per_host: int = 1
    """1..32, a divisor of `workers`: ranks with successive numbers share a host, its namespace and its link."""
    switch_at: SwitchPlace = OWN
    racks: int = 1
    """1..8. From 2 on, racks have a bridge each, and host h is in rack h * racks // hosts. With switch_at `own`, each
    rack has a switch below a root switch."""
    lone_rack: bool = False
    """With racks = 1: put the hosts behind a router with an uplink nevertheless, and spare hosts at its other end."""
    cards: int = 1
    """Network cards of every host with workers, 1..4, each with a link and on a network of its own; more than one only
    where hosts start shards, and without racks."""
    link: Link = Link()
    """Link between a host, also a spare one, and its bridge."""
    links: dict[int, Link] = field(default_factory=dict)
    """Links of hosts that differ from `link`, by host (with one rank each: by worker)."""
    uplink: Link = Link()
    """Link between a rack's bridge and the root's."""
    seed: int = 0
    """Seed of the wire element's random draws."""

    def __post_init__(self) -> None:
        per_host, place = self.ranks_per_host, self.switch_at
        if not 1 <= self.racks <= MAX_RACKS:
            raise ConfigurationError(f"racks = {self.racks}; must be in 1..{MAX_RACKS}", "racks")
        if not 1 <= per_host <= MAX_WORKERS:
            raise ConfigurationError(f"ranks_per_host = {per_host}; must be in 1..{MAX_WORKERS}", "ranks_per_host")
        switches = self.racks if place.kind == "own" else MAX_WORKERS if place.on_hosts else 1
        most = min(MAX_TOTAL_WORKERS, MAX_WORKERS * switches)
        if not 1 <= self.workers <= most:
            raise ConfigurationError(
                f"workers = {self.workers}; must be in 1..{most}, with the switch at {place}", "workers"
            )
        if self.workers % per_host:
            raise ConfigurationError(
                f"ranks_per_host = {per_host}; must divide the number of workers, {self.workers}", "ranks_per_host"
            )
        if place.on_hosts and self.hosts > MAX_WORKERS:
            raise ConfigurationError(
                f"workers = {self.workers} on {self.hosts} hosts; at most {MAX_WORKERS} have shards", "workers"
            )
        if self.racks > self.hosts:
            raise ConfigurationError(
                f"racks = {self.racks}; must be at most the number of hosts, {self.hosts}", "racks"
            )
        if not 1 <= self.cards <= MAX_CARDS:
            raise ConfigurationError(f"cards = {self.cards}; must be in 1..{MAX_CARDS}", "cards")
        if self.cards > 1 and (place.kind != "hosts" or self.has_uplinks):
            raise ConfigurationError(
                f"cards = {self.cards}; several are for shards on hosts alone (switch_at = 'hosts'), without racks",
                "cards or switch_at",
            )
        for host in self.links:
            self.check_host(host)

    def check_worker(self, worker: int) -> None:
        """Raise ConfigurationError unless `worker` is a rank of this cluster."""
        check_worker(worker, self.workers)

    def check_host(self, host: int) -> None:
        """Raise ConfigurationError unless `host` has workers; with one rank per host, the error says worker."""
        if self.ranks_per_host == 1:
            self.check_worker(host)
        elif not 0 <= host < self.hosts:
            raise ConfigurationError(f"there is no host {host}: hosts are 0..{self.hosts - 1}", "the host's number")

    @property
    def parts(self) -> tuple[float, ...]:
        """Share of a tensor that each shard sums, as ranks compute it: shards on hosts, then on spare hosts."""
        hosts = self.hosts if self.switch_at.on_hosts else 0
        return optimal_parts([1.0] * hosts, [1.0] * self.switch_at.spares)

    @property
    def rack_plan(self) -> RackPlan | None:
        """The placement of sums that ranks use who know their racks; None if ranks of this topology are not told their
        racks, or if racks make no difference.
        """
        if self.switch_at.kind != "hosts" or not 1 < self.racks < self.hosts:
            return None
        found: dict[int, list[int]] = {}
        for host in range(self.hosts):
            found.setdefault(self.rack_of(host), []).append(host)
        return RackPlan.of(tuple(found.values()))

    @property
    def has_uplinks(self) -> bool:
        """Whether hosts are behind bridges of racks, with uplinks to the root."""
        return self.racks > 1 or self.lone_rack

    @property
    def hosts(self) -> int:
        """Number of hosts with workers."""
        return self.workers // self.ranks_per_host

    def host_of(self, worker: int) -> int:
        """A worker's host, 0..hosts-1."""
        return worker // self.ranks_per_host

    def host_name(self, host: int) -> str:
        """Name of a host in tables and records, also as a link's name."""
        return f"worker {host}" if self.ranks_per_host == 1 else f"host {host}"

    def link_of(self, host: int) -> Link:
        """The host's own link."""
        return self.links.get(host, self.link)

    def rack_of(self, host: int) -> int:
        """A host's rack, 0..racks-1."""
        return host * self.racks // self.hosts

    def worker_address(self, worker: int) -> str:
        """IPv4 of the worker's host."""
        return self.host_address(self.host_of(worker))

    @staticmethod
    def host_address(host: int) -> str:
        """IPv4 address of a host."""
        return f"{NETWORK}.{FIRST_WORKER_HOST + host}"

    @staticmethod
    def card_address(host: int, card: int) -> str:
        """IPv4 address of a host's further card, from 1 on."""
        return f"{CARD_NETWORKS}.{card}.{FIRST_WORKER_HOST + host}"

    @staticmethod
    def spare_address(spare: int) -> str:
        """IPv4 address of a spare host."""
        return f"{NETWORK}.{FIRST_SPARE_HOST + spare}"

    @property
    def root_address(self) -> str:
        """IPv4 address of the root's bridge, and so of the root switch."""
        return f"{NETWORK}.{ROOT_HOST}"

    @property
    def data_address(self) -> str:
        """IPv4 address of no namespace, at which BMv2, which is no process with a socket, takes data."""
        return f"{NETWORK}.{DATA_HOST}"

    def switch_addresses(self, worker: int) -> tuple[str, ...]:
        """IPv4 addresses of the switches that the emulator runs for the worker; empty if ranks start all switches."""
        place = self.switch_at
        if place.kind == "own":
            rack = self.rack_of(self.host_of(worker))
            return (self.root_address if self.racks == 1 else self.rack_address(rack),)
        return tuple(map(self.spare_address, range(place.spares)))

    def rank_environment(self, worker: int) -> dict[str, str]:
        """Environment variables that tell a rank its host, its rack and its switches."""
        addresses = self.switch_addresses(worker)
        named = [f"udp://{address}:{control.DEFAULT_PORT}" for address in addresses]
        words = ",".join([HOSTS] * (self.switch_at.kind == "spare") + named)
        environment = {
            "FANIN_HOST": f"host {self.host_of(worker)}",
            "FANIN_SWITCH": words or self.switch_at.kind,
            "LOCAL_RANK": str(worker % self.ranks_per_host),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "MASTER_ADDR": self.worker_address(0),
        }
        if self.rack_plan is not None:
            environment["FANIN_RACK"] = f"rack {self.rack_of(self.host_of(worker))}"
        if self.cards > 1:
            environment["FANIN_INTERFACES"] = ",".join(map(card_device, range(self.cards)))
        if self.switch_at.kind == "rank0":
            # With one switch at rank 0, ranks do not compare hosts, and shared memory would bypass all links.
            environment["FANIN_SHARED_MEMORY"] = "0"
        return environment

    @staticmethod
    def rack_address(rack: int) -> str:
        """IPv4 of a rack's switch."""
        return f"{NETWORK}.{FIRST_RACK_HOST + rack}"

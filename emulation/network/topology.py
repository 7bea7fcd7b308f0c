"""What a cluster looks like: workers, switches, links. Only descriptions; fabric.py builds them.

One Ethernet segment: the switch's namespace holds a bridge with its address, and a port per worker; with racks, each
rack's switch has a namespace and a bridge of its own, joined to the root's by an uplink. So gloo and MPI see an
ordinary switched network, and fanin's switch stands where a real one would: behind every port, at each one's own rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanin.errors import ConfigurationError
from fanin.protocol.wire import MAX_WORKERS

ROOT_HOST = 1
FIRST_RACK_HOST = 2
DATA_HOST = 100
FIRST_WORKER_HOST = 101
"""Last byte of addresses: three digits for every worker, so that they sort as text in order of rank."""
NETWORK = "10.77.0"
PREFIX_BITS = 24
MAX_RACKS = 8
MAX_TOTAL_WORKERS = 100
MIN_MTU, MAX_MTU = 576, 9000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link: the same both ways."""

    rate_bit_s: float | None = None
    """Bits per second of whole Ethernet frames (without preamble and gap), at least 100 kbit/s. None: no limit."""
    delay_s: float = 0.0
    """Each way, 0..10 s. More than 0 needs the wire element (see docs/emulation.md), which costs processor time."""
    loss: float = 0.0
    """Probability per frame and direction, 0..1. The same."""
    duplicate: float = 0.0
    """The same."""
    reorder: float = 0.0
    """Probability that a frame leaves three frames late. The same."""
    mtu: int = 1500
    """Bytes of IP packets, 576..9000."""
    queue_bytes: int = 1 << 20
    """What waits at either end before frames are dropped, 16 KiB..64 MiB."""

    def __post_init__(self) -> None:
        def check(legal: bool, text: str) -> None:
            if not legal:
                raise ConfigurationError(text)

        rate = self.rate_bit_s
        check(rate is None or 1e5 <= rate <= 1e11, f"rate {rate} bit/s; must be in 100kbit..100gbit")
        check(0 <= self.delay_s <= 10, f"delay {self.delay_s} s; must be in 0..10 s")
        for name in ("loss", "duplicate", "reorder"):
            check(0 <= getattr(self, name) <= 1, f"{name} {getattr(self, name)}; must be in 0..1")
        check(MIN_MTU <= self.mtu <= MAX_MTU, f"mtu {self.mtu}; must be in {MIN_MTU}..{MAX_MTU}")
        check(1 << 14 <= self.queue_bytes <= 1 << 26, f"queue {self.queue_bytes} bytes; must be in 16kib..64mib")

    @property
    def needs_wire(self) -> bool:
        """Whether queueing disciplines alone cannot do it on a kernel without netem."""
        return any((self.delay_s, self.loss, self.duplicate, self.reorder))

    @property
    def frame_faults(self) -> bool:
        """Whether dice are drawn per frame, so that devices must not hand over trains of frames as one."""
        return any((self.loss, self.duplicate, self.reorder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The whole cluster."""

    workers: int
    """1..32 per switch."""
    racks: int = 1
    """1: one switch. 2..8: a switch per rack and a root; worker w is in rack w * racks // workers."""
    link: Link = Link()
    """Between every worker and its switch."""
    links: dict[int, Link] = field(default_factory=dict)
    """Workers whose link is another."""
    uplink: Link = Link()
    """Between a rack's switch and the root."""
    seed: int = 0
    """Of the wires' dice."""

    def __post_init__(self) -> None:
        if not 1 <= self.racks <= MAX_RACKS:
            raise ConfigurationError(f"racks = {self.racks}; must be in 1..{MAX_RACKS}")
        most = min(MAX_TOTAL_WORKERS, MAX_WORKERS * self.racks)
        if not 1 <= self.workers <= most:
            raise ConfigurationError(f"workers = {self.workers}; must be in 1..{most}")
        if self.racks > self.workers:
            raise ConfigurationError(f"racks = {self.racks}; must be at most the number of workers, {self.workers}")
        for worker in self.links:
            self.check_worker(worker)

    def check_worker(self, worker: int) -> None:
        """ConfigurationError unless there is such a worker."""
        if not 0 <= worker < self.workers:
            raise ConfigurationError(f"there is no worker {worker}: workers are 0..{self.workers - 1}")

    def link_of(self, worker: int) -> Link:
        """The worker's own link."""
        return self.links.get(worker, self.link)

    def rack_of(self, worker: int) -> int:
        """0..racks-1."""
        return worker * self.racks // self.workers

    @staticmethod
    def worker_address(worker: int) -> str:
        """IPv4."""
        return f"{NETWORK}.{FIRST_WORKER_HOST + worker}"

    @property
    def root_address(self) -> str:
        """IPv4 of the root's switch, or of the only one."""
        return f"{NETWORK}.{ROOT_HOST}"

    @property
    def data_address(self) -> str:
        """IPv4 that no namespace has: where a switch that is no process (BMv2) takes data."""
        return f"{NETWORK}.{DATA_HOST}"

    def switch_address(self, worker: int) -> str:
        """IPv4 of the switch that the worker talks to."""
        return self.root_address if self.racks == 1 else self.rack_address(self.rack_of(worker))

    @staticmethod
    def rack_address(rack: int) -> str:
        """IPv4 of a rack's switch."""
        return f"{NETWORK}.{FIRST_RACK_HOST + rack}"

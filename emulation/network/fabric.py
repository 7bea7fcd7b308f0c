"""Builds a topology out of namespaces, bridges, veth pairs and wires, and cleans it up however the run ends.

How a link is made
------------------
* Rate and queue: a token bucket (tbf) on the sending device of either end, so a sender's own queue fills up before
  frames are dropped, as on a real host. Without a rate: a plain queue (pfifo).
* No delay and no faults: a veth pair, which trains of packets (GSO) cross whole.
* Bands (`Link.bands`): a pfifo_fast below the token bucket of the host's end.
* Delay, loss, duplicates, reordering: a TAP device at each end and our wire element between them (native/io/wires.hpp),
  since not every kernel has netem. The element runs in this process. With faults, trains are cut into frames first.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from fanin.emulation.network import commands, ownership
from fanin.emulation.network.cleanup_guardian import CleanupGuardian
from fanin.emulation.network.namespaces import inside, open_tap
from fanin.emulation.network.topology import NETWORK, PREFIX_BITS, Link, Topology, card_device
from fanin.errors import FaninError
from fanin.extension import native_extension

if TYPE_CHECKING:
    from fanin._native import Wires

WORKER_DEVICE = card_device(0)
BRIDGE = "br0"
CARD_BRIDGE = "cards"
BRIDGE_FILTERS = tuple(f"net.bridge.bridge-nf-call-{each}" for each in ("iptables", "ip6tables", "arptables"))
UPLINK_DEVICE = "up0"
CONTROL_DEVICE = "control"
CONTROL_PORT_DEVICE = "port0"
OFFLOADS = ("tx", "rx", "tso", "gso", "gro")
BURST_S = 0.001
"""Burst of a token bucket, as time at its rate: longer than timer slack, too short to affect a measurement."""
TRAIN_BYTES = 70_000
"""Longest train of packets (GSO), with each packet's headers. A bucket passes a train whole, because cutting it would
take the kernel a timer per frame, which would use up most of two cores."""
MAX_BURST_S = 0.01
"""Longest train, as time at the link's rate; a train that would last longer is cut into frames."""
MIN_BURST_FRAMES = 2
"""Least burst of a bucket, in frames of the MTU, and the burst of a lone rack's uplink, whose hosts send single frames.
With a larger burst there, a full bucket passed returning packets (results, TCP acknowledgements; 43 frames in no time,
which take 5 ms at 100 Mbit/s): TCP's next segments then always found room in the queue, and others lost packets."""
ETHERNET_HEADER_BYTES = 14
QUEUE_FRAMES = 10_000
"""Length of a link's queue where the link has no rate."""


class End:
    """One end of a link: a device in a namespace."""

    def __init__(self, namespace: str, device: str) -> None:
        self.namespace = namespace
        self.device = device


class Cable:
    """A link as built: `lower` is the end of the host or rack, `upper` the end nearer to the root switch."""

    def __init__(self, name: str, link: Link, lower: End, upper: End, *, trains: bool = True) -> None:
        self.name = name
        self.link = link
        self.trains = trains
        """Whether hosts send trains of packets (GSO) through it."""
        self.lower = lower
        self.upper = upper
        self.wire: int | None = None
        """Number of the link in the wire element; None for a veth pair."""


class Fabric:
    """A running network of namespaces. A context manager: it exists from entry to exit."""

    def __init__(self, topology: Topology, *, bridged: bool = True) -> None:
        """`bridged=False`: links end in ports from which a switch program reads frames (`free_ports`)."""
        self.topology = topology
        self._bridged = bridged
        self.cables: list[Cable] = []
        """Links of hosts in order, then of spare hosts, uplinks of racks, and links of further cards of hosts."""
        self._run: ownership.Run | None = None
        self._guardian: CleanupGuardian | None = None
        self._wires: Wires | None = None
        self._taps: list[int] = []

    def __enter__(self) -> Fabric:
        commands.require_privileges()
        topology = self.topology
        parts = ["root", *(f"rack{rack}" for rack in range(topology.racks) if topology.has_uplinks)]
        parts += [f"w{host}" for host in range(topology.hosts)]
        parts += [f"spare{spare}" for spare in range(topology.switch_at.spares)]
        self._run = ownership.claim(parts)
        try:
            self._guardian = CleanupGuardian(self._run)
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Name of the run, a part of its namespaces' names."""
        assert self._run is not None
        return self._run.name

    @property
    def folder(self) -> Path:
        """Folder for files of the run's processes; removed when the run is cleaned up, however it ends."""
        assert self._run is not None
        return self._run.folder

    def worker_namespace(self, worker: int) -> str:
        """Namespace of the worker's host, shared by all workers there."""
        return self.host_namespace(self.topology.host_of(worker))

    def worker_processes(self, worker: int) -> set[int]:
        """Process ids of a worker: all in its namespace, or those there with its RANK, if it shares the host."""
        found = ownership.processes_in([self.worker_namespace(worker)])
        if self.topology.ranks_per_host == 1:
            return found
        return {pid for pid in found if _rank_of(pid) == str(worker)}

    def host_namespace(self, host: int) -> str:
        """Namespace of a host with workers."""
        return self._namespace(f"w{host}")

    def spare_namespace(self, spare: int) -> str:
        """Namespace of a spare host, which has shards and no workers."""
        return self._namespace(f"spare{spare}")

    def switch_namespace(self, rack: int | None = None) -> str:
        """Namespace of the root's switch, or of a rack's."""
        return self._namespace("root" if rack is None else f"rack{rack}")

    @property
    def free_ports(self) -> list[tuple[int, str]]:
        """Port numbers and devices of an unbridged switch: the hosts' in order, then the controller's."""
        devices = [cable.upper.device for cable in self.cables[: self.topology.hosts]]
        return list(enumerate([*devices, CONTROL_PORT_DEVICE], start=1))

    def cut(self, cable: Cable, down: bool) -> None:
        """Take a link down (`down`) or bring it back up; frames in its queues are lost."""
        if cable.wire is not None and self._wires is not None:
            self._wires.cut(cable.wire, down)
        else:
            commands.ip_batch(cable.upper.namespace, [f"link set {cable.upper.device} {'down' if down else 'up'}"])

    def set_rate(self, cable: Cable, rate_bit_s: float | None) -> None:
        """Change a link's rate both ways, from now on; FaninError for a link without a rate."""
        if cable.link.rate_bit_s is None or rate_bit_s is None:
            raise FaninError(f"{cable.name} has no rate: it cannot be slowed down. Remedy: give that link a rate")
        for end in (cable.lower, cable.upper):
            # Keep the old burst: a waiting train longer than a new, smaller one would block the queue for ever.
            burst_bytes = _burst_bytes(cable.link.rate_bit_s, cable)
            command = f"qdisc change dev {end.device} root {_bucket(rate_bit_s, cable, burst_bytes)}"
            commands.tc_batch(end.namespace, [command])

    def wire_losses(self, cable: Cable) -> int:
        """Frames that the wire element of a link has dropped so far, both ways; 0 for a veth pair."""
        if cable.wire is None or self._wires is None:
            return 0
        return sum(each["lost"] + each["overflowed"] + each["refused"] for each in self._wires.counters(cable.wire))

    def close(self) -> None:
        """End all processes in the namespaces and remove them. Idempotent; FaninError names what remains."""
        run, self._run = self._run, None
        if self._wires is not None:
            self._wires.close()
            self._wires = None
        for descriptor in self._taps:
            os.close(descriptor)
        self._taps = []
        if run is None:
            return
        stuck = ownership.clean(run)
        if self._guardian is not None:
            with contextlib.suppress(Exception):
                self._guardian.close()
        if stuck:
            raise FaninError(f"could not clean up: {'; '.join(stuck)}. Remedy: `fanin emulate --clean`")

    # --- building ---

    def _namespace(self, part: str) -> str:
        return f"{ownership.PREFIX}{self.name}-{part}"

    def _build(self) -> None:
        topology = self.topology
        assert self._run is not None
        for namespace in self._run.namespaces:
            commands.ip("netns", "add", namespace)
            # No IPv6: its address detection would send the only packets on an idle network.
            commands.run(commands.in_namespace(namespace, ["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]))
            commands.ip_batch(namespace, ["link set lo up"])
        if self._bridged:
            self._bridge(self.switch_namespace(), topology.root_address)
        else:
            self._control_port()
        if topology.has_uplinks:
            for rack in range(topology.racks):
                self._bridge(self.switch_namespace(rack), topology.rack_address(rack))
        for host in range(topology.hosts):
            home = topology.rack_of(host) if topology.has_uplinks else None
            lower = End(self.host_namespace(host), WORKER_DEVICE)
            upper = End(self.switch_namespace(home), f"w{host}")
            cable = Cable(topology.host_name(host), topology.link_of(host), lower, upper)
            self._attach(cable, topology.host_address(host))
        for spare in range(topology.switch_at.spares):
            lower = End(self.spare_namespace(spare), WORKER_DEVICE)
            upper = End(self.switch_namespace(), f"spare{spare}")
            self._attach(Cable(f"spare {spare}", topology.link, lower, upper), topology.spare_address(spare))
        if topology.has_uplinks:
            for rack in range(topology.racks):
                lower = End(self.switch_namespace(rack), UPLINK_DEVICE)
                upper = End(self.switch_namespace(), f"rack{rack}")
                self._connect(Cable(f"rack {rack}", topology.uplink, lower, upper, trains=not topology.lone_rack))
                commands.ip_batch(lower.namespace, [f"link set {lower.device} master {BRIDGE}"])
                commands.ip_batch(upper.namespace, [f"link set {upper.device} master {BRIDGE}"])
        if topology.lone_rack:
            self._route(self.switch_namespace(0))
        for card in range(1, topology.cards):
            self._card_network(card)
        if self._wires is not None:
            self._wires.start()

    def _card_network(self, card: int) -> None:
        """Make a further bridge, and join a card of every host to it."""
        topology, bridge = self.topology, f"{CARD_BRIDGE}{card}"
        self._bridge(self.switch_namespace(), None, bridge)
        for host in range(topology.hosts):
            device = card_device(card)
            ends = End(self.host_namespace(host), device), End(self.switch_namespace(), f"w{host}-{device}")
            name = f"{topology.host_name(host)}, {device}"
            self._attach(Cable(name, topology.link_of(host), *ends), topology.card_address(host, card), bridge)

    def _attach(self, cable: Cable, address: str, bridge: str = BRIDGE) -> None:
        """Make a host's link, and give the host's end its address."""
        lower, upper = cable.lower, cable.upper
        self._connect(cable)
        commands.ip_batch(lower.namespace, [f"address add {address}/{PREFIX_BITS} dev {lower.device}"])
        if self._bridged:
            commands.ip_batch(upper.namespace, [f"link set {upper.device} master {bridge}"])
        else:
            commands.without_offloads(lower.namespace, lower.device, OFFLOADS)

    def _control_port(self) -> None:
        """Make a veth pair in the switch's namespace: a port of the switch, and its controller's device."""
        namespace, address = self.switch_namespace(), self.topology.root_address
        pair = f"link add {CONTROL_DEVICE} type veth peer name {CONTROL_PORT_DEVICE}"
        up = [f"link set {device} mtu {self._largest_mtu()} up" for device in (CONTROL_DEVICE, CONTROL_PORT_DEVICE)]
        commands.ip_batch(namespace, [pair, *up, f"address add {address}/{PREFIX_BITS} dev {CONTROL_DEVICE}"])
        commands.without_offloads(namespace, CONTROL_DEVICE, OFFLOADS)

    def _bridge(self, namespace: str, address: str | None, bridge: str = BRIDGE) -> None:
        lines = [
            f"link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            f"link set {bridge} up mtu {self._largest_mtu()}",
        ]
        lines += [] if address is None else [f"address add {address}/{PREFIX_BITS} dev {bridge}"]
        commands.ip_batch(namespace, lines)
        # A real switch has no iptables. If the machine has loaded br_netfilter (Docker does), every frame would pass
        # empty hooks, a tenth of its time; without br_netfilter these settings do not exist, which `-e` ignores.
        off = [f"{each}=0" for each in BRIDGE_FILTERS]
        commands.run(commands.in_namespace(namespace, ["sysctl", "-eqw", *off]))

    def _route(self, namespace: str) -> None:
        """Replace a lone rack's bridge by a router. A bridge forwards a frame together with the sending socket, so the
        kernel would charge frames in the uplink's queue to the sender (TCP small queues, a UDP socket's buffer); a real
        switch does not.
        """
        topology = self.topology
        ports = [UPLINK_DEVICE, *(f"w{host}" for host in range(topology.hosts))]
        lines = [f"link del {BRIDGE}", f"address add {topology.rack_address(0)}/32 dev lo"]
        lines += [f"route add {topology.host_address(host)}/32 dev w{host}" for host in range(topology.hosts)]
        commands.ip_batch(namespace, [*lines, f"route add {NETWORK}.0/{PREFIX_BITS} dev {UPLINK_DEVICE}"])
        settings = ["net.ipv4.ip_forward=1", "net.ipv4.conf.all.proxy_arp=1"]
        settings += [f"net.ipv4.neigh.{port}.proxy_delay=0" for port in ports]
        commands.run(commands.in_namespace(namespace, ["sysctl", "-qw", *settings]))

    def _largest_mtu(self) -> int:
        topology = self.topology
        links = [topology.link_of(host) for host in range(topology.hosts)]
        return max(link.mtu for link in [*links, topology.link, topology.uplink])

    def _connect(self, cable: Cable) -> None:
        lower, upper, link = cable.lower, cable.upper, cable.link
        if link.needs_wire:
            self._join_taps(cable)
        else:
            peer = f"peer name {upper.device} netns {upper.namespace}"
            commands.ip_batch(lower.namespace, [f"link add name {lower.device} type veth {peer}"])
        for end in (lower, upper):
            commands.ip_batch(end.namespace, [f"link set {end.device} mtu {link.mtu} up"])
            queue = f"pfifo limit {QUEUE_FRAMES}" if link.rate_bit_s is None else _bucket(link.rate_bit_s, cable)
            lines = [f"qdisc add dev {end.device} root handle 1: {queue}"]
            if link.bands and end is lower and link.rate_bit_s is not None:
                lines.append(f"qdisc add dev {end.device} parent 1:1 pfifo_fast")
            commands.tc_batch(end.namespace, lines)
        self.cables.append(cable)

    def _join_taps(self, cable: Cable) -> None:
        native = native_extension(True)
        assert native is not None
        if self._wires is None:
            self._wires = native.Wires()
        link, trains = cable.link, not cable.link.frame_faults
        ends = []
        for end in (cable.lower, cable.upper):
            ends.append(inside(end.namespace, lambda end=end: open_tap(end.device, trains=trains)))  # type: ignore[misc]
            self._taps.append(ends[-1])
        cable.wire = self._wires.join(
            ends[0],
            ends[1],
            delay_s=link.delay_s,
            loss=link.loss,
            duplicate=link.duplicate,
            reorder=link.reorder,
            seed=self.topology.seed * 1000 + len(self.cables),
        )


def _rank_of(pid: int) -> str | None:
    """Value of RANK in a process's environment; None without it, or if the process is gone."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((each[5:].decode(errors="replace") for each in variables if each.startswith(b"RANK=")), None)


def _bucket(rate_bit_s: float, cable: Cable, least_burst_bytes: int = 0) -> str:
    burst_bytes = max(_burst_bytes(rate_bit_s, cable), least_burst_bytes)
    return f"tbf rate {int(rate_bit_s)}bit burst {burst_bytes} limit {cable.link.queue_bytes}"


def _burst_bytes(rate_bit_s: float, cable: Cable) -> int:
    burst_bytes = MIN_BURST_FRAMES * (cable.link.mtu + ETHERNET_HEADER_BYTES)
    if cable.trains:
        train_bytes = min(TRAIN_BYTES, int(rate_bit_s / 8 * MAX_BURST_S))
        burst_bytes = max(int(rate_bit_s / 8 * BURST_S), train_bytes, burst_bytes)
    return burst_bytes

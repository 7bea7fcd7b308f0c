"""What the links alone need for an all-reduce, wherever the switch is: the busiest link's bytes, headers and all."""

from __future__ import annotations

from fanin.benchmarks.rivals import Rival
from fanin.emulation.network.topology import Link, Topology
from fanin.numerics.fixed_point import Codec
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import Element
from fanin.protocol.spread import link_loads
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import HEADER_BYTES, WORD_BYTES, codes_bytes

FLOAT_BYTES = 4
ETHERNET_IP_UDP_BYTES = 14 + 20 + 8
TCP_HEADERS_BYTES = 14 + 20 + 32
"""Ethernet, IPv4, and TCP with timestamps (RFC 7323)."""


def ideal_s(topology: Topology, rival: Rival, size: int) -> float | None:
    """Seconds that the busiest link is busy in its busier direction. None without any rate.

    `size`: bytes of float32 per rank. What ranks of one host exchange crosses no link, and a ring goes from host to
    host in order of rank, so each link has one sender and one receiver of it.
    """
    hosts = [(_copies(topology, rival, host), topology.link_of(host)) for host in range(topology.hosts)]
    loads = [(copies, link) for copies, link in hosts if link.rate_bit_s is not None]
    spares = topology.switch_at.spares
    if rival.backend == "fanin" and spares:
        senders = topology.hosts if topology.switch_at.on_hosts else topology.workers
        loads += [(senders * topology.parts[-1], topology.link)] * spares
    if topology.racks > 1:
        racks = range(topology.racks)
        loads += [(_uplink_copies(topology, rival, rack), topology.uplink) for rack in racks]
    return max(
        (
            copies * tensor_bytes(link, rival, topology.workers, size) * 8 / link.rate_bit_s
            for copies, link in loads
            if link.rate_bit_s is not None
        ),
        default=None,
    )


def tensor_bytes(link: Link, rival: Rival, workers: int, size: int) -> float:
    """A whole tensor on the wire."""
    if rival.backend == "fanin":
        words, codes = packet_shape(link.mtu)
        elements = _elements(rival, words, workers)
        packets = -(-size // FLOAT_BYTES // elements)
        return packets * (ETHERNET_IP_UDP_BYTES + HEADER_BYTES + codes_bytes(codes) + words * WORD_BYTES)
    payload = link.mtu - (TCP_HEADERS_BYTES - 14)
    return size * (1 + TCP_HEADERS_BYTES / payload)


def _elements(rival: Rival, words: int, workers: int) -> int:
    """Elements of a packet."""
    if isinstance(rival.lanes, str):
        return words * (WORD_BITS // rival.widths[1])
    return Codec(Element.FLOAT32, rival.lanes, workers).elements_per_packet(words)


def _copies(topology: Topology, rival: Rival, host: int) -> float:
    """Tensors that a host's link carries each way."""
    if rival.backend != "fanin":
        return rival.bytes_through_wire(topology.workers) if topology.hosts > 1 else 0.0
    per_host, hosts = topology.ranks_per_host, topology.hosts
    if topology.rack_plan is not None:
        return topology.rack_plan.link_load(host, per_host)
    if topology.switch_at.on_hosts:
        return link_loads(topology.parts, hosts)[host]  # ranks of one host meet there first
    if topology.switch_at.kind == "rank0":
        return topology.workers - per_host if host == 0 else per_host
    return per_host


def _uplink_copies(topology: Topology, rival: Rival, rack: int) -> float:
    """Tensors that a rack's uplink carries each way."""
    if rival.backend != "fanin":
        return rival.bytes_through_wire(topology.workers)
    hosts = topology.hosts
    inside = sum(topology.rack_of(host) == rack for host in range(hosts))
    ranks = inside * topology.ranks_per_host
    if topology.switch_at.kind == "own":
        return 1.0  # the rack's switch sums first
    if topology.rack_plan is not None:
        return topology.rack_plan.uplink_load(rack)
    if topology.switch_at.on_hosts:
        within = inside * topology.parts[0]
        return inside * (1 - within) + within * (hosts - inside)
    if topology.switch_at.kind == "rank0":
        return topology.workers - ranks if topology.rack_of(0) == rack else ranks
    return ranks

"""Time that links alone need for an all-reduce, for every place of the switch: the busiest link's, headers included."""

from __future__ import annotations

from typing import NamedTuple

from fanin.benchmarks.rivals import FLOAT_BYTES, Rival
from fanin.emulation.network.topology import Link, Topology
from fanin.numerics.reduction import Element
from fanin.protocol.spread import link_streams
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import HEADER_BYTES, WORD_BYTES, codes_bytes

ETHERNET_IP_UDP_BYTES = 14 + 20 + 8
TCP_HEADERS_BYTES = 14 + 20 + 32
"""Headers of a TCP segment: Ethernet, IPv4, and TCP with timestamps (RFC 7323)."""


class Streams(NamedTuple):
    """Tensors that a link carries one way; for the other way, contributions and results are exchanged."""

    contributions: float = 0.0
    results: float = 0.0
    between: float = 0.0
    """Sums that switches of a tree exchange, as narrow as results, equally many each way."""

    def wire_bytes(self, contribution: float, result: float) -> float:
        """Bytes in the busier direction, if a contribution and a result of the tensor have that many bytes each."""
        out = self.contributions * contribution + self.results * result
        back = self.results * contribution + self.contributions * result
        return max(out, back) + self.between * result


def ideal_s(topology: Topology, rival: Rival, size: int) -> float | None:
    """Seconds that the busiest link needs in its busier direction. None if no link has a rate.

    `size`: bytes of float32 per rank. Traffic between ranks of one host crosses no link. A ring goes from host to host
    in order of ranks, so each link has one sender and one receiver of the ring.
    """
    loads = [(_of_host(topology, rival, host), topology.link_of(host)) for host in range(topology.hosts)]
    spares = topology.switch_at.spares
    if rival.backend == "fanin" and spares:
        senders = topology.hosts if topology.switch_at.on_hosts else topology.workers
        loads += [(Streams(results=senders * topology.parts[-1]), topology.link)] * spares
    if topology.racks > 1:
        loads += [(_of_uplink(topology, rival, rack), topology.uplink) for rack in range(topology.racks)]

    def busy_s(streams: Streams, link: Link, rate_bit_s: float) -> float:
        contribution, result = (tensor_bytes(link, rival, topology.workers, size, bits) for bits in rival.widths)
        return streams.wire_bytes(contribution, result) * 8 / rate_bit_s

    return max(
        (busy_s(streams, link, link.rate_bit_s) for streams, link in loads if link.rate_bit_s is not None),
        default=None,
    )


def tensor_bytes(link: Link, rival: Rival, workers: int, size: int, bits: int | None = None) -> float:
    """Bytes of a tensor on the wire. `bits`: per element as sent, if lanes are added unpacked; None: as results."""
    if rival.backend == "fanin":
        words, codes = packet_shape(link.mtu)
        packets = -(-size // FLOAT_BYTES // _elements(rival, words, workers))
        share = 1.0 if bits is None else bits / rival.widths[1]
        return packets * (ETHERNET_IP_UDP_BYTES + HEADER_BYTES + codes_bytes(codes) + words * share * WORD_BYTES)
    payload = link.mtu - (TCP_HEADERS_BYTES - 14)
    return size * (1 + TCP_HEADERS_BYTES / payload)


def _elements(rival: Rival, words: int, workers: int) -> int:
    """Elements of a packet whose result fills all words."""
    from fanin.numerics.fixed_point import Codec  # --help must not import numpy

    if isinstance(rival.lanes, str):
        return words * (8 * WORD_BYTES // rival.widths[1])
    return Codec(Element.FLOAT32, rival.lanes, workers).elements_per_packet(words)


def _of_host(topology: Topology, rival: Rival, host: int) -> Streams:
    """Streams of a host's link, outwards."""
    if rival.backend != "fanin":
        return Streams(rival.bytes_through_wire(topology.workers) if topology.hosts > 1 else 0.0)
    per_host, hosts = topology.ranks_per_host, topology.hosts
    if topology.rack_plan is not None:
        return Streams(*topology.rack_plan.link_streams(host, per_host))
    if topology.switch_at.on_hosts:  # ranks of one host sum in its shard first
        return Streams(*(each / topology.cards for each in link_streams(topology.parts, hosts)[host]))
    if topology.switch_at.kind == "rank0" and host == 0:
        return Streams(results=topology.workers - per_host)
    return Streams(per_host)


def _of_uplink(topology: Topology, rival: Rival, rack: int) -> Streams:
    """Streams of a rack's uplink, outwards."""
    if rival.backend != "fanin":
        return Streams(rival.bytes_through_wire(topology.workers))
    hosts = topology.hosts
    inside = sum(topology.rack_of(host) == rack for host in range(hosts))
    ranks = inside * topology.ranks_per_host
    if topology.switch_at.kind == "own":
        return Streams(between=1.0)  # the rack's switch sums its ranks first
    if topology.rack_plan is not None:
        return Streams(between=topology.rack_plan.uplink_load(rack))
    if topology.switch_at.on_hosts:
        within = inside * topology.parts[0]
        return Streams(inside * (1 - within), within * (hosts - inside))
    if topology.switch_at.kind == "rank0" and topology.rack_of(0) == rack:
        return Streams(results=topology.workers - ranks)
    return Streams(ranks)

"""Reads bytes and drops per link from the counters of queueing disciplines (rtnetlink; tc(8) shows the same).

They count whole frames with all headers, also where a train of packets (GSO) crosses as one. Reading starts no process,
because a netlink socket stays in the namespace in which it was opened.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fanin.emulation.network.fabric import Cable, Fabric
from fanin.emulation.network.namespaces import inside
from fanin.emulation.network.topology import Topology
from fanin.records.record import LinkRecord, LinkSample

NETLINK_ROUTE = 0
RTM_GETQDISC = 38
NLM_F_REQUEST, NLM_F_DUMP = 0x01, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
TCA_STATS = 3
TC_H_ROOT = 0xFFFFFFFF
MESSAGE = struct.Struct("=IHHII")  # struct nlmsghdr
TRAFFIC_CONTROL = struct.Struct("=BxxxiIII")  # struct tcmsg
ATTRIBUTE = struct.Struct("=HH")  # struct nlattr
STATISTICS = struct.Struct("=QII")  # the beginning of struct tc_stats
REPLY_BYTES = 1 << 16
MAX_REPLIES = 64
WATCH_INTERVAL_S = 0.5
"""Time between two samples; each costs two replies of the kernel per namespace, which disturb no measurement."""
MAX_SAMPLES = 20_000


class Sent(NamedTuple):
    """Bytes that a device has sent so far, and drops at its queue."""

    bytes: int
    dropped: int


class _Probe:
    """A netlink socket in a namespace, and the names of the devices there."""

    def __init__(self, namespace: str) -> None:
        self._socket, self._names = inside(namespace, self._open)

    @staticmethod
    def _open() -> tuple[socket.socket, dict[int, str]]:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_ROUTE)
        opened.settimeout(5.0)
        return opened, dict(socket.if_nameindex())

    def sent(self) -> dict[str, Sent]:
        """Counters of every device, by its name."""
        body = TRAFFIC_CONTROL.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        header = MESSAGE.pack(MESSAGE.size + len(body), RTM_GETQDISC, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
        self._socket.send(header + body)
        found: dict[str, Sent] = {}
        for _ in range(MAX_REPLIES):
            for kind, message in _messages(self._socket.recv(REPLY_BYTES)):
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    return found
                _, index, _, parent, _ = TRAFFIC_CONTROL.unpack_from(message)
                if parent == TC_H_ROOT and index in self._names:
                    for name, value in _attributes(message[TRAFFIC_CONTROL.size :]):
                        if name == TCA_STATS:
                            count, _, dropped = STATISTICS.unpack_from(value)
                            found[self._names[index]] = Sent(count, dropped)
        return found

    def close(self) -> None:
        self._socket.close()


class Meters:
    """Reads the counters of all links of a fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        namespaces = {end.namespace for cable in fabric.cables for end in (cable.lower, cable.upper)}
        self._probes = {namespace: _Probe(namespace) for namespace in namespaces}
        self._first = {cable.name: self._read(cable, self._all()) for cable in fabric.cables}

    def sample(self, time_s: float) -> dict[str, LinkSample]:
        """Bytes and drops of every link, by its name, since this object was made."""
        sent = self._all()
        samples = {}
        for cable in self._fabric.cables:
            up, down, dropped = (
                now - then for now, then in zip(self._read(cable, sent), self._first[cable.name], strict=True)
            )
            samples[cable.name] = LinkSample(time_s=time_s, up_bytes=up, down_bytes=down, dropped=dropped)
        return samples

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        for probe in self._probes.values():
            probe.close()

    def _all(self) -> dict[str, dict[str, Sent]]:
        return {namespace: probe.sent() for namespace, probe in self._probes.items()}

    def _read(self, cable: Cable, sent: dict[str, dict[str, Sent]]) -> tuple[int, int, int]:
        up = sent[cable.lower.namespace].get(cable.lower.device, Sent(0, 0))
        down = sent[cable.upper.namespace].get(cable.upper.device, Sent(0, 0))
        return up.bytes, down.bytes, up.dropped + down.dropped + self._fabric.wire_losses(cable)


class LinkWatch:
    """Samples all links in a thread of its own, from entry to exit."""

    def __init__(self, fabric: Fabric, origin_s: float) -> None:
        """`origin_s`: CLOCK_MONOTONIC at the start of the run."""
        self._fabric, self._origin_s = fabric, origin_s
        self._samples: dict[str, list[LinkSample]] = defaultdict(list)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fanin-links", daemon=True)

    def __enter__(self) -> LinkWatch:
        self._meters = Meters(self._fabric)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()
        self._meters.close()

    def links(self) -> tuple[LinkRecord, ...]:
        """The samples of every link so far."""
        return tuple(link_record(self._fabric.topology, name, samples) for name, samples in self._samples.items())

    def _watch(self) -> None:
        while not self._over.wait(WATCH_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for name, sample in self._meters.sample(time.monotonic() - self._origin_s).items():
            if len(self._samples[name]) < MAX_SAMPLES:
                self._samples[name].append(sample)


def link_record(topology: Topology, name: str, samples: Sequence[LinkSample]) -> LinkRecord:
    """The record of a link named `worker 3`, `host 3, eth1`, `spare 0` or `rack 1`, with properties and samples."""
    kind, _, number = name.partition(" ")
    if kind in ("worker", "host"):
        link = topology.link_of(int(number.partition(",")[0]))
    else:
        link = topology.uplink if kind == "rack" else topology.link
    return LinkRecord(
        name=name,
        rate_bit_s=link.rate_bit_s,
        delay_s=link.delay_s,
        loss=link.loss,
        mtu=link.mtu,
        samples=tuple(samples),
    )


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + MESSAGE.size <= len(data):
        length, kind, _, _, _ = MESSAGE.unpack_from(data, at)
        if length < MESSAGE.size:
            return
        yield kind, data[at + MESSAGE.size : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < ATTRIBUTE.size:
            return
        yield kind, data[at + ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3

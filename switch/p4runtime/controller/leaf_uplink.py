"""What a leaf's pipeline leaves to its controller: being present at the parent, and news from there.

Complete rounds go up, and results come down, without the controller (p4/v1model/tree.p4). It says HELLO and BYE, hears
what answers them, and refuses on the rows of switch/machine/leaf_side.py that the pipeline cannot check.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fanin.formats.frames import Endpoint, mac_of
from fanin.protocol import wire
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.protocol.wire import Flag, Kind, Packet, Reason
from fanin.switch.machine.uplink import Phase, UplinkPresence


@dataclass(frozen=True, slots=True)
class ParentPort:
    """Which way a parent is, seen from the device."""

    port: int = 1
    """The device's port towards it."""
    mac: bytes | None = None
    """The parent's, or its next hop's. None: made of its address, as the emulator's UDP port does."""


class LeafUplink:
    """One job of a leaf, as a worker of its parent's job."""

    def __init__(self, spec: JobSpec, route: ParentRoute, parent_port: ParentPort) -> None:
        address = int.from_bytes(socket.inet_aton(route.host), "big")
        self.end = Endpoint(mac_of(address) if parent_port.mac is None else parent_port.mac, address, route.ports[0])
        """The parent."""
        self.port = parent_port.port
        self.presence = UplinkPresence(route.uplink(0, 0), spec)
        self.news: Reason | None = None
        """BRANCH_LEFT or BRANCH_LOST, once there is a reason to tell the workers."""
        self._spec = spec
        self._flags = Flag.CHECKSUM if spec.checksum else Flag(0)

    def concerns(self, source: Endpoint, index: int, generation: int) -> bool:
        """Whether a packet from there, of the job with that index and generation there, is this one's."""
        uplink = self.presence.uplink
        return self.source() == {"job": index, "address": source.address, "port": source.port} and (
            uplink.generation == generation
        )

    def facts(self) -> dict[str, int]:
        """What the entry in table `uplinks` says, by the names of the action's parameters."""
        uplink = self.presence.uplink
        return {
            "job": uplink.job,
            "generation": uplink.generation,
            "worker": uplink.worker,
            "mac": int.from_bytes(self.end.mac, "big"),
            "address": self.end.address,
            "port": self.end.port,
            "egress_port": self.port,
        }

    def source(self) -> dict[str, int]:
        """The key of its entries in table `parents`, generation apart."""
        return {"job": self.presence.uplink.job, "address": self.end.address, "port": self.end.port}

    def packets_due(self, now: float) -> Iterator[Packet]:
        """HELLO or BYE, when it is time to say so."""
        presence = self.presence
        token = np.array([presence.uplink.token >> 32, presence.uplink.token & 0xFFFFFFFF], np.uint32)
        if presence.hello_due(now):
            words = token
            if presence.phase is Phase.CONNECTING:
                words = np.zeros((self._spec.packet_bytes - wire.HEADER_BYTES) // wire.WORD_BYTES, np.uint32)
                words[:2] = token
            yield self._packet(Kind.HELLO, words, presence.hello_sequence)
            presence.hello_sent(now)
        if presence.bye_due(now):
            yield self._packet(Kind.BYE, token, 0)
            presence.bye_sent(now)

    def _packet(self, kind: Kind, words: np.ndarray[tuple[int], np.dtype[np.uint32]], slot: int) -> Packet:
        uplink = self.presence.uplink
        return Packet(
            kind=kind,
            job=uplink.job,
            worker=uplink.worker,
            flags=self._flags,
            generation=uplink.generation,
            slot=slot,
            words=words,
        )

    def receive(self, packet: Packet, length: int, now: float) -> tuple[Reason | None, Reason | None]:
        """WELCOME, NOTICE or BYE, of `length` bytes, from the parent: why it is dropped, and what workers are told."""
        presence = self.presence
        narrow = (
            packet.kind is Kind.WELCOME and presence.phase is Phase.CONNECTING and length != self._spec.packet_bytes
        )
        if len(packet.words) < 2 or narrow:
            return Reason.LENGTH, None
        other_version = packet.kind is Kind.NOTICE and packet.contributors == Reason.VERSION
        if other_version and (self._spec.checksum or presence.phase is not Phase.CONNECTING):
            return Reason.VERSION, None
        presence.heard(now)
        gone = int(packet.words[0]), int(packet.words[1])
        if packet.kind is Kind.BYE:
            presence.departed()
            return None, None
        if packet.kind is Kind.WELCOME:
            presence.welcome(now)
            return None, self._once(presence.branches_gone(*gone))
        if packet.contributors in (Reason.WORKER_LOST, Reason.WORKER_LEFT):
            return None, self._once(presence.branches_gone(*gone))
        if packet.contributors == Reason.MISMATCH:
            return None, Reason.MISMATCH
        return None, self._once(presence.refused())

    def handle_timer(self, now: float) -> Reason | None:
        """What time makes true; what workers are told, if anything."""
        return self._once(self.presence.handle_timer(now))

    def _once(self, news: Reason | None) -> Reason | None:
        """Each kind of news is told once; the worse one stays."""
        if news is None or self.news in (news, Reason.BRANCH_LOST):
            return None
        self.news = news
        return news

"""The controller's part of a leaf in a pipeline: being present at the parent, and news from there.

Complete rounds go up, and results come down, without the controller (p4/v1model/tree.p4, p4/tna/leaf.p4). It says HELLO
and BYE, hears what answers them, and refuses on the rows of switch/machine/leaf_side.py that the pipeline cannot check.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

from fanin.formats.frames import Endpoint, mac_of
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.protocol.wire import Packet, Reason
from fanin.switch.machine.uplink import UplinkPresence


@dataclass(frozen=True, slots=True)
class ParentPort:
    """Way to a parent, seen from the device."""

    port: int = 1
    """The device's port towards it."""
    mac: bytes | None = None
    """The parent's, or its next hop's. None: made of its address, as the emulator's UDP port does."""


class LeafUplink:
    """One job of a leaf, as a worker of its parent's job."""

    def __init__(self, spec: JobSpec, route: ParentRoute, parent_port: ParentPort) -> None:
        address = int.from_bytes(socket.inet_aton(route.host), "big")
        self.end = Endpoint(mac_of(address) if parent_port.mac is None else parent_port.mac, address, route.ports[0])
        """Address of the parent."""
        self.port = parent_port.port
        self.presence = UplinkPresence(route.uplink(0, 0), spec)

    @property
    def news(self) -> Reason | None:
        """BRANCH_LEFT or BRANCH_LOST, once there is a reason to tell the workers."""
        return self.presence.news

    def concerns(self, source: Endpoint, index: int, generation: int) -> bool:
        """Whether a packet from there, of the job with that index and generation there, is this one's."""
        uplink = self.presence.uplink
        return self.source() == {"job": index, "address": source.address, "port": source.port} and (
            uplink.generation == generation
        )

    def facts(self) -> dict[str, int]:
        """Parameters of the entry in table `uplinks`, by their names."""
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
        return self.presence.packets_due(now)

    def receive(self, packet: Packet, length: int, now: float) -> tuple[Reason | None, Reason | None]:
        """WELCOME, NOTICE or BYE, of `length` bytes, from the parent: why it is dropped, and what workers are told."""
        objection = self.presence.objection(packet, length)
        if objection is not None:
            return objection, None
        self.presence.heard(now)
        return None, self.presence.receive(packet, now)

    def handle_timer(self, now: float) -> Reason | None:
        """Take in that time has passed; return the notice to workers, if any."""
        return self.presence.handle_timer(now)

"""The controller's part of a leaf in a pipeline: its membership at the parent, and the parent's news.

The pipeline sends complete rounds to the parent, and results down, without the controller (p4/v1model/tree.p4,
p4/tna/leaf.p4). The controller sends HELLO and BYE, handles the replies, and makes those checks of
switch/machine/leaf_side.py that the pipeline cannot.
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
    """The device's port and next hop on the path to a parent."""

    port: int = 1
    """The device's port towards the parent."""
    mac: bytes | None = None
    """MAC address of the parent or the next hop. None: derived from the parent's IP address, as by the emulator."""


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
        """Whether a packet from `source`, with the parent's job index and generation, is for this job."""
        uplink = self.presence.uplink
        return self.source() == {"job": index, "address": source.address, "port": source.port} and (
            uplink.generation == generation
        )

    def facts(self) -> dict[str, int]:
        """Parameters of the job's entry in table `uplinks`, by name."""
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
        """The key of its entries in table `parents`, without the generation."""
        return {"job": self.presence.uplink.job, "address": self.end.address, "port": self.end.port}

    def packets_due(self, now: float) -> Iterator[Packet]:
        """Yield HELLO and BYE packets that are due."""
        return self.presence.packets_due(now)

    def receive(self, packet: Packet, length: int, now: float) -> tuple[Reason | None, Reason | None]:
        """Handle the parent's WELCOME, NOTICE or BYE of `length` bytes; return the reason to drop it, and the notice to
        workers, each if any.
        """
        objection = self.presence.objection(packet, length)
        if objection is not None:
            return objection, None
        self.presence.heard(now)
        return None, self.presence.receive(packet, now)

    def handle_timer(self, now: float) -> Reason | None:
        """Handle timeouts; return the notice to workers, if any."""
        return self.presence.handle_timer(now)

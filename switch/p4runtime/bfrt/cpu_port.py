"""Packets between the controller and a device without a channel for them: they pass the device's port to its processor.

BfRt carries no packets. The switch's processor sees them at a network interface of its own, over PCIe or Ethernet, with
the program's controller headers in front, whose fields the P4Info lists in order. A P4Runtime agent puts them there and
takes them away; here the controller does, which therefore runs on the switch's processor.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from typing import Any, Protocol

from p4.v1 import p4runtime_pb2

from fanin.errors import ProgramError
from fanin.switch.p4runtime.server.raw_port import RawPort
from fanin.switch.p4runtime.server.values import encoded


class CpuPort(Protocol):
    """The way of frames, each with its controller header, to the device and from it."""

    description: str

    def send(self, frame: bytes) -> bool: ...
    def receive(self, timeout_s: float) -> bytes | None: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class InterfacePort:
    """A network interface that leads to the device's port to its processor. `wake` may be called from any thread."""

    def __init__(self, interface: str) -> None:
        """ConfigurationError for an interface that is not there, or where packet sockets are not allowed."""
        self._port = RawPort(interface)
        self.description = interface
        self._reader, self._writer = os.pipe()
        self._closed = False

    def send(self, frame: bytes) -> bool:
        """Whether it could be sent."""
        return self._port.send(frame)

    def receive(self, timeout_s: float) -> bytes | None:
        """The next frame, waiting for one; None when there is none, or `wake` was called."""
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            if not self._closed:
                select.select([self._port.fileno(), self._reader], [], [], timeout_s)
                return self._port.receive()
        return None

    def wake(self) -> None:
        """End a wait; later ones end at once."""
        os.write(self._writer, b"\0")

    def close(self) -> None:
        """Give up the interface."""
        self._closed = True
        self._port.close()
        os.close(self._reader)
        os.close(self._writer)


class ControllerHeaders:
    """packet_out in front of what goes to the device, packet_in in front of what comes from it."""

    def __init__(self, p4info: Any) -> None:
        """ProgramError for a program whose headers are no whole bytes."""
        described = {each.preamble.name: each.metadata for each in p4info.controller_packet_metadata}
        self._out = [(each.id, each.bitwidth) for each in described.get("packet_out", ())]
        self._in = [(each.id, each.bitwidth) for each in described.get("packet_in", ())]
        for name, fields in (("packet_out", self._out), ("packet_in", self._in)):
            if _bits(fields) % 8:
                raise ProgramError(f"{name} has {_bits(fields)} bits, which are no whole bytes")

    def put(self, packet: Any) -> bytes:
        """A PacketOut as a frame for the device."""
        values = {each.metadata_id: int.from_bytes(each.value, "big") for each in packet.metadata}
        head = 0
        for number, bits in self._out:
            head = head << bits | values.get(number, 0)
        return head.to_bytes(_bits(self._out) // 8, "big") + bytes(packet.payload)

    def take(self, frame: bytes) -> Any:
        """A frame from the device as a PacketIn; None for one that is too short to be one."""
        left = _bits(self._in)
        if len(frame) < left // 8:
            return None
        packet = p4runtime_pb2.PacketIn(payload=frame[left // 8 :])
        head = int.from_bytes(frame[: left // 8], "big")
        for number, bits in self._in:
            left -= bits
            packet.metadata.add(metadata_id=number, value=encoded(head >> left & ((1 << bits) - 1)))
        return packet


def _bits(fields: Sequence[tuple[int, int]]) -> int:
    return sum(bits for _, bits in fields)

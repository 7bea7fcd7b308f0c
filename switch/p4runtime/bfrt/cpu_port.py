"""Packets between the controller and a BfRt device, through the device's port to its processor (CPU port).

BfRt carries no packets. The switch's processor receives them at a network interface, over PCIe or Ethernet, behind the
program's controller headers, whose fields the P4Info lists in order. With P4Runtime an agent adds and removes these
headers; here the controller does, which therefore runs on the switch's processor.
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
    """Sends frames, each with its controller header, to the device and receives them from it."""

    description: str

    def send(self, frame: bytes) -> bool: ...
    def receive(self, timeout_s: float) -> bytes | None: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class InterfacePort:
    """The processor's network interface to the device. `wake` may be called from any thread."""

    def __init__(self, interface: str) -> None:
        """Open the interface. ConfigurationError if it does not exist, or packet sockets are not allowed."""
        self._port = RawPort(interface)
        self.description = interface
        self._reader, self._writer = os.pipe()
        self._closed = False

    def send(self, frame: bytes) -> bool:
        """Send a frame; return whether that was possible."""
        return self._port.send(frame)

    def receive(self, timeout_s: float) -> bytes | None:
        """Wait for the next frame; None if none comes in time, or `wake` was called."""
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            if not self._closed:
                select.select([self._port.fileno(), self._reader], [], [], timeout_s)
                return self._port.receive()
        return None

    def wake(self) -> None:
        """End a wait of `receive`; later calls return at once."""
        os.write(self._writer, b"\0")

    def close(self) -> None:
        """Close the interface's socket."""
        self._closed = True
        self._port.close()
        os.close(self._reader)
        os.close(self._writer)


class ControllerHeaders:
    """The headers that a program puts between controller and device: packet_out to the device, packet_in from it."""

    def __init__(self, p4info: Any) -> None:
        """Read the headers from a P4Info. ProgramError if their length is not a multiple of 8 bits."""
        described = {each.preamble.name: each.metadata for each in p4info.controller_packet_metadata}
        self._out = [(each.id, each.bitwidth) for each in described.get("packet_out", ())]
        self._in = [(each.id, each.bitwidth) for each in described.get("packet_in", ())]
        for name, fields in (("packet_out", self._out), ("packet_in", self._in)):
            if _bits(fields) % 8:
                raise ProgramError(
                    f"{name} has {_bits(fields)} bits, which are no whole bytes. "
                    "Remedy: load fanin's program of this version on the device"
                )

    def put(self, packet: Any) -> bytes:
        """The frame for the device that carries a PacketOut."""
        values = {each.metadata_id: int.from_bytes(each.value, "big") for each in packet.metadata}
        head = 0
        for number, bits in self._out:
            head = head << bits | values.get(number, 0)
        return head.to_bytes(_bits(self._out) // 8, "big") + bytes(packet.payload)

    def take(self, frame: bytes) -> Any:
        """The PacketIn that a frame from the device carries; None if the frame is shorter than the header."""
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

"""A P4 device in a process of its own, programmed over P4Runtime by our controller, as one more machine.

Two of them: `fanin switch --target p4 --p4runtime`, reached through UDP sockets, and BMv2's simple_switch_grpc, through
veth pairs. One process serves any number of scenarios: each begins by loading the program again, which clears it.

That a step is complete is known by packets, not by waiting: a PROBE comes back as an ECHO behind what its port was
sent, and a packet that the controller sends comes back, or arrives at a host, behind all that went the same way before.
Frames that the emulator takes in together leave host by host, without the lock under which the controller's packets are
sent: these overtake it, until the ECHO of a PROBE that was taken in after it says that all of it has left.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from fanin.emulation.bmv2_process import DEVICE_ID, MTU, launched, linked
from fanin.formats.frames import HEAD_BYTES, Endpoint, Frame, mac_of, read_frame
from fanin.p4_ports import CPU_PORT
from fanin.protocol.wire import Kind, Packet
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.leaf_uplink import ParentPort
from fanin.switch.p4runtime.controller.links import DeviceAddress, GrpcLink, Link
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import Artefacts, endpoint
from fanin.switch.p4runtime.server.p4info import read_p4info
from tests.p4.emulated import SWITCH, ControlledMachine, endpoint_of, port_of
from tests.p4_programs.subjects import BUILD

REPLY_TIMEOUT_S = 20.0
FENCE = 0x7D00_0000
"""Sequence numbers of our own PROBEs: no scenario uses them."""
CONFIGURATION = "v1model-64"
PORTS = tuple(range(1, 8))
"""Ports of BMv2: what tests.p4.emulated spreads sources over."""


class Wire(Protocol):
    """The hosts' connection to a device. A place is a port, or a host's own socket."""

    switch: Endpoint

    def forget(self) -> None: ...
    def end_of(self, source: int) -> Endpoint: ...
    def port_of(self, source: int) -> int: ...
    def place_of(self, source: int) -> int: ...
    def send(self, source: int, data: bytes) -> None: ...
    def receive(self, place: int) -> tuple[int, bytes]: ...

    def fences(self) -> Sequence[int]:
        """Sources that the controller sends a packet to, to know that everything before it has arrived."""
        ...

    def arrived(self) -> Iterator[tuple[int, bytes]]:
        """Yield what has arrived at places without a fence of their own."""
        ...


class VethWire:
    """A raw socket behind each port; sources share them."""

    switch = SWITCH

    def __init__(self, taps: dict[int, socket.socket]) -> None:
        self._taps = taps
        self._sources: dict[Endpoint, int] = {}
        for tap in taps.values():
            tap.settimeout(REPLY_TIMEOUT_S)

    def forget(self) -> None:
        """A scenario is over. The next one's hosts share the same ports."""

    def end_of(self, source: int) -> Endpoint:
        end = endpoint_of(source)
        self._sources[end] = source
        return end

    def port_of(self, source: int) -> int:
        return port_of(source)

    def place_of(self, source: int) -> int:
        return port_of(source)

    def fences(self) -> Sequence[int]:
        return range(len(PORTS))  # one behind each port

    def arrived(self) -> Iterator[tuple[int, bytes]]:
        return iter(())

    def send(self, source: int, data: bytes) -> None:
        if len(data) > MTU - HEAD_BYTES:
            pytest.skip(f"no frame of these veth pairs carries a datagram of {len(data)} bytes")
        self._taps[port_of(source)].send(Frame(self.end_of(source), SWITCH, data).to_bytes())

    def receive(self, place: int) -> tuple[int, bytes]:
        frame = read_frame(self._taps[place].recv(1 << 16))
        assert frame is not None
        assert frame.source == SWITCH
        source = self._sources[frame.destination]
        assert port_of(source) == place
        return source, frame.payload


class UdpWire:
    """A UDP socket for each source, on this machine, and one for the controller's fence.

    One fence is enough: on loopback a datagram is in its socket's buffer when `sendto` returns, so what was sent before
    the fence has arrived before it, at whichever socket.
    """

    PORT = 1
    """The emulator's only one."""
    FENCED = -1
    """Source of the fence's socket."""

    def __init__(self, port: int) -> None:
        self.switch = endpoint(f"127.0.0.1:{port}", None)
        self._sockets: dict[int, socket.socket] = {}

    def _socket(self, source: int) -> socket.socket:
        if source not in self._sockets:
            opened = self._sockets[source] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            opened.bind(("127.0.0.1", 0))
            opened.settimeout(REPLY_TIMEOUT_S)
        return self._sockets[source]

    def forget(self) -> None:
        """A scenario is over: its hosts are gone, or every later step would ask each of them what has arrived there."""
        self.close()
        self._sockets.clear()

    def end_of(self, source: int) -> Endpoint:
        return Endpoint(mac_of(self.switch.address), self.switch.address, self._socket(source).getsockname()[1])

    def port_of(self, source: int) -> int:
        return self.PORT

    def place_of(self, source: int) -> int:
        return source

    def fences(self) -> Sequence[int]:
        return (self.FENCED,)

    def arrived(self) -> Iterator[tuple[int, bytes]]:
        while readable := select.select(self._sockets.values(), [], [], 0)[0]:
            for source in [source for source, each in self._sockets.items() if each in readable]:
                yield self.receive(source)

    def send(self, source: int, data: bytes) -> None:
        self._socket(source).sendto(data, ("127.0.0.1", self.switch.port))

    def receive(self, place: int) -> tuple[int, bytes]:
        return place, self._sockets[place].recv(1 << 16)

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()


class LoadableLink(Link, Protocol):
    """A device that a program can be loaded into."""

    def ensure_pipeline(self, p4info: Any, program: bytes) -> bool: ...


class RemoteDevice:
    """One process, and our controller's connection to it."""

    def __init__(self, link: LoadableLink, wire: Wire) -> None:
        self.wire = wire
        self.link = link
        files = BUILD / f"{CONFIGURATION}.json.gz", BUILD / f"{CONFIGURATION}.p4info.txtpb"
        self._artefacts = Artefacts.read(*files)
        self._numbers = itertools.count(FENCE)
        self._words: Vocabulary | None = None

    def reset(self) -> Vocabulary:
        """Load the program again, as our controller loads another one, so that nothing is left of a scenario."""
        if self._words is not None:
            # Packets that a scenario has caused and not looked at are still to come, to ports that the next one has as
            # well.
            for _ in (*self.for_controller(), *self.for_hosts()):
                pass
        self.wire.forget()
        info = read_p4info(self._artefacts.p4info)
        info.pkg_info.version = f"scenario {next(self._numbers)}"  # else it would be the program that runs
        self.link.ensure_pipeline(info, self._artefacts.program)
        self._words = Vocabulary(info)
        return self._words

    def for_controller(self) -> Iterator[Any]:
        """Yield the device's messages for the controller, up to a packet of the controller's own."""
        assert self._words is not None
        mark = next(self._numbers).to_bytes(64, "big")
        self.link.send(self._words.packet_out(mark, egress_port=CPU_PORT))
        while True:
            packet = self.link.next_packet(REPLY_TIMEOUT_S)
            assert packet is not None, "the device does not send the controller's own packet back to it"
            if self._words.packet_in(packet)[0] == mark:
                return
            yield packet

    def for_hosts(self) -> Iterator[tuple[bytes, int]]:
        """Yield the packets that have left the device, with their destinations, up to one of the controller's."""
        assert self._words is not None
        wire = self.wire
        for to in wire.fences():
            number = next(self._numbers)
            frame = Frame(wire.switch, wire.end_of(to), Packet(kind=Kind.ECHO, slot=number).to_bytes())
            self.link.send(self._words.packet_out(frame.to_bytes(), egress_port=wire.port_of(to)))
            yield from self._until(wire.place_of(to), number)
        yield from ((data, place) for place, data in wire.arrived())

    def answers(self, source: int) -> Iterator[tuple[bytes, int]]:
        """The same of where a source is, up to the ECHO of a PROBE from there, and of another one.

        The first may have been taken in together with what came before it: its ECHO then says that the answers to
        that are leaving, to this place before others perhaps. The second is taken in when all of them have left.
        """
        for _ in range(2):
            number = next(self._numbers)
            self.wire.send(source, Packet(kind=Kind.PROBE, slot=number).to_bytes())
            yield from self._until(self.wire.place_of(source), number)

    def _until(self, place: int, number: int) -> Iterator[tuple[bytes, int]]:
        echo = Packet(kind=Kind.ECHO, slot=number).to_bytes()
        while (got := self.wire.receive(place))[1] != echo:
            yield got[1], got[0]


class RemoteMachine(ControlledMachine):
    """A device with the verbs of a switch machine, with nothing on it."""

    def __init__(self, device: RemoteDevice, parent: int = 0) -> None:
        self._device, wire = device, device.wire
        self._out: list[tuple[bytes, int]] = []
        words = device.reset()
        placement = Placement((wire.switch,), ParentPort(wire.port_of(parent), wire.end_of(parent).mac))
        super().__init__(JobControl(device.link, words, placement), wire.end_of)

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        self._device.wire.send(source, data)
        self._out += self._device.answers(source)
        self._settle(now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        self.control.speak(now)
        self._settle(now)
        sent, self._out = self._out, []
        return sent

    def _settle(self, now: float) -> None:
        """Let the controller take in what the device has for it, and collect what leaves."""
        for packet in self._device.for_controller():
            self.control.receive(packet, now)
        self._out += self._device.for_hosts()


@contextlib.contextmanager
def served() -> Iterator[RemoteDevice]:
    """`fanin switch --target p4 --p4runtime`."""
    files = [
        "--program",
        str(BUILD / f"{CONFIGURATION}.json.gz"),
        "--p4info",
        str(BUILD / f"{CONFIGURATION}.p4info.txtpb"),
    ]
    addresses = ["--bind", "127.0.0.1:0", "--p4runtime", "127.0.0.1:0"]
    command = [sys.executable, "-m", "fanin", "switch", "--target", "p4", *addresses, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, contextlib.ExitStack() as stack:
        stack.callback(process.terminate)
        assert process.stdout is not None
        banner = process.stdout.readline()
        found = re.search(r"udp://127\.0\.0\.1:(\d+), P4Runtime at 127\.0\.0\.1:(\d+)", banner)
        assert found, f"the switch says {banner!r}"
        wire = stack.enter_context(contextlib.closing(UdpWire(int(found[1]))))
        device = RemoteDevice(GrpcLink(DeviceAddress(target=f"127.0.0.1:{found[2]}")), wire)
        stack.callback(device.link.close)
        yield device


@contextlib.contextmanager
def on_bmv2(folder: Path) -> Iterator[RemoteDevice]:
    """simple_switch_grpc; `folder` is for its log."""
    with linked(PORTS) as links, launched(folder / "bmv2.log", links) as (address, _):
        device = RemoteDevice(GrpcLink(DeviceAddress(target=address, device_id=DEVICE_ID)), VethWire(links.sockets))
        with contextlib.closing(device.link):
            yield device

"""BMv2 itself, simple_switch_grpc, with a veth pair on each port and a raw socket on the other end.

What a frame leads to is known to be complete without waiting for time to pass: a PROBE sent after it comes back as an
ECHO behind it, since BMv2's ingress takes packets in order and so does the egress of each port.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from fanin.emulation.processes import free_port
from fanin.protocol.wire import Kind, Packet
from tests.p4_programs.client import Client
from tests.p4_programs.frames import UDP_OFFSET, Place, frame_to_switch
from tests.p4_programs.subjects import BUILD, CPU_PORT, parameters

PORTS = tuple(range(1, 6))
START_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 10.0
BINARY = "simple_switch_grpc"
MTU = 9000
"""Of the veth pairs; BMv2 takes frames of up to 10,240 bytes."""
ETH_P_ALL = 3
STARTED = itertools.count()
"""Numbers the switches of this process, of which one may be there while another starts."""
FENCE = 0x7E000000
"""Sequence numbers of our own PROBEs: no history uses them."""


def missing() -> str | None:
    """Why BMv2 cannot run here, or None."""
    if shutil.which(BINARY) is None:
        return f"needs {BINARY} on PATH"
    if os.geteuid() != 0:
        return "needs root, for veth pairs"
    return None


class Bmv2:
    """A running switch that was given a program."""

    most_words_added = 96
    """simple_switch has room for 512 bytes more than came in, and overruns its buffer beyond that (p4/README.md)."""

    def __init__(self, client: Client, sockets: dict[int, socket.socket]) -> None:
        self._client = client
        self._sockets = sockets
        self._numbers = itertools.count(FENCE)
        names = {each.preamble.name.rpartition(".")[2] for each in client.info.registers}
        self._two_passes = "pairs_low" in names

    def entry(self, table: str, key: Sequence[int], action: str, data: Sequence[int], *, modify: bool = False) -> None:
        self._client.entry(table, key, action, data, modify=modify)

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._client.group(number, replicas)

    def counter(self, name: str, index: int) -> int:
        return self._client.counter(name, index)

    def exchange(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        if port == CPU_PORT:
            metadata = int.from_bytes(frame[:2], "big")
            self._client.send(frame[2:], egress_port=metadata >> 7, poke=metadata >> 6 & 1)
            return self._behind_the_controller()
        self._sockets[port].send(frame)
        before = self._until_echo(port)  # ingress has taken the frame; what it sent is queued for its ports
        others = [sent for other in PORTS if other != port for sent in self._until_echo(other)]
        sent = [*before, *self._until_echo(port), *others]
        if self._two_passes:  # a packet that passes again has gone by the thread of one of these ports
            sent += [each for other in PORTS for each in self._until_echo(other)]
        return [*sent, *self._to_controller()]

    def command(self, verb: str, frame: bytes) -> list[tuple[int, bytes]]:
        self._client.send(frame, **{verb: 1})
        return [*self._behind_the_controller(), *self._to_controller()]

    def parameters(self, action: str) -> Sequence[str]:
        return parameters(self._client.info, action)

    def _behind_the_controller(self) -> list[tuple[int, bytes]]:
        """What comes out before a packet that the controller sends through each port."""
        sent = []
        for port in PORTS:
            fence = bytes(12) + b"\xff\xff" + next(self._numbers).to_bytes(4, "big") + bytes(46)
            self._client.send(fence, egress_port=port)
            while (frame := self._receive(port)) != fence:
                sent.append((port, frame))
        return sent

    def _until_echo(self, port: int) -> list[tuple[int, bytes]]:
        """What comes out of a port before the ECHO of a PROBE sent into it."""
        number = next(self._numbers)
        self._sockets[port].send(frame_to_switch(Place(port - 1), Packet(kind=Kind.PROBE, slot=number).to_bytes()))
        echo = Packet(kind=Kind.ECHO, slot=number).to_bytes()
        sent = []
        while (frame := self._receive(port))[UDP_OFFSET:] != echo:
            sent.append((port, frame))
        return sent

    def _to_controller(self) -> list[tuple[int, bytes]]:
        """What comes to the controller before a packet that it sends to itself."""
        fence = next(self._numbers).to_bytes(64, "big")
        self._client.send(fence, egress_port=CPU_PORT)
        sent = []
        while not (packet := self._client.received()).endswith(fence):  # behind metadata, or as it was sent
            sent.append((CPU_PORT, packet))
        return sent

    def _receive(self, port: int) -> bytes:
        return self._sockets[port].recv(1 << 16)


@contextlib.contextmanager
def running(configuration: str, folder: Path) -> Iterator[Bmv2]:
    """simple_switch_grpc with that program; `folder` is for its log."""
    with (
        started(folder, PORTS) as (address, sockets),
        Client(address, BUILD / f"{configuration}.p4info.txtpb") as client,
    ):
        client.load(BUILD / f"{configuration}.json")
        yield Bmv2(client, sockets)


@dataclass(frozen=True)
class Links:
    """Veth pairs, one for each port: raw sockets at our ends, and what BMv2 is told of its own."""

    sockets: dict[int, socket.socket]
    interfaces: list[str]


@contextlib.contextmanager
def started(folder: Path, ports: Sequence[int]) -> Iterator[tuple[str, dict[int, socket.socket]]]:
    """simple_switch_grpc without a program: where it serves P4Runtime, and a raw socket behind each port."""
    with linked(ports) as links, launched(folder, links) as (address, _):
        yield address, links.sockets


@contextlib.contextmanager
def linked(ports: Sequence[int]) -> Iterator[Links]:
    """Veth pairs for these ports."""
    with contextlib.ExitStack() as stack:
        links, switch_number = Links({}, []), next(STARTED)
        for port in ports:
            inner, outer = (f"fp{os.getpid()}n{switch_number}{end}{port}"[-15:] for end in "sh")
            _ip("link", "add", inner, "type", "veth", "peer", "name", outer)
            stack.callback(_ip, "link", "delete", inner)
            for name in (inner, outer):
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1", encoding="ascii")
                _ip("link", "set", name, "mtu", str(MTU), "up")
            # Of no protocol until it is bound: it would take in what comes through any interface until then.
            tap = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            tap.bind((outer, ETH_P_ALL))
            tap.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING: not what we send ourselves
            tap.settimeout(REPLY_TIMEOUT_S)
            links.sockets[port] = tap
            links.interfaces.extend(("-i", f"{port}@{inner}"))
        yield links


@contextlib.contextmanager
def launched(folder: Path, links: Links) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """simple_switch_grpc at these ports, without a program: where it serves P4Runtime, and its process."""
    with contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        log = stack.enter_context((folder / "bmv2.log").open("wb"))
        # With Thrift, as it is built by default, every switch takes a port for that, too, and all the same one.
        arguments = ["--no-p4", "--device-id", "1", "--thrift-port", str(free_port()), *links.interfaces, "--"]
        switch = subprocess.Popen(
            [BINARY, *arguments, "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)], stdout=log, stderr=log
        )
        stack.callback(switch.wait)
        stack.callback(switch.terminate)
        _await_server(address, switch)
        yield address, switch


def _await_server(address: str, switch: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(address) as channel:
        while True:
            try:
                grpc.channel_ready_future(channel).result(timeout=1.0)
                return
            except grpc.FutureTimeoutError:
                assert switch.poll() is None, "simple_switch_grpc ended; see its log"
                assert time.monotonic() < deadline, "simple_switch_grpc does not listen"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)

"""BMv2 itself, simple_switch_grpc, with a veth pair on each port and a raw socket on the other end.

The effects of a frame are known to be complete without waiting for time to pass: a PROBE sent after it comes back as an
ECHO behind it, since BMv2's ingress and the egress of each port take packets in order.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from fanin.emulation.bmv2_process import launched, linked
from fanin.protocol.wire import Kind, Packet
from fanin.switch.p4runtime.opening import MAX_DEVICE_WORDS
from tests.p4_programs.client import Client
from tests.p4_programs.subjects import BUILD, CPU_PORT, parameters
from tests.p4_programs.wiring import UDP_OFFSET, Place, frame_to_switch

PORTS = tuple(range(1, 6))
FENCE = 0x7E000000
"""Sequence numbers of our own PROBEs: no history uses them."""


class Bmv2:
    """A running switch that was given a program."""

    most_words_added = MAX_DEVICE_WORDS
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
        """Packets that come out before a packet that the controller sends through each port."""
        sent = []
        for port in PORTS:
            fence = bytes(12) + b"\xff\xff" + next(self._numbers).to_bytes(4, "big") + bytes(46)
            self._client.send(fence, egress_port=port)
            while (frame := self._receive(port)) != fence:
                sent.append((port, frame))
        return sent

    def _until_echo(self, port: int) -> list[tuple[int, bytes]]:
        """Packets that come out of a port before the ECHO of a PROBE sent into it."""
        number = next(self._numbers)
        self._sockets[port].send(frame_to_switch(Place(port - 1), Packet(kind=Kind.PROBE, slot=number).to_bytes()))
        echo = Packet(kind=Kind.ECHO, slot=number).to_bytes()
        sent = []
        while (frame := self._receive(port))[UDP_OFFSET:] != echo:
            sent.append((port, frame))
        return sent

    def _to_controller(self) -> list[tuple[int, bytes]]:
        """Packets that come to the controller before one that it sends to itself."""
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
        linked(PORTS) as links,
        launched(folder / "bmv2.log", links) as (address, _),
        Client(address, BUILD / f"{configuration}.p4info.txtpb") as client,
    ):
        client.load(BUILD / f"{configuration}.json.gz")
        yield Bmv2(client, links.sockets)

"""A UDP socket as a port: the native one, with many datagrams to a system call, and the Python one, its twin."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from fanin.extension import native_extension
from fanin.formats.frames import Endpoint, Frame, read_frame
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Kind, Packet, parse
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.links import LocalLink
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import BUILD, Artefacts, emulated_device
from fanin.switch.p4runtime.server.udp_port import UdpPort

EXTENSION = native_extension(None)
WAIT_S = 20.0
NATIVE = pytest.mark.skipif(EXTENSION is None, reason="needs the native extension")


def host() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.settimeout(WAIT_S)
    return made


UDP_SEGMENT = 103
"""Option of <netinet/udp.h>: a sent buffer leaves as a train of datagrams of so many bytes."""


def native_ports(port: UdpPort) -> Any:
    assert EXTENSION is not None
    ports = EXTENSION.P4Ports()
    port.add_to(ports, port.NUMBER)
    return ports


@NATIVE
def test_both_make_the_same_frames_of_the_same_datagrams() -> None:
    draw = random.Random(5)
    payloads = [draw.randbytes(size) for size in (0, 1, 36, 1472, 8000, 65_000, *draw.choices(range(2000), k=40))]
    with contextlib.closing(UdpPort("127.0.0.1", 0)) as port, host() as sender:
        native = native_ports(port)
        for payload in payloads:
            sender.sendto(payload, ("127.0.0.1", port.port))
            assert native.receive() == 1
            source = Endpoint(port.end.mac, port.end.address, sender.getsockname()[1])
            assert native.frames() == [(port.NUMBER, Frame(source, port.end, payload).to_bytes())]
            sender.sendto(payload, ("127.0.0.1", port.port))
            assert port.receive(0) == native.frames()[0][1]


@NATIVE
def test_a_train_of_datagrams_is_as_many_frames() -> None:
    cars = [bytes([number]) * (100 if number < 6 else 40) for number in range(7)]
    with contextlib.closing(UdpPort("127.0.0.1", 0)) as port, host() as sender:
        native = native_ports(port)
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
        sender.sendto(b"".join(cars), ("127.0.0.1", port.port))
        payloads: list[bytes] = []
        while len(payloads) < len(cars):
            assert native.receive()
            frames = [read_frame(data) for _, data in native.frames()]
            payloads += [frame.payload for frame in frames if frame is not None]
        assert payloads == cars


@NATIVE
def test_who_waits_for_frames_is_woken_to_end() -> None:
    with contextlib.closing(UdpPort("127.0.0.1", 0)) as port:
        native = native_ports(port)
        native.stop()
        assert native.receive() == 0


class Switch:
    """The compiled program behind a port in this process; it answers PROBEs by itself."""

    def __init__(self, *, native: bool) -> None:
        files = BUILD / "v1model-64.json.gz", BUILD / "v1model-64.p4info.txtpb"
        self.port = UdpPort("127.0.0.1", 0)
        self.device = emulated_device(Artefacts.read(*files), native)
        self.link = LocalLink(self.device, self.port.transmit)
        self.control = JobControl(self.link, Vocabulary(self.link.p4info()), Placement((self.port.end,)))
        self.control.serve()
        self.batches: list[int] = []

    def start(self) -> None:
        self.port.start(self.receive, self.receive_natively)

    def receive(self, packets: Sequence[tuple[int, bytes]]) -> None:
        self.link.receive_batch(packets)

    def receive_natively(self, ports: Any, count: int) -> bool:
        self.batches.append(count)
        return self.link.receive_natively(ports, count)


@NATIVE
@pytest.mark.parametrize("native", [True, False])
def test_every_datagram_is_answered_to_whom_it_came_from(native: bool) -> None:
    """Also by a program that the native interpreter does not run: the port then hands over frames."""
    switch = Switch(native=native)
    hosts = [host() for _ in range(3)]
    numbers = range(128)
    try:
        for number in numbers:  # before anybody looks: they are taken in at once
            probe = Packet(kind=Kind.PROBE, slot=number).to_bytes()
            hosts[number % 3].sendto(probe, ("127.0.0.1", switch.port.port))
        switch.start()
        for number in numbers:
            answer = parse(hosts[number % 3].recv(1 << 16))
            assert (answer.kind, answer.slot) == (Kind.ECHO, number)
        assert switch.device.switch is not None
        assert switch.device.switch.tally.packets_in == switch.device.switch.tally.packets_out == len(numbers)
        assert max(switch.batches) > 1
    finally:
        switch.port.close()
        for each in hosts:
            each.close()


@NATIVE
def test_packets_for_the_controller_come_out_of_the_native_port() -> None:
    switch = Switch(native=True)
    with host() as worker:
        try:
            switch.control.admit(
                JobSpec(job=3, generation=1, workers=1, quorum=1, slots=1, words_per_packet=8, tokens=(1,))
            )
            switch.start()
            hello = Packet(kind=Kind.HELLO, job=3, worker=0, generation=1).to_bytes()
            worker.sendto(hello, ("127.0.0.1", switch.port.port))
            packet = switch.link.next_packet(WAIT_S)
            assert packet is not None
            frame = read_frame(packet.payload)
            assert frame is not None
            assert frame.payload == hello
            assert frame.source.port == worker.getsockname()[1]
        finally:
            switch.port.close()

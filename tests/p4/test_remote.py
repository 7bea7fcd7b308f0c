"""Promises of tests/p4/remote.py, without BMv2: the emulator behind veth pairs, programmed over P4Runtime.

And in this process, behind a wire on which as little happens at a time as a loaded machine can make of it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from fanin.formats.frames import Endpoint, Frame, read_frame
from fanin.protocol.wire import Kind
from fanin.switch.p4runtime.controller.links import DeviceAddress, GrpcLink, LocalLink
from fanin.switch.p4runtime.opening import Artefacts, emulated_device
from fanin.switch.p4runtime.standalone import RunOptions, StandaloneSwitch
from tests.p4.cables import NEEDS_ROOT, veth
from tests.p4.emulated import NETWORK, SWITCH, endpoint_of, port_of
from tests.p4.remote import PORTS, RemoteDevice, RemoteMachine, UdpWire, VethWire
from tests.support.bench import Bench, address, first_loss, make_spec


@pytest.fixture
def device() -> Iterator[RemoteDevice]:
    with contextlib.ExitStack() as stack:
        cables = {port: stack.enter_context(veth()) for port in PORTS}
        ports = {port: name for port, (name, _) in cables.items()}
        options = RunOptions(artefacts=None, ports=ports, p4runtime=("127.0.0.1", 0))
        switch = stack.enter_context(contextlib.closing(StandaloneSwitch(options)))
        wire = VethWire({port: tap for port, (_, tap) in cables.items()})
        made = RemoteDevice(GrpcLink(DeviceAddress(target=f"127.0.0.1:{switch.p4runtime_port}")), wire)
        stack.callback(made.link.close)
        yield made


@NEEDS_ROOT
def test_what_a_scenario_has_not_looked_at_is_not_the_next_ones(device: RemoteDevice) -> None:
    first = Bench(lambda _: RemoteMachine(device))
    first_loss(first)  # every worker is told, and nobody reads it
    second = Bench(lambda _: RemoteMachine(device), registered=False)
    assert second.sent() == []
    assert [(packet.kind, to) for packet, to in second.say(second.hello(1), address(1))] == [(Kind.WELCOME, address(1))]


class LocalDevice(LocalLink):
    """The emulator, which has the program already."""

    def ensure_pipeline(self, p4info: Any, program: bytes) -> bool:
        return False


class ReluctantWire:
    """Hosts of a switch whose thread goes on only while one of them waits, and only until that one has something.

    As `fanin switch` does, it takes in together what has arrived, and sends what comes of it host by host; only then
    it takes in more. The controller's packets overtake all of these.
    """

    switch = SWITCH

    def __init__(self) -> None:
        self.link = LocalDevice(emulated_device(Artefacts.read(None, None)), self._leave)
        self._arriving: list[tuple[int, bytes]] = []
        self._leaving: dict[int, list[bytes]] | None = None
        """By source, while what has arrived is worked on."""
        self._left: list[tuple[int, list[bytes]]] = []
        """Packets that are to be sent, host by host."""
        self._inboxes: defaultdict[int, list[bytes]] = defaultdict(list)

    def _leave(self, port: int, data: bytes) -> None:
        frame = read_frame(data)
        assert frame is not None
        source = frame.destination.address - NETWORK
        outgoing = self._inboxes if self._leaving is None else self._leaving
        outgoing.setdefault(source, []).append(frame.payload)

    def _go_on(self) -> None:
        if not self._left:
            batch, self._arriving, self._leaving = self._arriving, [], {}
            assert batch, "a host waits for what nobody has caused"
            self.link.receive_batch(batch)
            self._left, self._leaving = list(self._leaving.items()), None
            return
        source, payloads = self._left.pop(0)
        self._inboxes[source] += payloads

    def forget(self) -> None: ...

    def end_of(self, source: int) -> Endpoint:
        self._inboxes[source]  # it is somebody's place from now on
        return endpoint_of(source)

    def port_of(self, source: int) -> int:
        return port_of(source)

    def place_of(self, source: int) -> int:
        return source

    def fences(self) -> Sequence[int]:
        return (UdpWire.FENCED,)

    def arrived(self) -> Iterator[tuple[int, bytes]]:
        for source, payloads in self._inboxes.items():
            while payloads:
                yield source, payloads.pop(0)

    def send(self, source: int, data: bytes) -> None:
        self._arriving.append((port_of(source), Frame(self.end_of(source), SWITCH, data).to_bytes()))

    def receive(self, place: int) -> tuple[int, bytes]:
        while not self._inboxes[place]:
            self._go_on()
        return place, self._inboxes[place].pop(0)


@pytest.mark.parametrize("worker", range(3))
def test_what_leaves_for_others_late_is_awaited_too(worker: int) -> None:
    """The ECHO was there, and a worker's RESULT still in the switch: once in some hundred runs on a loaded machine."""
    wire = ReluctantWire()
    bench = Bench(lambda _: RemoteMachine(RemoteDevice(wire.link, wire)), make_spec(workers=3, quorum=1, staleness=1))
    sent = bench.gives(worker, 0)
    assert sorted((packet.kind, to) for packet, to in sent) == [(Kind.RESULT, address(each)) for each in range(3)]

"""What tests/p4/remote.py promises, without BMv2: the emulator behind veth pairs, programmed over P4Runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from fanin.protocol.wire import Kind
from fanin.switch.p4runtime.standalone import RunOptions, StandaloneSwitch
from tests.p4.cables import NEEDS_ROOT, veth
from tests.p4.remote import PORTS, RemoteDevice, RemoteMachine, VethWire
from tests.support.bench import Bench, address, first_loss


@pytest.fixture
def device() -> Iterator[RemoteDevice]:
    with contextlib.ExitStack() as stack:
        cables = {port: stack.enter_context(veth()) for port in PORTS}
        ports = {port: name for port, (name, _) in cables.items()}
        options = RunOptions(artefacts=None, ports=ports, p4runtime=("127.0.0.1", 0))
        switch = stack.enter_context(contextlib.closing(StandaloneSwitch(options)))
        wire = VethWire({port: tap for port, (_, tap) in cables.items()})
        made = RemoteDevice(f"127.0.0.1:{switch.p4runtime_port}", wire, device_id=0)
        stack.callback(made.link.close)
        yield made


@NEEDS_ROOT
def test_what_a_scenario_has_not_looked_at_is_not_the_next_ones(device: RemoteDevice) -> None:
    first = Bench(lambda _: RemoteMachine(device))
    first_loss(first)  # every worker is told, and nobody reads it
    second = Bench(lambda _: RemoteMachine(device), registered=False)
    assert second.sent() == []
    assert [(packet.kind, to) for packet, to in second.say(second.hello(1), address(1))] == [(Kind.WELCOME, address(1))]

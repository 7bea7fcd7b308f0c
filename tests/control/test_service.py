"""The order of work of a switch's one thread: over real sockets, with a scripted data plane."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from fanin.errors import ConfigurationError
from fanin.host.session.control import ask
from fanin.protocol import control
from fanin.protocol.events import WorkerJoined, WorkerSilent
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.service.service import ServiceOptions, SwitchService
from tests.support.controllers import BUFFERS, FakeServer, join
from tests.support.processes import DEADLINE_S
from tests.support.services import a_service, address_of


@pytest.fixture
def quiet() -> Iterator[FakeServer]:
    """A data plane whose events nobody is woken for: they are found when the thread looks for them."""
    server = FakeServer()
    server.event_fileno = os.eventfd(0, os.EFD_NONBLOCK)
    yield server
    os.close(server.event_fileno)


def test_who_asks_is_told_of_what_the_data_plane_has_reported_already(quiet: FakeServer) -> None:
    with a_service(data=lambda host, port: DataPlane(quiet, BUFFERS), schemes=("udp",)) as service:
        address = address_of(service)
        for rank in range(2):
            answer = ask(address, join(rank), timeout_s=DEADLINE_S)
        assert isinstance(answer, control.Admitted)
        quiet.events.extend([WorkerJoined(answer.index, rank) for rank in range(2)])
        quiet.events.append(WorkerSilent(answer.index, 1, 5.2))
        question = control.Explain(job="j", generation=answer.generation)
        explanation = ask(address, question, timeout_s=DEADLINE_S)
        assert isinstance(explanation, control.Explanation)
        assert explanation.lost == (1,)


def test_the_port_for_data_over_zmq_is_opened_only_when_asked_for() -> None:
    options = ServiceOptions(host="127.0.0.1", port=0, memory_bytes=1 << 20)
    with contextlib.closing(SwitchService(options)) as service:
        assert list(service.servers) == ["udp"]
    with a_service() as service:
        assert sorted(service.servers) == ["udp", "zmq"]


PORTS = 21_000, 21_999


@pytest.mark.parametrize("native", [True, False])
def test_a_range_of_ports_holds_control_and_every_flow(native: bool) -> None:
    taken: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            options = ServiceOptions(
                host="127.0.0.1", port=0, ports=PORTS, flows=3, native=native, memory_bytes=1 << 20
            )
            service = stack.enter_context(contextlib.closing(SwitchService(options)))
            assert service.servers["udp"].ports == tuple(range(service.port, service.port + 3))
            taken += service.servers["udp"].ports
    assert len(set(taken)) == 6
    assert all(PORTS[0] <= port <= PORTS[1] for port in taken)


def test_a_range_without_a_free_port_is_refused_with_the_remedy() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        refusal = rf"no port of {port}-{port} of 127\.0\.0\.1 is free.*in use.*Remedy: a wider FANIN_PORTS"
        with pytest.raises(ConfigurationError, match=refusal):
            SwitchService(ServiceOptions(host="127.0.0.1", port=0, ports=(port, port), memory_bytes=1 << 20))
    with pytest.raises(ConfigurationError, match=r"no port of 21000-21001 .* 3 flows"):
        SwitchService(ServiceOptions(host="127.0.0.1", port=0, ports=(21_000, 21_001), flows=3, memory_bytes=1 << 20))


@pytest.mark.parametrize("native", [True, False])
def test_flows_behind_a_port_that_is_given_have_those_after_it(native: bool) -> None:
    given: dict[str, Any] = {"host": "127.0.0.1", "native": native, "memory_bytes": 1 << 20}
    first = 23_000 + 500 * native
    own = first, first + 499  # what runs beside it would take the port of a range that it shares when it is given back
    with contextlib.closing(SwitchService(ServiceOptions(port=0, ports=own, flows=4, **given))) as service:
        port = service.port
    with contextlib.closing(SwitchService(ServiceOptions(port=port, flows=4, **given))) as service:
        assert service.servers["udp"].ports == tuple(range(port, port + 4))
    with pytest.raises(ConfigurationError, match="2 flows from port 65535 on: ports end at 65535"):
        SwitchService(ServiceOptions(port=65_535, flows=2, **given))

"""The order of work of a switch's one thread: over real sockets, with a scripted data plane."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

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

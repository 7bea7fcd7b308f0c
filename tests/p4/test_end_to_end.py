"""Unmodified hosts reduce through the compiled program: behind a UDP socket, and programmed over P4Runtime."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.options import SwitchAddress
from fanin.switch.data_plane import DataPlane
from fanin.switch.p4runtime.links import DeviceAddress
from fanin.switch.p4runtime.opening import Artefacts, Surroundings, endpoint, open_device, open_remote
from tests.control.processes import a_switch, join_all, options, reduce_together, until
from tests.control.services import a_service, address_of

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]
GIVEN = options("native-udp")
LIVENESS_S = 5.0


def test_hosts_reduce_through_the_compiled_program() -> None:
    with a_switch("native-udp", "--target", "p4") as switch:
        sessions = join_all(SwitchAddress("udp", "127.0.0.1", switch.port), "job", 2, GIVEN)
        for _ in range(3):
            reduce_together(sessions)
        for session in sessions:
            session.close()


def test_a_controller_programs_a_device_and_its_successor_takes_over() -> None:
    device = open_device(Artefacts.read(None, None), ("127.0.0.1", 0), ("127.0.0.1", 0), None)
    with contextlib.closing(device):
        target = f"127.0.0.1:{device.p4runtime_port}"
        surroundings = Surroundings(end=endpoint(f"127.0.0.1:{device.data_port}", None))

        def data(host: str, port: int) -> DataPlane:
            return open_remote(DeviceAddress(target=target), None, surroundings, LIVENESS_S)

        with a_service(schemes=("udp",), data=data) as first:
            sessions = join_all(address_of(first), "job", 2, GIVEN)
            reduce_together(sessions)
        reduce_together(sessions)  # with no controller at all
        with a_service(schemes=("udp",), data=data) as second:
            assert second.controller.live_jobs == 1
            reduce_together(sessions)
            others = join_all(address_of(second), "job", 2, GIVEN)
            reduce_together(others)
            reduce_together(sessions)
            for session in (*sessions, *others):
                session.close()
            until(lambda: second.controller.live_jobs == 0)

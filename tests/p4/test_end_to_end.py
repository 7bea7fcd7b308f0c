"""Unmodified hosts reduce through the compiled program: behind a UDP socket, and programmed over P4Runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
import pytest

from tests.support.thorough import thorough

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.errors import AdmissionError, SwitchLostError
from fanin.host.session.control import ask
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Rounds, SwitchAddress
from fanin.protocol import control
from fanin.protocol.job import SUSPICION_TIMEOUT_S
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.p4runtime.controller.links import DeviceAddress
from fanin.switch.p4runtime.opening import (
    BUILD,
    MAX_DEVICE_WORDS,
    Artefacts,
    DeviceNetwork,
    endpoint,
    open_device,
    open_remote,
)
from fanin.switch.service.service import ServiceOptions, SwitchService
from tests.support.builders import reduction
from tests.support.processes import DEADLINE_S, a_switch, in_thread, join_all, options, reduce_together, reduced, until
from tests.support.services import OPERATOR, a_service, address_of

pytestmark = pytest.mark.processes
GIVEN = options("native-udp")
LIVENESS_S = 5.0


def test_hosts_reduce_through_the_compiled_program() -> None:
    with a_switch("native-udp", "--target", "p4") as switch:
        sessions = join_all(SwitchAddress("udp", "127.0.0.1", switch.port), "job", 2, GIVEN)
        for _ in range(3):
            reduce_together(sessions)
        for session in sessions:
            session.close()


@contextlib.contextmanager
def device_and_controller(artefacts: Artefacts | None = None) -> Iterator[SwitchAddress]:
    """The emulator that serves P4Runtime, and a controller that programs it; the controller's address."""
    loaded = artefacts or Artefacts.read(None, None)
    with contextlib.closing(open_device(loaded, ("127.0.0.1", 0), ("127.0.0.1", 0), None)) as device:
        network = DeviceNetwork(end=endpoint(f"127.0.0.1:{device.data_port}", None))

        def data(host: str, port: int) -> DataPlane:
            where = DeviceAddress(target=f"127.0.0.1:{device.p4runtime_port}")
            return open_remote(where, None, network, LIVENESS_S)

        with a_service(schemes=("udp",), data=data) as service:
            yield address_of(service)


def test_a_controller_programs_a_device_and_its_successor_takes_over() -> None:
    device = open_device(Artefacts.read(None, None), ("127.0.0.1", 0), ("127.0.0.1", 0), None)
    with contextlib.closing(device):
        target = f"127.0.0.1:{device.p4runtime_port}"
        network = DeviceNetwork(end=endpoint(f"127.0.0.1:{device.data_port}", None))

        def data(host: str, port: int) -> DataPlane:
            return open_remote(DeviceAddress(target=target), None, network, LIVENESS_S)

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


def test_a_controller_whose_device_is_gone_ends_with_what_to_do() -> None:
    with contextlib.ExitStack() as life:
        opened = open_device(Artefacts.read(None, None), ("127.0.0.1", 0), ("127.0.0.1", 0), None)
        device = life.enter_context(contextlib.closing(opened))
        network = DeviceNetwork(end=endpoint(f"127.0.0.1:{device.data_port}", None))
        where = DeviceAddress(target=f"127.0.0.1:{device.p4runtime_port}")
        with contextlib.closing(open_remote(where, None, network, LIVENESS_S).server) as controlled:
            life.close()
            with pytest.raises(SwitchLostError, match=r"is gone.*Remedy"):
                controlled.next_event(4 * LIVENESS_S)


def test_ranks_are_told_by_a_controller_that_its_device_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.host.session.line.DEVICE_TIMEOUT_S", SUSPICION_TIMEOUT_S)
    with contextlib.ExitStack() as life:
        device = life.enter_context(
            contextlib.closing(open_device(Artefacts.read(None, None), ("127.0.0.1", 0), ("127.0.0.1", 0), None))
        )
        network = DeviceNetwork(end=endpoint(f"127.0.0.1:{device.data_port}", None))
        where = DeviceAddress(target=f"127.0.0.1:{device.p4runtime_port}")
        given = ServiceOptions(
            host="127.0.0.1", port=0, memory_bytes=1 << 26, schemes=("udp",), liveness_timeout_s=2 * DEADLINE_S,
            data=lambda _, __: open_remote(where, None, network, 2 * DEADLINE_S),
        )  # fmt: skip
        with contextlib.closing(SwitchService(given)) as service:
            serving = in_thread(service.run)
            sessions = join_all(address_of(service), "job", 2, GIVEN)
            reduce_together(sessions)
            waiting = in_thread(partial(Session.join, JoinTerms(
                options=GIVEN, switch=address_of(service), job_name="forming", rank=0, size=2,
            )))  # fmt: skip
            until(lambda: service.controller.live_jobs == 2)
            device.close()
            assert isinstance(serving.exception(DEADLINE_S), SwitchLostError)
        refused = waiting.exception(DEADLINE_S)
        assert isinstance(refused, AdmissionError), refused
        assert refused.code == control.Refusal.DEVICE_GONE.value
        until(lambda: all(session.failure is not None for session in sessions))
        for session in sessions:
            assert isinstance(session.failure, SwitchLostError)
            assert "P4Runtime connection to the device has ended" in str(session.failure)
            session.close()


@pytest.mark.parametrize(
    ("root", "leaf"),
    [
        thorough("native", "p4"),
        ("p4", "native"),
        thorough("p4", "p4"),
    ],
)
def test_a_tree_gives_every_rank_the_bits_that_one_switch_gives(root: str, leaf: str) -> None:
    given = options("native-udp", words_per_packet=64)
    target = {"native": (), "p4": ("--target", "p4")}
    with contextlib.ExitStack() as stack:
        top = stack.enter_context(a_switch("native-udp", *target[root]))
        below = (*target[leaf], "--parent", f"udp://127.0.0.1:{top.port}")
        one, other = (stack.enter_context(a_switch("native-udp", *below)) for _ in range(2))
        tree = reduced([one.address, other.address, other.address, one.address], "tree", given, lanes=32)
    with a_switch("native-udp") as alone:
        flat = reduced([alone.address] * 4, "flat", given, lanes=32)
    assert len({*tree, *flat}) == 1


def add_up(sessions: list[Session]) -> None:
    """A sum of integers, which a job with staleness takes as well; everybody's is in it."""
    values = [np.arange(500, dtype=np.int32) * (1 + session.rank) for session in sessions]
    tickets = []
    for session, array in zip(sessions, values, strict=True):
        tickets.append(session.submit(reduction(array)))
    for session, ticket, array in zip(sessions, tickets, values, strict=True):
        session.wait(ticket, DEADLINE_S)
        assert (array == 3 * np.arange(500)).all()


def test_quorum_and_staleness_of_a_running_job_change_through_the_controller() -> None:
    rounds = Rounds(quorum=2, staleness=0, max_staleness=2)
    with device_and_controller() as address:
        terms = [
            JoinTerms(options=GIVEN, switch=address, job_name="j", rank=rank, size=2, rounds=rounds)
            for rank in range(2)
        ]
        joining = [in_thread(partial(Session.join, each)) for each in terms]
        sessions = [cast("Session", future.result(DEADLINE_S)) for future in joining]
        add_up(sessions)
        for quorum, staleness in ((1, 2), (1, 0), (2, 1)):
            assert sessions[0].tune(quorum=quorum, staleness=staleness) == Rounds(
                quorum=quorum, staleness=staleness, max_staleness=2
            )
            assert sessions[1].tune().staleness == staleness
        with pytest.raises(AdmissionError, match="max_staleness"):
            sessions[0].tune(staleness=3)
        sessions[0].tune(quorum=2, staleness=0)
        add_up(sessions)
        for session in sessions:
            session.close()


def test_a_controller_takes_as_many_words_as_the_program_parses_and_a_device_may_add_to_a_pass() -> None:
    programs = {"v1model-64": 64, "v1model-256": MAX_DEVICE_WORDS, "tna-model": 8, "tna-model-synchronous": 8}
    for name, words in programs.items():
        files = (BUILD / f"{name}.json.gz", BUILD / f"{name}.p4info.txtpb")
        with device_and_controller(Artefacts.read(*files)) as address:
            sessions = join_all(address, "job", 2, GIVEN)
            (job,) = ask(address, control.Ask(), timeout_s=DEADLINE_S, credentials=OPERATOR).jobs  # type: ignore[union-attr]
            assert job.words_per_packet == words
            reduce_together(sessions)
            (job,) = ask(address, control.Ask(), timeout_s=DEADLINE_S, credentials=OPERATOR).jobs  # type: ignore[union-attr]
            assert job.counters["rounds"] > 0
            if name.startswith("v1model"):  # a Tofino's program does not count what leaves
                assert job.counters["packets_out"] >= 2 * job.counters["rounds"]
            for session in sessions:
                session.close()

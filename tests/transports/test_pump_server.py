"""Promises of a server (switch/server/server.py): flows act as one, and the controller's verbs reach the workers."""

from __future__ import annotations

import select

import numpy as np
import pytest

from fanin.errors import AdmissionError
from fanin.host.transports import MemoryTransport
from fanin.protocol.events import PacketRefused, Ready, WorkerJoined, WorkerLeft, WorkerSilent
from fanin.protocol.wire import Reason
from fanin.switch.server.pump_server import PumpServer
from fanin.transports.transport import SWITCH
from tests.support.builders import reduction
from tests.support.engines import DEADLINE_S, MEMORY_BYTES, cluster, make_spec
from tests.transports.scripted import ScriptedSwitch

BRIEF_S = 0.5
"""A liveness timeout that a test has to sit out."""

native_or_twin = pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])


def _server(*machines: ScriptedSwitch) -> tuple[PumpServer, list[MemoryTransport]]:
    transports = [MemoryTransport() for _ in machines]
    return PumpServer(list(zip(machines, transports, strict=True)), description="scripted"), transports


@native_or_twin
def test_a_worker_joins_and_leaves_once_however_many_flows_there_are(native: bool) -> None:
    with cluster("udp", make_spec(1), native=native, flows=3) as running:
        assert len(set(running.server.ports)) == 3
        assert running.engines[0].next_event(DEADLINE_S) == Ready()
        assert running.engines[0].leave(DEADLINE_S)
        assert running.server.next_event(DEADLINE_S) == WorkerJoined(5, 0)
        assert running.server.next_event(DEADLINE_S) == WorkerLeft(5, 0)
        assert running.server.next_event(0.0) is None


@native_or_twin
def test_a_silent_worker_is_reported_once(native: bool) -> None:
    with cluster("udp", make_spec(1, liveness_timeout_s=BRIEF_S), native=native, flows=2) as running:
        assert running.server.next_event(DEADLINE_S) == WorkerJoined(5, 0)
        running.engines[0].close()
        assert isinstance(running.server.next_event(DEADLINE_S), WorkerSilent)
        assert running.server.next_event(0.3) is None


@native_or_twin
@pytest.mark.parametrize(("verb", "staleness"), [("evict", 0), ("set_quorum", 1)])
def test_rounds_close_without_a_worker_that_the_controller_does_without(
    native: bool, verb: str, staleness: int
) -> None:
    with cluster("memory", make_spec(2, staleness=staleness), native=native, flows=2) as running:
        source, result = np.ones(100, np.int32), np.zeros(100, np.int32)
        ticket = running.engines[0].submit(reduction(source, result))
        assert not running.engines[0].wait(ticket, 0.01)
        getattr(running.server, verb)(5, 1)
        assert running.engines[0].wait(ticket, DEADLINE_S)
        np.testing.assert_array_equal(result, 1)


@native_or_twin
def test_a_job_that_is_removed_is_unknown_to_its_workers(native: bool) -> None:
    with cluster("udp", make_spec(1), native=native) as running:
        assert running.engines[0].next_event(DEADLINE_S) == Ready()
        running.server.remove(5)
        assert running.engines[0].next_event(DEADLINE_S) == PacketRefused(Reason.UNKNOWN_JOB)
        with pytest.raises(KeyError):
            running.server.members(5)
        running.server.admit(running.spec)


@native_or_twin
def test_memory_is_shared_by_the_flows_and_a_job_that_does_not_fit_is_refused(native: bool) -> None:
    with cluster("udp", make_spec(1), native=native, flows=2) as running:
        large = make_spec(1, job=6, slots=MEMORY_BYTES // 2 // make_spec(1, slots=1).pool_bytes)
        with pytest.raises(AdmissionError, match="memory"):
            running.server.admit(large)


@native_or_twin
def test_counters_are_kept_per_job_and_in_all(native: bool) -> None:
    with cluster("memory", make_spec(2), native=native, flows=2) as running:
        running.all_reduce([np.ones(64 * 4, np.float32)] * 2)
        counted = running.server.job_counters(5)
        assert counted["rounds"] == 8, "four chunks: a code-only item and a word item each"
        assert counted["contributions"] == 16
        assert running.server.counters()["rounds"] == 8


def test_a_job_is_admitted_on_every_flow_or_on_none() -> None:
    machines = ScriptedSwitch(), ScriptedSwitch(full=True)
    server, _ = _server(*machines)
    with pytest.raises(MemoryError):
        server.admit(make_spec(1))
    assert machines[0].admitted == []
    server.close()


def test_a_worker_is_registered_when_all_flows_say_so_and_gone_when_one_does() -> None:
    machines = ScriptedSwitch(), ScriptedSwitch()
    machines[0].masks = (0b111, 0b001, 0b000)
    machines[1].masks = (0b011, 0b000, 0b010)
    server, _ = _server(*machines)
    assert server.members(5) == (0b011, 0b001, 0b010)
    server.close()


def test_a_job_index_used_again_has_its_events_reported_again() -> None:
    machine = ScriptedSwitch()
    server, [transport] = _server(machine)
    for _ in range(2):
        server.admit(make_spec(1))
        machine.events.append(WorkerJoined(5, 0))
        transport.wake()
        assert server.next_event(DEADLINE_S) == WorkerJoined(5, 0)
        server.remove(5)
    server.close()


def test_what_was_reported_of_a_worker_is_not_taken_for_news_of_who_follows_it() -> None:
    machine = ScriptedSwitch()
    server, [transport] = _server(machine)
    machine.events.extend([WorkerSilent(5, 0, 1.0), WorkerLeft(5, 1)])
    transport.wake()
    assert select.select([server.event_fileno], [], [], DEADLINE_S)[0]
    server.admit_worker(5, 0, 600)
    assert server.next_event(DEADLINE_S) == WorkerLeft(5, 1)
    assert select.select([server.event_fileno], [], [], 0)[0] == []
    machine.events.append(WorkerJoined(5, 0))
    transport.wake()
    assert server.next_event(DEADLINE_S) == WorkerJoined(5, 0)
    server.close()


def test_a_crash_of_a_flow_is_raised_and_not_lived_with() -> None:
    machine = ScriptedSwitch()
    machine.broken = True
    server, [transport] = _server(machine)
    worker = MemoryTransport()
    transport.connect(worker)
    worker.send([(b"anything", SWITCH)])
    with pytest.raises(RuntimeError, match="a bug"):
        server.next_event(DEADLINE_S)
    server.close()


@native_or_twin
def test_over_a_connection_a_worker_that_says_nothing_lives_as_long_as_it_is_open(native: bool) -> None:
    with cluster("zmq", make_spec(1, liveness_timeout_s=BRIEF_S), native=native) as running:
        (engine,) = running.engines
        assert running.server.next_event(DEADLINE_S) == WorkerJoined(5, 0)
        with engine._pumps[0].lock:  # as if another thread held the interpreter
            assert running.server.next_event(4 * BRIEF_S) is None
        tensor = np.ones(100, np.float32)
        np.testing.assert_array_equal(running.all_reduce([tensor])[0], tensor)
        engine.close()
        assert isinstance(running.server.next_event(DEADLINE_S), WorkerSilent)

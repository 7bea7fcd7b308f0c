"""Promises of an engine (host/engines/engine.py): no call hangs, failures are told once, then nothing is touched."""

from __future__ import annotations

import dataclasses
import re
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.engines.engine import SwitchEndpoint, make_engine
from fanin.host.engines.pump_engine import PumpEngine
from fanin.host.transports import MemoryTransport
from fanin.numerics.reduction import EXACT, Element, Reduction, sum_in_place
from fanin.options import Options
from fanin.protocol.events import (
    Departed,
    EngineStopped,
    MembersChanged,
    PacketRefused,
    Ready,
    ReductionDone,
    RoundHeard,
    SwitchSilent,
    WorkersGone,
)
from fanin.protocol.wire import Reason
from fanin.switch.transports.udp import UdpServerTransport
from fanin.transports.transport import Datagram
from tests.support.builders import reduction
from tests.support.engines import DEADLINE_S, Scheme, cluster, make_spec
from tests.transports.scripted import ScriptedWorker

BRIEF_S = 1.0
"""A liveness or connect timeout that a test has to sit out, and in which the living are heard on a busy machine."""
NOTHING = Reduction(source=0, destination=0, count=0, element=Element.FLOAT32)

native_or_twin = pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])
every_loop = pytest.mark.parametrize(
    ("scheme", "native"), [("memory", False), ("memory", True), ("udp", True)], ids=["twin", "native", "native-loop"]
)


def _ones(count: int = 100) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(count, np.float32), np.zeros(count, np.float32)


class Scripted:
    """An engine over scripted machines."""

    def __init__(self, flows: int = 1) -> None:
        self.machines = [ScriptedWorker() for _ in range(flows)]
        self.transports = [MemoryTransport() for _ in range(flows)]
        self.switch = MemoryTransport()
        for transport in self.transports:
            self.switch.connect(transport)
        self.engine = PumpEngine(list(zip(self.machines, self.transports, strict=True)), description="scripted")

    def report(self, flow: int, event: object) -> None:
        """Let a flow's machine report something."""
        self.machines[flow].events.append(event)  # type: ignore[arg-type]
        self.transports[flow].wake()


# --- over real machines ---


@native_or_twin
def test_wait_gives_up_after_its_timeout_and_the_reduction_goes_on(native: bool) -> None:
    with cluster("memory", make_spec(2), native=native) as running:
        pairs = [_ones(), _ones()]
        first = running.engines[0].submit(reduction(*pairs[0]))
        assert not running.engines[0].wait(first, 0.01)
        assert not running.engines[0].done(first)
        second = running.engines[1].submit(reduction(*pairs[1]))
        for engine, ticket in zip(running.engines, (first, second), strict=True):
            assert engine.wait(ticket, DEADLINE_S)
            assert engine.done(ticket)
        assert not running.engines[0].failed
        np.testing.assert_array_equal(pairs[0][1], 2.0)


@native_or_twin
@pytest.mark.parametrize("scheme", ["udp", "zmq"])
def test_a_switch_that_vanishes_fails_the_engine(scheme: Scheme, native: bool) -> None:
    spec = make_spec(2, liveness_timeout_s=BRIEF_S)
    with cluster(scheme, spec, native=native) as running:
        running.all_reduce([_ones()[0]] * 2)
        running.server.close()
        engine = running.engines[0]
        ticket = engine.submit(reduction(*_ones()))
        assert not engine.wait(ticket, DEADLINE_S)
        assert engine.failed
        assert engine.next_event(0.0) == Ready()
        assert isinstance(engine.next_event(0.0), SwitchSilent)
        assert engine.next_event(0.0) is None, "a failure is told once"
        if scheme == "udp":
            assert re.search("no(body|thing) listens", engine.trouble)


@native_or_twin
def test_a_worker_that_dies_fails_the_others_by_name(native: bool) -> None:
    spec = make_spec(3, liveness_timeout_s=BRIEF_S)
    with cluster("udp", spec, native=native, flows=2) as running:
        running.all_reduce([_ones()[0]] * 3)
        running.engines[1].close()
        for engine in (running.engines[0], running.engines[2]):
            ticket = engine.submit(reduction(*_ones()))
            assert not engine.wait(ticket, DEADLINE_S)
            assert engine.next_event(0.0) == Ready()
            assert engine.next_event(0.0) == WorkersGone(lost=0b010, left=0)


@native_or_twin
def test_a_switch_that_never_answers_fails_the_engine_within_the_connect_timeout(native: bool) -> None:
    spec = make_spec(1)
    silent = UdpServerTransport("127.0.0.1", 0)
    options = Options(native=native, connect_timeout_s=BRIEF_S)
    engine = make_engine(options, spec, 0, spec.tokens[0], SwitchEndpoint("udp", "127.0.0.1", (silent.port,)))
    assert isinstance(engine.next_event(DEADLINE_S), SwitchSilent)
    engine.close()
    silent.close()


@native_or_twin
def test_a_wrong_token_is_refused(native: bool) -> None:
    with cluster("udp", make_spec(1), native=native) as running:
        endpoint = SwitchEndpoint("udp", "127.0.0.1", running.server.ports)
        impostor = make_engine(Options(native=native), running.spec, 0, 1, endpoint)
        assert impostor.next_event(DEADLINE_S) == PacketRefused(Reason.TOKEN)
        impostor.close()


@native_or_twin
@pytest.mark.parametrize("flows", [1, 3])
def test_leaving_is_confirmed_on_every_flow(native: bool, flows: int) -> None:
    with cluster("udp", make_spec(2), native=native, flows=flows) as running:
        running.all_reduce([_ones()[0]] * 2)
        assert running.engines[0].leave(DEADLINE_S)
        assert running.engines[0].next_event(0.0) == Ready()
        assert running.engines[0].next_event(0.0) == Departed(confirmed=True)
        assert running.server.members(running.spec.job) == (0b11, 0, 0b01)


@native_or_twin
def test_leaving_a_switch_that_is_gone_ends_unconfirmed(native: bool) -> None:
    with cluster("udp", make_spec(1), native=native) as running:
        running.all_reduce([_ones()[0]])
        running.server.close()
        assert not running.engines[0].leave(DEADLINE_S)


@native_or_twin
def test_what_a_machine_refuses_takes_no_ticket(native: bool) -> None:
    spec = make_spec(8)
    with cluster("memory", spec, native=native, flows=2) as running:
        engine = running.engines[0]
        source, result = _ones()
        too_narrow = reduction(source, result, count=8, lanes=4)
        with pytest.raises(ConfigurationError):
            engine.submit(too_narrow)
        assert engine.submit(reduction(source, result)) == 1


@every_loop
def test_a_sum_in_place_is_done_when_the_call_returns(scheme: Scheme, native: bool) -> None:
    with cluster(scheme, make_spec(2), native=native) as running:
        arrays = [np.full(3_000, rank + 1, np.int32) for rank in range(2)]
        here, there = running.engines
        other = there.submit(reduction(arrays[1], tag=9))
        packed = sum_in_place(arrays[0].ctypes.data, 3_000, Element.INT32, 32, 9)
        assert here.submit_and_wait(packed, DEADLINE_S, arrays[0]) == 0
        np.testing.assert_array_equal(arrays[0], 3)
        assert there.wait(other, DEADLINE_S)


@every_loop
@pytest.mark.parametrize("lanes", [32, EXACT])
def test_a_mean_in_place_is_divided(scheme: Scheme, native: bool, lanes: int) -> None:
    with cluster(scheme, make_spec(2), native=native) as running:
        here, there = running.engines
        arrays = [np.full(40, 2.0 * rank + 1, np.float32) for rank in range(2)]
        packed = [sum_in_place(each.ctypes.data, 40, Element.FLOAT32, lanes, 9, divisor=2.0) for each in arrays]
        other = there.submit(Reduction.of(packed[1], arrays[1]))
        assert here.submit_and_wait(packed[0], DEADLINE_S, arrays[0]) == 0
        np.testing.assert_array_equal(arrays[0], 2.0)
        assert there.wait(other, DEADLINE_S)


@every_loop
def test_a_sum_in_place_gives_up_after_its_timeout_and_goes_on(scheme: Scheme, native: bool) -> None:
    released = threading.Event()
    with cluster(scheme, make_spec(2), native=native) as running:
        pairs = [_ones(), _ones()]
        here, there = running.engines
        ticket = here.submit_and_wait(
            sum_in_place(pairs[0][0].ctypes.data, 100, Element.FLOAT32, 32, 0), 0.01, Owner(released)
        )
        assert ticket == 1
        assert not here.done(ticket)
        assert not released.is_set()
        there.submit(reduction(*pairs[1]))
        assert here.wait(ticket, DEADLINE_S)
        assert released.wait(DEADLINE_S)
        np.testing.assert_array_equal(pairs[0][0], 2.0)


@every_loop
def test_a_sum_in_place_that_is_refused_takes_no_ticket(scheme: Scheme, native: bool) -> None:
    with cluster(scheme, make_spec(8), native=native) as running:
        source, result = _ones()
        with pytest.raises(ConfigurationError):
            running.engines[0].submit_and_wait(sum_in_place(source.ctypes.data, 8, Element.FLOAT32, 4, 0), 0.0, source)
        with pytest.raises(ConfigurationError, match="address 0"):
            running.engines[0].submit_and_wait(sum_in_place(0, 8, Element.FLOAT32, 32, 0), 0.0, source)
        assert running.engines[0].submit(reduction(source, result)) == 1


class Owner:
    """Tells of its end."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def __del__(self) -> None:
        self._released.set()


@native_or_twin
def test_the_memory_is_kept_alive_until_the_reduction_is_done(native: bool) -> None:
    released = threading.Event()
    with cluster("memory", make_spec(2), native=native) as running:
        pairs = [_ones(), _ones()]
        engine = running.engines[0]
        ticket = engine.submit(reduction(*pairs[0], owner=Owner(released)))
        assert not engine.wait(ticket, 0.01)
        assert not released.is_set()
        running.engines[1].submit(reduction(*pairs[1]))
        assert engine.wait(ticket, DEADLINE_S)
        assert released.wait(DEADLINE_S)


@native_or_twin
@pytest.mark.parametrize("scheme", ["udp", "memory"])
def test_a_round_is_heard_of_only_when_it_is_over_in_every_flow(scheme: Scheme, native: bool) -> None:
    """Two rounds of the first flow alone, then one of both: of these, round 0 alone is over everywhere."""
    spec = make_spec(2, quorum=1, staleness=3, slots=1, words_per_packet=8)
    with cluster(scheme, spec, native=native, flows=2) as running:
        ahead, behind = running.engines
        behind.subscribe()
        assert behind.next_event(DEADLINE_S) == Ready()
        for chunks in (1, 1, 2):
            assert ahead.wait(ahead.submit(_numbers(chunks)), DEADLINE_S)
        assert behind.next_event(DEADLINE_S) == RoundHeard(0)
        assert behind.leave(DEADLINE_S)
        assert behind.next_event(DEADLINE_S) == Departed(confirmed=True), "nothing else was heard of before"


def _numbers(chunks: int) -> Reduction:
    """Packets of eight words, and a signature: whoever is late meets rounds that others have opened."""
    ones, sums = np.ones(8 * chunks, np.int32), np.zeros(8 * chunks, np.int32)
    return dataclasses.replace(reduction(ones, sums), signature=9)


# --- over scripted ones ---


def test_done_is_reported_as_an_event_only_to_a_subscriber() -> None:
    scripted = Scripted()
    engine = scripted.engine
    assert engine.submit(NOTHING) == 1
    scripted.report(0, ReductionDone(1))
    assert engine.wait(1, DEADLINE_S)
    engine.subscribe()
    assert engine.submit(NOTHING) == 2
    scripted.report(0, ReductionDone(2))
    assert engine.next_event(DEADLINE_S) == ReductionDone(2)
    engine.close()


def test_a_ticket_is_done_and_an_engine_ready_when_every_flow_is() -> None:
    scripted = Scripted(flows=2)
    engine = scripted.engine
    ticket = engine.submit(NOTHING)
    scripted.report(0, Ready())
    scripted.report(0, ReductionDone(ticket))
    assert engine.next_event(0.01) is None
    assert not engine.wait(ticket, 0.01)
    scripted.report(1, Ready())
    scripted.report(1, ReductionDone(ticket))
    assert engine.next_event(DEADLINE_S) == Ready()
    assert engine.wait(ticket, DEADLINE_S)
    engine.close()


def test_after_one_flow_fails_no_machine_takes_in_anything() -> None:
    scripted = Scripted(flows=2)
    failure = WorkersGone(lost=1, left=0)
    scripted.report(0, failure)
    assert scripted.engine.next_event(DEADLINE_S) == failure
    scripted.switch.send([(b"late result", 0), (b"late result", 1)])
    scripted.report(1, SwitchSilent(1.0))
    scripted.engine.close()
    assert [machine.received for machine in scripted.machines] == [[], []]
    assert scripted.engine.next_event(0.0) is None, "only the first failure is told"


def test_a_round_is_reported_when_the_last_flow_has_told_of_it() -> None:
    scripted = Scripted(flows=2)
    scripted.engine.subscribe()
    scripted.report(0, RoundHeard(4))
    scripted.report(1, RoundHeard(1))
    assert scripted.engine.next_event(DEADLINE_S) == RoundHeard(1)
    scripted.report(1, RoundHeard(6))
    assert scripted.engine.next_event(DEADLINE_S) == RoundHeard(4)
    scripted.engine.close()


def test_a_loss_that_flows_see_before_and_after_a_newcomer_is_told_as_one() -> None:
    scripted = Scripted(flows=2)
    scripted.report(0, MembersChanged(1, 0b011, gone=0b100, come=0, base=0))
    assert scripted.engine.next_event(DEADLINE_S) == MembersChanged(1, 0b011, gone=0b100, come=0, base=0)
    scripted.report(0, MembersChanged(2, 0b111, gone=0, come=0b100, base=0))
    assert scripted.engine.next_event(DEADLINE_S) == MembersChanged(2, 0b111, gone=0, come=0b100, base=0)
    scripted.report(1, MembersChanged(2, 0b001, gone=0b010, come=0, base=0))
    scripted.report(1, MembersChanged(3, 0b101, gone=0, come=0b100, base=1))
    assert scripted.engine.next_event(DEADLINE_S) == MembersChanged(3, 0b101, gone=0b010, come=0, base=1)
    scripted.engine.close()


def test_submitting_that_is_interrupted_when_a_machine_has_it_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(given: Reduction) -> int:
        raise KeyboardInterrupt

    scripted = Scripted(flows=2)
    monkeypatch.setattr(scripted.machines[1], "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scripted.engine.submit(NOTHING)
    assert scripted.machines[0].submitted == 1
    assert scripted.engine.failed, "or it would write to memory that nobody keeps"
    assert isinstance(scripted.engine.next_event(0.0), EngineStopped)
    scripted.engine.close()


def test_after_a_failure_submitting_gives_a_ticket_that_is_never_done() -> None:
    scripted = Scripted()
    scripted.report(0, PacketRefused(Reason.EVICTED))
    assert scripted.engine.next_event(DEADLINE_S) == PacketRefused(Reason.EVICTED)
    ticket = scripted.engine.submit(NOTHING)
    assert not scripted.engine.wait(ticket, DEADLINE_S), "a failure ends waiting at once"
    assert not scripted.engine.leave(DEADLINE_S)
    assert scripted.machines[0].submitted == 0
    scripted.engine.close()


@pytest.mark.parametrize("ticket", [0, 1, -1])
def test_a_ticket_that_was_never_given_out_is_a_value_error(ticket: int) -> None:
    scripted = Scripted()
    with pytest.raises(ValueError, match="never given out"):
        scripted.engine.wait(ticket, 0.0)
    with pytest.raises(ValueError, match="never given out"):
        scripted.engine.done(ticket)
    scripted.engine.close()


def _in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_closing_releases_whoever_waits() -> None:
    scripted = Scripted()
    ticket = scripted.engine.submit(NOTHING)
    thread, results = _in_thread(lambda: scripted.engine.wait(ticket, DEADLINE_S))
    scripted.engine.close()
    thread.join(DEADLINE_S / 2)
    assert results == [False]
    scripted.engine.close()


def test_counters_are_sums_over_flows_and_the_round_trip_is_the_slowest() -> None:
    scripted = Scripted(flows=2)
    scripted.machines[0].received = [b""] * 3
    scripted.machines[1].received = [b""] * 2
    assert scripted.engine.counters() == {"packets_in": 5, "srtt_us": 30}
    scripted.engine.close()


def test_a_crash_in_the_loop_fails_the_engine_with_its_text() -> None:
    class Broken(MemoryTransport):
        def receive(self, timeout_s: float) -> list[Datagram]:
            raise ZeroDivisionError("a bug")

    engine = PumpEngine([(ScriptedWorker(), Broken())], description="broken")
    event = engine.next_event(DEADLINE_S)
    assert isinstance(event, EngineStopped)
    assert "a bug" in event.text
    assert engine.failed
    engine.close()


# --- the choice ---


@pytest.mark.parametrize(
    ("scheme", "native", "description"),
    [
        ("udp", True, "native machine, native loop over udp"),
        ("udp", False, "Python twin, Python loop over udp"),
        ("zmq", True, "native machine, Python loop over zmq"),
        ("zmq", False, "Python twin, Python loop over zmq"),
    ],
)
def test_the_description_says_what_runs(scheme: Scheme, native: bool, description: str) -> None:
    with cluster(scheme, make_spec(1), native=native) as running:
        assert running.engines[0].description == description
        assert running.server.description == description


def test_without_the_extension_native_is_refused_and_otherwise_the_twin_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fanin._native", None)
    monkeypatch.delattr("fanin._native", raising=False)
    spec = make_spec(1)
    switch = UdpServerTransport("127.0.0.1", 0)
    endpoint = SwitchEndpoint("udp", "127.0.0.1", (switch.port,))
    with pytest.raises(ConfigurationError, match="build it with"):
        make_engine(Options(native=True), spec, 0, spec.tokens[0], endpoint)
    engine = make_engine(Options(), spec, 0, spec.tokens[0], endpoint)
    assert "Python twin" in engine.description
    engine.close()
    switch.close()

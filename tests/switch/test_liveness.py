"""Silence: when a worker counts as lost, who is told, and what counts as a sign of life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fanin.protocol.events import WorkerSilent
from fanin.protocol.job import SUSPICION_SETTLES_S, SUSPICION_TIMEOUT_S
from fanin.protocol.wire import Flag, Kind, Reason
from tests.support.bench import Bench, MachineType, address, first_loss, make_spec, reasons


def fire(bench: Bench, now: float) -> list[tuple[Reason, int]]:
    bench.now = now
    bench.machine.handle_timer(now)
    return reasons(bench.sent())


def test_nobody_registered_is_nobody_to_watch(machine_type: MachineType) -> None:
    bench = Bench(machine_type, registered=False)
    assert bench.machine.next_timer() is None
    assert fire(bench, 1000.0) == []


def test_the_timer_runs_from_the_oldest_sign_of_life(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.now = 2.0
    bench.gives(0, 0)
    bench.now = 3.0
    bench.say(bench.hello(1, padded=False), address(1))
    assert first_loss(bench) == 7.0, "worker 0"
    assert first_loss(bench) == 8.0, "worker 1"


# R-MEMBER-6
def test_a_silent_worker_is_an_event_and_everybody_is_told(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.now = 4.0
    bench.gives(0, 0)
    bench.gives(2, 0)
    bench.now = 4.9
    bench.machine.handle_timer(4.9)
    assert bench.sent() == []
    assert bench.machine.next_event() is None
    bench.now = 5.0
    bench.machine.handle_timer(5.0)
    sent = bench.sent()
    assert reasons(sent) == [(Reason.WORKER_LOST, address(worker)) for worker in range(3)]
    assert sent[0][0].words.tolist() == [0b010, 0]
    assert bench.machine.next_event() == WorkerSilent(1, 1, 5.0)
    assert bench.machine.members(1) == (0b111, 0b010, 0)
    assert fire(bench, 8.9) == [], "once is enough"
    assert first_loss(bench) == 9.0


def test_several_that_fall_silent_at_once_are_one_notice(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.now = 1.0
    bench.gives(2, 0)
    bench.now = 5.5
    assert [packet.words.tolist() for packet, _ in bench.sent()] == [[0b011, 0]] * 3
    assert [bench.machine.next_event() for _ in range(3)] == [
        WorkerSilent(1, 0, 5.0),
        WorkerSilent(1, 1, 5.0),
        None,
    ]


# R-MEMBER-6
def test_a_lost_worker_is_not_evicted_and_stays_lost(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.now = 4.0
    bench.gives(0, 0, (1,))
    bench.now = 6.0
    bench.machine.handle_timer(6.0)
    bench.sent()
    ((welcome, _),) = bench.say(bench.hello(1), address(1))
    assert welcome.words[:2].tolist() == [0b10, 0]
    assert bench.machine.members(1) == (0b11, 0b10, 0)
    assert [destination for _, destination in bench.gives(1, 0, (2,))] == [100, 101]


def test_those_who_left_or_were_evicted_are_not_missed(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.say(bench.bye(0), address(0))
    bench.machine.evict(1, 1, 0.0)
    bench.sent()
    bench.now = 3.0
    bench.gives(2, 0)
    assert fire(bench, 7.0) == []
    assert first_loss(bench) == 8.0


def test_evicting_a_lost_worker_takes_it_off_the_list(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.now = 1.0
    bench.gives(0, 0)
    bench.now = 5.0
    bench.machine.handle_timer(5.0)
    bench.machine.evict(1, 1, 5.0)
    bench.sent()
    assert bench.machine.members(1) == (0b01, 0, 0)


@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.HELLO, Kind.BYE])
def test_strangers_are_no_sign_of_life(machine_type: MachineType, kind: Kind) -> None:
    bench = Bench(machine_type)
    bench.now = 3.0
    token = bench.spec.tokens[0]
    packet = bench.packet(kind, 0, words=(token >> 32, token & 0xFFFFFFFF))
    assert reasons(bench.say(packet, 7)) == [(Reason.STRANGER, 7)]
    assert first_loss(bench) == 5.0


def test_even_a_refused_contribution_is_a_sign_of_life(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=1))
    bench.now = 3.0
    bench.gives(0, 99)
    assert bench.dropped() == {"future": 1}
    bench.now = 4.0
    bench.say(bench.packet(Kind.CONTRIBUTION, 0, flags=Flag.PASS, slot=99), address(0))
    assert first_loss(bench) == 9.0


# R-MEMBER-7
def test_a_suspected_worker_that_says_nothing_is_lost_soon(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.now = 1.0
    bench.machine.suspect(1, 1, 1.0)
    lost_s = 1.0 + SUSPICION_TIMEOUT_S
    assert fire(bench, lost_s - 0.01) == []
    assert fire(bench, lost_s) == [(Reason.WORKER_LOST, address(worker)) for worker in range(2)]
    assert bench.machine.next_event() == WorkerSilent(1, 1, lost_s)


# R-MEMBER-7
def test_a_sign_of_life_withdraws_a_suspicion(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.now = 1.0
    bench.machine.suspect(1, 1, 1.0)
    bench.now = 1.0 + 2 * SUSPICION_SETTLES_S
    bench.say(bench.hello(1, padded=False), address(1))
    bench.sent()
    assert fire(bench, 4.9) == []
    assert first_loss(bench) == 5.0, "worker 0's silence is what comes next"


def test_what_was_sent_before_a_suspicion_does_not_withdraw_it(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.now = 1.0
    bench.machine.suspect(1, 1, 1.0)
    bench.now = 1.0 + SUSPICION_SETTLES_S / 2
    bench.say(bench.hello(1, padded=False), address(1))
    assert first_loss(bench) == 1.0 + SUSPICION_TIMEOUT_S


def test_a_suspicion_that_stands_is_not_put_off_by_the_next(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.now = 1.0
    bench.machine.suspect(1, 1, 1.0)
    bench.now = 1.5
    bench.machine.suspect(1, 1, 1.5)
    bench.now = 1.6
    bench.say(bench.hello(1, padded=False), address(1))
    bench.now = 2.0
    bench.machine.suspect(1, 1, 2.0)
    assert first_loss(bench) == 2.0 + SUSPICION_TIMEOUT_S


def test_a_worker_that_has_left_is_not_lost_by_a_suspicion(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.now = 1.0
    bench.say(bench.bye(1), address(1))
    bench.machine.suspect(1, 1, 1.0)
    assert first_loss(bench) == 5.0, "worker 0's silence"
    with pytest.raises(KeyError):
        bench.machine.suspect(1, 2, 1.0)


def test_a_suspicion_outlasts_a_stop_of_the_switch_itself(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.now = 1.0
    bench.machine.suspect(1, 1, 1.0)
    stop_until(bench, 61.0)
    assert bench.machine.next_event() is None
    assert 61.0 < first_loss(bench) <= 61.0 + SUSPICION_TIMEOUT_S + 1.0


def stop_until(bench: Bench, now: float) -> None:
    """SIGSTOP, and SIGCONT at `now`: the machine's next turn is then."""
    bench._now = now
    bench.machine.handle_timer(now)


# R-MEMBER-8
@pytest.mark.parametrize("stopped_s", [1.0, 4.6, 7.0, 3600.0])
def test_a_switch_that_was_stopped_takes_no_silence_of_that_time_for_a_loss(
    machine_type: MachineType, stopped_s: float
) -> None:
    bench = Bench(machine_type)
    bench.now = 4.75
    for worker in range(2):
        bench.say(bench.hello(worker, padded=False), address(worker))
    bench.now = 5.0
    stop_until(bench, 5.0 + stopped_s)
    assert bench.sent() == []
    assert bench.machine.next_event() is None
    assert bench.machine.members(1) == (0b11, 0, 0)
    assert 5.0 + stopped_s + 4.0 <= first_loss(bench) <= 5.0 + stopped_s + 4.75, "but silence afterwards is"


def test_what_waited_while_the_switch_was_stopped_is_heard(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.now = 1.0
    bench._now = 100.0
    bench.say(bench.hello(0, padded=False), address(0))
    bench.say(bench.hello(1, padded=False), address(1))
    assert first_loss(bench) == 105.0


# R-MEMBER-8
def test_who_was_silent_before_a_stop_has_heartbeats_time_after_it_once(machine_type: MachineType) -> None:
    """Workers may be stopped before their switch: a virtual machine is not frozen everywhere at once."""
    bench = Bench(machine_type)
    bench.now = 4.9
    bench.say(bench.hello(0, padded=False), address(0))
    stop_until(bench, 60.0)
    bench.now = 61.4
    assert bench.machine.next_event() is None
    stop_until(bench, 70.0)
    assert first_loss(bench) < 70.7, "worker 1 has said nothing between the stops"


def test_a_switch_that_is_stopped_again_and_again_still_notices_who_is_gone(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    awake_s = 0.0
    while bench.machine.next_event() is None:
        stop_until(bench, bench.now + 2.0)
        bench.now += 0.3
        bench.say(bench.hello(0, padded=False), address(0))
        awake_s += 0.3
        assert awake_s < 12.0
    assert bench.machine.members(1) == (0b11, 0b10, 0)


def test_a_short_liveness_timeout_notices_short_stops(machine_type: MachineType) -> None:
    bench = Bench(machine_type, replace(make_spec(), liveness_timeout_s=0.5))
    bench.now = 0.3
    for worker in range(2):
        bench.say(bench.hello(worker, padded=False), address(worker))
    stop_until(bench, 1.3)
    assert bench.machine.next_event() is None
    assert first_loss(bench) <= 1.8


def test_nobody_wakes_a_switch_that_has_nobody_to_watch(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for worker in range(2):
        bench.say(bench.bye(worker), address(worker))
    assert bench.machine.next_timer() is None

"""Silence: when a worker counts as lost, who is told, and what counts as a sign of life."""

from __future__ import annotations

import pytest

from fanin.events import WorkerSilent
from fanin.job import SUSPICION_SETTLES_S, SUSPICION_TIMEOUT_S
from fanin.wire import Flag, Kind, Reason
from tests.switch.harness import Bench, MachineType, address, make_spec, reasons


def fire(bench: Bench, now: float) -> list[tuple[Reason, int]]:
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
    assert bench.machine.next_timer() == 5.0
    bench.now = 3.0
    bench.say(bench.hello(1, padded=False), address(1))
    assert bench.machine.next_timer() == 7.0


def test_a_silent_worker_is_an_event_and_everybody_is_told(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.now = 4.0
    bench.gives(0, 0)
    bench.gives(2, 0)
    bench.machine.handle_timer(4.9)
    assert bench.sent() == []
    assert bench.machine.next_event() is None
    bench.machine.handle_timer(5.0)
    sent = bench.sent()
    assert reasons(sent) == [(Reason.WORKER_LOST, address(worker)) for worker in range(3)]
    assert sent[0][0].words.tolist() == [0b010, 0]
    assert bench.machine.next_event() == WorkerSilent(1, 1, 5.0)
    assert bench.machine.members(1) == (0b111, 0b010, 0)
    assert bench.machine.next_timer() == 9.0
    assert fire(bench, 8.9) == [], "once is enough"


def test_several_that_fall_silent_at_once_are_one_notice(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.now = 1.0
    bench.gives(2, 0)
    bench.machine.handle_timer(5.5)
    assert [packet.words.tolist() for packet, _ in bench.sent()] == [[0b011, 0]] * 3
    assert [bench.machine.next_event() for _ in range(3)] == [
        WorkerSilent(1, 0, 5.5),
        WorkerSilent(1, 1, 5.5),
        None,
    ]


def test_a_lost_worker_is_not_evicted_and_stays_lost(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.now = 4.0
    bench.gives(0, 0, (1,))
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
    assert bench.machine.next_timer() == 8.0


def test_evicting_a_lost_worker_takes_it_off_the_list(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.now = 1.0
    bench.gives(0, 0)
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
    assert bench.machine.next_timer() == 5.0


def test_even_a_refused_contribution_is_a_sign_of_life(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=1))
    bench.now = 3.0
    bench.gives(0, 99)
    assert bench.dropped() == {"future": 1}
    assert bench.machine.next_timer() == 8.0
    bench.now = 4.0
    bench.say(bench.packet(Kind.CONTRIBUTION, 0, flags=Flag.PASS, slot=99), address(0))
    assert bench.machine.next_timer() == 9.0


def test_a_suspected_worker_that_says_nothing_is_lost_soon(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.machine.suspect(1, 1, 1.0)
    lost_s = 1.0 + SUSPICION_TIMEOUT_S
    assert bench.machine.next_timer() == lost_s
    assert fire(bench, lost_s - 0.01) == []
    assert fire(bench, lost_s) == [(Reason.WORKER_LOST, address(worker)) for worker in range(2)]
    assert bench.machine.next_event() == WorkerSilent(1, 1, lost_s)


def test_a_sign_of_life_withdraws_a_suspicion(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.machine.suspect(1, 1, 1.0)
    bench.now = 1.0 + 2 * SUSPICION_SETTLES_S
    bench.say(bench.hello(1, padded=False), address(1))
    bench.sent()
    assert fire(bench, 4.9) == []
    assert bench.machine.next_timer() == 5.0, "worker 0's silence is what comes next"


def test_what_was_sent_before_a_suspicion_does_not_withdraw_it(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.machine.suspect(1, 1, 1.0)
    bench.now = 1.0 + SUSPICION_SETTLES_S / 2
    bench.say(bench.hello(1, padded=False), address(1))
    assert bench.machine.next_timer() == 1.0 + SUSPICION_TIMEOUT_S


def test_a_suspicion_that_stands_is_not_put_off_by_the_next(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.machine.suspect(1, 1, 1.0)
    bench.machine.suspect(1, 1, 1.5)
    assert bench.machine.next_timer() == 1.0 + SUSPICION_TIMEOUT_S
    bench.now = 1.6
    bench.say(bench.hello(1, padded=False), address(1))
    bench.machine.suspect(1, 1, 2.0)
    assert bench.machine.next_timer() == 2.0 + SUSPICION_TIMEOUT_S


def test_a_worker_that_has_left_is_not_lost_by_a_suspicion(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2))
    bench.now = 1.0
    bench.say(bench.bye(1), address(1))
    bench.machine.suspect(1, 1, 1.0)
    assert bench.machine.next_timer() == 5.0
    with pytest.raises(KeyError):
        bench.machine.suspect(1, 2, 1.0)

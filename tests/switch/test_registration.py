"""HELLO, WELCOME, BYE, and who may speak for a worker; over both machines."""

from __future__ import annotations

import pytest

from fanin.protocol.events import WorkerJoined, WorkerLeft
from fanin.protocol.wire import SWITCH_WORKER, Flag, Kind, Reason, datagram_bytes
from tests.support.bench import Bench, MachineType, address, facts, make_spec, reasons


# R-MEMBER-1, R-MEMBER-3
def test_hello_registers_and_is_welcomed_in_its_own_length(machine_type: MachineType) -> None:
    bench = Bench(machine_type, registered=False)
    hello = bench.hello(1, slot=77)
    ((welcome, destination),) = bench.say(hello, 55)
    assert destination == 55
    assert (welcome.kind, welcome.worker, welcome.slot, welcome.bitmap) == (Kind.WELCOME, 1, 77, 0b10)
    assert len(welcome.to_bytes()) == len(hello.to_bytes()) == bench.spec.packet_bytes
    assert not welcome.words.any(), "nobody is gone, and the token is not repeated"
    assert bench.machine.members(1) == (0b10, 0, 0)
    assert bench.machine.next_event() == WorkerJoined(1, 1)
    assert bench.machine.next_event() is None


def test_a_heartbeat_is_welcomed_and_registers_nothing_anew(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for slot in range(3):
        ((welcome, _),) = bench.say(bench.hello(0, padded=False, slot=slot), address(0))
        assert (welcome.slot, welcome.bitmap, len(welcome.words)) == (slot, 0b11, 2)
    assert bench.machine.next_event() is None


def test_a_hello_with_another_token_registers_nothing(machine_type: MachineType) -> None:
    bench = Bench(machine_type, registered=False)
    for token in (0, bench.spec.tokens[0] + 1, bench.spec.tokens[1], bench.spec.tokens[0] ^ 1 << 63):
        assert reasons(bench.say(bench.hello(0, token=token), 55)) == [(Reason.TOKEN, 55)]
    assert bench.machine.members(1) == (0, 0, 0)
    assert bench.dropped() == {"token": 4}


# R-MEMBER-2
def test_a_second_address_is_refused_even_with_the_token(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert reasons(bench.say(bench.hello(0), 55)) == [(Reason.STRANGER, 55)]
    bench.gives(0, 0)
    assert [destination for _, destination in bench.gives(1, 0)] == [100, 101]


def test_two_workers_may_share_an_address(machine_type: MachineType) -> None:
    """The address is the driver's affair: a ROUTER socket or an emulator may number by host."""
    bench = Bench(machine_type, registered=False)
    bench.say(bench.hello(0), 55)
    bench.say(bench.hello(1), 55)
    for worker in range(2):
        sent = bench.say(bench.packet(Kind.CONTRIBUTION, worker, words=(1,)), 55)
    assert [destination for _, destination in sent] == [55, 55]


@pytest.mark.parametrize("words", [(), (1,)])
@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.BYE])
def test_what_has_no_room_for_a_token_has_no_legal_length(
    machine_type: MachineType, kind: Kind, words: tuple[int, ...]
) -> None:
    bench = Bench(machine_type)
    assert bench.say(bench.packet(kind, 0, words=words), address(0)) == []
    assert bench.say(bench.packet(kind, 0, words=[0] * 1000), address(0)) == []
    assert bench.say(bench.packet(kind, 0, words=[0, 0], codes=(1,)), address(0)) == []
    assert bench.dropped() == {"length": 3}


def test_contributions_need_a_registered_source(machine_type: MachineType) -> None:
    bench = Bench(machine_type, registered=False)
    assert reasons(bench.gives(0, 0)) == [(Reason.STRANGER, 100)]
    bench.say(bench.hello(0), 100)
    assert reasons(bench.say(bench.packet(Kind.CONTRIBUTION, 0, words=(1,)), 101)) == [(Reason.STRANGER, 101)]
    assert reasons(bench.say(bench.packet(Kind.CONTRIBUTION, 1, words=(1,)), 100)) == [(Reason.STRANGER, 100)]
    assert bench.dropped() == {"stranger": 3}
    assert bench.counter("contributions") == 0


def test_a_result_goes_to_whoever_is_registered_by_then(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3, quorum=1, staleness=2), registered=False)
    bench.say(bench.hello(0), 100)
    assert [destination for _, destination in bench.gives(0, 0)] == [100]
    bench.say(bench.hello(2), 102)
    sent = bench.gives(2, 0)
    assert [(p.kind, to) for p, to in sent] == [(Kind.RESULT, 100), (Kind.RESULT, 102), (Kind.ANSWER, 102)]


# R-MEMBER-4
def test_bye_is_echoed_and_the_others_are_told(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bye = bench.bye(1)
    (echo, destination), *notices = bench.say(bye, address(1))
    assert (facts(echo), destination) == (facts(bye), 101)
    assert reasons(notices) == [(Reason.WORKER_LEFT, 100), (Reason.WORKER_LEFT, 102)]
    assert [(packet.worker, packet.words.tolist()) for packet, _ in notices] == [(SWITCH_WORKER, [0, 0b010])] * 2
    assert bench.machine.members(1) == (0b111, 0, 0b010)
    assert bench.machine.next_event() == WorkerLeft(1, 1)


def test_a_repeated_bye_is_echoed_and_is_no_news(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.say(bench.bye(0), address(0))
    bench.machine.next_event()
    assert [packet.kind for packet, _ in bench.say(bench.bye(0), address(0))] == [Kind.BYE]
    assert bench.machine.next_event() is None


def test_every_welcome_says_who_left(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.say(bench.bye(2), address(2))
    ((welcome, _),) = bench.say(bench.hello(0), address(0))
    assert welcome.words[:2].tolist() == [0, 0b100]
    assert not welcome.words[2:].any()


def test_results_are_not_sent_to_those_who_left(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(1, 0)
    bench.say(bench.bye(1), address(1))
    assert [destination for _, destination in bench.gives(0, 0)] == [100]


def test_what_a_bye_overtook_closes_a_round_for_the_others_and_is_acknowledged(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(quorum=1, staleness=1))
    bench.gives(0, 0)
    assert bench.gives(0, 1) == [], "base 0 of worker 1 is missing"
    bench.say(bench.bye(1), address(1))
    sent = bench.gives(1, 0)
    assert [(packet.kind, packet.base, to) for packet, to in sent] == [(Kind.RESULT, 1, 100), (Kind.ANSWER, 0, 101)]


def test_bye_needs_token_and_address(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert reasons(bench.say(bench.bye(0, token=1), address(0))) == [(Reason.TOKEN, 100)]
    assert reasons(bench.say(bench.bye(0), address(1))) == [(Reason.STRANGER, 101)]
    assert bench.machine.members(1) == (0b11, 0, 0)


def test_a_worker_that_never_got_through_can_still_say_bye(machine_type: MachineType) -> None:
    bench = Bench(machine_type, registered=False)
    bench.say(bench.hello(1), address(1))
    sent = bench.say(bench.bye(0), address(0))
    assert [(packet.kind, to) for packet, to in sent] == [(Kind.BYE, 100), (Kind.NOTICE, 101)]
    assert bench.machine.members(1) == (0b10, 0, 0b01)


def test_an_evicted_worker_is_nobody_any_more(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.say(bench.bye(1), address(1))
    bench.machine.evict(1, 1, 0.0)
    bench.sent()
    assert bench.machine.members(1) == (0b101, 0, 0)
    assert reasons(bench.say(bench.hello(1), address(1))) == [(Reason.EVICTED, 101)]
    assert reasons(bench.say(bench.bye(1), address(1))) == [(Reason.EVICTED, 101)]
    assert reasons(bench.gives(1, 0)) == [(Reason.EVICTED, 101)]
    ((welcome, _),) = bench.say(bench.hello(0), address(0))
    assert (welcome.bitmap, welcome.words[:2].tolist()) == (0b101, [0, 0])


def test_a_job_with_checksums_sends_and_demands_them(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(checksum=True))
    ((welcome, _),) = bench.say(bench.hello(0), address(0))
    assert welcome.flags == Flag.CHECKSUM, "parse has verified it"
    bench.gives(0, 0, (1,), codes=(1,))
    sent = bench.gives(1, 0, (2,), codes=(2,))
    assert [(p.kind, p.flags, p.words.tolist()) for p, _ in sent] == [(Kind.RESULT, Flag.CHECKSUM, [3])] * 2
    ((answer, _),) = bench.gives(0, 0, (1,), codes=(1,))
    assert (answer.kind, answer.flags) == (Kind.ANSWER, Flag.CHECKSUM)
    bare = bench.packet(Kind.CONTRIBUTION, 0, base=1, words=(1,)).to_bytes()
    without = bare[:7] + bytes([0]) + bare[8:]
    assert bench.say(without, address(0)) == []
    broken = bare[:-1] + bytes([bare[-1] ^ 1])
    assert bench.say(broken, address(0)) == []
    assert bench.dropped() == {"checksum": 2}
    notices = bench.say(bench.bye(1), address(1))[1:]
    assert [packet.flags for packet, _ in notices] == [Flag.CHECKSUM]


def test_a_checksum_is_answered_with_one_even_where_none_is_demanded(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    hello = bench.packet(Kind.HELLO, 0, flags=Flag.CHECKSUM, words=(0, 0))
    ((notice, _),) = bench.say(hello, address(0))
    assert (notice.kind, notice.flags) == (Kind.NOTICE, Flag.CHECKSUM)


def test_a_registered_worker_hears_its_slot_and_base_back_when_refused(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    packet = bench.packet(Kind.CONTRIBUTION, 1, slot=1, base=9, generation=3, words=(1,))
    ((notice, _),) = bench.say(packet, address(1))
    assert (notice.job, notice.worker, notice.generation, notice.slot, notice.base) == (1, 1, 3, 1, 9)
    assert len(notice.to_bytes()) == datagram_bytes(0, 2)

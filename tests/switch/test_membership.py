"""Jobs that survive losses: who is told of what, and how a new process comes into an evicted worker's place."""

from __future__ import annotations

import dataclasses

import pytest

from fanin.protocol.events import WorkerJoined, WorkerLeft
from fanin.protocol.wire import MAX_BASE, Flag, Kind, Packet, Reason
from tests.support.bench import Bench, MachineType, address, make_spec, reasons

NEW_TOKEN = 0x5151_0000_7777
NEW_ADDRESS = 777


def bench_of(machine_type: MachineType, quorum: int = 3, staleness: int = 0) -> Bench:
    """A job of three that survives losses."""
    spec = make_spec(workers=3, quorum=quorum, staleness=staleness)
    return Bench(machine_type, dataclasses.replace(spec, on_worker_loss="continue"))


def hello_of_newcomer(bench: Bench, worker: int) -> list[tuple[Packet, int]]:
    return bench.say(bench.hello(worker, token=NEW_TOKEN), NEW_ADDRESS)


def asks_where(bench: Bench, worker: int, source: int, slot: int = 0) -> Packet:
    packet = bench.packet(Kind.CONTRIBUTION, worker, flags=Flag.PASS, slot=slot, base=MAX_BASE)
    ((answer, destination),) = bench.say(packet, source)
    assert destination == source
    return answer


# R-MEMBER-12
def test_the_others_are_told_who_goes_on_and_open_rounds_close(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    bench.gives(0, 0, (1,))
    bench.gives(1, 0, (2,))
    bench.machine.evict(1, 2, 0.0)
    sent = bench.sent()
    assert reasons(sent[:3]) == [
        (Reason.EVICTED, address(2)),
        (Reason.WORKER_LOST, address(0)),
        (Reason.WORKER_LOST, address(1)),
    ]
    assert [(packet.signature, packet.bitmap) for packet, _ in sent[1:3]] == [(1, 0b011)] * 2
    assert [(packet.kind, packet.contributors, destination) for packet, destination in sent[3:]] == [
        (Kind.RESULT, 2, address(0)),
        (Kind.RESULT, 2, address(1)),
    ]
    ((welcome, _),) = bench.say(bench.hello(0), address(0))
    assert (welcome.signature, welcome.bitmap, welcome.words[:2].tolist()) == (1, 0b011, [0, 0])


def test_a_worker_that_left_is_news_of_another_kind(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    bench.say(bench.bye(2), address(2))
    bench.machine.evict(1, 2, 0.0)
    assert {reason for reason, _ in reasons(bench.sent())} == {Reason.EVICTED, Reason.WORKER_LEFT}


# R-MEMBER-13
def test_a_newcomer_is_live_from_its_hello_on_and_everybody_hears_of_it(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    bench.machine.evict(1, 2, 0.0)
    bench.machine.admit_worker(1, 2, NEW_TOKEN)
    bench.sent()
    bench.gives(0, 0, (1,))
    assert [packet.kind for packet, _ in bench.gives(1, 0, (2,))] == [Kind.RESULT] * 2, "nobody waits for it yet"
    notice, *others, (welcome, destination) = hello_of_newcomer(bench, 2)
    assert reasons([notice, *others]) == [
        (Reason.WORKER_JOINED, address(0)),
        (Reason.WORKER_JOINED, address(1)),
        (Reason.WORKER_JOINED, NEW_ADDRESS),
    ]
    assert (notice[0].signature, notice[0].bitmap) == (2, 0b111)
    assert (welcome.kind, welcome.bitmap, destination) == (Kind.WELCOME, 0b111, NEW_ADDRESS)
    assert bench.machine.next_event() == WorkerJoined(1, 2)
    assert bench.gives(0, 1, (1,)) == []
    assert bench.gives(1, 1, (2,)) == [], "now they do"


# R-SLOT-14, R-SLOT-15, R-MEMBER-14
def test_a_newcomer_stands_at_the_open_round_and_fills_the_bases_before(machine_type: MachineType) -> None:
    bench = bench_of(machine_type, quorum=1, staleness=2)
    bench.gives(0, 0)
    bench.gives(0, 1)
    bench.machine.evict(1, 2, 0.0)
    bench.machine.admit_worker(1, 2, NEW_TOKEN)
    hello_of_newcomer(bench, 2)
    answer = asks_where(bench, 2, NEW_ADDRESS)
    assert (answer.kind, answer.flags, answer.base, answer.bitmap) == (Kind.ANSWER, Flag.BARE, 2, 0)
    assert asks_where(bench, 2, NEW_ADDRESS, slot=1).base == 0, "another slot, that nobody has used"
    assert asks_where(bench, 1, address(1)).base == 0, "a worker that is behind is told that it is"
    late = bench.gives(1, 0)
    assert [packet.kind for packet, _ in late] == [Kind.RESULT] * 3 + [Kind.ANSWER]
    assert late[0][0].base == 2, "base 0 is full without the newcomer, so round 2 may close"
    assert asks_where(bench, 2, NEW_ADDRESS).base == 2


def test_what_an_evicted_process_still_sends_is_refused_and_its_token_is_void(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    bench.machine.evict(1, 2, 0.0)
    bench.machine.admit_worker(1, 2, NEW_TOKEN)
    bench.sent()
    assert reasons(bench.gives(2, 0)) == [(Reason.STRANGER, address(2))]
    assert reasons(bench.say(bench.hello(2), address(2))) == [(Reason.TOKEN, address(2))]
    hello_of_newcomer(bench, 2)
    assert reasons(bench.gives(2, 0)) == [(Reason.STRANGER, address(2))]


# R-MEMBER-13
def test_a_place_that_is_taken_back_refuses_the_newcomer(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    bench.machine.evict(1, 2, 0.0)
    bench.machine.admit_worker(1, 2, NEW_TOKEN)
    bench.machine.evict(1, 2, 0.0)
    bench.sent()
    assert reasons(hello_of_newcomer(bench, 2)) == [(Reason.EVICTED, NEW_ADDRESS)]


def test_a_newcomer_that_gives_up_before_it_comes_in_is_missed_by_nobody_nor_stands_for_the_next(
    machine_type: MachineType,
) -> None:
    bench = bench_of(machine_type)
    bench.machine.evict(1, 2, 0.0)
    bench.machine.admit_worker(1, 2, NEW_TOKEN)
    bench.sent()
    for _ in range(2):  # the first echo may be lost
        sent = bench.say(bench.bye(2, token=NEW_TOKEN), NEW_ADDRESS)
        assert [(packet.kind, destination) for packet, destination in sent] == [(Kind.BYE, NEW_ADDRESS)]
        assert bench.machine.next_event() == WorkerLeft(1, 2)
    assert bench.machine.members(1) == (0b011, 0, 0)
    bench.machine.evict(1, 2, 0.0)
    bench.machine.admit_worker(1, 2, NEW_TOKEN + 1)
    bench.say(bench.hello(2, token=NEW_TOKEN + 1), NEW_ADDRESS + 1)
    assert bench.machine.members(1) == (0b111, 0, 0)
    given = bench.packet(Kind.CONTRIBUTION, 2, signature=5, words=(1, 2))
    assert bench.gives(0, 0) == bench.gives(1, 0) == []
    assert [destination for _, destination in bench.say(given, NEW_ADDRESS + 1)] == [
        address(0),
        address(1),
        NEW_ADDRESS + 1,
    ]


def test_newcomers_after_everybody_was_evicted_are_waited_for_in_every_slot(machine_type: MachineType) -> None:
    bench = bench_of(machine_type, quorum=1)
    assert asks_where(bench, 0, address(0)).base == 0
    for worker in range(3):
        bench.machine.evict(1, worker, 0.0)
    for worker in range(3):
        bench.machine.admit_worker(1, worker, NEW_TOKEN)
        bench.sent()
        bench.say(bench.hello(worker, token=NEW_TOKEN), address(worker))
    for slot in range(2):
        assert bench.gives(0, 0, slot=slot) == bench.gives(1, 0, slot=slot) == []
        assert len(bench.gives(2, 0, slot=slot)) == 3


def test_no_place_is_opened_beside_a_live_worker_or_in_a_job_that_raises(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    with pytest.raises(ValueError, match="has not been evicted"):
        bench.machine.admit_worker(1, 2, NEW_TOKEN)
    with pytest.raises(KeyError):
        bench.machine.admit_worker(1, 3, NEW_TOKEN)
    raising = Bench(machine_type, make_spec(workers=3))
    raising.machine.evict(1, 2, 0.0)
    with pytest.raises(ValueError, match="nobody may come"):
        raising.machine.admit_worker(1, 2, NEW_TOKEN)

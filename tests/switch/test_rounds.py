"""Contributions, rounds, results, answers: the slot machine's table, seen from outside, over both machines."""

from __future__ import annotations

import pytest

from fanin.protocol.wire import MAX_BASE, SWITCH_WORKER, Flag, Kind, Packet, Reason
from tests.support.bench import GENERATION, Bench, MachineType, address, make_spec, reasons


def only(sent: list[tuple[Packet, int]]) -> Packet:
    """The one packet that went out, to one destination."""
    ((packet, _),) = sent
    return packet


def results(sent: list[tuple[Packet, int]], destinations: list[int]) -> Packet:
    """The RESULT that went to exactly these destinations, and nothing else did."""
    assert [destination for _, destination in sent] == destinations
    assert len({packet.to_bytes() for packet, _ in sent}) == 1
    assert sent[0][0].kind is Kind.RESULT
    return sent[0][0]


def kinds(sent: list[tuple[Packet, int]]) -> list[Kind]:
    return [packet.kind for packet, _ in sent]


# R-SLOT-6, R-SLOT-9
def test_a_full_round_is_multicast_with_its_sum(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert bench.gives(0, 0, (1, 2, 0xFFFFFFFF), codes=(7,)) == []
    result = results(bench.gives(1, 0, (10, 20, 2), codes=(9,)), [100, 101])
    assert (result.job, result.worker, result.generation, result.slot) == (1, SWITCH_WORKER, GENERATION, 0)
    assert (result.base, result.signature, result.bitmap, result.contributors) == (0, 5, 0b11, 2)
    assert result.codes == (9,)
    assert result.words.tolist() == [11, 22, 1], "sums wrap around at 32 bits"
    assert result.flags == Flag(0)


def test_one_worker_alone_gets_its_own_words_back(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=1))
    for base in range(5):
        result = results(bench.gives(0, base, (base, 2**32 - 1), codes=(3,)), [100])
        assert (result.base, result.words.tolist(), result.codes) == (base, [base, 2**32 - 1], (3,))


@pytest.mark.parametrize("workers", [3, 5, 32])
def test_any_number_of_workers_up_to_32_adds_up(machine_type: MachineType, workers: int) -> None:
    bench = Bench(machine_type, make_spec(workers=workers, words=24, codes=3))
    for base in range(4):
        for worker in range(workers - 1):
            assert bench.gives(worker, base, range(worker, worker + 23), codes=(worker, 0, 99 - worker)) == []
        last = bench.gives(workers - 1, base, range(workers - 1, workers + 22), codes=(workers - 1, 0, 0))
        result = results(last, [address(worker) for worker in range(workers)])
        offset = sum(range(workers))
        assert result.words.tolist() == [offset + workers * i for i in range(23)]
        assert result.codes == (workers - 1, 0, 99)
        assert result.bitmap == (1 << workers) - 1
        assert result.contributors == workers


def test_slots_are_independent(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(0, 0, (1,), slot=0)
    bench.gives(0, 0, (2,), slot=1)
    assert results(bench.gives(1, 0, (20,), slot=1), [100, 101]).words.tolist() == [22]
    assert results(bench.gives(1, 0, (10,), slot=0), [100, 101]).words.tolist() == [11]


@pytest.mark.parametrize(("codes", "words"), [((), ()), ((1,), ()), ((), (1, 2, 3)), ((4,), (5,) * 8)])
def test_every_shape_up_to_a_full_packet_is_summed(
    machine_type: MachineType, codes: tuple[int, ...], words: tuple[int, ...]
) -> None:
    bench = Bench(machine_type)
    for base in range(3):
        bench.gives(0, base, words, codes=codes)
        result = results(bench.gives(1, base, words, codes=codes), [100, 101])
        assert (result.codes, result.words.tolist()) == (codes, [2 * word for word in words])


def test_rounds_of_one_slot_may_differ_in_shape(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for base, count in enumerate([8, 3, 0, 8, 1]):
        codes = (base,) if base % 2 else ()
        bench.gives(0, base, range(count), codes=codes, signature=base)
        result = results(bench.gives(1, base, range(count), codes=codes, signature=base), [100, 101])
        assert (result.words.tolist(), result.codes, result.signature) == ([2 * i for i in range(count)], codes, base)


# --- the table, row by row ---


# R-SLOT-1
def test_a_base_beyond_the_open_round_is_of_the_future(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for base in (1, 7, MAX_BASE - 1, MAX_BASE):
        assert bench.gives(0, base) == []
    assert bench.dropped() == {"future": 4}
    assert results([*bench.gives(0, 0, (1,)), *bench.gives(1, 0, (1,))], [100, 101]).words.tolist() == [2]


# R-SLOT-3
def test_a_duplicate_of_the_open_round_is_not_added_and_not_answered(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(0, 0, (1,))
    assert bench.gives(0, 0, (1,)) == []
    assert results(bench.gives(1, 0, (10,)), [100, 101]).words.tolist() == [11]
    assert (bench.counter("duplicates"), bench.counter("answers")) == (1, 0)


# R-SLOT-3
def test_a_duplicate_of_a_closed_round_is_answered_to_its_sender_alone(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    for worker in range(3):
        result = bench.gives(worker, 0, (1, worker), codes=(worker,))
    ((answer, destination),) = bench.gives(1, 0, (1, 1), codes=(1,))
    assert destination == address(1)
    assert (answer.kind, answer.worker, answer.base, answer.bitmap) == (Kind.ANSWER, 1, 0, 0b111)
    assert answer.words.tolist() == result[0][0].words.tolist() == [3, 3]
    assert (answer.codes, answer.contributors, answer.signature) == ((2,), 3, 5)
    assert (bench.counter("duplicates"), bench.counter("answers")) == (1, 1)


def test_the_last_result_can_be_asked_for_while_the_next_round_fills(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(0, 0, (1,))
    bench.gives(1, 0, (2,))
    bench.gives(0, 1, (100,))
    assert only(bench.gives(1, 0, (2,))).words.tolist() == [3]
    assert results(bench.gives(1, 1, (200,)), [100, 101]).words.tolist() == [300]


# R-SLOT-2
def test_what_is_too_old_for_the_ring_is_ancient(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for base in range(3):
        bench.gives(0, base)
        bench.gives(1, base)
    assert only(bench.gives(0, 2)).base == 2, "the last result is still kept"
    assert bench.gives(0, 1) == [], "nobody can lack the one before: all have contributed base 2"
    assert bench.gives(0, 0) == []
    assert bench.dropped() == {"ancient": 2}


# R-SLOT-4
def test_a_base_left_out_can_not_be_made_up_for_beyond_the_bound(machine_type: MachineType) -> None:
    """Only a worker that breaks the host rules can be that late; the bound holds all the same."""
    bench = Bench(machine_type, make_spec(workers=2, quorum=1))
    bench.gives(0, 0, (1,))
    assert bench.machine.counters()["rounds"] == 0, "with S = 0 the others are waited for"
    bench = Bench(machine_type, make_spec(workers=2, quorum=1, staleness=1))
    bench.gives(0, 0, (1,))
    bench.gives(1, 1, (1,))
    bench.gives(0, 1, (1,))
    bench.gives(1, 2, (1,))
    rounds = bench.counter("rounds")
    assert bench.gives(1, 0, (1,)) == []
    assert (bench.dropped(), bench.counter("rounds")) == ({"ancient": 1}, rounds)


# R-SLOT-5
@pytest.mark.parametrize(
    ("words", "codes", "signature"), [((1, 2, 3), (1,), 5), ((1, 2), (), 5), ((1, 2), (1,), 6), ((), (1,), 5)]
)
def test_another_shape_or_signature_is_a_mismatch_and_changes_nothing(
    machine_type: MachineType, words: tuple[int, ...], codes: tuple[int, ...], signature: int
) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.gives(0, 0, (1, 2), codes=(1,))
    sent = bench.gives(1, 0, words, codes=codes, signature=signature, slot=0)
    assert reasons(sent) == [(Reason.MISMATCH, 101)]
    assert bench.dropped() == {"mismatch": 1}
    bench.gives(1, 0, (1, 2), codes=(1,))
    assert results(bench.gives(2, 0, (1, 2), codes=(1,)), [100, 101, 102]).words.tolist() == [3, 6]


# R-SLOT-9
def test_the_shape_of_a_round_that_is_over_binds_nobody(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for base in range(4):
        bench.gives(0, base, (1,) * (base + 1), signature=base)
        assert bench.gives(1, base, (1,) * (base + 1), signature=base) != []
    assert bench.dropped() == {}


# --- passes, quorum, staleness ---


# R-SLOT-9
def test_a_pass_arrives_but_is_no_contributor(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(0, 0, (4, 5), codes=(6,))
    result = results(bench.passes(1, 0), [100, 101])
    assert (result.words.tolist(), result.codes, result.contributors, result.bitmap) == ([4, 5], (6,), 1, 0b11)
    assert (bench.counter("contributions"), bench.counter("passes")) == (1, 1)


def test_a_pass_before_the_first_words_leaves_the_round_to_them(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.passes(1, 0)
    bench.gives(2, 0, (4, 5), codes=(6,))
    result = results(bench.gives(0, 0, (1, 1), codes=(2,)), [100, 101, 102])
    assert (result.words.tolist(), result.codes, result.contributors) == ([5, 6], (6,), 2)


def test_a_round_may_close_with_no_contributor(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(0, 0, (4, 5), codes=(6,))
    bench.gives(1, 0, (4, 5), codes=(6,))
    bench.passes(0, 1)
    result = results(bench.passes(1, 1), [100, 101])
    assert (result.codes, result.words.tolist(), result.contributors, result.bitmap) == ((), [], 0, 0b11)
    assert (result.base, result.signature) == (1, 0)
    answer = only(bench.passes(0, 1))
    assert (answer.kind, answer.words.tolist(), answer.contributors) == (Kind.ANSWER, [], 0)


# R-SLOT-11, R-SLOT-12
def test_a_quorum_closes_a_round_and_the_late_one_joins_the_next(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2, quorum=1, staleness=1))
    first = results(bench.gives(0, 0, (1,)), [100, 101])
    assert (first.base, first.bitmap, first.contributors) == (0, 0b01, 1)
    sent = bench.gives(1, 0, (10,))
    late = results(sent[:2], [100, 101])
    assert (late.base, late.words.tolist(), late.bitmap, late.contributors) == (1, [10], 0, 1)
    answer, destination = sent[2]
    assert (answer.kind, destination, answer.base, answer.words.tolist()) == (Kind.ANSWER, 101, 0, [1])
    assert answer.bitmap == 0b11, "the late contribution is acknowledged"
    assert bench.counter("rounds") == 2


# R-SLOT-8, R-SLOT-10
def test_a_late_pass_moves_the_floor_and_closes_no_round_by_itself(machine_type: MachineType) -> None:
    """Otherwise the passes of workers that compute would close empty rounds for ever (docs/slot-machine.md)."""
    bench = Bench(machine_type, make_spec(workers=2, quorum=1, staleness=1))
    bench.gives(0, 0, (1,))
    assert bench.gives(0, 1, (2,)) == [], "base 0 of worker 1 is missing"
    sent = bench.passes(1, 0, late=True)
    closed = results(sent[:2], [100, 101])
    assert (closed.base, closed.contributors, closed.words.tolist()) == (1, 1, [2])
    assert (sent[2][0].kind, sent[2][0].base) == (Kind.ANSWER, 0)
    assert [packet.kind for packet, _ in bench.passes(1, 1, late=True)] == [Kind.ANSWER], "round 2 stays open"
    assert results(bench.gives(1, 2, (8,)), [100, 101]).words.tolist() == [8]


def test_only_a_pass_can_be_late(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2, quorum=1, staleness=1))
    packet = bench.packet(Kind.CONTRIBUTION, 0, flags=Flag.LATE, words=(1,))
    assert bench.say(packet, address(0)) == []
    assert bench.dropped() == {"length": 1}


# R-SLOT-11
def test_the_staleness_bound_makes_the_quorum_wait(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2, quorum=1, staleness=1))
    assert bench.gives(0, 0, (1,)) != []
    assert bench.gives(0, 1, (2,)) == [], "round 1 would leave base 0 of worker 1 more than one round behind"
    sent = bench.gives(1, 0, (10,))
    assert [packet.kind for packet, _ in sent] == [Kind.RESULT, Kind.RESULT, Kind.ANSWER]
    assert (sent[0][0].base, sent[0][0].words.tolist(), sent[0][0].bitmap) == (1, [12], 0b01)


# R-SLOT-7, R-SLOT-12
def test_a_late_contribution_joins_the_open_round_with_those_of_newer_bases(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3, quorum=2, staleness=2))
    bench.gives(0, 0, (1,))
    assert bench.gives(1, 0, (2,)) != []
    assert bench.gives(0, 1, (4,)) == []
    sent = bench.gives(2, 0, (8,))
    assert results(sent[:3], [100, 101, 102]).words.tolist() == [12]
    assert sent[3][0].words.tolist() == [3]


# R-SLOT-13
def test_lowering_the_quorum_closes_what_holds_enough(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3, quorum=3, staleness=1))
    bench.gives(0, 0, (1,), slot=1, codes=(9,))
    bench.gives(1, 0, (2,), slot=1, codes=(8,))
    bench.gives(2, 0, (2,), slot=0)
    bench.machine.set_quorum(1, 2, 0.0)
    result = results(bench.sent(), [100, 101, 102])
    assert (result.slot, result.words.tolist(), result.codes, result.bitmap) == (1, [3], (9,), 0b011)


@pytest.mark.parametrize("quorum", [0, 4])
def test_a_quorum_outside_1_to_n_is_refused(machine_type: MachineType, quorum: int) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    with pytest.raises(ValueError, match=r"must be in 1\.\.3"):
        bench.machine.set_quorum(1, quorum, 0.0)


# --- eviction ---


# R-SLOT-13
def test_evicting_the_one_that_is_missing_closes_the_round(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    bench.gives(0, 0, (1,))
    bench.gives(2, 0, (2,))
    bench.machine.evict(1, 1, 0.0)
    sent = bench.sent()
    assert reasons(sent[:1]) == [(Reason.EVICTED, 101)]
    result = results(sent[1:], [100, 102])
    assert (result.words.tolist(), result.bitmap, result.contributors) == ([3], 0b101, 2)
    bench.gives(0, 1, (1,))
    assert results(bench.gives(2, 1, (2,)), [100, 102]).words.tolist() == [3]


def test_what_an_evicted_worker_contributed_stays_in_its_round(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.gives(1, 0, (10,))
    bench.machine.evict(1, 1, 0.0)
    bench.sent()
    assert reasons(bench.gives(1, 0, (10,))) == [(Reason.EVICTED, 101)]
    result = results(bench.gives(0, 0, (1,)), [100])
    assert (result.words.tolist(), result.bitmap) == ([11], 0b11)


def test_evicting_twice_or_nobody_is_harmless(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.machine.evict(1, 1, 0.0)
    assert len(bench.sent()) == 1
    bench.machine.evict(1, 1, 0.0)
    assert bench.sent() == []
    with pytest.raises(KeyError):
        bench.machine.evict(1, 2, 0.0)
    with pytest.raises(KeyError):
        bench.machine.evict(9, 0, 0.0)
    bench.machine.evict(1, 0, 0.0)
    assert reasons(bench.sent()) == [(Reason.EVICTED, 100)]


# --- results wait where they were summed up ---


def test_a_result_that_was_not_fetched_survives_the_rounds_after_it(machine_type: MachineType) -> None:
    """A driver may be slow to send; three rounds of a ring of two must all come out."""
    bench = Bench(machine_type)
    for base in range(5):
        for worker in range(2):
            packet = bench.packet(Kind.CONTRIBUTION, worker, base=base, words=(base, worker), codes=(base,))
            bench.machine.receive_datagram(packet.to_bytes(), address(worker), 0.0)
    sent = bench.sent()
    assert [(p.base, p.words.tolist(), p.codes, to) for p, to in sent] == [
        (base, [2 * base, 1], (base,), 100 + worker) for base in range(5) for worker in range(2)
    ]


def test_a_result_that_was_not_fetched_survives_its_job(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for worker in range(2):
        packet = bench.packet(Kind.CONTRIBUTION, worker, words=(worker, 3))
        bench.machine.receive_datagram(packet.to_bytes(), address(worker), 0.0)
    bench.machine.remove(1)
    bench.machine.admit(make_spec(job=1))
    assert results(bench.sent(), [100, 101]).words.tolist() == [1, 6]


# --- K and S set while the job runs ---


# R-SLOT-13
def test_a_larger_staleness_closes_what_the_bound_alone_held_up(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2, quorum=1, staleness=0, max_staleness=1))
    assert kinds(bench.gives(0, 0)) == []
    bench.machine.set_staleness(1, 1, 0.0)
    assert [(packet.kind, packet.base, packet.bitmap) for packet, _ in bench.sent()] == [(Kind.RESULT, 0, 1)] * 2


def test_a_smaller_staleness_takes_in_what_is_late_and_waits_for_the_slow_one(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2, quorum=1, staleness=2))
    bench.gives(0, 0, (1,))
    bench.gives(0, 1, (2,))
    bench.machine.set_staleness(1, 0, 0.0)
    assert kinds(bench.gives(1, 0, (10,))) == [Kind.ANSWER], "two rounds late, and still in"
    assert kinds(bench.gives(0, 2, (4,))) == [], "round 2 may no longer close before everybody has contributed base 2"
    assert kinds(bench.gives(1, 1, (20,))) == [Kind.ANSWER]
    sent = bench.gives(1, 2, (40,))
    assert [(packet.kind, packet.base, packet.words.tolist()) for packet, _ in sent] == [(Kind.RESULT, 2, [74])] * 2


def test_a_staleness_beyond_what_the_job_was_admitted_for_is_refused(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2, staleness=1, max_staleness=2))
    for staleness in (3, -1):
        with pytest.raises((ValueError, TypeError)):
            bench.machine.set_staleness(1, staleness, 0.0)
    with pytest.raises(KeyError):
        bench.machine.set_staleness(9, 0, 0.0)


def test_memory_and_lanes_are_sized_for_the_largest_staleness() -> None:
    narrow, wide = make_spec(workers=3, staleness=0), make_spec(workers=3, staleness=0, max_staleness=4)
    assert (wide.history, wide.contributions) == (6, 15)
    assert wide.pool_bytes > narrow.pool_bytes

"""Transmissions that have arrived, and the moment when their worker is told (switch/machine/receipts.py)."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.protocol.ecn import Marked
from fanin.protocol.timers import RECEIPT_EVERY
from fanin.protocol.wire import RECEIPT_MARKED, RECEIPT_REPEATED, Flag, Kind, Packet
from fanin.switch.machine.receipts import Arrivals
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.support.bench import Bench, MachineType, address, make_spec


def told(orders: list[int], arrivals: Arrivals | None = None) -> list[int]:
    """The orders whose arrival uncovers a hole."""
    arrivals = arrivals or Arrivals()
    return [order for order in orders if arrivals.take(order)]


def test_nothing_is_told_while_everything_comes_in_order() -> None:
    assert told([*range(1, 100)]) == []


# R-RECEIPT-2
def test_a_hole_is_told_once_when_three_later_ones_have_come() -> None:
    assert told([1, 2, 4, 5, 6, 7, 8, 9]) == [6]


# R-RECEIPT-2
def test_what_is_overtaken_by_two_is_no_hole() -> None:
    assert told([1, 3, 4, 2, 5, 6, 7]) == []


def test_every_hole_is_told_wherever_the_next_one_is() -> None:
    arrivals = Arrivals()
    assert told([1, 3, 4, 6, 7, 8, 9], arrivals) == [6, 8]
    assert (arrivals.highest, arrivals.received & 0xFF) == (9, 0b11110111 & ~(1 << 6))


# R-RECEIPT-2
def test_a_burst_of_losses_longer_than_what_is_tracked_is_told() -> None:
    arrivals = Arrivals()
    assert told([1, 50], arrivals) == [50]
    assert (arrivals.highest, arrivals.received) == (50, 0)


# R-RECEIPT-1
def test_orders_wrap_around() -> None:
    arrivals = Arrivals()
    arrivals.highest = 0xFFFFFFFE
    assert told([0xFFFFFFFF, 1, 2, 3], arrivals) == [3]
    assert arrivals.highest == 3


def with_order(bench: Bench, worker: int, base: int, order: int) -> list[Packet]:
    """Replies to the sender of a contribution with an order, results apart."""
    packet = bench.packet(Kind.CONTRIBUTION, worker, base=base, bitmap=order, words=(1,))
    sent = bench.say(packet.to_bytes(), address(worker))
    return [each for each, to in sent if each.kind is not Kind.RESULT and to == address(worker)]


# R-RECEIPT-5
def test_a_contribution_that_met_congestion_is_told_of_at_once_and_once(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=2, slots=8))
    told = []
    for slot in range(3):
        packet = bench.packet(Kind.CONTRIBUTION, 0, slot=slot, bitmap=1 + slot, words=(1,)).to_bytes()
        told += bench.say(Marked(packet) if slot == 1 else packet, address(0))
    ((receipt, destination),) = told
    assert (receipt.kind, receipt.slot, receipt.contributors, destination) == (
        Kind.RECEIPT, 2, RECEIPT_MARKED, address(0),
    )  # fmt: skip
    again = bench.say(bench.packet(Kind.CONTRIBUTION, 0, slot=0, bitmap=4, words=(1,)).to_bytes(), address(0))
    assert [receipt.contributors for receipt, _ in again] == [RECEIPT_REPEATED]


# R-RECEIPT-4
def test_who_repeats_into_an_open_round_is_told_that_nothing_is_missing(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert with_order(bench, 0, 0, 1) == []
    [receipt] = with_order(bench, 0, 0, 2)
    assert (receipt.kind, receipt.slot, receipt.signature, receipt.contributors) == (Kind.RECEIPT, 2, 2, 1)
    assert receipt.bitmap == 0xFFFFFFFF
    assert len(receipt.to_bytes()) == 36 + 4
    assert bench.counter("receipts") == 1


# R-RECEIPT-8
def test_a_receipt_says_which_rounds_have_closed_and_is_no_longer_than_what_it_answers(
    machine_type: MachineType,
) -> None:
    bench = Bench(machine_type, make_spec(slots=40))
    for slot, rounds in ((1, 1), (3, 2), (38, 3)):
        for base in range(rounds):
            for worker in range(2):
                packet = bench.packet(Kind.CONTRIBUTION, worker, slot=slot, base=base, words=(1, 2))
                bench.say(packet, address(worker))
    told = []
    both: tuple[tuple[int, ...], ...] = ((1, 2), (1,))
    for slot, words in enumerate(both, 5):
        order = RECEIPT_EVERY // 2 + slot * RECEIPT_EVERY
        asking = bench.packet(Kind.CONTRIBUTION, 0, slot=slot, bitmap=order, words=words)
        [(receipt, _)] = bench.say(asking, address(0))
        told.append(receipt.words.tolist())
    assert told == [[1 << 1, 1 << 38 - 32], []], "odd numbers of rounds; the second contribution has room for one word"


# R-RECEIPT-8
def test_where_rounds_may_close_without_a_worker_no_receipt_says_which_have(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(staleness=1))
    assert with_order(bench, 0, 0, 1) == []
    [receipt] = with_order(bench, 0, 0, 2)
    assert len(receipt.words) == 0


# R-RECEIPT-9
def test_who_says_no_order_is_told_nothing(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert with_order(bench, 0, 0, 0) == with_order(bench, 0, 0, 0) == []


# R-RECEIPT-6
def test_one_contribution_in_so_many_is_told_that_all_has_come(machine_type: MachineType) -> None:
    """It measures the path without peers: nobody else has contributed here."""
    bench = Bench(machine_type, make_spec(slots=64))
    receipts = {}
    for slot in range(64):
        packet = bench.packet(Kind.CONTRIBUTION, 0, slot=slot, bitmap=slot + 1, words=(1,))
        receipts[slot + 1] = [each for each, to in bench.say(packet.to_bytes(), address(0)) if to == address(0)]
    told = [order for order, packets in receipts.items() if packets]
    assert told == [*range(RECEIPT_EVERY // 2, 65, RECEIPT_EVERY)]
    [receipt] = receipts[told[0]]
    assert (receipt.kind, receipt.slot, receipt.contributors) == (Kind.RECEIPT, told[0], 0)


# R-RECEIPT-7
def test_a_closed_round_is_answered_with_its_result_and_no_receipt(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    with_order(bench, 0, 0, 1)
    with_order(bench, 1, 0, 1)
    assert [packet.kind for packet in with_order(bench, 0, 0, 2)] == [Kind.ANSWER]


def test_a_repeated_pass_is_answered_bare_and_has_no_receipt(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for worker in range(2):
        with_order(bench, worker, 0, 1)
    repeated = bench.packet(Kind.CONTRIBUTION, 0, flags=Flag.PASS, base=0, bitmap=5)
    sent = bench.say(repeated.to_bytes(), address(0))
    [(answer, _)] = sent
    assert (answer.kind, Flag.BARE in answer.flags, len(answer.to_bytes())) == (Kind.ANSWER, True, 36)


# R-RECEIPT-3
def test_only_the_worker_whose_contribution_is_lost_is_told_with_each_one_that_follows(
    machine_type: MachineType,
) -> None:
    """For as long as the hole is among those that are told apart; in between results may be lost."""
    bench = Bench(machine_type, make_spec(slots=8))
    receipts: list[tuple[int, Packet]] = []
    for slot in range(7):
        for worker in range(2):
            if (worker, slot) == (1, 1):
                continue
            packet = bench.packet(Kind.CONTRIBUTION, worker, slot=slot, bitmap=slot + 1, words=(1,))
            sent = bench.say(packet.to_bytes(), address(worker))
            receipts += [(to, each) for each, to in sent if each.kind is Kind.RECEIPT]
    assert [to for to, _ in receipts] == [address(1)] * 3
    told = [(receipt.signature, receipt.bitmap, receipt.contributors) for _, receipt in receipts]
    assert told == [(5 + later, 0xFFFFFFFF & ~(1 << 2 + later), 0) for later in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_native_and_twin_tell_the_same(seed: int, machine_type: MachineType) -> None:
    dice = np.random.default_rng(seed)
    benches = [Bench(kind, make_spec(slots=64)) for kind in (machine_type, SwitchMachine)]
    order = 1
    for _ in range(300):
        order += int(dice.choice([-2, 0, 1, 1, 1, 1, 1, 2, 3, 40]))
        slot = int(dice.integers(64))
        packet = benches[0].packet(Kind.CONTRIBUTION, 0, slot=slot, bitmap=order & 0xFFFFFFFF, words=(1,))
        said = [[(each.to_bytes(), to) for each, to in bench.say(packet, address(0))] for bench in benches]
        assert said[0] == said[1]

"""Several passes in one datagram, and several bare results: what a switch takes, and when it gives any."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from fanin.protocol.ecn import Marked
from fanin.protocol.packet_tag import MemberKeys
from fanin.protocol.wire import (
    HEADER_BYTES,
    HELLO_RUNS,
    MAX_RUN,
    RECEIPT_MARKED,
    Flag,
    Kind,
    Packet,
    Reason,
    datagram_bytes,
    parse,
)
from tests.support.bench import Bench, MachineType, address, facts, make_spec, reasons
from tests.switch import histories

SLOTS = 20


def bench_of(machine_type: MachineType, *, takers: tuple[int, ...] = (0, 1, 2), **fields: Any) -> Bench:
    """Three workers, of whom `takers` take runs."""
    bench = Bench(machine_type, make_spec(**{"workers": 3, "slots": SLOTS, **fields}), registered=False)
    for worker in range(3):
        hello = bench.hello(worker)
        bench.say(replace(hello, bitmap=HELLO_RUNS) if worker in takers else hello, address(worker))
    return bench


def a_run(bench: Bench, worker: int, slot: int, base: int, run: int, *, order: int = 0, signature: int = 5) -> Packet:
    packet = bench.packet(
        Kind.CONTRIBUTION,
        worker,
        flags=Flag.PASS | Flag.RUN,
        slot=slot,
        base=base,
        signature=signature,
        bitmap=order,
    )
    return replace(packet, run=run)


def give_bare(bench: Bench, worker: int, slot: int, *, base: int = 0, codes: tuple[int, ...] = (7,)) -> Packet:
    """A contribution that asks for a bare result."""
    return bench.packet(
        Kind.CONTRIBUTION, worker, flags=Flag.BARE, slot=slot, base=base, signature=5, codes=codes, words=(1, 2)
    )


def bare_results(bench: Bench, slots: range, *, base: int = 0) -> list[Packet]:
    """All contribute to each slot, its number as their code, before the switch is asked to send: worker 0 keeps."""
    for slot in slots:
        for worker in range(3):
            packet = give_bare(bench, worker, slot, base=base, codes=(slot,))
            packet = packet if worker else replace(packet, flags=Flag(packet.flags & ~Flag.BARE))
            bench.machine.receive_datagram(bench.bytes_of(packet), address(worker), bench.now)
    return [packet for packet, to in bench.sent() if to == address(2)]


@pytest.mark.parametrize("fields", [{}, {"checksum": True}, {"data_key": bytes(16)}], ids=str)
def test_a_switch_says_that_it_takes_runs_to_whoever_asks(machine_type: MachineType, fields: dict[str, Any]) -> None:
    bench = Bench(machine_type, make_spec(**fields), registered=False)
    ((welcome, _),) = bench.say(replace(bench.hello(0), bitmap=HELLO_RUNS), address(0))
    assert Flag.RUN in welcome.flags
    ((welcome, _),) = bench.say(bench.hello(1), address(1))
    assert Flag.RUN not in welcome.flags


@pytest.mark.parametrize("fields", [{"quorum": 2}, {"staleness": 1}, {"max_staleness": 1}], ids=str)
def test_rounds_that_do_not_wait_for_everybody_have_no_runs(machine_type: MachineType, fields: dict[str, Any]) -> None:
    bench = Bench(machine_type, make_spec(workers=3, slots=SLOTS, **fields), registered=False)
    ((welcome, _),) = bench.say(replace(bench.hello(0), bitmap=HELLO_RUNS), address(0))
    assert Flag.RUN not in welcome.flags
    assert bench.say(a_run(bench, 0, 0, 0, 2), address(0)) == []
    assert bench.dropped() == {"length": 1}


def test_a_run_of_passes_does_what_its_passes_do_one_by_one(machine_type: MachineType) -> None:
    """From slot 14 of base 0 to slot 9 of base 1, when the others have contributed."""
    together, apart = bench_of(machine_type), bench_of(machine_type)
    for bench in (together, apart):
        for worker in (0, 1):
            for slot in range(SLOTS):
                bench.gives(worker, 0, slot=slot)
        for slot in range(14):
            bench.passes(2, 0, slot=slot)
        for worker in (0, 1):
            for slot in range(10):
                bench.gives(worker, 1, slot=slot)
    run = a_run(together, 2, 14, 0, MAX_RUN)
    results = together.say(run, address(2))
    singles = [each for i in range(MAX_RUN) for each in apart.say(run.part(i, SLOTS), address(2))]
    assert [(facts(packet), to) for packet, to in results] == [(facts(packet), to) for packet, to in singles]
    assert len(results) == 3 * MAX_RUN
    counted = [
        {name: count for name, count in bench.machine.counters().items() if name not in ("packets_in", "bytes_in")}
        for bench in (together, apart)
    ]
    assert counted[0] == counted[1]


def test_a_run_has_one_receipt_that_tells_all_of_a_run_before_it_that_was_lost(machine_type: MachineType) -> None:
    bench = bench_of(machine_type, slots=3 * MAX_RUN)
    assert [each.kind for each, _ in bench.say(a_run(bench, 0, 0, 0, MAX_RUN, order=1), address(0))] == [Kind.RECEIPT]
    ((receipt, _),) = bench.say(a_run(bench, 0, 2 * MAX_RUN, 0, MAX_RUN, order=1 + 2 * MAX_RUN), address(0))
    assert receipt.signature == 3 * MAX_RUN
    told = range(MAX_RUN + 1, 3 * MAX_RUN)
    missing = [order for order in told if not receipt.bitmap >> receipt.signature - 1 - order & 1]
    assert missing == [*range(MAX_RUN + 1, 2 * MAX_RUN + 1)]


def test_a_run_that_met_congestion_is_told_of_once(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    run = a_run(bench, 0, 0, 0, 6, order=1)
    ((receipt, _),) = bench.say(Marked(run.to_bytes()), address(0))
    assert (receipt.kind, receipt.contributors) == (Kind.RECEIPT, RECEIPT_MARKED)
    assert bench.say(a_run(bench, 0, 6, 0, 2, order=7), address(0))[0][0].contributors == 0, "order 8 is to measure"


def test_a_run_that_comes_twice_brings_one_reply_no_longer_than_itself(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    run = a_run(bench, 0, 0, 0, 7, order=1)
    assert bench.say(run, address(0)) == []
    ((receipt, _),) = bench.say(run, address(0))
    assert (receipt.kind, len(receipt.to_bytes())) == (Kind.RECEIPT, HEADER_BYTES)
    for worker in (1, 2):
        for slot in range(7):
            bench.gives(worker, 0, slot=slot)
    assert bench.say(run, address(0)) == [], "its rounds have closed: who lacks a result asks with one pass"
    assert bench.counter("duplicates") == 14


def test_a_run_of_another_collective_is_told_so_once(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    bench.gives(1, 0, slot=2)
    told = bench.say(a_run(bench, 0, 0, 0, 7, signature=6), address(0))
    assert reasons(told) == [(Reason.MISMATCH, address(0))]
    assert (bench.counter("passes"), bench.dropped()) == (2, {"mismatch": 1})


@pytest.mark.parametrize("fields", [{}, {"checksum": True}, {"data_key": bytes(range(16))}], ids=str)
def test_bare_results_go_together_with_their_codes(machine_type: MachineType, fields: dict[str, Any]) -> None:
    bench = bench_of(machine_type, **fields)
    (run,) = bare_results(bench, range(3, 8))
    assert (run.slot, run.run, run.bitmap, run.contributors) == (3, 5, 0b111, 3)
    assert [run.part(index, SLOTS).codes for index in range(5)] == [(slot,) for slot in range(3, 8)]
    assert len(run.to_bytes()) == datagram_bytes(1, 4)


def test_the_first_item_of_the_next_base_follows_the_last_of_this_one(machine_type: MachineType) -> None:
    bench = bench_of(machine_type)
    bare_results(bench, range(SLOTS - 1))
    for slot, base in ((SLOTS - 1, 0), (0, 1), (1, 1)):
        for worker in range(3):
            packet = give_bare(bench, worker, slot, base=base)
            bench.machine.receive_datagram(packet.to_bytes(), address(worker), bench.now)
    runs = {packet.to_bytes() for packet, _ in bench.sent()}
    assert [(parse(run).slot, parse(run).base, parse(run).run) for run in runs] == [(SLOTS - 1, 0, 3)]


@pytest.mark.parametrize("takers", [(), (1,), (0, 2)])
def test_who_does_not_take_runs_gets_none_and_who_is_sent_the_same_neither(
    machine_type: MachineType, takers: tuple[int, ...]
) -> None:
    bench = bench_of(machine_type, takers=takers)
    assert [packet.run for packet in bare_results(bench, range(4))] == [1] * 4


def test_a_run_ends_where_it_is_longest_where_an_item_is_left_out_and_where_all_is_sent(
    machine_type: MachineType,
) -> None:
    bench = bench_of(machine_type, slots=40)
    assert [packet.run for packet in bare_results(bench, range(MAX_RUN + 3))] == [MAX_RUN, 3]
    assert [packet.run for packet in bare_results(bench, range(MAX_RUN + 4, MAX_RUN + 6))] == [2]
    (single,) = bare_results(bench, range(MAX_RUN + 6, MAX_RUN + 7))
    assert (single.run, single.flags) == (1, Flag.BARE)


def test_what_a_job_has_sent_stays_as_it_was_when_another_one_goes(machine_type: MachineType) -> None:
    """Tags are made then, and what is tagged does not get longer."""
    bench = bench_of(machine_type, data_key=bytes(range(16)))
    bench.machine.admit(make_spec(job=2))
    for slot in (0, 1, 2):
        if slot == 2:
            bench.machine.remove(2)
        for worker in range(3):
            packet = give_bare(bench, worker, slot)
            bench.machine.receive_datagram(bench.bytes_of(packet), address(worker), bench.now)
    keys = MemberKeys(bench.spec.data_key, bench.spec.tokens[1])
    sent = [data for data, to in bench.machine.datagrams_to_send(bench.now) if to == address(1)]
    assert [parse(data).run for data in sent] == [2, 1]
    assert all(keys.holds(data) for data in sent)


class Observer(histories.Pair):
    """Counts the runs that are given."""

    runs = 0

    def _observe(self, packet: Packet, destination: int) -> None:
        self.runs += packet.run > 1
        super()._observe(packet, destination)


@pytest.mark.skipif(histories.NATIVE is None, reason="the native extension is not built")
def test_histories_of_jobs_with_runs_are_told_alike_by_twin_and_native_machine() -> None:
    """Few jobs of test_agreement have runs; these have many."""
    taken = given = 0
    for seed in range(40):
        random = Random(seed)
        secured: dict[str, Any] = random.choice([{}, {"checksum": True}, {"data_key": bytes(range(16))}])
        spec = make_spec(workers=random.choice([2, 3]), slots=random.choice([3, 7]), words=48, **secured)
        pair = Observer(spec)
        for worker in range(spec.workers):
            hello = replace(pair.bench.hello(worker, slot=1), bitmap=HELLO_RUNS)
            pair.deliver(pair.bench.bytes_of(hello), address(worker))
        for step in random.choices(list(histories.STEPS), list(histories.STEPS.values()), k=100):
            before = pair.twin.counters()["passes"]
            step(pair, random)
            taken += pair.twin.counters()["passes"] > before + 1
            if random.random() < 0.15:
                pair.compare()
        pair.compare()
        given += pair.runs
    assert taken > 40
    assert given > 0

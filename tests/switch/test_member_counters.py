"""Counts for each worker (switch/machine/member_tally.py), in virtual time over both machines."""

from __future__ import annotations

import pytest

from fanin.protocol.ecn import Marked
from fanin.protocol.wire import Kind
from fanin.switch.machine.receipts import Arrivals
from tests.support.bench import Bench, MachineType, address, make_spec


def counts(bench: Bench, worker: int) -> dict[str, int]:
    """A worker's counters that are not 0, turnarounds apart."""
    found = bench.machine.member_counters(bench.spec.job)[worker]
    return {name: count for name, count in found.items() if count and not name.startswith("turnaround_")}


def turnarounds(bench: Bench, worker: int) -> dict[int, int]:
    """By the bucket's bound in microseconds."""
    found = bench.machine.member_counters(bench.spec.job)[worker]
    prefix = "turnaround_"
    return {int(name[len(prefix) :]): count for name, count in found.items() if name.startswith(prefix)}


def at(bench: Bench, now: float, worker: int, base: int, slot: int = 0) -> None:
    bench.now = now
    bench.gives(worker, base, slot=slot)


def test_names_are_the_same_for_every_worker_before_anything_came(machine_type: MachineType) -> None:
    first, second = Bench(machine_type).machine.member_counters(1)
    assert first == second
    assert list(first) == [
        "contributions", "bytes_in", "transmissions", "lost_up", "asked_again", "repeated", "marks", "last",
        "waited_us",
    ]  # fmt: skip


def test_the_last_one_to_come_was_waited_for(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=3))
    for now, worker in ((1.0, 0), (1.5, 1), (1.75, 2)):
        at(bench, now, worker, 0)
    assert [counts(bench, worker).get("waited_us", 0) for worker in range(3)] == [0, 0, 250_000]
    assert [counts(bench, worker).get("last", 0) for worker in range(3)] == [0, 0, 1]


def test_slots_that_wait_at_the_same_time_count_once(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for slot in (0, 1):
        at(bench, 1.0, 0, 0, slot)
    at(bench, 1.5, 1, 0, 0)
    at(bench, 1.625, 1, 0, 1)
    assert counts(bench, 1)["waited_us"] == 625_000


def test_nobody_waits_in_a_job_of_one(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=1))
    for base in range(3):
        at(bench, 1.0 + base, 0, base)
    assert "waited_us" not in counts(bench, 0)


def orders(bench: Bench, worker: int, *said: int) -> None:
    """Contributions to one base after another, with these orders."""
    for base, order in enumerate(said):
        packet = bench.packet(Kind.CONTRIBUTION, worker, base=base, signature=5, bitmap=order, words=(1, 2))
        bench.say(packet, address(worker))


def test_transmissions_that_never_came_are_lost_on_the_way_up(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=1))
    orders(bench, 0, 1, 2, 5, 4, 6)
    assert (counts(bench, 0)["transmissions"], counts(bench, 0)["lost_up"]) == (6, 1)


def test_losses_stay_counted_when_a_new_process_has_the_place() -> None:
    arrivals = Arrivals()
    for order in (1, 3):
        arrivals.take(order)
    arrivals.restart()
    for order in (1, 2):
        arrivals.take(order)
    assert (arrivals.sent, arrivals.came) == (5, 4)


@pytest.mark.parametrize(("closed", "name"), [(True, "asked_again"), (False, "repeated")])
def test_a_repetition_tells_a_lost_result_from_a_late_peer(machine_type: MachineType, closed: bool, name: str) -> None:
    bench = Bench(machine_type)
    bench.gives(0, 0)
    if closed:
        bench.gives(1, 0)
    bench.gives(0, 0)
    found = counts(bench, 0)
    assert found[name] == 1
    assert ("asked_again" in found) + ("repeated" in found) == 1


def test_marks_are_counted_for_who_sent_the_packet(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    packet = bench.packet(Kind.CONTRIBUTION, 1, signature=5, words=(1, 2))
    bench.machine.receive_datagram(Marked(packet.to_bytes()), address(1), 0.0)
    assert (counts(bench, 0).get("marks", 0), counts(bench, 1)["marks"]) == (0, 1)


def test_turnarounds_count_while_a_worker_sends_without_a_pause(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=1, slots=4))
    for slot in range(4):
        at(bench, 1.0 + slot * 1e-4, 0, 0, slot)
    for slot in range(4):  # each 400 us after its result, 100 us after the packet before
        at(bench, 1.0 + 4e-4 + slot * 1e-4, 0, 1, slot)
    assert sum(turnarounds(bench, 0).values()) == 4
    assert set(turnarounds(bench, 0)) <= {256, 512}


def test_turnarounds_in_which_a_worker_computed_do_not_count(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(workers=1, slots=4))
    for slot in range(4):
        at(bench, 1.0 + slot * 1e-4, 0, 0, slot)
    for slot in range(4):
        at(bench, 1.5 + slot * 1e-4, 0, 1, slot)
    assert turnarounds(bench, 0) == {}

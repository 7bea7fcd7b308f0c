"""Native machines in trains: drawn schedules violate nothing, and machines that break trains are found."""

from __future__ import annotations

import pytest

from fanin.emulation.simulator import simulation
from fanin.emulation.simulator.chaos import draw_for
from fanin.emulation.simulator.machines import Switch, Worker
from fanin.emulation.simulator.search import search
from fanin.emulation.simulator.simulation import simulate
from fanin.emulation.simulator.trains import Train, TrainSwitch, TrainWorker
from fanin.emulation.simulator.violations import ConservationError, TrainError
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import HEADER_BYTES
from tests.support.broken_trains import Change, ChangesTrains, double_one, leave, lose_one, turn

_native = pytest.importorskip("fanin._native", reason="the native extension is not built")

SEEDS = 8
"""Most schedules until a defect is found."""


def test_drawn_schedules_violate_nothing_and_most_of_their_packets_are_in_runs() -> None:
    tally = search(0, 60, kind="trains")
    assert not tally.failed, tally.failed[0][1]
    assert tally.regular > tally.contributions / 5, "else trains are too short to show anything"


def test_a_leaf_may_answer_a_worker_that_has_left_with_words_that_nobody_else_keeps() -> None:
    """Seed 6514 of trains: the leaf multicast the result without words, and has them for the worker's late question."""
    simulate(draw_for("trains", 6514), 6514, kind="trains")


def test_a_schedule_in_trains_is_the_same_each_time() -> None:
    first, second = (simulate(draw_for("trains", 5), 5, kind="trains") for _ in range(2))
    assert first == second


def repeat_words(train: Train) -> Train:
    """Give the second datagram the words of the first, as a run would that looks at the header alone."""
    if len(train) < 2 or len(train[0][0]) != len(train[1][0]):
        return train
    (first, _), (second, source) = train[:2]
    return [train[0], (second[:HEADER_BYTES] + first[HEADER_BYTES:], source), *train[2:]]


def run_broken(monkeypatch: pytest.MonkeyPatch, switches: Change, workers: Change) -> None:
    """Run schedules whose machines change trains before they take them in, until one violates something."""

    def switch(memory_bytes: int) -> Switch:
        changed = ChangesTrains(_native.SwitchMachine(memory_bytes), switches)
        return TrainSwitch(_native.SwitchMachine(memory_bytes), changed)  # type: ignore[arg-type]

    def worker(spec: JobSpec, worker: int, *, switch: int, token: int, newcomer: bool) -> Worker:
        machine = _native.WorkerMachine(spec, worker, switch=switch, token=token, newcomer=newcomer)
        return TrainWorker(ChangesTrains(machine, workers))  # type: ignore[arg-type]

    monkeypatch.setattr(simulation, "worker_type", lambda kind: worker)
    for seed in range(SEEDS):
        simulate(draw_for("trains", seed), seed, kind="trains", switch=switch)


@pytest.mark.parametrize("change", [lose_one, turn, double_one, repeat_words])
def test_a_switch_that_breaks_trains_is_found(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainError):
        run_broken(monkeypatch, switches=change, workers=leave)


def test_a_worker_that_stores_a_trains_first_words_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConservationError, match="came to"):
        run_broken(monkeypatch, switches=leave, workers=repeat_words)


def test_machines_that_leave_trains_as_they_are_violate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run_broken(monkeypatch, switches=leave, workers=leave)

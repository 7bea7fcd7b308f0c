"""64 federated clients in virtual time: every policy, clients that come and go, accounts that balance."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console

from fanin.benchmarks import federated
from fanin.benchmarks.federated_runs import Outcome, Trainings
from fanin.benchmarks.federated_simulation import Run, Simulation, World
from fanin.benchmarks.federated_task import partition
from fanin.benchmarks.harness import Output
from fanin.host.federated.policies import POLICIES, make_policy

SPEEDS = federated.SPEEDS
ELEMENTS = 12


def simulated(name: str, *, seed: int = 0, clients: int = 64, rounds: int = 12, leave: bool = False) -> Run:
    """Every client pulls the weights towards its own point, halfway in a turn; the mean of the points is the best."""
    draw = random.Random(seed)
    points = np.random.default_rng(seed).normal(size=(clients, ELEMENTS))

    def turn(client: int, number: int, weights: npt.NDArray[np.float64], rate: float) -> tuple[object, float]:
        after = weights + 0.5 * (points[client] - weights)
        return after, float(np.square(points[client] - after).sum()) + 1e-3

    world = World(
        samples=[draw.randint(1, 50) for _ in range(clients)],
        turn_s=lambda client, number: SPEEDS[client % len(SPEEDS)] * draw.uniform(0.5, 1.5),
        exchange_s=0.01,
        absences={client: (draw.uniform(0, 3), draw.uniform(4, 40)) for client in range(1, clients, 7)}
        if leave
        else {},
    )
    deep = np.arange(ELEMENTS) >= ELEMENTS // 2
    return Simulation(make_policy(name), rounds, world, np.zeros(ELEMENTS), deep, turn).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POLICIES)
def test_deltas_are_in_a_round_or_dropped_by_name_while_clients_come_and_go(name: str) -> None:
    rounds = 6 if name == "fedlesscan" else 12  # clustering takes most of the time
    run = simulated(name, rounds=rounds, leave=True)  # which checks the balance of its accounts
    assert len(run.times_s) >= rounds
    handed_in = sum(account.handed_in for account in run.accounts)
    dropped = sum(sum(account.dropped.values()) for account in run.accounts)
    assert handed_in == sum(run.accounts[0].contributors) + dropped
    reasons = {reason for account in run.accounts for reason, count in account.dropped.items() if count}
    assert reasons <= {"gone", "at the end"}


@pytest.mark.parametrize("name", ["fedbuff", "fedsa", "adaptive"])
def test_asynchronous_rounds_do_not_wait_for_the_slowest(name: str) -> None:
    slow, quick = simulated("fedavg", rounds=5), simulated(name, rounds=10)
    assert quick.times_s[-1] < slow.times_s[-1] / 1.5


def test_layer_wise_rounds_send_fewer_elements() -> None:
    whole, layered = simulated("fedavg", clients=8), simulated("layerwise", clients=8)
    assert (layered.sent[-1] + layered.received[-1]) < 0.7 * (whole.sent[-1] + whole.received[-1])


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = (simulated("fedsa", clients=8, leave=True) for _ in range(2))
    assert one.times_s == other.times_s
    assert all((a == b).all() for a, b in zip(one.weights, other.weights, strict=True))


@pytest.mark.parametrize("name", federated.PARTITIONS)
def test_a_split_gives_every_sample_to_one_client_before_any_shuffling(name: str) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 400).tolist()
    parts = partition(labels, name, 8, seed=1)
    assert sorted(np.concatenate(parts)) == list(range(400))
    assert all((np.diff(part) > 0).all() for part in parts), "in the order of the training set"
    classes = [len({labels[index] for index in part}) for part in parts]
    assert {"even": min(classes) == 10, "dirichlet": len(set(map(len, parts))) > 4, "two-classes": max(classes) == 2}[
        name
    ]


def test_the_benchmark_knows_every_policy_and_says_who_reached_the_claim(tmp_path: Path) -> None:
    assert tuple(POLICIES) == federated.POLICIES
    accuracies = (0.5, 0.9, 0.9, 0.95)

    def rows(of_fast: tuple[float, ...]) -> list[dict[str, Any]]:
        runs, file = tmp_path / f"runs{of_fast[-1]}.json", tmp_path / "rows.json"
        plan = federated.Plan(
            policies=("fedavg", "fedsa"), partitions=("even",), seeds=2, simulated=0, target=0.9, runs=runs
        )
        kept = Trainings(runs)
        for run in plan.all_runs:
            fast = run.policy == "fedsa"
            step_s = 1 / (1 + run.seed) if fast else 2.0
            kept.add(
                Outcome(
                    run=run,
                    seconds=tuple(step_s * n for n in range(1, 5)),
                    bytes=(10, 20, 30, 40),
                    accuracies=of_fast if fast and run.seed == 0 else accuracies,
                    handed_in=20,
                    dropped=1,
                )
            )
        federated.bench(plan, Output(json=file, console=Console(file=io.StringIO())))
        found: list[dict[str, Any]] = json.loads(file.read_text())
        return found

    baseline, fast = rows(accuracies)
    assert (baseline["to_target_s"], baseline["speed_up"], baseline["met"]) == (8.0, 1.0, None)
    assert (fast["to_target_s"], fast["speed_up"], fast["met"], fast["reached"]) == (3.0, 3.0, True, 2)
    never = rows((0.1,) * 4)[1]
    assert (never["to_target_s"], never["speed_up"], never["met"], never["reached"]) == (None, None, False, 1)

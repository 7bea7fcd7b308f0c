"""`fanin bench federated`: does a federated policy pay? Seconds to an accuracy, over three splits of the digits.

8 clients of unlike speeds are processes that train through the switch, and sleep for as long as their turn is to last;
64 are simulated in virtual time (federated_simulation.py), on one processor. Every policy runs with the same splits,
weights, batches and durations; what it gains is the ratio to FedAvg's time with the same seed.
Accounts balance in every run: a delta is in a round, or dropped by name.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fanin.benchmarks.codecs_train_rows import half_interval
from fanin.benchmarks.harness import Output, Report, by, reports, reports_of_job, table
from fanin.emulation.figures import FigureTable
from fanin.emulation.processes import LocalJob
from fanin.settings import Bounds, OneOf, Words, check_bounds, words_of

WORKER, SIMULATOR = "fanin.benchmarks.federated_worker", "fanin.benchmarks.federated_simulator"
PARTITIONS = ("even", "dirichlet", "two-classes")
POLICIES = ("fedavg", "fedbuff", "fedsa", "adaptive", "fedlesscan", "layerwise")
BASELINE = "fedavg"
SPEEDS = (1.0, 1.0, 1.5, 2.0, 3.0, 5.0, 5.0, 10.0)
"""Duration of a turn of client c, modulo 8, in units of the fastest client's."""
ALL_CLIENTS = ("fedavg", "layerwise")
"""Policies whose rounds wait for all clients; those of the others take about half of them."""
SMOOTHED = 3
"""Rounds over which accuracy is averaged before it is compared with the target."""
CLAIMED = {"fedbuff": 1.3, "fedsa": 1.5, "fedlesscan": 1.08}
"""Times as fast as FedAvg that a policy is to be, on one split at least; `layerwise` is to send 30 % less."""
CLAIMED_BYTES = {"layerwise": 0.7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    clients: Annotated[int, Bounds(0, 32)] = 8
    """Clients that are processes on this machine; 0: none of these runs."""
    simulated: Annotated[int, Bounds(0, 1024)] = 64
    """Clients of the runs in virtual time; 0: none of these runs."""
    policies: Annotated[Words, OneOf(*POLICIES)] = POLICIES
    """Some of fedavg, fedbuff, fedsa, adaptive, fedlesscan, layerwise; separated by commas."""
    partitions: Annotated[Words, OneOf(*PARTITIONS)] = PARTITIONS
    """Splits of the training set: even, dirichlet, two-classes; separated by commas."""
    seeds: Annotated[int, Bounds(1, 100)] = 5
    """Runs of each policy on each split, with a seed each."""
    rounds: Annotated[int, Bounds(5, 10_000)] = 40
    """Rounds of a policy that waits for all clients; the others have twice as many."""
    turn_ms: Annotated[float, Bounds(1, 60_000)] = 100.0
    """Usual duration of the fastest client's turn; of the others by 1, 1, 1.5, 2, 3, 5, 5, 10."""
    target: Annotated[float, Bounds(0, 1)] = 0.85
    """Test accuracy whose time is compared."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a client process, and of the simulator."""

    clients: int
    policies: Words
    partitions: Words
    seeds: int
    rounds: int
    turn_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy on one split, as in the JSON file."""

    where: str
    """`8 processes`, or `64 simulated`."""
    partition: str
    policy: str
    seeds: int
    reached: int
    """Seeds with which the target was reached."""
    to_target_s: float | None
    """Mean over the seeds; None: with one of them it was not reached."""
    speed_up: float | None
    """FedAvg's time over this one's, mean of the ratios by seed; None: one of them did not get there."""
    speed_up_range: float | None
    """Half of its 95 % interval."""
    bytes_ratio: float | None
    """Bytes to the target over FedAvg's."""
    bytes_ratio_range: float | None
    accuracy: float
    """At the end, mean of the last rounds and the seeds."""
    handed_in: int
    dropped: int
    """Deltas of all seeds: all, and those that are in no round."""
    met: bool | None
    """Whether it reaches what its paper claims for it here; None: nothing is claimed."""


def rounds_of(policy: str, rounds: int) -> int:
    """Rounds of a run."""
    return rounds if policy in ALL_CLIENTS else 2 * rounds


def first_at_least(values: Sequence[float], target: float) -> int | None:
    """Index at which the mean of the last SMOOTHED values first reached the target; None: never."""
    for end in range(SMOOTHED, len(values) + 1):
        if math.fsum(values[end - SMOOTHED : end]) / SMOOTHED >= target:
            return end - 1
    return None


def bench(plan: Plan, output: Output) -> list[Row]:
    """Run, check, print a table; write the rows. UnbalancedError where an account does not balance."""
    rows: list[Row] = []
    for found, where in _runs(plan, output):
        rows += rows_of(plan, where, list(found))
    output.show(rows, table_of(plan, rows))
    return rows


def _runs(plan: Plan, output: Output) -> Iterator[tuple[Iterator[Report], str]]:
    for clients, kind in ((plan.clients, "processes"), (plan.simulated, "simulated")):
        if not clients:
            continue
        asked = Asked(
            clients=clients, policies=plan.policies, partitions=plan.partitions, seeds=plan.seeds, rounds=plan.rounds,
            turn_ms=plan.turn_ms,
        )  # fmt: skip
        where = f"{clients} {kind}"
        if kind == "processes":
            yield reports(output, where, clients, WORKER, asked), where
        else:
            yield reports_of_job(output, where, LocalJob(SIMULATOR, words_of(asked), 1, {})), where


def rows_of(plan: Plan, where: str, found: Sequence[Report]) -> list[Row]:
    """Rows from the reports of runs: of rank 0, or of the simulator."""
    runs = by((each for each in found if "accuracies" in each), "partition", "policy")
    rows = []
    for partition in plan.partitions:
        of_baseline = _by_seed(runs[partition, BASELINE], plan) if (partition, BASELINE) in runs else {}
        rows += [_row(plan, where, partition, policy, runs[partition, policy], of_baseline) for policy in plan.policies]
    return rows


def _by_seed(runs: Sequence[Report], plan: Plan) -> dict[int, tuple[float, float] | None]:
    """Seconds and bytes to the target, by seed."""
    reached: dict[int, tuple[float, float] | None] = {}
    for run in runs:
        at = first_at_least(run["accuracies"], plan.target)
        reached[run["seed"]] = None if at is None else (run["seconds"][at], run["bytes"][at])
    return reached


def _row(
    plan: Plan, where: str, partition: str, policy: str, runs: Sequence[Report],
    of_baseline: dict[int, tuple[float, float] | None],
) -> Row:  # fmt: skip
    reached = _by_seed(runs, plan)
    known = [each for each in reached.values() if each is not None]
    pairs = [(of_baseline.get(seed), each) for seed, each in reached.items()]
    both = [(theirs, ours) for theirs, ours in pairs if theirs is not None and ours is not None]
    complete = len(both) == len(pairs)
    speed_ups = [theirs[0] / ours[0] for theirs, ours in both] if complete else []
    ratios = [ours[1] / theirs[1] for theirs, ours in both] if complete else []
    speed_up = statistics.mean(speed_ups) if speed_ups else None
    bytes_ratio = statistics.mean(ratios) if ratios else None
    return Row(
        where=where,
        partition=partition,
        policy=policy,
        seeds=len(reached),
        reached=len(known),
        to_target_s=statistics.mean(each[0] for each in known) if len(known) == len(reached) else None,
        speed_up=speed_up,
        speed_up_range=half_interval(speed_ups),
        bytes_ratio=bytes_ratio,
        bytes_ratio_range=half_interval(ratios),
        accuracy=statistics.mean(statistics.mean(run["accuracies"][-SMOOTHED:]) for run in runs),
        handed_in=sum(run["handed_in"] for run in runs),
        dropped=sum(run["dropped"] for run in runs),
        met=_met(policy, speed_up, bytes_ratio),
    )


def _met(policy: str, speed_up: float | None, bytes_ratio: float | None) -> bool | None:
    if policy in CLAIMED:
        return speed_up is not None and speed_up >= CLAIMED[policy]
    if policy in CLAIMED_BYTES:
        return bytes_ratio is not None and bytes_ratio <= CLAIMED_BYTES[policy]
    return None


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for people."""

    def plus_minus(value: float | None, half: float | None) -> str:
        if value is None:
            return ""
        return f"{value:.2f}" if half is None else f"{value:.2f} +- {half:.2f}"

    def claim(row: Any) -> str:
        return "" if row.met is None else "met" if row.met else "not met"

    return table(
        f"Federated digits, to {plan.target:.0%} accuracy",
        rows,
        [
            ("policy", "policy"),
            ("seconds", lambda row: "never" if row.to_target_s is None else f"{row.to_target_s:.2f}"),
            ("times FedAvg", lambda row: plus_minus(row.speed_up, row.speed_up_range)),
            ("bytes", lambda row: plus_minus(row.bytes_ratio, row.bytes_ratio_range)),
            ("claim", claim),
            ("accuracy", lambda row: f"{row.accuracy:.1%}"),
            ("reached", lambda row: f"{row.reached}/{row.seeds}"),
            ("dropped", lambda row: f"{row.dropped / max(row.handed_in, 1):.1%}"),
        ],
        left=("policy",),
        section=lambda row: f"{row.where}, {row.partition}",
        caption=f"seconds and bytes to the target, +- half of the 95 % interval over {plan.seeds} seeds; bytes: as a "
        "part of FedAvg's; claim: what the policy's paper argues for (docs/federated.md); accuracy: at the end; "
        "dropped: deltas that are in no round, which is the end's work but for a deadline's; "
        "simulated: virtual seconds",
    )

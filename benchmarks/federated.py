"""`fanin bench federated`: seconds to an accuracy of each federated policy, over three splits of the digits.

8 clients of unlike speeds are processes that train through the switch, and sleep until their turn has lasted as long
as it should; 64 are simulated in virtual time (federated_simulation.py), on one processor. Every policy runs with the
same splits, weights, batches and durations; its gain is FedAvg's time with the same seed over its own.
Accounts balance in every run: each delta is either in a round, or dropped for a named reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from fanin.benchmarks.codecs_train_rows import half_interval
from fanin.benchmarks.federated_runs import Outcome, Run, Trainings, carry_out
from fanin.benchmarks.harness import Output, table
from fanin.emulation.figures import FigureTable
from fanin.errors import ConfigurationError
from fanin.settings import Bounds, Decimals, OneOf, Words, check_bounds

PARTITIONS = ("even", "dirichlet", "two-classes")
POLICIES = ("fedavg", "fedbuff", "fedsa", "adaptive", "fedlesscan", "layerwise")
BASELINE = "fedavg"
SPEEDS = (1.0, 1.0, 1.5, 2.0, 3.0, 5.0, 5.0, 10.0)
"""Durations of a turn of client c, modulo 8, relative to the fastest client's."""
ALL_CLIENTS = ("fedavg", "layerwise")
"""Policies whose rounds wait for all clients; rounds of the others take about half of the clients."""
SMOOTHED = 3
"""Number of rounds over which accuracy is averaged before it is compared with the target."""
CLAIMED = {"fedbuff": 1.3, "fedsa": 1.5, "fedlesscan": 1.08}
"""By policy, the claimed ratio of FedAvg's time to its own, on at least one split; `layerwise` is to send 30 % less."""
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
    learning_rates: Annotated[Decimals, Bounds(1e-4, 10)] = (0.3,)
    """Rates of the clients' steps, separated by commas; with several, a last part of the table has each policy with its
    best one.
    """
    turn_ms: Annotated[float, Bounds(1, 60_000)] = 100.0
    """Usual duration of the fastest client's turn; of the others by 1, 1, 1.5, 2, 3, 5, 5, 10."""
    target: Annotated[float, Bounds(0, 1)] = 0.85
    """Test accuracy whose time is compared."""
    runs: Path | None = None
    """File that keeps every run; those that it has are not done again."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.places:
            raise ConfigurationError(
                "clients = 0 and simulated = 0: nobody trains. Remedy: give one of them at least 1"
            )
        for name in ("policies", "partitions", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                given = ",".join(map(str, values))
                raise ConfigurationError(f"{name} = {given!r}; expected one at least, and none twice", name)

    @property
    def places(self) -> list[tuple[int, bool]]:
        """Kinds of runs: (number of clients, whether they are simulated)."""
        return [
            (clients, simulated) for clients, simulated in ((self.clients, False), (self.simulated, True)) if clients
        ]

    def run(self, clients: int, simulated: bool, partition: str, policy: str, rate: float, seed: int) -> Run:
        """Settings of one policy's run with one seed."""
        rounds = rounds_of(policy, self.rounds)
        return Run(policy, partition, seed, clients, simulated, rounds, rate, self.turn_ms)

    @property
    def all_runs(self) -> list[Run]:
        """All runs, seed by seed."""
        cases = list(product(range(self.seeds), self.learning_rates, self.partitions, self.policies))
        return [
            self.run(clients, simulated, partition, policy, rate, seed)
            for clients, simulated in self.places
            for seed, rate, partition, policy in cases
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures of one policy on one split, as in the JSON file."""

    where: str
    """`8 processes`, or `64 simulated`."""
    partition: str
    policy: str
    learning_rate: float
    best_rate: bool
    """Whether this row has the best of several rates; its FedAvg, too, then has its own best one."""
    seeds: int
    reached: int
    """Number of seeds with which the target was reached."""
    to_target_s: float | None
    """Mean over the seeds; None if the target was not reached with one of them."""
    speed_up: float | None
    """FedAvg's time over this policy's, mean of the seeds' ratios; None if either did not reach the target."""
    speed_up_range: float | None
    """Half of the 95 % interval of `speed_up`."""
    bytes_ratio: float | None
    """Bytes to the target over FedAvg's."""
    bytes_ratio_range: float | None
    accuracy: float
    """Accuracy at the end, mean of the last rounds and the seeds."""
    handed_in: int
    dropped: int
    """Deltas of all seeds that are in no round; `handed_in` counts all."""
    met: bool | None
    """Whether the policy reaches its paper's claim here; None without a claim."""


def rounds_of(policy: str, rounds: int) -> int:
    """Number of rounds of a policy's run."""
    return rounds if policy in ALL_CLIENTS else 2 * rounds


def first_at_least(values: Sequence[float], target: float) -> int | None:
    """First index at which the mean of the last SMOOTHED values reaches the target; None if there is none."""
    for end in range(SMOOTHED, len(values) + 1):
        if math.fsum(values[end - SMOOTHED : end]) / SMOOTHED >= target:
            return end - 1
    return None


def bench(plan: Plan, output: Output) -> list[Row]:
    """Run, check, print a table; write the rows. UnbalancedError if an account does not balance."""
    kept = Trainings(plan.runs)
    carry_out(plan.all_runs, kept, output)
    rows = [row for place in plan.places for row in _rows(plan, kept, *place)]
    output.show(rows, table_of(plan, rows))
    return rows


Reached = dict[int, tuple[float, float] | None]
"""By seed, seconds and bytes to the target; None if it was not reached."""


def _rows(plan: Plan, kept: Trainings, clients: int, simulated: bool) -> Iterator[Row]:
    """Yield rows by rate and split; then, if there are several rates, rows of each policy with its best one."""

    def outcomes(partition: str, policy: str, rate: float) -> list[Outcome]:
        return [kept[plan.run(clients, simulated, partition, policy, rate, seed)] for seed in range(plan.seeds)]

    best: dict[str, dict[str, list[Outcome]]] = {}
    for rate, partition in product(plan.learning_rates, plan.partitions):
        found = {policy: outcomes(partition, policy, rate) for policy in plan.policies}
        yield from _rows_of_split(plan, found, best_rate=False)
        for policy, own in found.items():
            so_far = best.setdefault(partition, {}).get(policy)
            if so_far is None or _rank(own, plan) < _rank(so_far, plan):
                best[partition][policy] = own
    if len(plan.learning_rates) > 1:
        for found in best.values():
            yield from _rows_of_split(plan, found, best_rate=True)


def _rank(runs: Sequence[Outcome], plan: Plan) -> tuple[float, ...]:
    """Sort key of rates, best first: seeds that reach the target, then their mean time, then accuracy."""
    seconds = [each[0] for each in _by_seed(runs, plan).values() if each is not None]
    return (-len(seconds), statistics.mean(seconds) if seconds else 0.0, -_accuracy(runs))


def _rows_of_split(plan: Plan, found: Mapping[str, Sequence[Outcome]], *, best_rate: bool) -> Iterator[Row]:
    of_baseline = _by_seed(found[BASELINE], plan) if BASELINE in found else {}
    for runs in found.values():
        yield _row(plan, runs, of_baseline, best_rate=best_rate)


def _by_seed(runs: Sequence[Outcome], plan: Plan) -> Reached:
    reached: Reached = {}
    for each in runs:
        at = first_at_least(each.accuracies, plan.target)
        reached[each.run.seed] = None if at is None else (each.seconds[at], each.bytes[at])
    return reached


def _accuracy(runs: Sequence[Outcome]) -> float:
    return statistics.mean(statistics.mean(each.accuracies[-SMOOTHED:]) for each in runs)


def _row(plan: Plan, runs: Sequence[Outcome], of_baseline: Reached, *, best_rate: bool) -> Row:
    reached, run = _by_seed(runs, plan), runs[0].run
    known = [each for each in reached.values() if each is not None]
    pairs = [(of_baseline.get(seed), each) for seed, each in reached.items()]
    both = [(theirs, ours) for theirs, ours in pairs if theirs is not None and ours is not None]
    complete = len(both) == len(pairs)
    speed_ups = [theirs[0] / ours[0] for theirs, ours in both] if complete else []
    ratios = [ours[1] / theirs[1] for theirs, ours in both] if complete else []
    speed_up = statistics.mean(speed_ups) if speed_ups else None
    bytes_ratio = statistics.mean(ratios) if ratios else None
    return Row(
        where=run.where,
        partition=run.partition,
        policy=run.policy,
        learning_rate=run.learning_rate,
        best_rate=best_rate,
        seeds=len(reached),
        reached=len(known),
        to_target_s=statistics.mean(each[0] for each in known) if len(known) == len(reached) else None,
        speed_up=speed_up,
        speed_up_range=half_interval(speed_ups),
        bytes_ratio=bytes_ratio,
        bytes_ratio_range=half_interval(ratios),
        accuracy=_accuracy(runs),
        handed_in=sum(each.handed_in for each in runs),
        dropped=sum(each.dropped for each in runs),
        met=_met(run.policy, speed_up, bytes_ratio),
    )


def _met(policy: str, speed_up: float | None, bytes_ratio: float | None) -> bool | None:
    if policy in CLAIMED:
        return speed_up is not None and speed_up >= CLAIMED[policy]
    if policy in CLAIMED_BYTES:
        return bytes_ratio is not None and bytes_ratio <= CLAIMED_BYTES[policy]
    return None


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""

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
            ("rate", "learning_rate:g"),
            ("seconds", lambda row: "never" if row.to_target_s is None else f"{row.to_target_s:.2f}"),
            ("times FedAvg", lambda row: plus_minus(row.speed_up, row.speed_up_range)),
            ("bytes", lambda row: plus_minus(row.bytes_ratio, row.bytes_ratio_range)),
            ("claim", claim),
            ("accuracy", lambda row: f"{row.accuracy:.1%}"),
            ("reached", lambda row: f"{row.reached}/{row.seeds}"),
            ("dropped", lambda row: f"{row.dropped / max(row.handed_in, 1):.1%}"),
        ],
        left=("policy",),
        section=lambda row: (
            f"{row.where}, {row.partition}, "
            + ("each with its best rate" if row.best_rate else f"rate {row.learning_rate:g}")
        ),
        caption=f"seconds and bytes to the target, +- half of the 95 % interval over {plan.seeds} seeds; bytes: as a "
        "part of FedAvg's; claim: what the policy's paper argues for (docs/federated.md); accuracy: at the end; "
        "dropped: deltas that are in no round, which is the end's work but for a deadline's; "
        "simulated: virtual seconds",
    )

"""The runs of `fanin bench federated`: their settings and outcomes.

All policies run with a seed before the next seed begins, so that an interrupted benchmark has complete seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fanin.benchmarks.harness import Output, reports, reports_of_job
from fanin.benchmarks.kept import Kept, runs_as_text
from fanin.benchmarks.ranks import progress
from fanin.emulation.processes import LocalJob
from fanin.settings import words_of

WORKER, SIMULATOR = "fanin.benchmarks.federated_worker", "fanin.benchmarks.federated_simulator"
MOST_IN_A_JOB = 200
"""Most runs that one job is asked for, because an argument of a command line holds at most 128 KiB."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one run."""

    policy: str
    partition: str
    seed: int
    """Seed of the split, the weights, the order of samples and the durations."""
    clients: int
    simulated: bool
    """Whether the run is in virtual time, rather than by processes through a switch."""
    rounds: int
    learning_rate: float
    """Learning rate of a client's steps."""
    turn_ms: float

    @property
    def where(self) -> str:
        """Place of the clients, as text for people."""
        return f"{self.clients} {'simulated' if self.simulated else 'processes'}"

    @property
    def words(self) -> str:
        """The run as text for people."""
        return f"{self.policy}, {self.partition}, rate {self.learning_rate:g}, seed {self.seed}"


Runs = Annotated[tuple[Run, ...], runs_as_text(Run)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one run."""

    run: Run
    seconds: tuple[float, ...]
    """Time of each round's end."""
    bytes: tuple[int, ...]
    """Payload bytes of all clients, both ways, up to each round's end."""
    accuracies: tuple[float, ...]
    """Accuracies of the shared weights after each round, on the test set."""
    handed_in: int
    dropped: int


class Trainings(Kept[Run, Outcome]):
    """Outcomes of runs, kept in a file."""

    def __init__(self, path: Path | None) -> None:
        """Read `path`, if it exists; ConfigurationError if it holds something else."""
        super().__init__(path, Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a client process, and of the simulator."""

    runs: Runs


def carry_out(runs: Sequence[Run], kept: Trainings, output: Output) -> None:
    """Carry out the runs that `kept` lacks. UnbalancedError if an account does not balance."""
    places: dict[str, list[Run]] = defaultdict(list)
    for run in kept.missing(runs):
        places[run.where].append(run)
    for where, here in places.items():
        for first in range(0, len(here), MOST_IN_A_JOB):
            asked = Asked(runs=tuple(here[first : first + MOST_IN_A_JOB]))
            if here[0].simulated:
                found = reports_of_job(output, where, LocalJob(SIMULATOR, words_of(asked), 1, {}))
            else:
                found = reports(output, where, here[0].clients, WORKER, asked)
            for _ in kept.collect(found, asked.runs, 1, _outcome_of, "run"):  # only rank 0 reports
                pass


def _outcome_of(run: Run, said: list[dict[str, Any]]) -> Outcome:
    (one,) = said
    return Outcome(
        run=run,
        seconds=tuple(one["seconds"]),
        bytes=tuple(one["bytes"]),
        accuracies=tuple(one["accuracies"]),
        handed_in=one["handed_in"],
        dropped=one["dropped"],
    )


def each_run(asked: Asked, carry: Callable[[int, Run], None]) -> None:
    """Call `carry(number, run)` for every requested run, and show progress."""
    for number, run in enumerate(asked.runs):
        carry(number, run)
        progress(f"run {number + 1} of {len(asked.runs)}: {run.words}")

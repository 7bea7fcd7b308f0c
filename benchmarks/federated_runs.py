"""The runs of `fanin bench federated`: which there are, and what each brings.

All policies run with a seed before the next one begins, so that what is there after half the time is of whole seeds.
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
"""Runs that one job is asked for: one argument of a command line holds 128 KiB."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one run."""

    policy: str
    partition: str
    seed: int
    """Seed of the split, the weights, the order of samples and the durations."""
    clients: int
    simulated: bool
    """In virtual time, or by processes through a switch."""
    rounds: int
    learning_rate: float
    """Rate of a client's steps."""
    turn_ms: float

    @property
    def where(self) -> str:
        """Place of the clients, in words."""
        return f"{self.clients} {'simulated' if self.simulated else 'processes'}"

    @property
    def words(self) -> str:
        """The run in words, for people."""
        return f"{self.policy}, {self.partition}, rate {self.learning_rate:g}, seed {self.seed}"


Runs = Annotated[tuple[Run, ...], runs_as_text(Run)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one run."""

    run: Run
    seconds: tuple[float, ...]
    """End of each round."""
    bytes: tuple[int, ...]
    """Payload of all clients, both ways, up to then."""
    accuracies: tuple[float, ...]
    """Accuracies of the shared weights after each round, on the test set."""
    handed_in: int
    dropped: int


class Trainings(Kept[Run, Outcome]):
    """Results of runs, kept between commands."""

    def __init__(self, path: Path | None) -> None:
        """ConfigurationError for a file that holds something else."""
        super().__init__(path, Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a client process, and of the simulator."""

    runs: Runs


def carry_out(runs: Sequence[Run], kept: Trainings, output: Output) -> None:
    """Do what `kept` has not. UnbalancedError where an account does not balance."""
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
            for _ in kept.collect(found, asked.runs, 1, _outcome_of, "run"):  # rank 0 alone reports
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
    """Call `carry(number, run)` for every run that is asked for, and say how far it is."""
    for number, run in enumerate(asked.runs):
        carry(number, run)
        progress(f"run {number + 1} of {len(asked.runs)}: {run.words}")

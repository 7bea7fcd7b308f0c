"""The trainings of `fanin bench codecs --train`: their settings, and how they are carried out.

A training without a rate runs on this machine alone, and shows how much is learned in how many steps. One with a rate
runs over links, each worker in a namespace of its own with a port at the switch, and shows how long a step takes. Both
use packets of the same size, so that the same elements share a scale, and the same samples: so the loss after a number
of steps is the same, and hours of slow links are not spent on finding out how well a codec learns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fanin.benchmarks.harness import Output, reports
from fanin.benchmarks.kept import Kept, runs_as_text
from fanin.emulation.network.topology import Link
from fanin.errors import FaninError
from fanin.protocol.window import packet_shape

WORKER = "fanin.benchmarks.codecs_train_worker"
GLOO = "gloo"
"""Text that stands for float32 over gloo instead of a codec."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one training."""

    task: str
    workers: int
    codec: str
    """The codec's text, torch's hook (codecs_train_hooks.py), or GLOO."""
    batch: int
    """Samples per step over all workers together."""
    steps: int
    points: int
    """Number of evaluations, evenly spread, the last one after the last step."""
    seed: int = 0
    """Seed of the weights and of the order of samples."""
    rate_bit_s: float | None = None
    """Rate of every link; None: on this machine, without links."""

    @property
    def words(self) -> str:
        """The training as text for people."""
        links = "" if self.rate_bit_s is None else f", links of {rate_in_words(self.rate_bit_s)}"
        return f"{self.task}, {self.workers} workers{links}, {self.codec}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation, on the test set."""

    step: int
    """Number of steps done."""
    loss: float | None
    """Test loss; None if it is not finite."""
    accuracy: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one training."""

    run: Run
    points: tuple[Point, ...]
    step_s: float
    """Median time of a step, of the slowest rank, without the first steps, in which DDP makes its buckets."""
    compute_s: float
    """Forward, backward and optimizer of a step, without communication, measured while all ranks compute."""
    codec_s: float
    """Codec arithmetic in a step, before and after sums."""
    bytes_out: float | None = None
    """Bytes sent per step, by the worker that sent most, from its device's counters; None without links."""
    bytes_in: float | None = None
    """Bytes received per step, by the worker that received most; None without links."""
    processor: float | None = None
    """Load of this machine's processors in the steps, 0..1."""
    processor_s: float | None = None
    """Processor time of one worker in a step, with all its threads: median over steps, of the worker with most."""


class Trainings(Kept[Run, Outcome]):
    """Outcomes of trainings, kept in a file."""

    def __init__(self, path: Path | None) -> None:
        """Read `path`, if it exists; ConfigurationError if it holds something else."""
        super().__init__(path, Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (codecs_train_worker.py)."""

    trainings: Annotated[tuple[Run, ...], runs_as_text(Run)]


def carry_out(runs: list[Run], kept: Trainings, output: Output) -> None:
    """Carry out the runs that `kept` lacks; FaninError if replicas differ at the end."""
    places: dict[tuple[int, float | None], list[Run]] = defaultdict(list)
    for run in kept.missing(runs):
        places[run.workers, run.rate_bit_s].append(run)
    environment = {"FANIN_WORDS_PER_PACKET": str(packet_shape(Link().mtu)[0])}
    for (workers, rate_bit_s), here in places.items():
        where = "this machine" if rate_bit_s is None else f"links of {rate_in_words(rate_bit_s)}"
        words = f"{workers} workers, {where}, {len(here)} trainings"
        link = None if rate_bit_s is None else Link(rate_bit_s=rate_bit_s)
        found = reports(
            output, words, workers, WORKER, Asked(trainings=tuple(here)), link=link, environment=environment
        )
        for _ in kept.collect(found, here, workers, outcome_of, "run"):
            pass  # ranks report nothing but trainings
    if left := kept.missing(runs):
        raise FaninError(f"{left[0].words}: not all ranks have said how it went. Remedy: please report this")


def outcome_of(run: Run, said: list[dict[str, Any]]) -> Outcome:
    """Combine the reports of all ranks on a run into its outcome."""
    if len({each["replica"] for each in said}) != 1:
        raise FaninError(f"{run.words}: the ranks' parameters differ at the end. Remedy: please report this")
    points: list[list[Any]] = next((each["points"] for each in said if each["points"]), [])
    return Outcome(
        run=run,
        points=tuple(Point(*each) for each in points),
        step_s=max(each["step_s"] for each in said),
        compute_s=max(each["compute_s"] for each in said),
        codec_s=max(each["codec_s"] for each in said),
        bytes_out=None if run.rate_bit_s is None else max(each["bytes_out"] for each in said),
        bytes_in=None if run.rate_bit_s is None else max(each["bytes_in"] for each in said),
        processor=next((each["processor"] for each in said if each["processor"] is not None), None),
        processor_s=max(each["processor_s"] for each in said),
    )


def rate_in_words(rate_bit_s: float) -> str:
    """A link's rate as text for people."""
    return f"{rate_bit_s / 1e6:g} Mbit/s"


def evaluated(run: Run) -> Iterator[int]:
    """Yield the steps after which a run is evaluated."""
    return (
        step + 1 for step in range(run.steps) if (step + 1) * run.points // run.steps > step * run.points // run.steps
    )

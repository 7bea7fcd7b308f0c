"""The trainings of `fanin bench sharded --epochs`: which there are, and what each brings.

All rivals train with a seed before the next one begins, so that what is there after half the time is of whole seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fanin.benchmarks.kept import Kept, runs_as_text
from fanin.errors import FaninError

COMPARED_SEED = 0
"""The one after which the rivals' weights are compared."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one training."""

    rival: str
    workers: int
    epochs: int
    seed: int
    """Seed of weights and of the order of samples."""
    rate_bit_s: float | None = None
    """Rate of every link; None: this machine alone."""
    switch_at: str = ""
    """Place of the sums, over links: packets differ by it, and with them the elements that share a scale."""
    device: str = "cpu"
    epoch_steps: int = 0
    """Most steps of an epoch; 0: all of them."""


Runs = Annotated[tuple[Run, ...], runs_as_text(Run)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one training."""

    run: Run
    loss: float
    """Mean training loss of the last epoch."""
    test_loss: float
    apart_step: float | None = None
    """With COMPARED_SEED: `Row.apart_step` of sharded.py."""
    apart: float | None = None


class Trainings(Kept[Run, Outcome]):
    """Results of trainings, kept between runs."""

    def __init__(self, path: Path | None) -> None:
        """ConfigurationError for a file that holds something else."""
        super().__init__(path, Outcome)


def to_do(runs: Sequence[Run], kept: Trainings) -> list[Run]:
    """The runs that `kept` lacks; and the first rival's training, if others are compared with the weights that it
    makes.
    """
    missing = kept.missing(runs)
    compared = any(run.seed == COMPARED_SEED for run in missing)
    return [runs[0], *missing] if compared and runs[0] not in missing else missing


def outcome_of(run: Run, said: list[dict[str, Any]]) -> Outcome:
    """From what all ranks say; FaninError where they disagree on a loss."""
    if len({each["loss"] for each in said}) != 1:
        raise FaninError(f"{run.rival}: the ranks have different losses after {run.epochs} epochs; please report this")
    apart_step, apart = (_most([each[name] for each in said]) for name in ("apart_step", "apart"))
    return Outcome(run, said[0]["loss"], said[0]["test_loss"], apart_step, apart)


def _most(found: list[float | None]) -> float | None:
    return max((each for each in found if each is not None), default=None)

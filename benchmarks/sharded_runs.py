"""The trainings of `fanin bench sharded --epochs`: their settings and outcomes.

All rivals train with a seed before the next seed begins, so that an interrupted benchmark has complete seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fanin.benchmarks.kept import Kept, runs_as_text
from fanin.errors import FaninError

COMPARED_SEED = 0
"""Seed with which the rivals' weights are compared."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one training."""

    rival: str
    workers: int
    epochs: int
    seed: int
    """Seed of the weights and of the order of samples."""
    rate_bit_s: float | None = None
    """Rate of every link; None: on this machine, without links."""
    switch_at: str = ""
    """Place of the switch, over links; it affects packets, and so which elements share a scale."""
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
    """With COMPARED_SEED, as `Row.apart_step` of sharded.py."""
    apart: float | None = None


class Trainings(Kept[Run, Outcome]):
    """Outcomes of trainings, kept in a file."""

    def __init__(self, path: Path | None) -> None:
        """Read `path`, if it exists; ConfigurationError if it holds something else."""
        super().__init__(path, Outcome)


def to_do(runs: Sequence[Run], kept: Trainings) -> list[Run]:
    """The runs that `kept` lacks; and the first rival's training, if one of them is to be compared with the weights
    that it makes.
    """
    missing = kept.missing(runs)
    compared = any(run.seed == COMPARED_SEED for run in missing)
    return [runs[0], *missing] if compared and runs[0] not in missing else missing


def outcome_of(run: Run, said: list[dict[str, Any]]) -> Outcome:
    """Combine the reports of all ranks on a run into its outcome; FaninError if they disagree on a loss."""
    if len({each["loss"] for each in said}) != 1:
        raise FaninError(
            f"{run.rival}: the ranks have different losses after {run.epochs} epochs. Remedy: please report this"
        )
    apart_step, apart = (_most([each[name] for each in said]) for name in ("apart_step", "apart"))
    return Outcome(run, said[0]["loss"], said[0]["test_loss"], apart_step, apart)


def _most(found: list[float | None]) -> float | None:
    return max((each for each in found if each is not None), default=None)

"""Reads the progress that training programs report: JSON objects on their standard output, one per line.

A figure is kept if it is a number of at most MAX_FIGURE. A loss that is NaN or infinite is shown in the terminal and
noted in the record instead, because JSON cannot express it and a plot cannot show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanin.records.record import Progress

FIGURES = ("epoch", "loss", "accuracy", "step_s", "communication_s")
"""Fields that are kept; an object without any of them is no progress."""
MAX_FIGURE = float(1 << 53)
"""Largest figure kept: up to it a double holds every integer."""


def progress_of(record: Mapping[str, Any], *, time_s: float, rank: int, label: str = "") -> Progress | None:
    """The object's figures as a record's Progress; None if it has none of FIGURES."""
    values = {name: number for name in FIGURES if (number := _finite(record.get(name))) is not None}
    if not values:
        return None
    step, epoch = _finite(record.get("steps", record.get("step"))), values.get("epoch")
    return Progress(
        time_s=time_s,
        rank=rank,
        step=None if step is None else int(step),
        epoch=None if epoch is None else int(epoch),
        loss=values.get("loss"),
        accuracy=values.get("accuracy"),
        step_s=values.get("step_s"),
        communication_s=values.get("communication_s"),
        label=label,
    )


def unkept(record: Mapping[str, Any]) -> dict[str, str]:
    """By name, the figures that a record cannot hold, as text: `{"loss": "nan"}`."""
    return {
        name: f"{value:.4g}" if isinstance(value, float) else "a number too large"
        for name in FIGURES
        if _is_number(value := record.get(name)) and _finite(value) is None
    }


def _finite(value: object) -> float | None:
    if not _is_number(value) or not isinstance(value, int | float):
        return None
    # the comparison is false for NaN; an integer may be of any size
    return float(value) if abs(value) <= MAX_FIGURE else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

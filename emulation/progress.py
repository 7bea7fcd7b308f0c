"""Progress that training programs report: JSON objects on their standard output, one to a line.

A figure is kept if it is a number of at most MAX_FIGURE. A loss that has become NaN or infinite is shown in the
terminal and noted in the record instead: JSON has no such number, and a plot has no place for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanin.records.record import Progress

FIGURES = ("epoch", "loss", "accuracy", "step_s", "communication_s")
"""Fields of such an object that are kept; one with none of them is no progress."""
MAX_FIGURE = float(1 << 53)
"""Up to here a double holds every integer."""


def progress_of(record: Mapping[str, Any], *, time_s: float, rank: int, label: str = "") -> Progress | None:
    """The object's figures as the record of a run has them; None where it has none."""
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
    """Figures that were printed but have no place in a record, by name, as they are shown: `{"loss": "nan"}`."""
    return {
        name: f"{value:.4g}" if isinstance(value, float) else "a number too large"
        for name in FIGURES
        if _is_number(value := record.get(name)) and _finite(value) is None
    }


def _finite(value: object) -> float | None:
    if not _is_number(value) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= MAX_FIGURE else None  # False for NaN; an integer may be any


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

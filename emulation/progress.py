"""What training programs say of themselves: JSON objects on their standard output, one to a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanin.emulation.record import Progress

FIGURES = ("epoch", "loss", "accuracy", "step_s", "communication_s")
"""Fields of such an object that are kept; one with none of them is no progress."""


def progress_of(record: Mapping[str, Any], *, time_s: float, rank: int, label: str = "") -> Progress | None:
    """The object's figures as the record of a run has them; None where it has none."""
    values = {
        name: float(record[name])
        for name in FIGURES
        if isinstance(record.get(name), int | float) and not isinstance(record[name], bool)
    }
    if not values:
        return None
    steps = record.get("steps", record.get("step"))
    return Progress(
        time_s=time_s,
        rank=rank,
        step=steps if isinstance(steps, int) else None,
        epoch=int(values["epoch"]) if "epoch" in values else None,
        loss=values.get("loss"),
        accuracy=values.get("accuracy"),
        step_s=values.get("step_s"),
        communication_s=values.get("communication_s"),
        label=label,
    )

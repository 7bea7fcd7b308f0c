"""`fanin demo`: train over fanin and over gloo, and compare."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class TaskName(str, enum.Enum):
    """Tasks of fanin.examples.tasks, which cannot be imported here: it needs torch."""

    DIGITS = "digits"
    TEXT = "text"


def demo(
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 4,
    lanes: Annotated[int, typer.Option(help="Bits per lane: 32, 16, 8 or 4.")] = 32,
    task: Annotated[TaskName, typer.Option(help="What to train.")] = TaskName.DIGITS,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights and of the order of the samples.")] = 0,
    backend: Annotated[str, typer.Option(help="torch.distributed backend.")] = "fanin",
    baseline: Annotated[bool, typer.Option(help="Run the same job over gloo as well.")] = True,
    json: Annotated[Path | None, typer.Option(help="File for the figures.")] = None,
) -> None:
    """Train a small network with DistributedDataParallel through a software switch, then over gloo, and compare."""
    from rich.console import Console

    from fanin.examples.demo import Plan, demonstrate
    from fanin.options import Options

    Options(lanes=lanes)  # refuses an illegal width before any process starts
    plan = Plan(task=task.value, backend=backend, workers=workers, lanes=lanes, epochs=epochs, seed=seed)
    demonstrate(plan, baseline=baseline, json_file=json, console=Console())

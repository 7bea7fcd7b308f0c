"""`fanin demo`: train over fanin and over gloo, and compare."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from fanin.cli import extras, output


class TaskName(str, enum.Enum):
    """Tasks of fanin.examples.tasks, which cannot be imported here: it needs torch."""

    DIGITS = "digits"
    TEXT = "text"


def demo(
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 4,
    lanes: Annotated[int, typer.Option(help="Bits per lane: 32, 16, 8 or 4.")] = 32,
    task: Annotated[TaskName, typer.Option(help="What to train.")] = TaskName.DIGITS,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; default: 12 of digits, 2 of text.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the weights and of the order of the samples.")] = 0,
    backend: Annotated[str, typer.Option(help="torch.distributed backend.")] = "fanin",
    baseline: Annotated[bool, typer.Option(help="Run the same job over gloo as well.")] = True,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLAUSE",
            help="Fault at the workers: drop=1%,dup=1%@seed=7 or kill=worker:2@step:40. May be repeated.",
        ),
    ] = None,
    json: output.JsonFile = None,
    record: output.RecordFile = None,
    html: output.HtmlFile = None,
) -> None:
    """Train a small network with DistributedDataParallel through a software switch, then over gloo, and compare."""
    from rich.console import Console

    from fanin.options import Options

    extras.require("demo", "`fanin demo`")
    output.check(json, record, html)
    faults = ";".join(fault or ())
    Options(lanes=lanes, faults=faults)  # refuses what is illegal before any process starts
    from fanin.examples.demo import Plan, demonstrate

    plan = Plan(task=task.value, backend=backend, workers=workers, lanes=lanes, epochs=epochs, seed=seed, faults=faults)
    demonstrate(
        plan,
        baseline=baseline,
        json_file=json,
        record_file=record,
        html=html,
        console=Console(),
        command=output.command_line(),
    )

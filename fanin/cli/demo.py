"""`fanin demo`: train over fanin and over gloo, and compare."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated

import typer

from fanin.cli import extras, modes, output
from fanin.cli.fields import described


class TaskName(str, enum.Enum):
    """Tasks of fanin.examples.tasks, which cannot be imported here: it needs torch."""

    DIGITS = "digits"
    TEXT = "text"


def made() -> Callable[..., None]:
    """The command's function, with help, bounds and defaults of its Plan."""
    from fanin.examples.demo import Plan

    return described(Plan, "workers", "lanes", "task", "epochs", "seed", "backend")(demo)


def demo(
    context: typer.Context,
    *,
    workers: Annotated[int, typer.Option()],
    lanes: Annotated[int, typer.Option()],
    task: Annotated[TaskName, typer.Option()],
    epochs: Annotated[int | None, typer.Option(show_default=False)],
    seed: Annotated[int, typer.Option()],
    backend: Annotated[str, typer.Option()],
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

    if backend == "gloo":
        modes.refuse_with(context, "--backend gloo", "lanes")
    extras.require("demo", "`fanin demo`")
    output.check(json, record, html, unasked=output.unasked_page(html))
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

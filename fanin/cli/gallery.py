"""`fanin gallery`: kinds of parallelism over fanin, each as an example with a check."""

from __future__ import annotations

from typing import Annotated

import typer

from fanin.cli import extras, modes, output
from fanin.errors import ConfigurationError

MAX_WORKERS = 32
"""Ranks of one host."""


def gallery(
    context: typer.Context,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this example. May be repeated.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Run every example.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_WORKERS, help="Worker processes; default: each example's own.", show_default=False),
    ] = None,
    hosts: Annotated[
        int, typer.Option(min=1, max=MAX_WORKERS, help="Hosts that workers claim to be on: 2 and more have shards.")
    ] = 1,
    quick: Annotated[bool, typer.Option(help="Fewer steps and seeds.")] = False,
    json: output.JsonFile = None,
) -> None:
    """List kinds of parallelism that run over fanin, or run them: verdicts, figures and bytes by path."""
    from rich.console import Console

    from fanin.examples.parallel.catalogue import CATALOGUE, named
    from fanin.examples.parallel.gallery import Plan, listing, run

    if only and every:
        raise ConfigurationError("--only and --all: not both. Remedy: leave one out")
    examples = tuple(CATALOGUE.values()) if every else tuple(named(name) for name in only or ())
    if not examples:
        modes.refuse_without(context, "--only or --all", "workers", "hosts", "quick", "json")
        Console().print(listing())
        return
    for example in examples:
        extras.require(example.extra, f"the example {example.name}")
        example.require(workers or example.workers[0])
        if (workers or example.workers[0]) % hosts:
            raise ConfigurationError(
                f"--hosts {hosts}: {example.name} has {workers or example.workers[0]} workers. Remedy: a divisor"
            )
    output.check(json)
    run(Plan(examples=examples, workers=workers, hosts=hosts, quick=quick), Console(), json)

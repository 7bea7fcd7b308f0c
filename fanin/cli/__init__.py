"""The `fanin` command. One module per subcommand; heavy imports happen inside the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fanin
from fanin.cli import bench, controller, demo, doctor, emulate, report, simulate, stats, switch, tune
from fanin.errors import FaninError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)
app.command()(demo.demo)
app.add_typer(bench.app, name="bench")
app.command()(emulate.emulate)
app.command()(switch.switch)
app.command()(controller.controller)
app.command()(stats.stats)
app.command()(tune.tune)
app.command()(doctor.doctor)
app.command()(report.report)
app.command()(simulate.simulate)


def print_version(wanted: bool) -> None:
    """`fanin --version`."""
    if wanted:
        print(fanin.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """In-network aggregation for data-parallel training."""


def main() -> None:
    """Entry point of the `fanin` script. What fanin reports becomes one line and status 1; the rest is a traceback."""
    try:
        app()
    except FaninError as error:
        sys.exit(f"fanin: {error}")

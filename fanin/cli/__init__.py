"""The `fanin` command. One module per subcommand; heavy imports happen inside the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fanin
from fanin.cli import bench, controller, demo, doctor, emulate, extras, report, simulate, stats, switch, tune
from fanin.cli.epilogs import STATUS, epilog
from fanin.errors import FaninError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False, epilog=STATUS)
for command in (
    demo.demo, emulate.emulate, switch.switch, controller.controller, stats.stats, tune.tune, doctor.doctor,
    report.report, simulate.simulate,
):  # fmt: skip
    app.command(epilog=epilog(command.__name__))(command)
app.add_typer(bench.app, name="bench")


def print_version(wanted: bool) -> None:
    """`fanin --version`."""
    if wanted:
        print(fanin.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print fanin's version.")
    ] = False,
) -> None:
    """In-network aggregation for data-parallel training."""


def main() -> None:
    """Entry point of the `fanin` script. What fanin reports becomes one line and status 1; the rest is a traceback."""
    try:
        app()
    except FaninError as error:
        sys.exit(f"fanin: {error}")
    except ModuleNotFoundError as error:
        remedy = extras.remedy(error.name)
        if remedy is None:
            raise
        sys.exit(f"fanin: this needs {error.name}. Remedy: {remedy}")

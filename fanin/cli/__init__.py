"""The `fanin` command. One module per subcommand; heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import fanin
from fanin import json_log, open_files
from fanin.build_commit import build_commit
from fanin.cli import (
    advise,
    bench,
    conformance,
    controller,
    demo,
    doctor,
    emulate,
    ending,
    gallery,
    later,
    p4,
    plan,
    rank,
    report,
    simulate,
    stats,
    switch,
    top,
    trace,
    tune,
)
from fanin.cli.epilogs import STATUS, epilog

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, epilog=STATUS)
app.command(epilog=epilog("demo"))(demo.demo)
later.add(app, "emulate", emulate.TEXT, emulate.made, epilog("emulate"))
for command in (
    switch.switch,
    controller.controller,
    stats.stats,
    top.top,
    tune.tune,
    doctor.doctor,
    advise.advise,
    report.report,
    gallery.gallery,
    simulate.simulate,
    conformance.conformance,
    trace.trace,
):
    app.command(epilog=epilog(command.__name__))(command)
later.add(app, "plan", plan.TEXT, plan.made, epilog("plan"))
app.command(epilog=epilog("rank"), context_settings={"allow_interspersed_args": False})(rank.rank)
app.add_typer(bench.app, name="bench")
app.add_typer(p4.app, name="p4")


def print_version(wanted: bool) -> None:
    """Print the version and the commit for `fanin --version` and end."""
    if wanted:
        commit = build_commit()
        print(f"fanin {fanin.__version__}" + (f", commit {commit}" if commit else ""))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print fanin's version.")
    ] = False,
) -> None:
    """In-network aggregation for data-parallel training."""
    open_files.require()
    json_log.configure(os.environ)


def run(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: the process's own); the status that the process is to end with."""
    given = None if arguments is None else list(arguments)
    return ending.run(lambda: app(given, prog_name="fanin", standalone_mode=False))


def main() -> None:
    """Entry point of the `fanin` script. How it ends: fanin/cli/ending.py."""
    ending.prepare()
    sys.exit(run())

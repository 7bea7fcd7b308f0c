"""The `fanin` command. One module per subcommand, imported when it is asked for; heavy imports are inside commands."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from fanin.cli import ending, later
from fanin.cli.epilogs import STATUS, epilog

COMMANDS = {
    "demo": "Train a small network with DistributedDataParallel through a software switch, then over gloo, "
    "and compare.",
    "emulate": "Run a training command on an emulated cluster (root): a namespace and a link per worker, and the "
    "switch.",
    "switch": "Run a switch. Workers find it with FANIN_SWITCH=udp://host:port or zmq://host:port.",
    "controller": "Admit jobs to BMv2, the emulator or a Tofino. Workers find it with FANIN_SWITCH=udp://host:port of "
    "--bind.",
    "stats": "Show a switch's jobs, members, rounds, packets, duplicates and drops by reason. Without its key: only "
    "totals.",
    "top": "Watch running jobs: who is waited for, where packets die, turnarounds, marks, rates, and what holds a job "
    "up.",
    "tune": "Change the quorum or the staleness bound of a running job; with neither, show them. Wants the switch's "
    "key.",
    "doctor": "Check this machine and the way to a switch; status 1 when something must be cured.",
    "advise": "Measure links, predict a step per placement and lane width, measure the best two, and recommend "
    "settings.",
    "report": "Make the page of a run, or of two side by side: one HTML file that needs nothing but itself.",
    "gallery": "List kinds of parallelism that run over fanin, or run them: verdicts, figures and bytes by path.",
    "simulate": "Run the real machines in virtual time, under faults, and check every event (docs/simulation.md).",
    "conformance": "Play histories to a switch and to the readable twin, and compare what they send "
    "(docs/conformance.md).",
    "trace": "Write a job's steps, sums, rounds and packets as a trace that Perfetto and Chrome show "
    "(docs/watching.md).",
    "plan": "Choose pipeline stages and data-parallel groups for hosts with unlike links, as `fanin advise` measured "
    "them.",
    "rank": "Start a rank with the variables that torch wants, made of those that mpirun, mpiexec or srun has set.",
}
"""Every command, in the order of `--help`, with the first line of its own help. Each is in the module of its name."""
GROUPS = {
    "bench": "Measure against other backends.",
    "p4": "P4 programs: run one, trace a packet, read a device's slots, test one.",
}
MADE = ("advise", "controller", "demo", "emulate", "plan", "switch")
"""Commands whose module has a function `made` that makes theirs, since options come from fields of a record."""


class Commands(TyperGroup):
    """The commands, whose errors reach fanin/cli/ending.py."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the command line as typer's groups do, which import much when they do."""
        with ending.past_typer():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Carry out a command as typer's groups do."""
        with ending.past_typer():
            return super().invoke(ctx)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, epilog=STATUS)


def _command(name: str) -> Callable[..., None]:
    """Import a command's module, and return its function."""
    module = importlib.import_module(f"fanin.cli.{name}")
    return cast("Callable[..., None]", module.made() if name in MADE else getattr(module, name))


def _group(name: str) -> typer.Typer:
    """Import a group's module, and return the group."""
    return cast("typer.Typer", importlib.import_module(f"fanin.cli.{name}").app)


for _name, _text in COMMANDS.items():
    _context = {"allow_interspersed_args": False} if _name == "rank" else {}  # options of the program are not ours
    later.add(app, _name, _text, partial(_command, _name), epilog(_name), **_context)
for _name, _text in GROUPS.items():
    later.add_group(app, _name, _text, partial(_group, _name))


def print_version(wanted: bool) -> None:
    """Print the version and the commit for `fanin --version` and end."""
    if wanted:
        import fanin
        from fanin.build_commit import build_commit

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
    from fanin import json_log, open_files

    open_files.require()
    json_log.configure(os.environ)


def run(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: the process's own), and return the exit status."""
    given = None if arguments is None else list(arguments)
    return ending.run(lambda: app(given, prog_name="fanin", standalone_mode=False))


def main() -> None:
    """Entry point of the `fanin` script. How it ends: fanin/cli/ending.py."""
    ending.prepare()
    sys.exit(run())

"""`fanin emulate`: a training command on an emulated cluster of network namespaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanin.cli import extras, modes, output
from fanin.cli.ending import FAILED, INTERRUPTED
from fanin.cli.fields import parameter, parameters, taking

if TYPE_CHECKING:
    from fanin.records.record import RunRecord

TEXT = "Run a training command on an emulated cluster (root): a namespace and a link per worker, and the switch."
IN_FILES = ("name", "duplicate", "reorder")
"""Fields of a scenario that its file alone gives."""
P4_TARGETS = ("p4", "bmv2")
"""Targets that a P4Runtime server or client of fanin's belongs to."""
FAULTS = (
    "drop=1%,dup=0.5%@seed=7, reorder=2%, corrupt=0.01%, kill=worker:2@step:40, restart=switch@12s, "
    "pause=worker:2@12s+3s, down=link:3@5s+2s, slow=link:3:4x@5s+10s. May be repeated."
)


def made() -> Callable[..., None]:
    """The command's function: options of the scenario's fields, which win over its file."""
    from fanin.emulation.network.scenario import Scenario

    own = [each for each in parameters(Scenario, absent=True) if each.name not in IN_FILES]
    fields = [each.name for each in own]

    def emulate(context: typer.Context, **given: Any) -> None:
        if given["clean"]:
            modes.refuse_with(context, "--clean", *(each for each in given if each != "clean"))
        run_emulation({name: given.pop(name) for name in fields}, **given)

    itself = parameter("context", typer.Context, inspect.Parameter.empty)
    before, links = _options("command", "scenario"), _options("uplink", "link", "straggler")
    return taking(emulate, TEXT, [itself, *before, *own, *links, *_options("fault", "record", "html", "logs", "clean")])


def _options(*names: str) -> list[inspect.Parameter]:
    """Further parameters, which are no fields of a scenario, or are tables there."""
    annotations: dict[str, Any] = {
        "command": Annotated[list[str] | None, typer.Argument(help="Behind --: python train.py ...")],
        "scenario": Annotated[
            str | None, typer.Option(metavar="NAME|FILE", help="A TOML file, or a shipped one; options below win.")
        ],
        "uplink": Annotated[
            str | None,
            typer.Option(help="Uplink of every rack: 100mbit, or rate=1gbit,delay=1ms. As other links by default."),
        ],
        "link": Annotated[
            list[str] | None, typer.Option(help="One host's own link: 3:rate=500mbit,delay=1ms. May be repeated.")
        ],
        "straggler": Annotated[list[str] | None, typer.Option(help="A slower worker: 3:2x. May be repeated.")],
        "fault": Annotated[list[str] | None, typer.Option(help=FAULTS)],
        "record": output.RecordFile,
        "html": output.HtmlFile,
        "logs": Annotated[
            Path | None, typer.Option(metavar="FOLDER", help="Folder for what switch and workers write.")
        ],
        "clean": Annotated[bool, typer.Option("--clean", help="Remove what runs that were killed left behind.")],
    }
    return [parameter(name, annotations[name], False if name == "clean" else None) for name in names]


def run_emulation(
    fields: dict[str, Any],
    *,
    command: list[str] | None,
    scenario: str | None,
    uplink: str | None,
    link: list[str] | None,
    straggler: list[str] | None,
    fault: list[str] | None,
    record: Path | None,
    html: Path | None,
    logs: Path | None,
    clean: bool,
) -> None:
    """Carry out the command. `fields`: of the scenario, None where its file or its default decides."""
    from rich.console import Console

    from fanin.emulation.network import ownership
    from fanin.emulation.network.commands import require_privileges
    from fanin.emulation.network.emulate import emulate as run
    from fanin.emulation.network.scenario import compose
    from fanin.emulation.network.scenario import link as read_link
    from fanin.emulation.network.scenario import straggler as read_straggler
    from fanin.emulation.network.scenario import uplink as read_uplink
    from fanin.emulation.report import publish
    from fanin.errors import ConfigurationError, FaninError

    require_privileges()
    console = Console()
    if clean:
        left = ownership.leftovers()
        stuck = [each for found in left for each in ownership.clean(found)]
        if stuck:
            raise FaninError(
                f"could not remove {'; '.join(stuck)}. "
                "Remedy: see what holds them (`ip netns pids NAME`), then run it again"
            )
        console.print(f"removed {len(left)} run{'s' * (len(left) != 1)} whose owner is gone", highlight=False)
        return
    if not command:
        raise ConfigurationError(
            "no command. Remedy: write it behind --, as in `fanin emulate --workers 4 -- python train.py`"
        )
    extras.require_for(command)
    output.check(record, html, unasked=output.unasked_page(html))
    given: dict[str, Any] = {
        **fields,
        "uplink": read_uplink(uplink) if uplink is not None else None,
        "faults": tuple(fault) if fault else None,
        "stragglers": dict(map(read_straggler, straggler)) if straggler else None,
        "links": dict(map(read_link, link)) if link else None,
    }
    described = compose(scenario, {name: value for name, value in given.items() if value is not None})
    if described.target in P4_TARGETS:
        extras.require("p4", f"--target {described.target}")
    finished = run(described, command, record_file=record, logs=logs, console=console)
    if html is not None or _is_worth_a_page(finished):
        publish(finished, html, console)
    if finished.outcome != "finished":
        raise typer.Exit(INTERRUPTED if finished.outcome == "interrupted" else FAILED)


def _is_worth_a_page(record: RunRecord) -> bool:
    """Whether anything is to be seen: a run that failed before a worker summed or reported is told in its summary."""
    return record.outcome != "failed" or bool(record.progress) or any(worker.spans for worker in record.workers)

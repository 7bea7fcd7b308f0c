"""`fanin emulate`: a training command on an emulated cluster of network namespaces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanin.cli import extras, output
from fanin.cli.ending import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from fanin.emulation.record import RunRecord

PLACES = "own (a port per host), rank0, hosts (a shard on each), spare:K (K further hosts too) or spare-only:K (these)"


def emulate(
    command: Annotated[list[str] | None, typer.Argument(help="Behind --: python train.py ...")] = None,
    scenario: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="A TOML file, or a shipped one; options below win.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=100, help="Ranks in all.")] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option(min=1, max=32, help="That share a namespace and a link; 1 by default.")
    ] = None,
    switch_at: Annotated[str | None, typer.Option(help=f"Where the switch is: {PLACES}.")] = None,
    racks: Annotated[
        int | None,
        typer.Option(min=1, max=8, help="Of hosts, each behind an uplink, with a switch each if `own`."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The switch: native, python, p4 or bmv2.")] = None,
    lanes: Annotated[int | None, typer.Option(min=4, max=32, help="Bits per lane: 32, 16, 8 or 4.")] = None,
    rate: Annotated[str | None, typer.Option(help="Of every link, each way: 100mbit, 1gbit, none.")] = None,
    delay: Annotated[str | None, typer.Option(help="Of every link, one way: 50us.")] = None,
    loss: Annotated[str | None, typer.Option(help="Of every link, per frame and direction: 0.1%.")] = None,
    mtu: Annotated[int | None, typer.Option(min=576, max=9000, help="Of every link.")] = None,
    queue: Annotated[str | None, typer.Option(help="At either end of every link: 512kib.")] = None,
    uplink: Annotated[
        str | None, typer.Option(help="Of every rack: 100mbit, or rate=1gbit,delay=1ms. As other links by default.")
    ] = None,
    tcp_flows: Annotated[
        int | None, typer.Option(min=0, max=64, help="TCP flows from host to host that share the links.")
    ] = None,
    link: Annotated[
        list[str] | None, typer.Option(help="One host's own: 3:rate=500mbit,delay=1ms. May be repeated.")
    ] = None,
    straggler: Annotated[list[str] | None, typer.Option(help="A slower worker: 3:2x. May be repeated.")] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="drop=1%,dup=0.5%,reorder=2%,corrupt=0.01%@seed=7, kill=worker:2@step:40, restart=switch@12s, "
            "pause=worker:2@12s+3s, down=link:3@5s+2s, slow=link:3:4x@5s+10s. May be repeated."
        ),
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(min=0, max=8, help="How often torchrun starts all workers anew.")
    ] = None,
    fallback: Annotated[str | None, typer.Option(help="When the switch is lost: raise or gloo.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Of the links' dice.")] = None,
    record: output.RecordFile = None,
    html: output.HtmlFile = None,
    logs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for what switch and workers write.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what runs that were killed left behind.")] = False,
) -> None:
    """Run a training command on an emulated cluster (root): a namespace and a link per worker, and the switch."""
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
            raise FaninError(f"could not remove {'; '.join(stuck)}")
        console.print(f"removed {len(left)} run{'s' * (len(left) != 1)} whose owner is gone", highlight=False)
        return
    if not command:
        raise ConfigurationError("no command: write it behind --, as in `fanin emulate --workers 4 -- python train.py`")
    extras.require_for(command)
    output.check(record, html)
    given: dict[str, Any] = {
        "workers": workers,
        "ranks_per_host": ranks_per_host,
        "switch_at": switch_at,
        "racks": racks,
        "target": target,
        "uplink": read_uplink(uplink) if uplink is not None else None,
        "tcp_flows": tcp_flows,
        "lanes": lanes,
        "rate": rate,
        "delay": delay,
        "loss": loss,
        "mtu": mtu,
        "queue": queue,
        "restarts": restarts,
        "fallback": fallback,
        "seed": seed,
        "faults": tuple(fault) if fault else None,
        "stragglers": dict(map(read_straggler, straggler)) if straggler else None,
        "links": dict(map(read_link, link)) if link else None,
    }
    described = compose(scenario, {name: value for name, value in given.items() if value is not None})
    finished = run(described, command, record_file=record, logs=logs, console=console)
    if html is not None or _is_worth_a_page(finished):
        publish(finished, html, console)
    if finished.outcome != "finished":
        raise typer.Exit(INTERRUPTED if finished.outcome == "interrupted" else FAILED)


def _is_worth_a_page(record: RunRecord) -> bool:
    """Whether anything is to be seen: a run that failed before a worker summed or reported is told in its summary."""
    return record.outcome != "failed" or bool(record.progress) or any(worker.spans for worker in record.workers)

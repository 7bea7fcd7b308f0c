"""`fanin plan`: data-parallel and pipeline groups for hosts with unlike links, from what `fanin advise` measured."""

from __future__ import annotations

import dataclasses
import inspect
import json as json_module
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanin.cli.fields import parameter, with_options
from fanin.cli.output import JsonObject
from fanin.files import name, read

if TYPE_CHECKING:
    from rich.console import Console

    from fanin.layouts.cluster import Cluster
    from fanin.layouts.plans import Layout
    from fanin.layouts.workload import Workload

TEXT = "Choose pipeline stages and data-parallel groups for hosts with unlike links, as `fanin advise` measured them."


def made() -> Callable[..., None]:
    """The command's function: options of a workload's fields."""
    from fanin.layouts.workload import Workload

    file = Annotated[Path, typer.Argument(metavar="FILE", help="Output of `fanin advise --json`.")]
    return with_options(
        Workload, plan, TEXT, [parameter("file", file, inspect.Parameter.empty), parameter("json", JsonObject, False)]
    )


def plan(make: Callable[[], Workload], _: dict[str, Any], *, file: Path, json: bool) -> None:
    """Carry out the command."""
    from rich.console import Console

    from fanin.layouts.cluster import read_measured
    from fanin.layouts.plans import layouts, mesh_lines

    workload = make()
    measured = read_measured(read(file, "the advice"), name(file))
    found = layouts(measured, workload)
    if json:
        facts = {
            "layouts": [
                {**dataclasses.asdict(each), "step_s": each.times.step_s, "lines": mesh_lines(each)} for each in found
            ]
        }
        print(json_module.dumps(facts, indent=2))
    else:
        report(measured.cluster, found, Console(highlight=False, soft_wrap=True))


def report(cluster: Cluster, found: list[Layout], console: Console) -> None:
    """Print the layouts for people, and the lines that make the best."""
    from fanin.emulation.figures import FigureTable, milliseconds
    from fanin.layouts.plans import mesh_lines

    best = found[0]
    table = FigureTable(
        f"a step of {cluster.size} ranks on {len(cluster.ranks)} hosts, predicted ms",
        ("stages x replicas", "planned", "pipeline", "sums", "bound", "in order", "replicas first"),
    )
    for each in found:
        times = (
            each.times.step_s, each.times.pipeline_s, each.times.sums_s, each.least_s, each.in_order_s,
            each.replicas_in_order_s,
        )  # fmt: skip
        mark = "" if each.exact else " *"
        table.add(f"{each.stages} x {each.replicas}{mark}", *map(milliseconds, times))
    table.caption = (
        "in order, replicas first: ranks as they are numbered, one stage, or one replica, after the other; bound: no "
        "layout is below it"
    )
    if not all(each.exact for each in found):
        table.caption += "; *: found by exchanges of ranks, so there may be a quicker one"
    console.print(table)
    ordered_s = {"ranks in order": best.in_order_s, "ranks in order, replicas first": best.replicas_in_order_s}
    slower = max(ordered_s, key=lambda each: ordered_s[each])
    gain = ordered_s[slower] / best.times.step_s if best.times.step_s else 1.0
    console.print(
        f"best: {best.stages} stages x {best.replicas} replicas, {best.micro_batches} micro-batches each; "
        f"{gain:.2f} times as fast as {slower}"
    )
    host_of = cluster.host_of
    for stage, (ranks, layers) in enumerate(zip(best.mesh, best.layers, strict=True)):
        hosts = ", ".join(dict.fromkeys(cluster.names[host_of[rank]] for rank in ranks))
        console.print(f"  stage {stage}, {layers} layers: ranks {', '.join(map(str, ranks))} ({hosts})")
    console.print("groups, with ranks numbered as they were measured:")
    for line in mesh_lines(best):
        console.print(f"    {line}", markup=False)
    if best.host_order and not best.is_in_order:
        console.print(
            f"or number ranks with the hosts in this order (--node-rank, --hosts): {','.join(best.host_order)}; then\n"
            f'    mesh = init_device_mesh("cpu", ({best.stages}, {best.replicas}), mesh_dim_names=("pp", "dp"))',
            markup=False,
        )

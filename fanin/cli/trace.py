"""`fanin trace`: a job as a trace for Perfetto or Chrome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanin.bounds import SEED
from fanin.cli import modes, output
from fanin.errors import ConfigurationError

if TYPE_CHECKING:
    from fanin.emulation.simulator.machines import Kind


def trace(
    context: typer.Context,
    timelines: Annotated[
        list[Path] | None,
        typer.Argument(help="Files that FANIN_TIMELINE had the ranks of a job write.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The trace, for ui.perfetto.dev.")] = Path("trace.json"),
    scenario: Annotated[
        str, typer.Option(help="Instead: a simulated run, by a scenario's file (TOML) or the name of a shipped one.")
    ] = "",
    seed: Annotated[int, typer.Option(min=SEED.least, max=SEED.most, help="Seed of the simulated run.")] = 0,
    step: Annotated[
        int | None, typer.Option(min=0, help="Show this step of the simulated run alone, with its packets.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write --step of the simulated run as an SVG with moving packets."),
    ] = None,
    native: Annotated[
        bool, typer.Option("--native/--python", help="The simulated run's machines: C++, or their twins in Python.")
    ] = True,
) -> None:
    """Write a job's steps, sums, rounds and packets as a trace that Perfetto and Chrome show (docs/watching.md)."""
    output.check(out, replay, read=timelines or ())
    if bool(timelines) == bool(scenario):
        raise ConfigurationError(
            "fanin trace wants either files of FANIN_TIMELINE or a --scenario. Remedy: "
            "FANIN_TIMELINE=timeline-%r.jsonl at the job, then fanin trace timeline-*.jsonl"
        )
    if not scenario:
        modes.refuse_without(context, "--scenario", "seed", "step", "replay", "native")
    if replay is not None and step is None:
        raise ConfigurationError("--replay shows one step of a simulated run. Remedy: name it with --step")
    from fanin import files
    from fanin.emulation.tracing import replay_of_simulation, trace_of_files, trace_of_simulation

    if timelines:
        made = trace_of_files(timelines)
    else:
        from fanin.emulation.simulator.scenario import load

        kind: Kind = "native" if native else "python"
        made = trace_of_simulation(load(scenario), seed, kind=kind, step=step)
        if replay is not None and step is not None:
            text = replay_of_simulation(load(scenario), seed, kind=kind, step=step)
            files.write(replay, text, "the replay")
            print(f"{replay}: {len(text):,} bytes; any browser shows it")
    made.write(out)
    clocks = made.facts["clocks"]
    assert isinstance(clocks, dict)
    for who, how in clocks.items():
        print(f"{who}: {how}")
    notes = made.facts.get("notes", [])
    assert isinstance(notes, list)
    for note in notes:
        print(note)
    print(f"{out}: {len(made.events):,} events; open it at https://ui.perfetto.dev or chrome://tracing")

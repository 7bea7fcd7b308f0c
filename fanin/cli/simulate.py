"""`fanin simulate`: the machines in virtual time, under faults, with every event checked."""

from __future__ import annotations

import contextlib
import dataclasses
import json as json_module
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanin import files
from fanin.bounds import SEED
from fanin.cli import ending, modes
from fanin.errors import ConfigurationError

if TYPE_CHECKING:
    from fanin.emulation.simulator.canary import Catch
    from fanin.emulation.simulator.machines import Kind
    from fanin.emulation.simulator.scenario import Scenario
    from fanin.emulation.simulator.search import Tally
    from fanin.emulation.simulator.violations import ViolationError
    from fanin.host.transports.pcap import PcapWriter

Say = Callable[[str], None]
"""Prints a line, or does nothing when JSON is wanted."""
Facts = dict[str, Any]
"""A result as a JSON object. `violation` or `missed` holds a failure; without either the run succeeded."""

MAX_RUNS = 10**9
CANARY_SEEDS_APART = 1_000_000
"""Distance between the first seeds of two hunts for the same defect."""
UNUSED_WITH = {
    "scale": (
        "seed", "native", "trains", "canary", "search", "processes", "shards", "cards", "events", "pcap", "scenario"
    ),
    "canary": ("native", "trains", "search", "processes", "events", "pcap", "scenario"),
    "search": ("events", "pcap"),
    "shards": ("trains", "pcap", "scenario"),
    "trains": ("native",),
    "cards": ("canary",),
}  # fmt: skip
"""Parameters whose options would do nothing beside that of each of these."""
MACHINES = {"native": "native machines", "python": "python machines", "trains": "native machines in trains"}
"""Kinds of machines in words."""


def simulate(
    context: typer.Context,
    seed: Annotated[
        int,
        typer.Option(
            min=SEED.least, max=SEED.most, help="Seed of the run; without --scenario, of the scenario as well."
        ),
    ] = 0,
    scenario: Annotated[str, typer.Option(help="A scenario's file (TOML), or the name of a shipped one.")] = "",
    events: Annotated[bool, typer.Option("--events", help="Print every packet and event.")] = False,
    pcap: Annotated[Path | None, typer.Option(help="File for a capture of every packet sent.")] = None,
    native: Annotated[bool, typer.Option("--native/--python", help="Machines in C++ or their twins in Python.")] = True,
    trains: Annotated[bool, typer.Option("--trains", help="Native machines that get packets in trains.")] = False,
    search: Annotated[
        int | None, typer.Option(min=1, max=MAX_RUNS, help="Run that many schedules, from --seed on.")
    ] = None,
    canary: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_RUNS, help="Hunt each planted defect so many times; all must be found."),
    ] = None,
    processes: Annotated[int, typer.Option(min=0, max=1024, help="For --search; 0: one per core.")] = 0,
    shards: Annotated[
        bool, typer.Option("--shards", help="Ranks over several shards, some of which are lost: one run, or --search.")
    ] = False,
    cards: Annotated[bool, typer.Option("--cards", help="With --shards: hosts have several network cards.")] = False,
    scale: Annotated[bool, typer.Option("--scale", help="One all-reduce of 25 MiB on up to 10,000 workers.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, with every figure.")] = False,
) -> None:
    """Run the real machines in virtual time, under faults, and check every event (docs/simulation.md)."""
    from fanin.emulation.simulator.chaos import draw_for
    from fanin.emulation.simulator.scenario import load, to_toml

    if json and events:
        raise ConfigurationError("--events prints lines, and --json one object. Remedy: leave out one of them")
    for option, others in UNUSED_WITH.items():
        for written in modes.typed(context, option):
            modes.refuse_with(context, written, *others)
    if search is None:
        modes.refuse_without(context, "--search", "processes")
    if not shards:
        modes.refuse_without(context, "--shards", "cards")
    kind: Kind = "trains" if trains else "native" if native else "python"
    given = load(scenario) if scenario else None
    say: Say = _nothing if json else print
    count = processes or len(os.sched_getaffinity(0))
    if shards:
        facts = _shards(seed, search, canary, kind, count, print if events else None, say, cards=cards)
    elif scale:
        facts = _scale(say)
    elif canary:
        from fanin.emulation.simulator.canary import HUNTED, MAX_SCHEDULES, hunt

        facts = _hunt(HUNTED, hunt, MAX_SCHEDULES, canary, seed, say)
    elif search:
        facts = _search(seed, search, kind, given, count, say)
    else:
        chosen = given or draw_for(kind, seed)
        if events and given is None:
            print(to_toml(chosen))
        facts = _run(chosen, seed, kind, print if events else None, pcap, say)
    if json:
        print(json_module.dumps(facts, indent=2))
    if "violation" in facts or "missed" in facts:
        sys.exit(1)


def _nothing(_: str) -> None:
    pass


def _run(scenario: Scenario, seed: int, kind: Kind, show: Say | None, pcap: Path | None, say: Say) -> Facts:
    """Simulate one run, print its outcome, and return it."""
    from fanin.emulation.simulator.simulation import simulate as run
    from fanin.emulation.simulator.violations import ViolationError

    facts: Facts = {"scenario": scenario.name, "machines": kind}
    with _capture(pcap) as capture:
        try:
            report = run(scenario, seed, kind=kind, show=show, pcap=capture)
        except ViolationError as violation:
            say(str(violation))
            return facts | {"seed": seed, "violation": _of(violation)}
    starts = f"{report.attempts} start{'s' * (report.attempts != 1)} of jobs"
    say(
        f"scenario {scenario.name}, seed {seed}, {MACHINES[kind]}: {starts} in {report.virtual_s:.3f} "
        f"virtual s ({report.recovery_s:.3f} s after the last fault), {report.events:,} events, "
        f"{report.packets:,} packets, {report.contributions:,} contributions checked; nothing was violated"
    )
    return facts | dataclasses.asdict(report) | {"recovery_s": report.recovery_s}


@contextlib.contextmanager
def _capture(path: Path | None) -> Iterator[PcapWriter | None]:
    """Yield a capture that is kept whole, or not at all; None where no path is given."""
    if path is None:
        yield None
        return
    from fanin.host.transports.pcap import PcapWriter

    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(files.in_place_of(path, continued=True))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            why = files.in_words(error) if isinstance(error, OSError) else f"{error}. Remedy: correct the path"
            raise ConfigurationError(f"capture file {files.name(path)} cannot be written: {why}") from None
        yield stack.enter_context(contextlib.closing(PcapWriter(str(place), files.name(path))))


def _of(violation: ViolationError) -> Facts:
    return {
        "kind": violation.kind,
        "text": violation.text,
        "seed": violation.seed,
        "event": violation.event_number,
        "time_s": violation.time_s,
        "trace": violation.trace,
    }


def _search(seed: int, schedules: int, kind: Kind, scenario: Scenario | None, processes: int, say: Say) -> Facts:
    """Simulate many runs. Of the first that fails, print and return the shortest schedule that still fails."""
    from fanin.emulation.simulator.chaos import draw_for
    from fanin.emulation.simulator.scenario import to_toml
    from fanin.emulation.simulator.search import Tally, search, shorten

    started = time.monotonic()
    tally = Tally()

    def so_far() -> str:
        return _so_far("schedules", tally.schedules, kind, seed, tally.failed[0][1] if tally.failed else None)

    with ending.told_when_interrupted(so_far):
        search(
            seed, schedules, kind=kind, scenario=scenario, processes=processes,
            progress=_show_progress(schedules), total=tally,
        )  # fmt: skip
    took_s = time.monotonic() - started
    say(
        f"{tally.schedules:,} schedules with {MACHINES[kind]} from seed {seed} on: {tally.events:,} events, "
        f"{tally.contributions:,} contributions checked, {tally.virtual_s:,.0f} virtual s in {took_s:.0f} s; slowest "
        f"recovery {tally.slowest_recovery_s:.1f} s; {tally.forecasts:,} forecasts of scales held, "
        f"{tally.forecasts_missed:,} did not" + f"; {tally.regular:,} datagrams in regular runs" * (kind == "trains")
    )
    facts: Facts = {"machines": kind, "first_seed": seed, "took_s": took_s}
    facts |= {each.name: getattr(tally, each.name) for each in dataclasses.fields(tally) if each.name != "failed"}
    if not tally.failed:
        say("nothing was violated")
        return facts
    failed_seed, violation = tally.failed[0]
    say(f"seed {failed_seed} fails:\n{violation}\n\nshortening its schedule ...")
    with ending.told_when_interrupted(so_far):
        failure = shorten(scenario or draw_for(kind, failed_seed), failed_seed, violation, kind=kind)
    say(f"{len(failure.scenario.faults)} of {failure.faults_before} faults are needed; it then fails with\n")
    say(str(failure.violation))
    again = f"fanin simulate --{kind} --seed {failed_seed} --scenario FILE.toml --events"
    say(f"\nSave this as FILE.toml; `{again}` replays it:\n")
    shortened = to_toml(failure.scenario)
    say(shortened)
    return facts | {"violation": _of(failure.violation), "shortened": shortened}


def _so_far(trials: str, count: int, kind: Kind, seed: int, violation: ViolationError | None) -> str:
    """Say what the `trials` (in the plural) have shown that were run before an interruption."""
    found = "nothing was violated" if violation is None else f"seed {violation.seed} violated {violation.kind}"
    return f"{count:,} {trials} with {MACHINES[kind]} were run from seed {seed} on, and {found}"


def _shards(
    seed: int, plans: int | None, canaries: int | None, kind: Kind, processes: int, show: Say | None, say: Say,
    *, cards: bool,
) -> Facts:  # fmt: skip
    """Simulate ranks over several shards: hunts for planted defects, many plans, or one plan."""
    from fanin.emulation.simulator.shard_search import (
        MAX_PLANS,
        SHARD_DEFECTS,
        ShardTally,
        draw_plan,
        hunt_shards,
        search_shards,
        shorten_plan,
        simulate_plan,
    )
    from fanin.emulation.simulator.violations import ViolationError

    facts: Facts = {"machines": kind, "first_seed": seed}
    if canaries:
        return facts | _hunt(SHARD_DEFECTS, hunt_shards, MAX_PLANS, canaries, seed, say)
    if plans:
        tally = ShardTally()
        with ending.told_when_interrupted(lambda: _so_far("plans", tally.plans, kind, seed, tally.violation)):
            search_shards(seed, plans, kind=kind, processes=processes, cards=cards, total=tally)
        say(
            f"{tally.plans:,} plans with {kind} machines from seed {seed} on: in {tally.dealt_anew:,} ranks went on as "
            f"another job, in {tally.twice:,} more than once; {tally.packets:,} packets, {tally.virtual_s:,.0f} "
            "virtual s"
        )
        facts |= {
            each.name: getattr(tally, each.name) for each in dataclasses.fields(tally) if each.name != "violation"
        }
        if tally.violation is None:
            say("nothing was violated")
            return facts
        violation, failed_seed = tally.violation, tally.violation.seed
        with ending.told_when_interrupted(lambda: _so_far("plans", tally.plans, kind, seed, violation)):
            needed = shorten_plan(draw_plan(failed_seed, cards=cards), failed_seed, kind=kind)
        again = f"fanin simulate --shards{' --cards' * cards} --seed {failed_seed} --events"
        say(f"{violation}\n\nneeded: {needed}\n`{again}` replays it")
        return facts | {"violation": _of(violation)}
    plan = draw_plan(seed, cards=cards)
    say(f"{plan}")
    try:
        report = simulate_plan(plan, seed, kind=kind, show=show)
    except ViolationError as violation:
        say(str(violation))
        return facts | {"violation": _of(violation)}
    say(f"{report}\nnothing was violated")
    return facts | dataclasses.asdict(report)


def _show_progress(schedules: int) -> Callable[[Tally], None]:
    """Return a function that shows the progress on a terminal, in one line that is overwritten."""

    def show(tally: Tally) -> None:
        if sys.stderr.isatty():
            print(f"\r{tally.schedules:,} of {schedules:,} schedules", end="\r", file=sys.stderr, flush=True)

    return show


def _scale(say: Say) -> Facts:
    """The tables of docs/simulation.md."""
    from fanin.emulation.simulator.scale import Fabric, Transfer, table

    transfer, link = Transfer.over(), Fabric(workers=2)
    started = time.process_time()
    rows = table(transfer)
    say(
        f"one all-reduce of {transfer.tensor_bytes:,} bytes of float32, links {link.bytes_per_s * 8 / 1e9:g} Gbit/s "
        f"and {link.delay_s * 1e6:g} us, switches {link.switch_s * 1e6:g} us, window {transfer.window}; virtual ms\n\n"
        "| workers | switches, leaves to root | fanin | floor | ring | halving-doubling |"
        "\n|---:|---:|---:|---:|---:|---:|"
    )
    for row in rows:
        times = (row.aggregate_s, row.floor_s, row.ring_s, row.halving_doubling_s)
        cells = [
            f"{row.workers:,}",
            " + ".join(map(str, row.switches)),
            *("-" if each is None else f"{each * 1e3:.2f}" for each in times),
        ]
        say(f"| {' | '.join(cells)} |")
    limits = _scale_bounds(say)
    over_hosts = _scale_over_hosts(say)
    took_s = time.process_time() - started
    say(f"\n{took_s:.0f} s of one core")
    return {
        "rows": [dataclasses.asdict(row) for row in rows],
        "bounds": limits,
        "hosts": over_hosts,
        "took_s": took_s,
    }


def _scale_bounds(say: Say) -> list[Facts]:
    """The limits of the same all-reduces: a second table."""
    from fanin.emulation.simulator.scale import SIZES, Fabric, Transfer
    from fanin.emulation.simulator.scale_bounds import bounds

    rows = [bounds(Fabric(workers=size), Transfer.over()) for size in SIZES]
    say(
        "\nlimits of the same: memory of the slots needed per switch, packets in and out of the busiest switch\n\n"
        "| workers | bound by | round trip | slots needed | memory | packets of a switch | per second | bits |"
        "\n|---:|---|---:|---:|---:|---:|---:|---:|"
    )
    for row in rows:
        cells = (
            f"{row.workers:,}", row.bound_by, f"{row.round_trip_s * 1e6:.1f} us", str(row.slots),
            f"{row.switch_bytes / 1024:.0f} KiB", f"{row.busiest_packets:,}",
            f"{row.busiest_packets_per_s / 1e6:.1f} million", str(row.bits),
        )  # fmt: skip
        say(f"| {' | '.join(cells)} |")
    return [dataclasses.asdict(row) | {"bound_by": row.bound_by} for row in rows]


def _scale_over_hosts(say: Say) -> list[Facts]:
    """The third table: the same tensor over hosts with a shard each."""
    from fanin.emulation.simulator.scale import Transfer
    from fanin.emulation.simulator.scale_hosts import WINDOW, table_over_hosts

    rows = table_over_hosts(Transfer.over(window=WINDOW))
    say(
        f"\nthe same over hosts with a shard each, below one switch, a window of {WINDOW} for all flows of a host\n\n"
        "| hosts | fanin | 2 (n - 1) / n | ring | halving-doubling | faster than the ring up to | than halving |"
        "\n|---:|---:|---:|---:|---:|---:|---:|"
    )
    for row in rows:
        times = (row.spread_s, row.floor_s, row.ring_s, row.halving_doubling_s)
        sizes = (row.faster_than_ring_bytes, row.faster_than_halving_bytes)
        cells = [
            f"{row.hosts:,}",
            *(f"{each * 1e3:.2f}" for each in times),
            *(f"{each >> 10:,} KiB" if each else "-" for each in sizes),
        ]
        say(f"| {' | '.join(cells)} |")
    return [dataclasses.asdict(row) for row in rows]


def _hunt(
    defects: Collection[str], hunt: Callable[[str, int], Catch | None], most: int, times: int, seed: int, say: Say
) -> Facts:
    """The canary: every planted defect must be found, every time. `most`: runs after which one counts as missed."""
    hunts: list[Facts] = []
    first_seeds = range(seed, seed + times * CANARY_SEEDS_APART, CANARY_SEEDS_APART)

    def so_far() -> str:
        run = sum(each["schedules"] for each in hunts)
        found = sum(each["found"] is not None for each in hunts)
        return (
            f"{len(hunts):,} of {len(defects) * times:,} hunts were done, from seed {seed} on, with {run:,} schedules; "
            f"{found:,} of them found their defect"
        )

    with ending.told_when_interrupted(so_far):
        for defect, first_seed in ((each, first) for each in defects for first in first_seeds):
            catch = hunt(defect, first_seed)
            found = "NOT FOUND" if catch is None else f"{catch.violation.kind} violated, seed {catch.violation.seed}"
            schedules = most if catch is None else catch.schedules
            say(f"{defect:22} from seed {first_seed}: {found}, {schedules} schedules")
            hunts.append(
                {
                    "defect": defect,
                    "first_seed": first_seed,
                    "schedules": schedules,
                    "found": None if catch is None else catch.violation.kind,
                    "seed": None if catch is None else catch.violation.seed,
                }
            )
    missed = sum(each["found"] is None for each in hunts)
    if not missed:
        return {"hunts": hunts}
    print(f"{missed} hunts found nothing: the simulator no longer sees what it must see", file=sys.stderr)
    return {"hunts": hunts, "missed": missed}

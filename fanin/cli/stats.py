"""`fanin stats`: what a switch has done and who is on it."""

from __future__ import annotations

import contextlib
import dataclasses
import json as json_module
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fanin.addresses import SwitchAddress
from fanin.cli.asking import WHERE, KeyFile, Switches
from fanin.cli.watch_tables import finding_lines, rank_table, share_table, views
from fanin.errors import FaninError
from fanin.options import Options
from fanin.protocol import control
from fanin.watching.findings import findings
from fanin.watching.rates import rates

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from fanin.emulation.figures import FigureTable

COLUMNS = {"packets_in": "in", "packets_out": "out", "rounds": "rounds", "duplicates": "dup."}
"""Counters with a column of their own, and its heading."""
DROPPED = "dropped_"
"""Prefix of the names of drop counters; the rest is the reason."""


def stats(
    switch: Annotated[str, typer.Argument(help=WHERE)] = "",
    json: Annotated[bool, typer.Option("--json", help="A JSON object per switch, with every counter.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again every second, until Ctrl-C; with --json a line per switch.")
    ] = False,
    key_file: KeyFile = None,
) -> None:
    """Show a switch's jobs, members, rounds, packets, duplicates and drops by reason. Without its key: only totals."""
    from rich.console import Console
    from rich.console import Group as RichGroup

    options = Options.from_environment(os.environ)
    console = Console()
    with Switches(switch, options, key_file) as switches:
        addresses = switches.addresses
        if watch and json:
            with contextlib.suppress(KeyboardInterrupt):
                for answers in every_second(switches):
                    for answer in answers:
                        if not isinstance(answer, FaninError):
                            print(json_module.dumps(dataclasses.asdict(answer)), flush=True)
            return
        if watch:
            with contextlib.suppress(KeyboardInterrupt), views(console) as show:
                for answers in every_second(switches):
                    shown = [render(answer, address) for answer, address in zip(answers, addresses, strict=True)]
                    show(RichGroup(*shown, *found_in(addresses, answers)))
            return
        errors = []
        answers = switches.ask_all()
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, FaninError):
                errors.append(str(answer))
            elif json:
                print(json_module.dumps(dataclasses.asdict(answer), indent=2))
            else:
                console.print(render(answer, address))
        if not json:
            for line in found_in(addresses, answers):
                console.print(line, soft_wrap=True)
        if errors:
            raise FaninError("; ".join(errors))


def every_second(switches: Switches) -> Iterator[list[control.Stats | FaninError]]:
    """Answers of all switches, again and again."""
    while True:
        yield switches.ask_all()
        time.sleep(1.0)


def found_in(addresses: Sequence[SwitchAddress], answers: Sequence[control.Stats | FaninError]) -> list[Text]:
    """One line for each finding about the jobs at the switches that have answered, from each job's start until now."""
    known = [(at, each) for at, each in zip(addresses, answers, strict=True) if not isinstance(each, FaninError)]
    return finding_lines(findings([None] * len(known), [each for _, each in known]), [at for at, _ in known])


def drops(counters: dict[str, int]) -> str:
    """`stranger 3, checksum 1`, or a dash."""
    found = [
        f"{name.removeprefix(DROPPED).replace('_', ' ')} {count:,}"
        for name, count in sorted(counters.items())
        if name.startswith(DROPPED) and count
    ]
    return ", ".join(found) or "-"


def render(answer: control.Stats | FaninError, address: SwitchAddress) -> Group:
    """Everything, for a terminal; or why there is nothing."""
    from rich.console import Group
    from rich.text import Text

    if isinstance(answer, FaninError):
        return Group(Text(str(answer)))
    used, whole = answer.memory_used_bytes / (1 << 20), answer.memory_bytes / (1 << 20)
    memory = f", memory {used:,.1f} of {whole:,.0f} MiB" if answer.memory_bytes else ""
    head = Text(
        f"{address}: fanin {answer.software}, up {answer.uptime_s:,.0f} s{memory}"
        f"{', encrypted' * answer.curve}\n{answer.engine}"
    )
    refused = ", ".join(f"{code} {count}" for code, count in sorted(answer.refused.items()))
    parts: list[Text | FigureTable] = [head]
    if answer.parent is not None:
        parts.append(Text(answer.parent.text))
    parts.append(_data_table(answer))
    parts.append(_jobs_table(answer) if answer.jobs else Text(_count(answer)))
    tables = [make(job) for job in rates(None, answer) for make in (rank_table, share_table)]
    parts += [table for table in tables if table is not None]
    parts += [Text(f"{job.name}: {who}") for job in answer.jobs if (who := absent(job))]
    parts += [Text(f"{job.name}: {how}") for job in answer.jobs if (how := rings(job))]
    if refused:
        parts.append(Text(f"refused: {refused}"))
    return Group(*parts)


def _count(answer: control.Stats) -> str:
    """The line for a switch whose answer names no job."""
    if not answer.job_count:
        return "no jobs"
    which = "" if answer.operator else "; the switch's --key-file (FANIN_KEY_FILE) shows which"
    return f"{answer.job_count} job{'s' * (answer.job_count > 1)}{which}"


def _data_table(answer: control.Stats) -> FigureTable:
    from fanin.emulation.figures import FigureTable

    table = FigureTable("", ("data", *COLUMNS.values(), "bytes in", "bytes out", "dropped"), left=("dropped",))
    for data in answer.data:
        counts = [f"{data.counters.get(name, 0):,}" for name in (*COLUMNS, "bytes_in", "bytes_out")]
        table.add(f"{data.scheme} {', '.join(map(str, data.ports))}", *counts, drops(data.counters))
    return table


def _jobs_table(answer: control.Stats) -> FigureTable:
    from fanin.emulation.figures import FigureTable

    headings = ("job", "state", "ranks", "window", *COLUMNS.values(), "dropped")
    table = FigureTable("", headings, left=("state", "ranks", "window", "dropped"))
    for job in answer.jobs:
        counts = [f"{job.counters.get(name, 0):,}" for name in COLUMNS]
        shape = f"{job.slots} x {job.words_per_packet}" if job.slots else "-"
        if (job.quorum, job.staleness) != (job.size, 0):
            shape += f", K {job.quorum}, S {job.staleness}"
            shape += f" of {job.max_staleness}" if job.max_staleness != job.staleness else ""
        if job.on_worker_loss == "continue":
            shape += ", survives losses"
        shape += f", keyed tags ({job.tag_algorithm})" * job.authenticated
        shape += ", accumulators" * job.accumulators
        if job.shards > 1:
            shape += f", {job.share:.1%} of a job over {job.shards} shards"
        table.add(job.name, job.state, members(job), shape, *counts, drops(job.counters))
    return table


def members(job: control.JobReport) -> str:
    """`3 of 4`: how many are there."""
    return f"{job.size - len(_absent(job))} of {job.size}"


def absent(job: control.JobReport) -> str:
    """`rank 2 missing, rank 3 lost`, or nothing when all are there."""
    return ", ".join(f"rank {member.rank} {member.state}" for member in _absent(job))


def rings(job: control.JobReport) -> str:
    """How much of the switch's memory lies in rings, or that there was too little; nothing where none are offered."""
    wanted = f"{job.wanted_ring_bytes / (1 << 20):,.1f} MiB"
    if job.ring_bytes:
        return f"{wanted} of the switch's memory are rings, shared with the workers on this machine"
    if job.wanted_ring_bytes:
        return (
            f"through sockets only: rings for the workers on this machine take {wanted}, and less was free when it was "
            "admitted; with more --memory they are quicker"
        )
    return ""


def _absent(job: control.JobReport) -> list[control.MemberReport]:
    return [member for member in job.members if member.state in ("missing", "lost", "left")]

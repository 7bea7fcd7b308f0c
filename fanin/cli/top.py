"""`fanin top`: a running job as it goes, rank by rank, and who holds it up."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fanin.addresses import SwitchAddress
from fanin.cli.asking import WHERE, KeyFile, Switches
from fanin.cli.watch_tables import as_json, finding_lines, job_line, rank_table, share_table, views
from fanin.errors import FaninError
from fanin.options import Options
from fanin.protocol.control import Stats
from fanin.watching.findings import findings
from fanin.watching.rates import rates

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

Answers = list[Stats | FaninError]


def top(
    switch: Annotated[str, typer.Argument(help=WHERE)] = "",
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Time that each view is about.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One view after one interval, for scripts.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per interval, on a line of its own.")] = False,
    key_file: KeyFile = None,
) -> None:
    """Watch running jobs: who is waited for, where packets die, turnarounds, marks, rates, and what holds a job up."""
    from rich.console import Console

    options = Options.from_environment(os.environ)
    console = Console()
    with Switches(switch, options, key_file) as switches:
        before = switches.ask_all()
        if once:
            time.sleep(interval)
            after = switches.ask_all()
            if json:
                print(line_of(switches.addresses, before, after))
            else:
                console.print(view(switches.addresses, before, after), soft_wrap=True)
            return
        with contextlib.suppress(KeyboardInterrupt), contextlib.nullcontext() if json else views(console) as show:
            while True:
                time.sleep(interval)
                after = switches.ask_all()
                if show is None:
                    print(line_of(switches.addresses, before, after), flush=True)
                else:
                    show(view(switches.addresses, before, after))
                before = after


def view(addresses: Sequence[SwitchAddress], before: Answers, after: Answers) -> Group:
    """Jobs, ranks and findings between two rounds of answers."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for address, first, last in zip(addresses, before, after, strict=True):
        if isinstance(last, FaninError):
            parts.append(Text(str(last)))
            continue
        parts.append(Text(f"{address}: fanin {last.software}, up {last.uptime_s:,.0f} s"))
        if not last.jobs:
            which = "" if last.operator or not last.job_count else "; the switch's --key-file (FANIN_KEY_FILE) shows it"
            parts.append(Text(f"{last.job_count or 'no'} job{'s' * (last.job_count != 1)}{which}"))
        for job, report in zip(rates(_stats(first), last), last.jobs, strict=True):
            parts.append(Text(job_line(job, report)))
            parts += [table for make in (rank_table, share_table) if (table := make(job)) is not None]
    heard, pairs = _heard(addresses, before, after)
    parts += finding_lines(findings(*pairs), heard) or [Text("nothing holds a job up")]
    return Group(*parts)


def line_of(addresses: Sequence[SwitchAddress], before: Answers, after: Answers) -> str:
    """Rates and findings as one line of JSON."""
    heard, (first, last) = _heard(addresses, before, after)
    jobs = [rates(earlier, later) for earlier, later in zip(first, last, strict=True)]
    return json_module.dumps(as_json(heard, last, jobs, findings(first, last)))


def _heard(
    addresses: Sequence[SwitchAddress], before: Answers, after: Answers
) -> tuple[list[SwitchAddress], tuple[list[Stats | None], list[Stats]]]:
    """Return the switches that have answered now, with their answers before (None for an error) and now."""
    found = [
        (address, _stats(first), last)
        for address, first, last in zip(addresses, before, after, strict=True)
        if isinstance(last, Stats)
    ]
    return [each[0] for each in found], ([each[1] for each in found], [each[2] for each in found])


def _stats(answer: Stats | FaninError) -> Stats | None:
    return answer if isinstance(answer, Stats) else None

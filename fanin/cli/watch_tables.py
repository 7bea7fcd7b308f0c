"""Tables of a running job: a row per rank, and the findings, for `fanin stats` and `fanin top`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fanin.addresses import SwitchAddress
from fanin.protocol.control import JobReport, Stats
from fanin.watching.findings import Finding
from fanin.watching.rates import JobRates, RankRates, TimeShares

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from fanin.emulation.figures import FigureTable

MIB = 1 << 20
HEADINGS = ("rank", "process", "waited for", "last", "lost up", "lost down", "marked", "turnaround", "MiB/s in")


@contextlib.contextmanager
def views(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that shows a view: in a terminal in the place of the one before, elsewhere at once below it."""
    from rich.live import Live

    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda view: live.update(view, refresh=True)
    else:  # Live would show the last view alone, when it ends
        yield lambda view: console.print(view, soft_wrap=True)


def rank_table(job: JobRates) -> FigureTable | None:
    """A row per rank; None where the switch counts by job only."""
    from fanin.emulation.figures import FigureTable

    if not any(rank.counted for rank in job.ranks):
        return None
    table = FigureTable(f"{job.name}: ranks", HEADINGS, left=("process",))
    for rank in job.ranks:
        table.add(*cells_of(rank))
    return table


def share_table(job: JobRates) -> FigureTable | None:
    """A row per rank with the shares of its time; None where no rank has reported any."""
    from fanin.emulation.figures import FigureTable

    if not any(rank.shares for rank in job.ranks):
        return None
    names = [each.name for each in dataclasses.fields(TimeShares)]
    table = FigureTable(f"{job.name}: shares of time", ("rank", *names))
    for rank in job.ranks:
        shares = rank.shares
        table.add(str(rank.rank), *("-" if shares is None else f"{getattr(shares, name):.1%}" for name in names))
    return table


def _milliseconds(seconds: float) -> str:
    """Two digits, or all of a longer time: `0.26`, `66`, `131`."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.2g}" if milliseconds < 99.5 else f"{milliseconds:,.0f}"


def cells_of(rank: RankRates) -> tuple[str, ...]:
    """The row of a rank, by HEADINGS."""
    who = rank.process if rank.state in ("registered", "") else f"{rank.process or '-'} ({rank.state})"
    if not rank.counted:
        return (str(rank.rank), who, *["-"] * (len(HEADINGS) - 2))
    turnaround = "-" if rank.turnaround_s is None else f"< {_milliseconds(rank.turnaround_s)} ms"
    return (
        str(rank.rank),
        who,
        f"{rank.waited_s:,.2f} s, {rank.waited_share:.0%}",
        f"{rank.last_share:.0%}",
        _lost(rank.lost_up, rank.lost_up_share),
        _lost(rank.lost_down, rank.lost_down_share),
        f"{rank.marks_share:.1%}" if rank.marks_share else "-",
        turnaround,
        f"{rank.bytes_in_per_s / MIB:,.1f}",
    )


def _lost(count: int, share: float) -> str:
    return f"{count:,}, {share:.2%}" if count else "-"


def finding_lines(found: Sequence[Finding], addresses: Sequence[SwitchAddress]) -> list[Text]:
    """A line per finding, the weightiest first."""
    from rich.text import Text

    return [Text.assemble((f"{each.kind}: ", "bold"), f"{each.job}: {in_words(each, addresses)}") for each in found]


def in_words(found: Finding, addresses: Sequence[SwitchAddress]) -> str:
    """The finding's words, with the switch's address where the job is at several."""
    if found.rank is None:
        return found.text.replace(f"switch {found.switch} ", f"{addresses[found.switch]} ", 1)
    return found.text + (f" (at {addresses[found.switch]})" if len(addresses) > 1 else "")


def job_line(job: JobRates, report: JobReport) -> str:
    """Rates of one job, and its window."""
    parts = [
        f"{job.rounds_per_s:,.0f} rounds/s",
        f"{job.bytes_in_per_s / MIB:,.1f} MiB/s in, {job.bytes_out_per_s / MIB:,.1f} out",
    ]
    if report.slots:
        parts.append(f"window {report.slots} packets of {report.words_per_packet} words")
    if (report.quorum, report.staleness) != (report.size, 0):
        parts.append(f"K {report.quorum}, S {report.staleness}")
    if report.accumulators:
        parts.append("wide sums of lanes")
    return f"{job.name} ({report.state}, {report.size} ranks, {report.flows} flows): {'; '.join(parts)}"


def as_json(
    addresses: Sequence[SwitchAddress], answers: Sequence[Stats], jobs: Sequence[Sequence[JobRates]],
    found: Sequence[Finding],
) -> dict[str, Any]:  # fmt: skip
    """Rates of jobs at each switch and the findings, for scripts."""
    return {
        "switches": [
            {
                "address": str(address),
                "uptime_s": answer.uptime_s,
                "jobs": [dataclasses.asdict(job) for job in there],
            }
            for address, answer, there in zip(addresses, answers, jobs, strict=True)
        ],
        "findings": [dataclasses.asdict(each) | {"text": in_words(each, addresses)} for each in found],
    }

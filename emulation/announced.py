"""Shows the progress of a long measurement: in a terminal one line that changes, elsewhere (a log, CI) lines.

Rank 0 of a benchmark prints `{"progress": "sample 3 of 11"}` among its reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from fanin.emulation.processes import LocalJob, Report

LINE_EVERY_S = 10.0
"""Shortest time between two progress lines outside a terminal; the first line is printed at once."""
PROGRESS = "progress"

Tell = Callable[[str], None]


@contextmanager
def announced(console: Console, what: str) -> Iterator[Tell]:
    """Announce the measurement `what`, and yield a function that shows its progress; it may be called often."""
    began = time.monotonic()
    if console.is_terminal:
        with console.status(Text(what)) as status:
            yield lambda words: status.update(Text(f"{what}: {words}"))
        return
    console.print(f"{what} ...", markup=False, highlight=False)
    said_s = began

    def tell(words: str) -> None:
        nonlocal said_s
        now = time.monotonic()
        if said_s == began or now - said_s >= LINE_EVERY_S:
            said_s = now
            console.print(f"{now - began:5.0f} s  {words}", markup=False, highlight=False)

    yield tell


def reports_of(job: LocalJob, tell: Tell) -> Iterator[Report]:
    """Yield the reports of the job's workers, without progress reports, whose text goes to `tell`."""
    for report in job.reports():
        words = report.record.get(PROGRESS)
        if isinstance(words, str):
            tell(words)
        else:
            yield report

"""Says how far a long measurement is: on a terminal in one line that changes, elsewhere (a log, CI) in a line at times.

Worker programs of benchmarks print `{"progress": "sample 3 of 11"}`, from rank 0 alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from fanin.emulation.processes import LocalJob, Report

LINE_EVERY_S = 10.0
"""At most, where lines stay; the first comes at once."""
PROGRESS = "progress"

Tell = Callable[[str], None]


@contextmanager
def announced(console: Console, what: str) -> Iterator[Tell]:
    """While `what` is measured: call what this yields with words about how far it is, as often as you like."""
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
    """Yield the reports of the job's workers; their progress goes to `tell` instead."""
    for report in job.reports():
        words = report.record.get(PROGRESS)
        if isinstance(words, str):
            tell(words)
        else:
            yield report

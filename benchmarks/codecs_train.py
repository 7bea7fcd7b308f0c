"""`fanin bench codecs --train`: how well gradient codecs learn, and how fast over slow star links (root).

All codecs, and gloo's float32 beside them, train the same network on the same samples in the same order; replicas must
be bit-identical in the end. Every codec is trained with every seed on this machine, without links, which gives its loss
after so many steps. Over links of each rate a few steps of it are timed, and must come to the loss that they came to
without links. So a loss is reached after the steps that it takes, times what a step takes there.

The target is what float32 over gloo reaches in the end, plus TARGET_SHARE of it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from fanin import files
from fanin.benchmarks.codecs_train_rows import Plan, Row, rows_of
from fanin.benchmarks.codecs_train_runs import Trainings, carry_out
from fanin.benchmarks.codecs_train_tables import record_of, tables_of, verdicts
from fanin.emulation import report
from fanin.emulation.network.commands import require_privileges
from fanin.emulation.recording import Beginning


def bench(
    plan: Plan,
    *,
    runs_file: Path | None,
    json_file: Path | None,
    record_file: Path | None,
    html: Path | None,
    console: Console,
    command: str,
) -> list[Row]:
    """Train, check, print tables; write a JSON list of rows, the record and the page with all curves.

    `runs_file` keeps every training; those that it has are not done again.
    """
    if plan.rates_bit_s:
        require_privileges()
    beginning = Beginning()
    kept = Trainings(runs_file)
    carry_out(plan.runs, kept, console)
    rows = rows_of(plan, kept)
    for each in tables_of(plan, rows):
        console.print(each)
    for line in verdicts(rows):
        console.print(line, markup=False, highlight=False)
    if json_file is not None:
        files.write(json_file, json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n", "the figures")
    run = record_of(plan, rows, command, beginning)
    if record_file is not None:
        run.write(record_file)
    report.publish(run, html, console)
    return rows

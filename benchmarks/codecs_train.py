"""`fanin bench codecs --train`: how well gradient codecs learn, and how fast over slow star links (root).

All codecs, and gloo's float32 beside them, train the same network on the same samples in the same order; replicas must
be bit-identical in the end. Every codec is trained with every seed on this machine, without links, which gives its loss
after so many steps. Over links of each rate a few steps of it are timed, and must come to the loss that they came to
without links. So a loss is reached after the steps that it takes, times what a step takes there.

The target is what float32 over gloo reaches in the end, plus TARGET_SHARE of it.
"""

from __future__ import annotations

from fanin.benchmarks.codecs_train_rows import Plan, Row, rows_of
from fanin.benchmarks.codecs_train_runs import Trainings, carry_out
from fanin.benchmarks.codecs_train_tables import recorded, tables_of, title_of, verdicts
from fanin.benchmarks.harness import Output
from fanin.emulation.network.commands import require_privileges
from fanin.records.record import Scalar


def bench(plan: Plan, output: Output) -> list[Row]:
    """Train, check, print tables; write rows, the record and the page with all curves.

    `plan.runs_file` keeps every training; those that it has are not done again.
    """
    if plan.rates_bit_s:
        require_privileges()
    kept = Trainings(plan.runs_file)
    carry_out(plan.runs, kept, output)
    rows = rows_of(plan, kept)
    output.show(rows, *tables_of(plan, rows))
    for line in verdicts(rows):
        output.say(line)
    settings: dict[str, Scalar] = {
        "workers": ",".join(map(str, plan.workers)),
        "task": ",".join(plan.tasks),
        "repeats": plan.repeats,
        "timed_steps": plan.timed_steps,
    }
    output.publish(title_of(plan), settings, **recorded(plan, rows))
    return rows

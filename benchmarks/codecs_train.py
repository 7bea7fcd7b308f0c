"""`fanin bench codecs --train`: how well gradient codecs learn, and how fast over slow star links (root).

All codecs, and float32 over gloo, train the same network on the same samples in the same order; replicas must be
bit-identical in the end. Every codec is trained with every seed on this machine, without links, which gives its loss
after any number of steps. Over links of each rate only a few steps are timed, whose loss must be that of the same steps
without links. The time to a loss is then the number of steps to it, times the time of a step over these links.
The target is the final loss of float32 over gloo, plus TARGET_SHARE of it.
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

    Trainings that `plan.runs_file` already holds are not repeated; the others are added to it.
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

"""Benchmarks: `fanin bench NAME` is the module of that name; its command is generated from the module.

A benchmark has four parts, 40 to 80 lines beside its rows (allreduce.py on one machine, cost.py over links):

* `Plan`, a frozen dataclass: each field is an option, its docstring the help, its metadata the bounds and the form as
  text (fanin/settings.py: `Annotated[int, Bounds(2, 32)]`, `Lanes`, `Words`, `Named("bytes")`). `__post_init__` calls
  `check_bounds(self)` and refuses the rest with a ConfigurationError that names option, value and bounds.
* `Asked`, a dataclass that each rank gets as its command line, and a module that a rank runs: `asked_of(Asked, ...)`
  reads it, `with group_of_ranks() as (rank, ranks)` is torch.distributed's world, `report({...})` prints a JSON object,
  `progress("sample 3 of 11")` shows progress (ranks.py). Rivals take turns in every sample.
* `Row`, a dataclass of figures, and `table_of(plan, rows)`, which calls `table(title, rows, columns)` (harness.py).
* `bench(plan, output) -> list[Row]`: `reports(output, words, ranks, WORKER, asked, link=..., switch_at=...)` yields
  the ranks' reports, over emulated links or on this machine; `by(found, "rival")` groups them; `slowest`,
  `explained_error` and `alike` check them; `output.show(rows, table)` prints and writes --json, and
  `output.publish(title, settings, rows=...)` writes --record and the page.

A line in BENCHMARKS of fanin/cli/bench.py names the command, and one in fanin/cli/epilogs.py has its examples.
A module with a Plan must not import numpy or torch at its top, directly or not: `--help` must not wait for them.
"""

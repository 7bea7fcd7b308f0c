"""Tables of what codecs and sharded training learn, in Markdown, made from the benchmarks' own figures.

`python -m tools.learned FILE...` reads what `fanin bench codecs --train --json` and `fanin bench sharded --epochs N
--json` wrote and prints a table for each file, with all rows and seeds.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def table(rows: Sequence[Row]) -> str:
    """The table of one file's rows."""
    return _sharded(rows) if "rival" in rows[0] else _codecs([row for row in rows if row["rate_bit_s"] is None])


def _codecs(rows: Sequence[Row]) -> str:
    cases: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        cases[row["task"], row["workers"]].append(row)
    codecs = list(dict.fromkeys(row["codec"] for row in rows[1:] if row["codec"] != "gloo"))
    lines = [_line(["task, workers, seeds", "gloo, float32: loss, accuracy", *(f"`{each}`" for each in codecs)])]
    lines.append("|" + "---|" * (len(codecs) + 2))
    for (task, workers), found in cases.items():
        of = {row["codec"]: row for row in found}
        gloo = of["gloo"]
        cells = [f"{task}, {workers}, {gloo['repeats']}", f"{gloo['loss']:.3f}, {gloo['accuracy']:.1%}"]
        for codec in codecs:
            row = of[codec]
            loss = f"{row['loss_change']:+.1%}{_half(row['loss_change_range'])}"
            points = f"{row['accuracy_change'] * 100:+.2f}{_half(row['accuracy_change_range'], '.2f')}"
            cells.append(f"loss {loss}, points {points}")
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _half(share: float | None, form: str = ".1f") -> str:
    return "" if share is None else f" +-{share * 100:{form}}"


def _sharded(rows: Sequence[Row]) -> str:
    first = rows[0]
    lines = [_line(["moves", "loss", f"to {first['rival']}'s", "on the test set", "to the same"])]
    lines.append("|---|---:|---:|---:|---:|")
    for row in rows:
        cells = [f"`{row['rival']}`"]
        for name in ("losses", "test_losses"):
            own = row[name]
            changes = [mine / theirs - 1 for mine, theirs in zip(own, first[name], strict=True)]
            cells += [f"{statistics.mean(own):.4f}", "" if row is first else _changes(changes)]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _changes(changes: Sequence[float]) -> str:
    """The mean of the changes, and their range."""
    mean = _signed(statistics.mean(changes))
    return mean if len(changes) == 1 else f"{mean} ({_signed(min(changes))} to {_signed(max(changes))})"


def _signed(share: float) -> str:
    """A share as text with the sign of the rounded value, so that rounding cannot make -0.00% of +0.00%."""
    return f"{round(share, 4) + 0.0:+.2%}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table(json.loads(Path(name).read_text(encoding="utf-8"))) for name in sys.argv[1:]))

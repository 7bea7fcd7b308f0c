"""README's table of measurements, made from the runs' own records.

`python -m tools.measured RECORD...` reads what `fanin bench allreduce` and `fanin bench network` wrote with `--record`
and prints the table in Markdown, a row per cluster and size: place of the switch, our medians by lane width, gloo's
time as a multiple of them, and the commands. A row says so if processors rather than links set a time.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.filesize import decimal

from fanin.records.record import Row, RunRecord

HEADINGS = ("", "the switch is", "32-bit lanes", "16-bit", "8-bit", "gloo")
LANES = (32, 16, 8)
MIB = 1 << 20


def table(records: Iterable[RunRecord]) -> str:
    """The table, followed by the machines and the commands."""
    lines = [_line(HEADINGS), "|" + "---|" * len(HEADINGS)]
    commands: dict[str, list[str]] = defaultdict(list)
    for record in records:
        commands[f"{record.machine}, {record.kernel}"].append(record.command)
        groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        for row in record.rows:
            groups[row.measures, row.workers, row.ranks_per_host, row.bytes, row.rate_bit_s, row.switch].append(row)
        lines += [_line(_cells(record, rows)) for rows in groups.values()]
    for machine, given in commands.items():
        lines += ["", f"Measured on {machine}:", "", *(f"    {command}" for command in given)]
    return "\n".join(lines) + "\n"


def _cells(record: RunRecord, rows: Sequence[Row]) -> list[str]:
    ours = {row.lanes: row for row in rows if row.backend == "fanin"}
    gloo = next((row for row in rows if row.backend == "gloo"), None)
    return [
        _cluster(record, rows[0]),
        rows[0].switch or "not noted",
        *(_figure(ours[lanes]) if lanes in ours else "" for lanes in LANES),
        _figure(gloo) if gloo is not None else "",
    ]


def _cluster(record: RunRecord, row: Row) -> str:
    hosts, per_host = row.workers // row.ranks_per_host, row.ranks_per_host
    if row.rate_bit_s is None:
        parts = [f"{row.workers} workers"]
    else:
        parts = [
            f"{hosts} hosts" + (f" of {per_host} ranks" if per_host > 1 else ""),
            f"links of {_rate(row.rate_bit_s)}",
        ]
    racks = record.settings.get("racks")
    if isinstance(racks, int) and racks > 1:
        uplink = record.settings.get("uplink_bit_s")
        parts.append(f"{racks} racks" + (f", uplinks of {_rate(uplink)}" if isinstance(uplink, int | float) else ""))
    flows = record.settings.get("tcp_flows")
    if isinstance(flows, int) and flows:
        parts.append(f"{flows} TCP flow{'s' * (flows != 1)} beside")
    parts.append("training steps" if row.measures == "step" else _size(row.bytes))
    return ", ".join(parts)


def _figure(row: Row) -> str:
    text = f"{row.median_s * 1e3:.3g} ms" if row.median_s < 1 else f"{row.median_s:.2f} s"
    if row.backend == "fanin" and row.ratio_to_gloo is not None:
        text += f", {row.ratio_to_gloo:.2f}x"
    if row.processor_bound and row.processor is not None:
        text += f" (bound by processors, {row.processor:.0%} busy)"
    return text


def _rate(bit_s: float) -> str:
    return f"{bit_s / 1e9:g} Gbit/s" if bit_s >= 1e9 else f"{bit_s / 1e6:g} Mbit/s"


def _size(size: int) -> str:
    if size % MIB == 0:
        return f"{size // MIB} MiB"
    return f"{size // 1024} KiB" if size % 1024 == 0 else decimal(size)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(table(RunRecord.read(Path(name)) for name in sys.argv[1:]))

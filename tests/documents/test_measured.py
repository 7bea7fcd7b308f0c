"""README's table is made of records, and says where the switch was and what set the time."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from fanin.records.record import VERSION, Row, RunRecord, Scalar
from tests.support.repository import ROOT
from tools import learned
from tools.measured import HEADINGS, table

SETTINGS: dict[str, Scalar] = {"racks": 2, "uplink_bit_s": 1e8, "tcp_flows": 1}


def row(backend: str, lanes: int, median_s: float, **changes: object) -> Row:
    whole = Row(
        backend=backend,
        lanes=lanes,
        workers=16,
        bytes=26_214_400,
        rate_bit_s=1e9,
        measures="allreduce",
        median_s=median_s,
        fastest_s=median_s,
        slowest_s=median_s,
        samples=5,
        ideal_s=median_s,
        ratio_to_gloo=4.0 / median_s,
        max_error=0.0,
        switch="a shard on every host",
        ranks_per_host=4,
        processor=0.5,
    )
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def record(*rows: Row) -> RunRecord:
    return RunRecord(
        version=VERSION,
        kind="bench",
        title="",
        command="fanin bench network --workers 16",
        started="2026-11-22T00:00",
        duration_s=1.0,
        outcome="finished",
        kernel="Linux 6.18",
        machine="2 cores",
        settings=SETTINGS,
        rows=rows,
    )


def test_a_row_says_what_the_cluster_was_where_the_switch_and_what_each_took() -> None:
    bound = row("fanin", 8, 0.25, ideal_s=0.1, processor=0.97)
    text = table([record(row("fanin", 32, 2.0), bound, row("gloo", 32, 4.0, ratio_to_gloo=1.0))])
    heading, rule, line = text.splitlines()[:3]
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [each.strip() for each in HEADINGS]
    assert rule.count("---") == len(HEADINGS)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "4 hosts of 4 ranks, links of 1 Gbit/s, 2 racks, uplinks of 100 Mbit/s, 1 TCP flow beside, 25 MiB",
        "a shard on every host",
        "2.00 s, 2.00x",
        "",
        "250 ms, 16.00x (bound by processors, 97% busy)",
        "4.00 s",
    ]
    assert "    fanin bench network --workers 16" in text


def test_sizes_and_steps_have_rows_of_their_own() -> None:
    rows = [row("fanin", 32, 1.0), row("fanin", 32, 1.0, bytes=4096), row("fanin", 32, 1.0, measures="step")]
    body = table([record(*rows)]).splitlines()[2:5]
    assert ["25 MiB" in line for line in body] == [True, False, False]
    assert "4 KiB" in body[1]
    assert "training steps" in body[2]


def test_it_is_a_program_over_files(tmp_path: Path) -> None:
    record(row("fanin", 32, 1.0)).write(tmp_path / "run.json")
    command = [sys.executable, "-m", "tools.measured", str(tmp_path / "run.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == table([record(row("fanin", 32, 1.0))])


def learned_rows() -> list[dict[str, object]]:
    shared = {"task": "text", "workers": 8, "repeats": 5, "rate_bit_s": None, "accuracy": 0.503}
    gloo = {"codec": "gloo", "loss": 1.855, "loss_change": 0.0, "loss_change_range": None}
    lanes = {"codec": "lanes:8/8", "loss": 1.856, "loss_change": 0.0005, "loss_change_range": 0.001}
    points = {"accuracy_change": 0.0011, "accuracy_change_range": 0.0031}
    return [{**shared, **each, **points} for each in (gloo, lanes)]


def test_a_table_of_codecs_has_what_each_lost_beside_float32() -> None:
    rows = learned_rows()
    assert learned.table([*rows, {**rows[1], "rate_bit_s": 1e8}]).splitlines() == [
        "| task, workers, seeds | gloo, float32: loss, accuracy | `lanes:8/8` |",
        "|---|---|---|",
        "| text, 8, 5 | 1.855, 50.3% | loss +0.1% +-0.1, points +0.11 +-0.31 |",
    ]


def test_a_table_of_sharded_trainings_has_all_seeds_and_what_they_are_between() -> None:
    rows = [
        {"rival": "gloo", "losses": [1.0, 2.0], "test_losses": [1.0, 2.0]},
        {"rival": "fanin-8", "losses": [1.01, 1.98], "test_losses": [1.0, 2.0]},
    ]
    assert learned.table(rows).splitlines()[2:] == [
        "| `gloo` | 1.5000 |  | 1.5000 |  |",
        "| `fanin-8` | 1.4950 | +0.00% (-1.00% to +1.00%) | 1.5000 | +0.00% (+0.00% to +0.00%) |",
    ]

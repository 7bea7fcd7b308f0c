"""The record of a real job, and two runs side by side: figures without start-up, and who was waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanin.cli import run
from fanin.emulation.report.comparing import compared, verdict
from fanin.emulation.report.steady import all_step_times_s, mean_shares, median_step_s, waited_s
from fanin.emulation.report.story import story
from fanin.emulation.tracing.records import UNFINISHED, record_of_files
from fanin.errors import ConfigurationError

STEPS = 10
START_UP_S = 30.0


def written(folder: Path, rank: int, step_s: float = 1.0, late_s: float = 0.0, *, ends: bool = True) -> Path:
    """A rank that starts up for long, computes half of each step, and begins each sum late."""
    lines: list[dict[str, Any]] = [
        {"kind": "start", "time": 0.0, "rank": rank, "restart": 0, "job": "world", "size": 2, "clock": "one",
         "unix_s": 1_000_000_000.0, "host": f"host{rank}"}
    ]  # fmt: skip
    for step in range(STEPS):
        begun_s = START_UP_S + step * step_s
        lines.append(
            {"kind": "reduction", "submitted": begun_s + 0.5 * step_s + late_s, "done": begun_s + 0.95 * step_s,
             "bytes": 1000, "packing_s": 0.01, "sending_s": 0.01, "step": step, "ticket": step + 1}
        )  # fmt: skip
        lines.append({"kind": "step", "time": begun_s + step_s, "step": step + 1})
    if ends:
        counters = {"packets_out": 1000, "retransmissions": 10}
        lines.append({"kind": "end", "time": START_UP_S + (STEPS + 1) * step_s, "counters": counters})
    folder.mkdir(exist_ok=True)
    path = folder / f"timeline-{rank}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_start_up_is_in_no_average_and_the_late_rank_is_named(tmp_path: Path) -> None:
    record = record_of_files([written(tmp_path, 0), written(tmp_path, 1, late_s=0.3)], "fanin report")
    assert record.duration_s > START_UP_S
    assert median_step_s(record) == pytest.approx(1.0)
    shares = mean_shares(record.workers)
    assert shares["compute"] == pytest.approx((0.55 + 0.85) / 2)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert list(waited_s(record.workers)) == [1]
    said = story(record)
    assert len(said) == 3
    assert said[0].startswith("A step took 1 s (one in ten 1 s or more); 70% of the time went into computing")
    assert said[1].startswith("Rank 1 held the others up")


def test_a_rank_without_an_end_and_one_without_a_file_are_named(tmp_path: Path) -> None:
    record = record_of_files([written(tmp_path, 0, ends=False)], "fanin report")
    assert record.outcome == "interrupted"
    assert record.error == f"rank 0: {UNFINISHED}"
    assert record.notes == ("no file of rank 1",)
    assert story(record)[0].startswith("The run was not finished: rank 0")


def test_a_rank_that_ended_once_and_was_killed_in_its_second_life_is_not_finished(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    first = path.read_text()
    second = written(tmp_path, 0, ends=False).read_text().replace('"time": 0.0', '"time": 100.0')
    path.write_text(first + second)
    record = record_of_files([path], "fanin report")
    assert record.outcome == "interrupted"
    assert "rank 0: its file holds 2 runs, one after the other" in record.notes


def test_the_time_between_two_lives_of_a_rank_is_in_no_step(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in written(tmp_path, 0, ends=False).read_text().splitlines()]
    for line in lines:
        line.update({name: line[name] + 1000.0 for name in ("time", "submitted", "done") if name in line})
    lines[0]["restart"] = 1
    path = written(tmp_path, 0, ends=False)
    path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in lines))
    record = record_of_files([path], "fanin report")
    times = all_step_times_s(record.workers)
    assert times == pytest.approx([1.0] * len(times))
    assert len(times) == 2 * (STEPS - 2)
    assert mean_shares(record.workers)["compute"] == pytest.approx(0.55)


def test_two_runs_side_by_side_say_which_is_faster_and_by_what(tmp_path: Path) -> None:
    slow = record_of_files([written(tmp_path / "slow", rank, 2.0) for rank in range(2)], "fanin report slow")
    fast = record_of_files([written(tmp_path / "fast", rank, 1.0) for rank in range(2)], "fanin report fast")
    both = compared(slow, fast, ("32 bits", "8 bits"))
    said = verdict(both)
    assert "8 bits is 2 times as fast" in said[0]
    assert said[1] == "The largest change is in compute: 550 ms less per step."
    assert verdict(compared(fast, slow, ("8 bits", "32 bits")))[0].endswith("32 bits is 2 times as slow.")


def test_the_command_draws_a_real_job_and_two_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'fanin[plot]'")
    slow = [written(tmp_path / "slow", rank, 2.0) for rank in range(2)]
    fast = [written(tmp_path / "fast", rank) for rank in range(2)]
    page = tmp_path / "page.html"
    against = [word for path in fast for word in ("--against", str(path))]
    assert run(["report", *map(str, slow), *against, "--html", str(page), "--names", "one,other"]) == 0
    text = page.read_text()
    assert "other is 2 times as fast" in text
    assert "How long a step takes" in text
    assert run(["report", *map(str, slow), *against, "--html", str(page), "--names", "same,same"]) == 2
    assert "two different names" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="both of rank 0"):
        record_of_files([slow[0], fast[0]], "")

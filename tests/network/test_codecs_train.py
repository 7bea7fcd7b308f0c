"""`fanin bench codecs --train`: that it trains over links, checks replicas and draws one page; not how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fanin.benchmarks.codecs_train import Plan, rows_of, to_target
from fanin.errors import FaninError

POINTS = [(1.0, 1, 2.0, 0.1), (2.0, 2, 1.0, 0.5)]
PLAN = Plan(workers=2, task="digits", steps=4, repeats=1, rates_bit_s=(1e8,), codecs=("lanes:8",))


def said(codec: str, step_s: float, replica: str = "same") -> list[dict[str, object]]:
    """What two ranks tell."""
    points = [[at * step_s, *rest] for at, *rest in POINTS]
    record = {"codec": codec, "seed": 0, "step_s": step_s, "bytes_out": 100 * step_s, "replica": "same"}
    return [{**record, "points": points}, {**record, "points": [], "replica": replica}]


def test_times_to_the_loss_of_float32_are_compared_with_gloos() -> None:
    gloo, lanes = rows_of(PLAN, 1e8, {("gloo", 0): said("gloo", 1.0), ("lanes:8", 0): said("lanes:8", 0.1)})
    assert (gloo.to_target_s, gloo.speed_up, gloo.saved) == (2.0, 1.0, 1.0)
    assert lanes.to_target_s == pytest.approx(0.2)
    assert lanes.speed_up == pytest.approx(10)
    assert lanes.saved == pytest.approx(10)
    assert to_target([(1.0, 1, 2.0, 0.1)], 1.5) is None


def test_replicas_that_differ_are_an_error() -> None:
    told = {("gloo", 0): said("gloo", 1.0), ("lanes:8", 0): said("lanes:8", 0.1, replica="other")}
    with pytest.raises(FaninError, match="lanes:8, 100 Mbit/s, seed 0: the replicas differ"):
        rows_of(PLAN, 1e8, told)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_a_page_has_a_curve_for_every_codec_and_gloo(tmp_path: Path) -> None:
    rows, page = tmp_path / "rows.json", tmp_path / "page.html"
    command = ["bench", "codecs", "--train", "--workers", "2", "--steps", "4", "--rates", "1gbit"]
    command += ["--codecs", "rotated:4/8,low_rank", "--json", str(rows), "--html", str(page)]
    done = subprocess.run(
        [sys.executable, "-m", "fanin", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {row["codec"]: row for row in json.loads(rows.read_text())}
    assert set(found) == {"gloo", "rotated:4/8", "low_rank"}
    for row in found.values():
        assert len(row["points"]) == 4
        assert row["step_s"] > 0
    assert found["rotated:4/8"]["bytes_out"] < found["gloo"]["bytes_out"] / 3
    text = page.read_text()
    assert all(name in text for name in found)

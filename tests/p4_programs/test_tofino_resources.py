"""The table of what a build takes of a Tofino, from a sample of the compiler's log that was written by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import tofino_resources

SAMPLE = Path(__file__).parent / "samples" / "resources.json"
TABLE = """\
| stage | tables | SRAM | TCAM | stateful ALUs | map RAMs |
|---:|---:|---:|---:|---:|---:|
| 0 | 2 | 1 | 0 | 0 | 0 |
| 1 | 1 | 3 | 1 | 1 | 2 |
| all | 3 | 4 | 1 | 1 | 2 |
"""


def test_a_line_for_each_stage_and_one_for_their_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "resources.json").write_bytes(SAMPLE.read_bytes())
    monkeypatch.setattr(sys, "argv", ["tofino_resources.py", str(tmp_path)])
    tofino_resources.main()
    assert capsys.readouterr().out == TABLE

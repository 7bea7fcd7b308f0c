"""The page of what a build takes of a Tofino, from samples of the compiler's logs that were written by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import tofino_resources

SAMPLES = Path(__file__).parent / "samples"
PAGE = """\
# What sample takes

2 of 12 match-action stages; ingress and egress together.

| stage | tables | SRAM | TCAM | stateful ALUs | map RAMs |
|---:|---:|---:|---:|---:|---:|
| 0 | 2 | 1 | 0 | 0 | 0 |
| 1 | 1 | 3 | 1 | 1 | 2 |
| all | 3 | 4 | 1 | 1 | 2 |

Packet header vector. Tagalong, mocha and dark containers hold what is not computed with.

| containers | used | of | bits in use |
|---:|---:|---:|---:|
| normal, 32 bits | 2 | 4 | 56 |
| tagalong, 8 bits | 1 | 2 | 1 |
"""


def test_a_line_for_each_stage_and_each_kind_of_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("resources.json", "phv.json"):
        (tmp_path / "logs" / name).write_bytes((SAMPLES / name).read_bytes())
    monkeypatch.setattr(sys, "argv", ["tofino_resources.py", "sample", str(tmp_path)])
    tofino_resources.main()
    assert capsys.readouterr().out == PAGE

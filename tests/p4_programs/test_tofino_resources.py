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

Parser of ingress: 231 of 256 rows; a packet takes at most 34 states, one per clock.

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
    for name in ("resources.json", "phv.json", "parser.characterize.log"):
        (tmp_path / "logs" / name).write_bytes((SAMPLES / name).read_bytes())
    monkeypatch.setattr(sys, "argv", ["tofino_resources.py", "sample", str(tmp_path)])
    tofino_resources.main()
    assert capsys.readouterr().out == PAGE


def test_a_log_without_the_parser_is_not_reported_as_one_without_rows() -> None:
    with pytest.raises(ValueError, match="neither its rows nor its longest path"):
        tofino_resources.parser_line("Parser Characterization Report:\n")


def test_a_tofino_1_has_fewer_containers_of_16_bits_than_its_log_counts() -> None:
    containers = [{"phv_number": 128, "bit_width": 16, "container_type": "normal", "slices": []}]
    group = {"group_type": "mau", "bit_width": 16, "num_containers": 128, "addresses": list(range(128, 256))}
    phv = {"nStages": 12, "containers": containers, "resources": [group]}
    assert tofino_resources.container_rows(phv) == [("normal, 16 bits", 1, 96, 0)]
    assert tofino_resources.container_rows({**phv, "nStages": 20}) == [("normal, 16 bits", 1, 128, 0)]

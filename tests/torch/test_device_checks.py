"""The script for a machine with a GPU, rehearsed on host memory; and the page that says which of its rows have run."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.torch import device_ranks
from tools import device_checks
from tools.device_checks import CHECKS, Check

PAGE = (ROOT / "docs/gpu.md").read_text()
BY_HAND = {"about", "probe", "kernels", "sweep", "weights", "nccl", "two_levels", "doctor"}
"""Programs that need a device, or NCCL: host memory cannot stand in for it."""
REHEARSED = "spoiled", "times:1", "codecs", "wide"


def test_every_check_has_a_program_and_fits_into_the_time() -> None:
    for check in CHECKS:
        program = getattr(device_ranks, check.program)
        assert program.__doc__
        assert program.__code__.co_varnames[:4] == ("report", "rank", "size", "arguments")
        assert 5 <= check.limit_s <= 60
        assert set(check.killed) < set(range(check.ranks))
    assert max(Counter((check.name, check.ranks) for check in CHECKS).values()) == 1
    assert {check.program for check in CHECKS} > BY_HAND


def test_the_page_says_of_every_check_when_it_has_run() -> None:
    table = PAGE[PAGE.index("| row of the checks |") :].split("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", line.split("|")[1])[0] for line in table.splitlines()[2:]]
    assert rows == sorted({check.name for check in CHECKS})
    for line in table.splitlines()[2:]:
        assert re.search(r"H100|never run", line.split("|")[2]), line


@pytest.mark.parametrize(
    ("only", "device", "told"),
    [
        ("bits,nonsense", "cpu", "--only nonsense: no such row. Remedy: some of about, bits"),
        ("bits", "cuda", "sees no CUDA device. Remedy: DEVICE=cpu rehearses the rows"),
    ],
)
def test_a_row_that_there_is_not_and_a_machine_without_a_device_are_told_at_once(
    only: str, device: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEVICE", device)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["device_checks.py", "--only", only])
    with pytest.raises(SystemExit, match="2"):
        device_checks.main()
    assert told in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.slow
def test_programs_of_the_checks_run_where_host_memory_stands_for_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_checks, "TREE", ROOT)  # the package is installed here
    check = Check("rehearse", 2, 200, "programs in turn", REHEARSED, environment=(("DEVICE", "cpu"),))
    outcome = device_checks.run(check, check.limit_s, tmp_path / "ranks")
    assert outcome.state == "ok", "\n".join([*device_checks.lines_of(outcome), *outcome.printed])
    assert all(said[f"{each} ran"] for said in outcome.said for each in REHEARSED)

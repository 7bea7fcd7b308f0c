"""Every numbered rule has a line that obeys it and a test that shows it, and what is made of the rules is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tools import rules

RULES = rules.collect()
MADE = [*rules.made(RULES)]
PAGES = dict.fromkeys(rules.PAGES, "")
GOOD = {
    **PAGES,
    "docs/control.md": "- **R-JOB-1, one life.** A job lives once.\n",
    "switch/controller/a.py": "def move() -> None:\n    step()  # R-JOB-1: or it would live twice\n",
    "tests/control/test_a.py": "# R-JOB-1\ndef test_a_job_lives_once() -> None:\n    pass\n",
}


def complaints(root: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return rules.collect(root).missing()


def test_every_rule_has_a_line_and_a_test() -> None:
    assert RULES.missing() == []


@pytest.mark.parametrize(("path", "text"), MADE, ids=[path for path, _ in MADE])
def test_what_is_made_of_the_rules_is_current(path: str, text: str) -> None:
    assert (ROOT / path).read_text() == text, "python -m tools.rules --write"


def test_the_slot_machine_opens_with_the_conditions_of_the_page() -> None:
    """The oracle's table is what readers and the P4 programs go by."""
    page = (ROOT / "docs/slot-machine.md").read_text()
    oracle = (ROOT / "switch/machine/slot_machine.py").read_text()
    for rule in (f"R-SLOT-{number}" for number in (1, 2, 3, 4, 6)):
        _, condition, verdict, *_ = page.partition(f"**{rule}, ")[2].split("|")
        _, _, row = oracle.partition(f"    {rule}  ")
        assert row.split("\n")[0].split() == [*condition.split(), *verdict.split()]


def test_a_rule_with_a_line_and_a_test_is_complete(tmp_path: Path) -> None:
    assert complaints(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"switch/controller/a.py": ""}, ["R-JOB-1 has no line in Python"]),
        ({"switch/controller/a.py": "R_JOB = 'R-JOB-1'\n"}, ["R-JOB-1 has no line in Python"]),
        ({"tests/control/test_a.py": "# R-JOB-1\n"}, ["R-JOB-1 has no test"]),
        ({"switch/machine/b.py": "# R-JOB-2\n"}, ["R-JOB-2, named in switch/machine/b.py, is no rule"]),
        ({"docs/protocol.md": "**R-JOB-1, again.**"}, ["R-JOB-1 stands twice"]),
        ({"docs/protocol.md": "**R-JOB-3, a gap.**", "switch/machine/b.py": "# R-JOB-3\n"}, ["R-JOB-3 has no test"]),
        (
            {"docs/protocol.md": "**R-SLOT-1, x.**", "switch/machine/b.py": "# R-SLOT-1\n"},
            ["R-SLOT-1 has no line in C++", "R-SLOT-1 has no test"],
        ),
    ],
)
def test_what_is_missing_is_found(tmp_path: Path, changed: dict[str, str], found: list[str]) -> None:
    assert [each for each in complaints(tmp_path, GOOD | changed) if "has the numbers" not in each] == found


def test_a_gap_in_the_numbers_is_found(tmp_path: Path) -> None:
    page = {"docs/protocol.md": "**R-JOB-3, a gap.**"}
    assert "R-JOB has the numbers [1, 3]" in complaints(tmp_path, GOOD | page)

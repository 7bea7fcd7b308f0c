"""Every numbered rule has a line that obeys it and a test that shows it, and what is made of the rules is current."""

from __future__ import annotations

import re
from dataclasses import replace
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
CHANGES = [
    ("docs/slot-machine.md", "tag = b and w's bit is set", "w's bit is set"),
    ("docs/protocol.md", "carries both masks", "carries one mask"),
    ("docs/control.md", "Any other ends,", "Any other goes on,"),
]
"""Changes to the text of a rule: in a row, in a sentence, in the last sentence of a list's item."""


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


@pytest.mark.parametrize("rule", RULES.ordered)
def test_the_index_has_the_text_of_each_rule_as_its_page_has_it(rule: str) -> None:
    """Rows are compared cell by cell, other texts sentence by sentence."""
    page = "".join((ROOT / RULES.page[rule]).read_text().split())
    entry = (ROOT / rules.INDEX).read_text().partition(f"- **{rule}, ")[2].partition("\n  Lines: ")[0]
    parts = re.split(r"\. \*[A-Z][a-z ]+:\* |\*\* \*[A-Z][a-z ]+:\* |\n", entry)
    assert len(entry) > 40
    assert [part for part in parts if "".join(part.split()).rstrip(".") not in page] == []


@pytest.mark.parametrize(("page", "old", "new"), CHANGES, ids=[page for page, _, _ in CHANGES])
def test_a_text_that_was_changed_on_one_page_alone_is_found(tmp_path: Path, page: str, old: str, new: str) -> None:
    pages = {name: (ROOT / name).read_text() for name in rules.PAGES}
    assert old in pages[page]
    complaints(tmp_path, pages | {page: pages[page].replace(old, new)})
    changed = rules.collect(tmp_path).text
    assert [rule for rule in RULES.ordered if changed[rule] != RULES.text[rule]] != []
    assert rules.index(replace(RULES, text=changed)) != (ROOT / rules.INDEX).read_text()


def test_the_slot_machine_opens_with_the_rules_of_the_page() -> None:
    """The oracle's table is what readers and the P4 programs go by: it has the conditions and the steps in full."""
    oracle = (ROOT / "switch/machine/slot_machine.py").read_text()
    rows = dict(re.findall(r"^    (R-SLOT-\d+)\s+(.*(?:\n {17}.*)*)", oracle, re.MULTILINE))
    assert [*rows] == [f"R-SLOT-{number}" for number in range(1, 13)]
    for rule, row in rows.items():
        condition, _, verdict = RULES.text[rule].partition("*Condition:* ")[2].partition(". *What")[0].partition(". *")
        text = f"{condition} {verdict.partition('* ')[2]}" if condition else RULES.text[rule]
        assert " ".join(row.split()) in " ".join(text.split())


def test_a_rule_with_a_line_and_a_test_is_complete(tmp_path: Path) -> None:
    assert complaints(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"switch/controller/a.py": ""}, ["R-JOB-1 has no line in Python"]),
        ({"switch/controller/a.py": "R_JOB = 'R-JOB-1'\n"}, ["R-JOB-1 has no line in Python"]),
        ({"tests/control/test_a.py": "# R-JOB-1\n"}, ["R-JOB-1 has no test"]),
        ({"docs/control.md": "- **R-JOB-1, one life.**\n\nA paragraph.\n"}, ["R-JOB-1 has no text"]),
        ({"switch/machine/b.py": "# R-JOB-2\n"}, ["R-JOB-2, named in switch/machine/b.py, is no rule"]),
        ({"p4/tna/c.p4": "x = 1;  /* R-JOB-2 */\n"}, ["R-JOB-2, named in p4/tna/c.p4, is no rule"]),
        ({"p4/tna/c.p4": "/* A block\n * of R-JOB-2. */\n"}, ["R-JOB-2, named in p4/tna/c.p4, is no rule"]),
        ({"docs/protocol.md": "**R-JOB-1, again.** A text."}, ["R-JOB-1 stands twice"]),
        (
            {"docs/protocol.md": "**R-JOB-3, a gap.** A text.", "switch/machine/b.py": "# R-JOB-3\n"},
            ["R-JOB-3 has no test"],
        ),
        (
            {"docs/protocol.md": "**R-SLOT-1, x.** A text.", "switch/machine/b.py": "# R-SLOT-1\n"},
            ["R-SLOT-1 has no line in C++", "R-SLOT-1 has no test"],
        ),
    ],
)
def test_what_is_missing_is_found(tmp_path: Path, changed: dict[str, str], found: list[str]) -> None:
    assert [each for each in complaints(tmp_path, GOOD | changed) if "has the numbers" not in each] == found


def test_a_gap_in_the_numbers_is_found(tmp_path: Path) -> None:
    page = {"docs/protocol.md": "**R-JOB-3, a gap.** A text."}
    assert "R-JOB has the numbers [1, 3]" in complaints(tmp_path, GOOD | page)

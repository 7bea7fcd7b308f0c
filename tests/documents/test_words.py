"""Docstrings, comments and documents are plain English sentences, as tools/words.py defines it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.repository import repository_files
from tools import words

SENTENCES = '''"""A module about queues."""

LIMIT = 3
"""Most packets that wait."""


def drop(count: int) -> None:
    """Drop `count` packets and tell their senders."""
    # A sender that does not hear of it waits for its timer.
'''


def written(folder: Path, name: str, text: str) -> list[str]:
    """Write a file into the folder and return the rules that it violates."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return [each.rule for each in words.findings(path)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    return tmp_path


def test_sentences_pass(folder: Path) -> None:
    assert written(folder, "good.py", SENTENCES) == []
    assert written(folder, "good.md", "Each packet has a tag.\nWhat does it cost? See below.\n") == []
    assert written(folder, "good.hpp", "// A slot holds one sum.\nint slot;\n") == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Of each job.", "fragment"),
        ("What a peer is told.", "fragment"),
        ("Where its files are.", "fragment"),
        ("As Session.submit.", "reference"),
        ("The same.", "reference"),
        ("Noted.", "short"),
        ("Queue it.", "short"),
        ("Send the result. What is refused is counted.", "headless"),
        ("Send the sum to all. So is every one that follows while it is open.", "idiom"),
    ],
)
def test_each_rule_finds_its_violation(folder: Path, text: str, rule: str) -> None:
    function = SENTENCES.replace("Drop `count` packets and tell their senders.", text)
    attribute = SENTENCES.replace("Most packets that wait.", text)
    assert written(folder, "function.py", function) == [rule]
    assert written(folder, "attribute.py", attribute) == [rule]


def test_prose_outside_of_docstrings_is_read_too(folder: Path) -> None:
    sentence = "What a switch refuses, it counts. The rest follows."
    assert written(folder, "comment.py", f"x = 1  # {sentence}\n") == ["headless"]
    assert written(folder, "comment.cpp", f"// {sentence}\nint x;\n") == ["headless"]
    assert written(folder, "page.md", f"{sentence}\n") == ["headless"]
    assert written(folder, "page.md", f"```\n{sentence}\n```\n") == []


@pytest.mark.parametrize("text", ["H~= M + 2", "M~= N (S + 1)", "stale~> M", "S~= M = 0", "rings of S~+ 2"])
@pytest.mark.parametrize("form", ["//  {}\n", "/* {} */\n"])
def test_a_symbol_has_one_meaning(folder: Path, text: str, form: str) -> None:
    # `~` keeps the lines above out of the findings in this file itself.
    assert set(written(folder, "program.p4", form.format(text.replace("~", " ")))) == {"symbol"}
    assert written(folder, "program.p4", form.format("M = N (S_max + 1), H = S_max + 2, S = S_max = 0")) == []


def test_no_file_has_findings() -> None:
    found = [str(each) for path in repository_files(*words.KINDS) for each in words.findings(path)]
    assert not found, "\n".join(found[-40:])

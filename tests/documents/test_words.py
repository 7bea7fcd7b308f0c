"""Docstrings, comments and documents are plain English sentences, as tools/words.py defines it."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.support.repository import ROOT, repository_files
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
        ("Which of its packets wait.", "fragment"),
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
    assert written(folder, "comment.cpp", f"// The rest follows. {sentence}\nint x;\n") == ["headless"]
    assert written(folder, "page.md", f"{sentence}\n") == ["headless"]
    assert written(folder, "page.md", f"```\n{sentence}\n```\n") == []


@pytest.mark.parametrize("name", ["header.hpp", "program.p4"])
@pytest.mark.parametrize(
    "form", ["// {}\nint x;\n", "/* {} */\nint x;\n", "/* The header of a packet.\n *\n */\n\n/* {} */\nint x;\n"]
)
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("What a peer is told.", "fragment"),
        ("Which packets wait.", "fragment"),
        ("As Session.submit.", "reference"),
        ("Per slot.", "short"),
        ("It sends the result. What is refused is counted.", "headless"),
        ("It sends the sum to all. So is every one that follows while it is open.", "idiom"),
    ],
)
def test_comments_of_cpp_and_p4_are_held_to_every_rule(
    folder: Path, name: str, form: str, text: str, rule: str
) -> None:
    assert written(folder, name, form.format(text)) == [rule]


def test_comments_of_python_are_those_of_its_tokenizer() -> None:
    """In files with strings of every form, this one's among them: "# \\" # ", '# ', r"\\" and '''# '''."""
    for path in sorted([*(ROOT / "tools").glob("*.py"), *Path(__file__).parent.glob("*.py")]):
        source = path.read_text(encoding="utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        expected = [each.string.lstrip("#: ") for each in tokens if each.type == tokenize.COMMENT]
        assert " ".join(text for _, text in words.python_comments(source)) == " ".join(expected), path


def test_a_comment_of_several_lines_is_one_text(folder: Path) -> None:
    assert written(folder, "lines.hpp", "// A slot\n// of\n// the ring.\nint x;\n") == []
    assert written(folder, "block.p4", "/* A slot holds one sum,\n * of which\n * packets. */\nbit<8> x;\n") == []
    found = words.slash_comments("int a;\n/* One\n * two. */\nint b;  // three\n// four\n")
    assert [(each.line, each.text.split(), each.alone) for each in found] == [
        (2, ["One", "two."], True),
        (4, ["three"], False),
        (5, ["four"], True),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "int x;  // bytes\n",
        "// --- sending ---\nint x;\n",
        "// R-SLOT-3\nint x;\n",
        "}  // namespace fanin\n",
        'auto x = "// What is this";\n',
        'auto x = "/*";  // the start of a comment\n',
    ],
)
def test_notes_beside_code_headings_rules_and_strings_pass(folder: Path, line: str) -> None:
    assert written(folder, "good.hpp", line) == []


@pytest.mark.parametrize(
    ("help_text", "rule"),
    [
        ('"Where to listen."', "fragment"),
        ('"of each replica"', "fragment"),
        ('f"What carries data: {names}."', "fragment"),
        ('"As " + "Session.submit."', "reference"),
        ('"Send the result. What is refused is counted."', "headless"),
    ],
)
@pytest.mark.parametrize(
    "option", ["x: Annotated[int, typer.Option(help={})] = 0\n", 'parser.add_argument("--x", help={})\n']
)
def test_help_of_options_is_read(folder: Path, option: str, help_text: str, rule: str) -> None:
    assert written(folder, "command.py", option.format(help_text)) == [rule]
    assert written(folder, "command.py", option.format('"Runs of each cell."')) == []


@pytest.mark.parametrize("line", ["raise ValueError({})\n", "print({})\n"])
def test_messages_are_read(folder: Path, line: str) -> None:
    assert written(folder, "message.py", line.format('f"{job} ended. What is left is lost."')) == ["headless"]
    assert written(folder, "message.py", line.format('f"{job} ended. Remedy: start it again."')) == []


@pytest.mark.parametrize("text", ["H~= M + 2", "M~= N (S + 1)", "stale~> M", "S~= M = 0", "rings of S~+ 2"])
@pytest.mark.parametrize("form", ["// The sizes are {}\n", "/* The sizes are {} */\n"])
def test_a_symbol_has_one_meaning(folder: Path, text: str, form: str) -> None:
    # `~` keeps the lines above out of the findings in this file itself.
    assert set(written(folder, "program.p4", form.format(text.replace("~", " ")))) == {"symbol"}
    assert written(folder, "program.p4", form.format("M = N (S_max + 1), H = S_max + 2, S = S_max = 0")) == []


def test_the_hook_reads_every_kind_of_file() -> None:
    hook = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8").split("- id: words")[1]
    found = re.search(r"^ *files: (\S+)$", hook, re.MULTILINE)
    assert found is not None
    assert all(re.search(found[1], f"folder/file{kind[1:]}") for kind in words.KINDS)


def test_no_file_has_findings() -> None:
    found = [str(each) for path in repository_files(*words.KINDS) for each in words.findings(path)]
    assert not found, "\n".join(found[-40:])

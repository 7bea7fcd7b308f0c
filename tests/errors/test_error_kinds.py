"""Errors are told apart by type and code, nowhere by their words: whoever raises them may use any."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "emulation", "fanin", "host", "switch")
ASKING = {"count", "endswith", "find", "index", "replace", "startswith"}
"""Methods by which a text is searched, or has other facts put in. One that only shortens it for a reader may be."""
SEARCHING = {"findall", "fullmatch", "match", "search", "sub"}
"""Functions of `re` that search a text, or replace parts of it."""


def decisions_by_words(source: str) -> list[int]:
    """Lines where the text of an exception is compared, searched or changed.

    A text of an exception is `str(error)`, `repr(error)` or `error.args[...]`, or a variable that was set to one.
    `error` is what an `except` clause names, or a parameter annotated as an exception, anywhere in the source.
    """
    nodes = list(ast.walk(ast.parse(source)))
    errors = {each.name for each in nodes if isinstance(each, ast.ExceptHandler) and each.name}
    errors |= {each.arg for each in nodes if isinstance(each, ast.arg) and _is_of_an_error(each.annotation)}
    texts: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_text(node.value, errors, texts):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return sorted({node.lineno for node in nodes if isinstance(node, ast.expr) and _asks(node, errors, texts)})


def _is_of_an_error(annotation: ast.expr | None) -> bool:
    words = "" if annotation is None else ast.unparse(annotation)
    return "Error" in words or "Exception" in words


def _is_text(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in texts
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return any(isinstance(each, ast.Name) and each.id in errors for each in node.args)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # str(error).lower()
        return _is_text(node.func.value, errors, texts)
    if isinstance(node, ast.Subscript):  # error.args[0]
        node = node.value
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "args"
        and isinstance(node.value, ast.Name)
        and node.value.id in errors
    )


def _asks(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    if isinstance(node, ast.Compare):
        return any(_is_text(each, errors, texts) for each in (node.left, *node.comparators))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in ASKING:
        return _is_text(node.func.value, errors, texts)
    return node.func.attr in SEARCHING and any(_is_text(each, errors, texts) for each in node.args)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_decision_is_made_by_the_words_of_an_error(folder: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in decisions_by_words(path.read_text(encoding="utf-8"))
    }
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "if 'losed' in str(error): pass",
        "text = str(error)\n    if 'imed out' in text: pass",
        "shorter = str(error).replace('a', 'b', 1)",
        "if str(error).lower().startswith('x'): pass",
        "if error.args[0] == 'no': pass",
        "if re.search('x', repr(error)): pass",
    ],
)
def test_such_a_decision_is_found(line: str) -> None:
    assert decisions_by_words(f"def f(error: ValueError) -> None:\n    {line}\n")
    body = line.replace("\n    ", "\n        ")
    handler = "def f() -> None:\n    try:\n        g()\n    except OSError as error:\n        "
    assert decisions_by_words(f"{handler}{body}\n")
    assert not decisions_by_words("def f(error: ValueError) -> None:\n    print(str(error), 'a' in 'text')\n")

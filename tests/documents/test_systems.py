"""docs/systems.md is what its table makes, and every test and command that a row names exists."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from fanin.cli import app
from tests.documents import systems as systems_page
from tests.support.repository import ROOT

NODE = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)(?:\[(\w+)\])?")
SYSTEMS = systems_page.systems()
NODES = sorted(systems_page.evidence_tests())
COMMANDS = sorted({command for system in SYSTEMS for command in system.commands()})


def functions_of(path: Path) -> set[str]:
    """Names of the functions of a module. Read, not imported: many of these modules need torch."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def missing(node: str) -> str | None:
    """The missing part of a node id; a parameter is a check of the module that CHECKS or COLLECTIVES names."""
    found = NODE.fullmatch(node)
    if found is None:
        return f"{node} is no node id"
    path, function, check = ROOT / found[1], found[2], found[3]
    if not path.is_file() or function not in functions_of(path):
        return f"{path} has no {function}"
    if check is not None:
        modules = re.findall(r'^[A-Z]+ = "(tests\.[\w.]+)"$', path.read_text(), re.MULTILINE)
        if not any(check in functions_of(ROOT / f"{module.replace('.', '/')}.py") for module in modules):
            return f"{function} has no parameter {check}"
    return None


def test_the_page_is_what_the_table_makes() -> None:
    assert (ROOT / "docs/systems.md").read_text() == systems_page.markdown(), (
        "python -m tests.documents.systems > docs/systems.md"
    )


@pytest.mark.parametrize("node", NODES)
def test_every_test_that_a_row_names_exists(node: str) -> None:
    assert missing(node) is None


def test_a_test_that_does_not_exist_is_found() -> None:
    assert missing("tests/documents/test_systems.py::test_nothing") is not None
    assert missing("tests/documents/test_nothing.py::test_nothing") is not None
    assert missing(f"{systems_page.TRAINING}[check_nothing]") is not None


@pytest.mark.parametrize("text", COMMANDS)
def test_every_command_that_a_row_names_exists(text: str) -> None:
    program, *words = text.split()
    if program == "torchrun":
        assert find_spec(words[words.index("-m") + 1]) is not None
        return
    assert program == "fanin"
    command: Any = typer.main.get_command(app)
    while isinstance(command, TyperGroup):
        assert words[0] in command.commands, text
        command = command.commands[words.pop(0)]
    options = {name for each in command.params for name in each.opts}
    assert {word for word in words if word.startswith("--")} <= options, text


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_row_says_what_shows_it_or_that_it_does_not_work(system: systems_page.System) -> None:
    assert system.here
    assert system.evidence or system.status == "not yet"


def test_no_system_has_two_rows() -> None:
    assert len({system.name for system in SYSTEMS}) == len(SYSTEMS)


@pytest.mark.parametrize(
    "reason",
    [
        "needs ethtool, simple_switch_grpc on PATH",
        "gymnasium is not installed: pip install 'fanin[rl]'",
        "the native extension is not built",
        "network namespaces need root: run it with sudo",
    ],
)
def test_evidence_may_be_skipped_where_a_tool_is_missing(reason: str) -> None:
    assert systems_page.refused_skip(NODES[0], reason) is None


def test_evidence_that_is_skipped_for_another_reason_fails() -> None:
    assert systems_page.refused_skip(NODES[0], "flaky, to be looked at") is not None
    whole = next(node for node in NODES if "[" not in node)
    assert systems_page.refused_skip(f"{whole}[any]", "flaky, to be looked at") is not None
    assert (
        systems_page.refused_skip("tests/documents/test_documents.py::test_another", "flaky, to be looked at") is None
    )

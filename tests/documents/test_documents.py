"""Documents keep up with the repository: links lead somewhere, commands exist, nothing is tied to one machine."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from torch.distributed.run import get_args_parser
from typer.core import TyperGroup

from fanin.cli import app
from tests.support.repository import ROOT, project, repository_files

DOCUMENTS = repository_files("*.md")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
MAKE = re.compile(r"\bmake ([a-z][a-z0-9-]*)\b")
CODE = re.compile(r"```[^\n]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
INDENTED = re.compile(r"(?:^\n|\A)((?: {4}.*\n)+)", re.MULTILINE)
BEFORE = r"^ *(?:\$ )?(?:[A-Z][A-Z_]*=\S+ )*(?:sudo )?"
"""Parts of a line before the command: a prompt, variables."""
STARTED = r"(?:(?:mpirun|srun|torchrun) .*?(?<=[a-z0-9] ))??"
"""A launcher whose ranks are commands of ours."""
FANIN = re.compile(rf"{BEFORE}{STARTED}fanin ((?:[a-z][a-z0-9]* ?)+)(.*)$", re.MULTILINE)
TORCHRUN = re.compile(rf"{BEFORE}torchrun (.*)$", re.MULTILINE)
EXAMPLE = re.compile(r"\bexamples/launchers/[\w.-]+")
PATH = re.compile(r"(?:[\w-]+/)+[\w-]+\.(?:py|hpp|cpp|p4|md|sh|toml|json)")
TARGET = re.compile(r"^([a-z0-9-]+):", re.MULTILINE)


@functools.cache
def fanin_command() -> Any:
    """Build fanin's command line as click has it."""
    return typer.main.get_command(app)


def code_in(document: Path) -> str:
    text = document.read_text()
    blocks = INDENTED.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return "\n".join(["".join(parts) for parts in CODE.findall(text)] + blocks)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_named_in_code_exist(document: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    assert set(MAKE.findall(code_in(document))) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_fanin_commands_named_in_code_exist_with_their_options(document: Path) -> None:
    for words, rest in FANIN.findall(code_in(document)):
        command = fanin_command()
        for word in words.split():
            if isinstance(command, TyperGroup):
                assert word in command.commands, f"fanin {words}"
                command = command.commands[word]
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        takes_all = command.context_settings.get("allow_interspersed_args", True)
        ours = rest.partition(" -- ")[0] if takes_all else ""  # the rest is another program's
        assert set(re.findall(r"(?<!\S)--[a-z0-9-]+", ours)) <= options, f"fanin {words}{rest}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_of_torchrun_named_in_code_exist(document: Path) -> None:
    known = {name for action in get_args_parser()._actions for name in action.option_strings}
    for line in TORCHRUN.findall(code_in(document)):
        own = re.split(r"(?<!\S)(?:-m|fanin|--no-python|\S+\.py)(?!\S)", line)[0]
        assert set(re.findall(r"(?<!\S)--[a-z0-9-]+", own)) <= known, line


def python_in(document: Path) -> list[ast.Module]:
    """Parse the blocks of Python of a document, but for those that are indented: parts of a class or a function."""
    found = re.findall(r"^```python\n(?! )(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    return [ast.parse(block) for block in found]


READERS_OWN = {"model", "replica", "optimizer", "batches", "dataset", "batch", "loss_of", "loss", "steps", "hosts"}
READERS_OWN |= {"local_rank", "train_one_step"}
"""Names in examples that stand for what the reader's program has."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_documents_imports_what_it_uses(document: Path) -> None:
    """Names come from the block or an earlier one of the page, or are the reader's own."""
    known = {*dir(builtins), "__name__", *READERS_OWN}
    for block in python_in(document):
        nodes = list(ast.walk(block))
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                assert node.module
                if node.module.partition(".")[0] in ("fanin", "torch"):
                    there = dir(importlib.import_module(node.module))
                    assert {each.name for each in node.names} <= set(there), node.module
            if isinstance(node, ast.Import | ast.ImportFrom):
                known |= {(each.asname or each.name).partition(".")[0] for each in node.names}
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                known.add(node.name)
            if isinstance(node, ast.arg):
                known.add(node.arg)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                known.add(node.id)
        used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert used - known == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_of_launchers_named_in_code_exist(document: Path) -> None:
    for name in EXAMPLE.findall(code_in(document)):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_code_exist(document: Path) -> None:
    """A path in backquotes is the repository's, or lies beside the document."""
    for quoted in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)):
        if PATH.fullmatch(quoted) and "NAME" not in quoted and not quoted.startswith(("out/", "testdata/")):
            found = (ROOT / quoted).is_file() or (document.parent / quoted).is_file()
            assert found, f"{document.relative_to(ROOT)} names {quoted}"


def test_every_folder_of_the_top_level_is_in_the_tour_of_the_repository() -> None:
    """A folder that somebody's run left behind, and that was committed, is in none."""
    tour = (ROOT / "docs/architecture.md").read_text() + (ROOT / "docs/development.md").read_text()
    folders = {path.relative_to(ROOT).parts[0] for path in repository_files() if path.parent != ROOT}
    assert [folder for folder in sorted(folders) if f"`{folder}/" not in tour] == []


def test_every_task_is_listed_by_make_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert phony
    described = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    assert set(phony[1].replace("\\", " ").split()) == described


def test_every_dependency_has_a_pinned_version() -> None:
    metadata = project()["project"]
    extras = metadata["optional-dependencies"].values()
    wanted = {re.split(r"[\[<>=,]", text)[0] for text in [*metadata["dependencies"], *(t for e in extras for t in e)]}
    pinned = {line.split("==")[0] for line in (ROOT / "requirements/constraints.txt").read_text().splitlines()}
    assert wanted - {"fanin"} <= pinned


def test_nothing_is_tied_to_one_machine_or_registry() -> None:
    traces = re.compile(r"/(work|farm|root)/|\bpypi\.org|download\.pytorch\.org|--index-url|--find-links")
    here = Path(__file__)
    for path in repository_files():
        if path != here and path.suffix not in {".npz", ".bin", ".png", ".pcap", ".gz"}:
            found = traces.search(path.read_text())
            assert not found, f"{path}: {found[0] if found else ''}"

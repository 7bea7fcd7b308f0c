"""A reader finds the tests of a rule: docs/development.md lists, for every folder, where they are."""

from __future__ import annotations

import re

from tests.support.repository import ROOT, project, repository_files

PAGE = (ROOT / "docs/development.md").read_text()
FOLDERS: dict[str, str] = project()["tool"]["setuptools"]["package-dir"]
"""By package, its folder, where that is not below the one of the package above."""
NOT_LISTED = {"p4/build"}
"""Compiled programs; no code."""
REUSED = {"tests/p4/test_conformance.py", "tests/p4/test_tofino_leaf.py", "tests/p4/test_trees.py"}
"""These run the tests of other modules over further machines."""


def folder_of(package: str) -> str:
    head, tail = package, ""
    while head not in FOLDERS:
        head, _, last = head.rpartition(".")
        tail = f"/{last}{tail}"
    return FOLDERS[head] + tail


def table(heading: str) -> list[list[list[str]]]:
    """By row and cell, what is in backquotes."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    rows = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:-1]] for row in rows]


def test_every_folder_of_the_package_has_its_tests_listed_once() -> None:
    listed = [folder for sources, _ in table("| rules in |") for folder in sources]
    packages = {folder_of(package): package for package in project()["tool"]["setuptools"]["packages"]}
    assert sorted(listed) == sorted(set(packages) - NOT_LISTED)
    for sources, folders in table("| rules in |"):
        code = "".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
        for source in sources:
            assert re.search(rf"\b{re.escape(packages[source])}\b", code), f"no test there names {packages[source]}"


def test_every_folder_of_tests_is_listed() -> None:
    there = {path.relative_to(ROOT).parent.as_posix() for path in repository_files("tests/*/*.py")} - {"tests/support"}
    listed = {folder for _, folders in table("| rules in |") for folder in folders}
    assert {folder for folder in there if folder.count("/") == 1} == listed


def test_every_module_of_the_scaffolding_is_listed() -> None:
    modules = [module for names, *_ in table("| module of `tests/support` |") for module in names]
    assert sorted(modules) == sorted(path.stem for path in repository_files("tests/support/*.py"))


def test_no_test_module_imports_from_another() -> None:
    importing = re.compile(
        r"^\s*from tests\.\w+(?:\.(?:test_|conftest)\w* import| import (?:.*\b)?test_).*", re.MULTILINE
    )
    for path in repository_files("tests/*.py"):
        if path.relative_to(ROOT).as_posix() not in REUSED:
            assert not importing.findall(path.read_text()), path

"""File names tell a reader what a file holds: no three files share one."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.repository import ROOT, repository_files

PRODUCT = ("fanin", "host", "switch", "native", "p4", "emulation", "benchmarks", "examples", "tools")
"""Folders of the product's files; its users start those of examples and benchmarks by name."""
MOST = 2
"""Most files of one name: the second is the twin of the first, or its side on the other end of the wire."""
COMMON = ("README.md", "__init__.py", "__main__.py", "conftest.py")
"""File names that Python, pytest or a reader expects in every folder."""


def crowded(files: list[Path]) -> list[str]:
    """Return a line for each name that more than MOST of the files have."""
    places = defaultdict(list)
    for path in files:
        if path.name not in COMMON:
            places[path.name].append(str(path.parent))
    return [f"{name}: {', '.join(sorted(held))}" for name, held in sorted(places.items()) if len(held) > MOST]


@pytest.mark.parametrize("folders", [PRODUCT, (*PRODUCT, "tests")], ids=["product", "with tests' modules"])
def test_no_three_files_share_a_name(folders: tuple[str, ...]) -> None:
    files = [path.relative_to(ROOT) for path in repository_files(*(f"{each}/" for each in folders))]
    assert any(path.suffix == ".p4" for path in files)
    found = crowded([path for path in files if not path.name.startswith("test_")])
    assert not found, "give each file a name that says what it holds:\n" + "\n".join(found)


def test_a_third_file_of_one_name_is_found() -> None:
    files = [Path(folder) / name for folder in "abc" for name in ("job.py", "__init__.py")]
    assert crowded(files) == ["job.py: a, b, c"]
    assert crowded(files[2:]) == []

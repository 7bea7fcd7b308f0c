"""The notebooks are known to README and the site, and their links lead somewhere; `make docs` runs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT
from tools.site import LINK, NOTEBOOKS


def test_there_is_one_for_each_kind_of_user_and_the_readme_and_the_site_lead_to_it() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"slow_links", "own_parts", "packet_by_packet"}
    for document in ("README.md", "mkdocs.yml"):
        text = (ROOT / document).read_text()
        assert all(f"examples/notebooks/{path.stem}" in text for path in NOTEBOOKS), document


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_in_its_cells_lead_somewhere(notebook: Path) -> None:
    prose = re.sub(r"^# ?", "", notebook.read_text(), flags=re.MULTILINE)
    for target in LINK.findall(prose):
        if "://" not in target:
            assert (notebook.parent / target).exists(), f"{notebook.name} links to {target}"


@pytest.mark.parametrize("name", ["own_parts", "slow_links"])
def test_it_finds_its_files_from_any_folder_or_says_where_to_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notebook,) = [path for path in NOTEBOOKS if path.stem == name]
    lines = re.search(
        r"^places = .*?^if here is None:\n(?:[ )][^\n]*\n)+", notebook.read_text(), re.MULTILINE | re.DOTALL
    )
    assert lines is not None
    monkeypatch.chdir(tmp_path)
    as_script: dict[str, Any] = {"Path": Path, "__file__": str(notebook)}
    exec(lines[0], as_script)
    assert as_script["here"] == notebook.parent
    with pytest.raises(FileNotFoundError, match=r"Remedy: start in examples/notebooks"):
        exec(lines[0], {"Path": Path})

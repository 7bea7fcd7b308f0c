"""The notebooks run from top to bottom, and are pages of the site."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fanin.cli.extras import MODULES
from tests.house.repository import ROOT
from tools.site import LINK, NOTEBOOKS

TIMEOUT_S = 800
"""Time for one of them on a machine that does much else; half a minute of two cores."""


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


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_makes_a_page(notebook: Path, tmp_path: Path) -> None:
    missing = [module for module in MODULES["notebooks"] if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install 'fanin[notebooks]'")
    command = [sys.executable, "-m", "tools.notebooks", str(tmp_path), "--only", notebook.stem]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    page = (tmp_path / "examples" / "notebooks" / f"{notebook.stem}.md").read_text()
    assert page.startswith("# ")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert len(pictures) == notebook.read_text().count("plt.show()")
    assert all((tmp_path / "examples" / "notebooks" / each).is_file() for each in pictures)

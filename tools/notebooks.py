"""Runs the notebooks and makes pages of them: `python -m tools.notebooks [FOLDER] [--only NAME]`.

A notebook is a Python file whose cells begin with `# %%` (jupytext's percent format). nbclient runs it from top to
bottom, in a new kernel; its output and pictures go into a page of Markdown in FOLDER (default: build/site/pages), where
mkdocs checks its links like those of any page. The first cell that raises ends the run with its traceback.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

from tests.support.repository import ROOT
from tools.site import NOTEBOOKS, place

CELL_TIMEOUT_S = 600
"""Longest time of a cell, which may start four processes that import torch, on a busy machine."""


def make_page(path: Path, folder: Path) -> None:
    """Run a notebook and write its page and pictures; nbclient.exceptions.CellExecutionError says what failed."""
    notebook = jupytext.read(path)
    NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    document = path.relative_to(ROOT).with_suffix(".md")
    # The exporter needs a key for the names of pictures, which lie in a folder beside the page.
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, resources={"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    )
    place(str(document), text, folder)
    for name, data in resources["outputs"].items():
        picture = folder / document.parent / name
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site" / "pages")
    parser.add_argument("--only", choices=[path.stem for path in NOTEBOOKS])
    given = parser.parse_args()
    for each in NOTEBOOKS:
        if given.only in (None, each.stem):
            make_page(each, given.folder)
            print(f"{each.relative_to(ROOT)}: ran")

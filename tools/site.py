"""Stages the documentation's pages for mkdocs: `python -m tools.site [FOLDER]` (default: build/site/pages).

Documents keep their places, and every file that one of them links to lies where it does in the repository, so links are
the same on the site as on a forge, and mkdocs checks all of them. The pages of the API are made here: they consist of
names alone, whose text mkdocstrings takes from docstrings. The pages of the gallery of reports are drawn from records
in docs/reports; a link to a record leads to its page on the site.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.repository import ROOT, repository_files

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
OUTSIDE = (".github/",)
"""Folders whose Markdown is no documentation."""
LISTING = "files.md"
"""Name of the page that lists a folder to which a document links."""
NOTEBOOKS = tuple(
    path for path in sorted((ROOT / "examples" / "notebooks").glob("*.py")) if path.read_text().startswith("# %% [mark")
)
"""Notebooks, which tools/notebooks.py runs; modules that they import lie beside them."""
API: dict[str, tuple[str, tuple[str, ...]]] = {
    "options": ("Options", ("fanin.options.Options", "fanin.options.Rounds", "fanin.launch.torch_variables")),
    "switch": (
        "Switches and addresses",
        ("fanin.addresses.SwitchAddress", "fanin.addresses.SwitchList", "fanin.switch.service.service.ServiceOptions"),
    ),
}
"""Pages of the API by file: title and names. `torch` and `errors` are made from the definitions of those modules."""

REPORTS: dict[str, tuple[str, ...]] = {
    "docs/reports/demo.json": ("docs/reports/demo.json",),
    "docs/reports/job-rank-0.jsonl": ("docs/reports/job-rank-0.jsonl", "docs/reports/job-rank-1.jsonl"),
}
"""By record that documents link to, the arguments of `fanin report`; the page has the record's name."""


def stage(folder: Path) -> None:
    """Make `folder` anew: all documents, the files that they link to, and the pages of the API."""
    shutil.rmtree(folder, ignore_errors=True)
    for document in (str(each.relative_to(ROOT)) for each in repository_files("*.md")):
        if not document.startswith(OUTSIDE):
            place(document, (ROOT / document).read_text(), folder)
    for notebook in NOTEBOOKS:
        page = str(notebook.relative_to(ROOT).with_suffix(".md"))
        place(page, f"# {notebook.stem}\n\n`python -m tools.notebooks` runs it and makes this page.\n", folder)
    for page, (title, names) in pages().items():
        target = folder / "api" / f"{page}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        # Show inherited members, because Options inherits its job's facts from classes without a page.
        options = "    options: {inherited_members: true}\n" if page == "options" else ""
        target.write_text(f"# {title}\n\n" + "\n".join(f"::: {name}\n{options}" for name in names))


def draw(folder: Path, tree: Path) -> None:
    """Make the pages of the gallery of reports, with the package that is linked in `tree`."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    for record, arguments in REPORTS.items():
        page = page_of(folder / record)
        page.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "fanin", "report", *arguments, "--html", str(page)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def page_of(record: Path) -> Path:
    """Path of a record's page in the gallery, beside the record."""
    return record.with_suffix(".html")


def pages() -> dict[str, tuple[str, tuple[str, ...]]]:
    """All pages of the API by file: title and names."""
    torch = _exported(ROOT / "host" / "torch" / "__init__.py")
    errors = _classes(ROOT / "fanin" / "errors.py")
    return {
        **API,
        "torch": ("fanin.host.torch", tuple(f"fanin.host.torch.{name}" for name in torch)),
        "errors": ("Errors", tuple(f"fanin.errors.{name}" for name in errors)),
    }


def place(document: str, text: str, folder: Path) -> None:
    """Write a page, and every file that it links to; links to folders and notebooks then lead to their pages."""
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        source = ((ROOT / document).parent / target).resolve()
        if source.is_dir():
            _list(source, folder)
            text = text.replace(f"]({target})", f"]({target}/{LISTING})")
        elif source.is_relative_to(ROOT) and str(source.relative_to(ROOT)) in REPORTS:
            text = text.replace(f"]({target})", f"]({page_of(Path(target))})")
        elif source in NOTEBOOKS:
            text = text.replace(f"]({target})", f"]({target.removesuffix('.py')}.md)")
        elif source.suffix != ".md" and source.is_file():
            _copy(source, folder)
    (folder / document).parent.mkdir(parents=True, exist_ok=True)
    (folder / document).write_text(text)


def _copy(source: Path, folder: Path) -> None:
    place = folder / source.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)


def _list(source: Path, folder: Path) -> None:
    """Write a page that links to a folder's files; a forge would show the folder itself."""
    name = source.relative_to(ROOT)
    files = [each for each in repository_files(f"{name}/*") if each.parent == source]
    for each in files:
        _copy(each, folder)
    lines = [f"# {name}", "", *(f"- [{each.name}]({each.name})" for each in files)]
    (folder / name / LISTING).write_text("\n".join(lines) + "\n")


def _exported(module: Path) -> list[str]:
    """Names in a module's `__all__`."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise LookupError(f"{module} has no __all__")


def _classes(module: Path) -> list[str]:
    """Names of public classes, in order of the file."""
    body = ast.parse(module.read_text()).body
    return [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site" / "pages")
    given = parser.parse_args().folder
    stage(given)
    draw(given, given.parent / "tree")

"""Makes build/tree/fanin: the package as an installation lays it out, of links to the source files.

pyproject.toml maps top-level folders into the package (`switch/` is `fanin.switch`). An editable install does so with
an import hook, which mypy and import-linter cannot read; they can read a tree of links. With `--native FILE` the tree
gets that extension instead of the installed one, which is how the sanitizer builds are run.
"""

from __future__ import annotations

import argparse
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def link_folder(source: Path, target: Path) -> None:
    """Mirror `source`: folders are made, files are linked (import-linter does not follow links to folders)."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name == "__pycache__":
            continue
        if path.is_dir():
            link_folder(path, target / path.name)
        else:
            (target / path.name).symlink_to(path)


def link_tree(tree: Path, native: Path | None = None) -> None:
    """Make `tree` anew: the package `fanin`, and beside it the tests and their configuration."""
    folders: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    shutil.rmtree(tree, ignore_errors=True)
    for name, folder in folders.items():
        link_folder(ROOT / folder, tree / name.replace(".", "/"))
    link_folder(ROOT / "tests", tree / "tests")
    (tree / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    if native:
        for path in (tree / "fanin").glob("_native*.so"):
            path.unlink()
        (tree / "fanin" / native.name).symlink_to(native.resolve())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", type=Path, default=ROOT / "build" / "tree")
    parser.add_argument("--native", type=Path)
    arguments = parser.parse_args()
    link_tree(arguments.tree, arguments.native)

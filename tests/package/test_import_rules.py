"""The import contracts of pyproject.toml hold, cover every module, and can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT, project
from tools.linked_tree import link_tree

LOOSE_MODULES = {"__init__", "__main__", "_torch_entry", "embedded_switch"}
"""Modules directly in fanin/ that are entry points and import what they start."""
IMPURE_MODULES = {
    "build_commit", "curve", "files", "json_log", "key_file", "memory", "open_files", "running_switches", "scapy_layer",
    "switch_size", "torch_versions",
}  # fmt: skip
"""Modules directly in fanin/ that read files or the system, or need scapy or torch."""
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"
FIND_CIRCLE = """
import graphlib, sys, grimp
graph = grimp.build_graph("fanin", exclude_type_checking_imports=sys.argv[1] != "with types", cache_dir=None)
imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
if sys.argv[2] == "folders":

    def folder(name):
        packages = name if graph.find_children(name) else name.rpartition(".")[0]
        return name if packages == "fanin" else packages  # directly in fanin/ are the lowest and the highest

    modules, imports = imports, {}
    for name, imported in modules.items():
        imports.setdefault(folder(name), set()).update(set(map(folder, imported)) - {folder(name)})
try:
    graphlib.TopologicalSorter(imports).prepare()
except graphlib.CycleError as error:
    print(*error.args[1])
"""


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT_IMPORTS, "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_every_contract_is_kept(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    result = lint_imports(tmp_path / "tree")
    assert result.returncode == 0, result.stdout


CANARIES = {
    "fanin/layouts/canary.py": "import fanin.advice",
    "switch/canary.py": "import fanin.host",
    "fanin/protocol/canary.py": "import time",
    "fanin/numerics/canary.py": "import random",
    "fanin/formats/canary.py": "import socket",
    "fanin/transports/canary.py": "import time",
    "host/machine/canary.py": "import threading",
    "switch/machine/canary.py": "import socket",
    "switch/controller/canary.py": "import time",
    "switch/p4/canary.py": "import zmq",
    "host/stale/canary.py": "import fanin.host.session",
    "switch/server/canary.py": "import fanin.switch.controller.jobs",
    "host/session/canary.py": "import torch",
    "host/torch/collectives/canary.py": "import fanin.host.torch.training",
    "switch/p4runtime/server/canary.py": "import fanin.switch.p4runtime.controller",
}
"""A new module per folder, with an import that the folder's contract forbids."""


def test_a_new_module_is_under_the_contract_of_its_folder(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    for path, line in CANARIES.items():
        (tmp_path / "tree" / (path if path.startswith("fanin/") else f"fanin/{path}")).write_text(f"{line}\n")
    result = lint_imports(tmp_path / "tree")
    assert result.returncode == 1
    found = " ".join(result.stdout.split())
    for path, line in CANARIES.items():
        module = path.removeprefix("fanin/").removesuffix(".py").replace("/", ".")
        assert f"fanin.{module} -> {line.removeprefix('import ')} " in found


def test_a_folder_without_a_place_in_the_order_is_found(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    folder = tmp_path / "tree" / "fanin" / "switch" / "canary"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    result = lint_imports(tmp_path / "tree")
    assert result.returncode == 1
    assert "fanin.switch.canary" in result.stdout


def test_the_contract_of_purity_names_every_pure_module_outside_of_folders() -> None:
    modules = {path.stem for path in (ROOT / "fanin").glob("*.py")} - IMPURE_MODULES - LOOSE_MODULES
    pure = project()["tool"]["importlinter"]["contracts"][0]
    assert {f"fanin.{name}" for name in modules} <= set(pure["source_modules"])


def circle(tree: Path, *, with_types: bool = True, of: str = "modules") -> str:
    """Modules or folders of `tree` that import each other, imports for types only included or not; or nothing."""
    command = [sys.executable, "-c", FIND_CIRCLE, "with types" if with_types else "without", of]
    found = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return found.stdout.strip()


@pytest.mark.parametrize("with_types", [False, True], ids=["imports", "types"])
def test_no_modules_import_each_other(tmp_path: Path, with_types: bool) -> None:
    link_tree(tmp_path / "tree")
    assert not circle(tmp_path / "tree", with_types=with_types)


@pytest.mark.parametrize("for_types", [False, True], ids=["imports", "types"])
def test_modules_that_import_each_other_are_found(tmp_path: Path, for_types: bool) -> None:
    link_tree(tmp_path / "tree")
    line = "import fanin.switch.machine.{}\n"
    if for_types:
        line = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {line}"
    for name, other in (("canary", "wren"), ("wren", "canary")):
        (tmp_path / "tree" / "fanin" / "switch" / "machine" / f"{name}.py").write_text(line.format(other))
    assert "fanin.switch.machine.canary" in circle(tmp_path / "tree", with_types=True)
    assert ("fanin.switch.machine.canary" in circle(tmp_path / "tree", with_types=False)) != for_types


def test_no_folders_import_each_other(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    assert not circle(tmp_path / "tree", of="folders")


def test_folders_that_import_each_other_are_found(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    canary = tmp_path / "tree" / "fanin" / "emulation" / "network" / "canary.py"
    canary.write_text("import fanin.emulation.containers.roster\n")
    assert "fanin.emulation.network" in circle(tmp_path / "tree", of="folders")

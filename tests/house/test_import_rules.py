"""Who may import whom: the contracts of pyproject.toml hold, cover every module, and can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house.repository import ROOT, project
from tools.linked_tree import link_tree

LOOSE_MODULES = {"__init__", "__main__", "_torch_entry"}
"""Modules directly in fanin/ that are entry points and import what they start."""
IMPURE_MODULES = {"curve", "files", "key_file", "memory", "scapy_layer"}
"""Modules directly in fanin/ that read files or the system, or need scapy."""
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT_IMPORTS, "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_every_contract_is_kept(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    result = lint_imports(tmp_path / "tree")
    assert result.returncode == 0, result.stdout


CANARIES = {
    "switch/canary.py": "import fanin.host",
    "fanin/protocol/canary.py": "import time",
    "fanin/numerics/canary.py": "import random",
    "fanin/transports/canary.py": "import socket",
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

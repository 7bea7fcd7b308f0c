"""Who may import whom: the contracts of pyproject.toml hold, cover every module, and can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house.repository import ROOT, project
from tools.linked_tree import link_tree

IMPURE_MODULES = {"__init__", "__main__", "_torch_entry", "curve", "files", "key_file", "memory", "scapy_layer"}
"""Of the modules directly in fanin/, those that are no part of the protocol: entry points, files, scapy's layer."""
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT_IMPORTS, "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_every_contract_is_kept(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    result = lint_imports(tmp_path / "tree")
    assert result.returncode == 0, result.stdout


def test_a_switch_that_imports_the_host_is_found(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    (tmp_path / "tree" / "fanin" / "switch" / "canary.py").write_text("import fanin.host\n")
    result = lint_imports(tmp_path / "tree")
    assert result.returncode == 1
    assert "fanin.switch.canary -> fanin.host" in result.stdout


def test_a_clock_in_the_protocol_is_found(tmp_path: Path) -> None:
    link_tree(tmp_path / "tree")
    wire = tmp_path / "tree" / "fanin" / "wire.py"
    text = wire.read_text()
    wire.unlink()
    wire.write_text(text + "\nimport time\n")
    result = lint_imports(tmp_path / "tree")
    assert result.returncode == 1
    assert "fanin.wire -> time" in result.stdout


def test_the_contract_of_purity_names_every_protocol_module() -> None:
    modules = {path.stem for path in (ROOT / "fanin").glob("*.py")} - IMPURE_MODULES
    pure = project()["tool"]["importlinter"]["contracts"][0]
    assert {f"fanin.{name}" for name in modules} <= set(pure["source_modules"])

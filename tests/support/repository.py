"""Paths of the repository, for tests that look at the repository itself."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, Any]:
    """Parse pyproject.toml into a dictionary."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def repository_files(*patterns: str) -> list[Path]:
    """Return the files of those patterns that git tracks or would add: a check that runs before a commit sees all."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]

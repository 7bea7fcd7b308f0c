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


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows, of those patterns."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]

"""The commit that this copy of fanin was made from, for `fanin --version` and reports of faults."""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
FILE = PACKAGE / "commit.txt"
"""Written into wheels by setup.py; a checkout asks git instead."""
GIT_TIMEOUT_S = 2.0


def of_checkout(folder: Path) -> str | None:
    """The abbreviated commit of a checkout, followed by `-dirty` where files differ; None where git cannot say."""
    if not (folder / ".git").exists():  # or git would answer for a repository that holds a virtual environment
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def build_commit() -> str | None:
    """The commit of this copy; None for an archive of the sources without git."""
    try:
        return FILE.read_text(encoding="ascii").strip()
    except OSError:
        return of_checkout(PACKAGE.parent)

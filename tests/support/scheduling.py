"""Tests of a parallel run that stay together: those of a file that starts processes, on one worker of xdist.

They share what the file's fixtures have started, and do not compete with each other. All other tests go, one by one, to
the worker that is free. xdist's own `loadgroup` reads its groups from changed node ids, which pytest 9 no longer has.
"""

from __future__ import annotations

import functools
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def starts_processes(file: str) -> bool:
    """Whether any test of a file, named from the repository's root on, has the mark."""
    return "mark.processes" in (ROOT / file).read_text(encoding="utf-8")


class FilesOfProcesses(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """xdist's scheduling by scope, with these files and all other tests as scopes."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if starts_processes(file) else nodeid

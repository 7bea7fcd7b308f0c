"""Switches that ranks of this user run beside themselves on this machine, so that the user's tools find them.

A switch leaves a file in a folder that only its user can enter, beside the key with which that user's tools speak as
its operators (fanin/key_file.py): the file has addresses, and no secret. It is named after the process, and removed
when the switch ends; a file whose process is gone counts for nothing, and is removed by whoever sees it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fanin.addresses import SwitchAddress
from fanin.errors import ConfigurationError
from fanin.key_file import default_path

FOLDER = "switches"
MAX_FILE_BYTES = 1 << 16
"""Longest file that is read: a process with a leaf of each of a thousand switches writes less."""


def folder() -> Path:
    """Folder of this user's files. RuntimeError for a user without a home."""
    return default_path().with_name(FOLDER)


@contextlib.contextmanager
def announced(addresses: Sequence[SwitchAddress]) -> Iterator[None]:
    """Keep a file for this process, which serves at these addresses. A file that cannot be written is left out: the
    switch serves all the same.
    """
    path = None
    with contextlib.suppress(OSError, RuntimeError):
        there = folder()
        there.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = there / f".{os.getpid()}"
        fresh.write_text("".join(f"{address}\n" for address in addresses))
        path = fresh.rename(there / str(os.getpid()))
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def found() -> list[SwitchAddress]:
    """Addresses of this user's running switches, those that were started last first; none where there is no folder."""
    with contextlib.suppress(OSError, RuntimeError):
        there = folder()
        facts = there.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o022:  # anybody could have written what is there
            return []
        paths = [path for path in there.iterdir() if path.name.isdigit()]
        latest = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
        return [address for path in latest for address in _in_file(path)]
    return []


def _in_file(path: Path) -> list[SwitchAddress]:
    if not Path("/proc", path.name).exists():
        with contextlib.suppress(OSError):
            path.unlink()
        return []
    with contextlib.suppress(OSError, ConfigurationError, UnicodeDecodeError):
        lines = path.read_bytes()[:MAX_FILE_BYTES].decode("ascii").splitlines()
        return [SwitchAddress.parse(line) for line in lines]
    return []

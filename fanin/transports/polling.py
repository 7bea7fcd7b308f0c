"""Waiting for files and sockets, whatever their numbers: select() refuses those above 1,023 (select(2))."""

from __future__ import annotations

import select
from collections.abc import Iterable
from math import ceil
from typing import Protocol

READABLE, WRITABLE = select.POLLIN, select.POLLOUT


class _File(Protocol):
    def fileno(self) -> int: ...


def is_ready(files: Iterable[_File | int], event: int, timeout_s: float = 0.0) -> bool:
    """Whether any of them becomes READABLE or WRITABLE within that time, or has ended."""
    poller = select.poll()
    for each in files:
        poller.register(each, event)
    return bool(poller.poll(ceil(timeout_s * 1000)))

"""A disk that is full."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """Refuse what would make any file of this process longer, as a full disk does, from entry to exit.

    Modules that are imported meanwhile are not compiled into files: Python would leave the first `size_bytes` of one in
    the checkout, and take it for the module from then on.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = compiles

"""Loaded by `import torch` through the entry point group `torch.backends`: tiny, and never allowed to break it."""

from __future__ import annotations

import gc
import logging
import os
from typing import Any


def register() -> None:
    """Make `init_process_group("fanin")` known. The backend itself is imported when a group is made.

    A second call does nothing. Errors are logged and cost only the backend: an exception here would break
    `import torch` for the whole environment.
    """
    try:
        import torch.distributed as dist

        import fanin.endings  # noqa: F401 (now, so that what a program registers with atexit later is called earlier)

        if dist.is_available() and "FANIN" not in dist.Backend._plugins:
            dist.Backend.register_backend("fanin", _create, extended_api=True, devices=["cpu", "cuda"])
            # Since 2.15 torch hangs a recorder on every group whose backend is not named here, and fails on one that is
            # written in Python. Gloo records its own collectives.
            recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
            recording.add("fanin")
    except Exception:
        logging.getLogger("fanin").exception("the backend 'fanin' could not be registered with torch.distributed")


def _create(backend_options: Any, pg_options: Any) -> Any:
    """Make the backend of one group; raise ConfigurationError where PyTorch is older than OLDEST."""
    from fanin.torch_versions import OLDEST, require_torch

    require_torch("fanin", OLDEST)
    from fanin.host.session import embedded

    if _may_start_switch(backend_options, pg_options):
        embedded.prepare()  # before the backend is imported, which takes as long as that process takes to start
    try:
        return _backend().create(backend_options, pg_options)
    finally:
        embedded.discard()


def _backend() -> Any:
    """Import the backend's module, with garbage collection off: looking through all of torch's objects takes long."""
    collects = gc.isenabled()
    gc.disable()
    try:
        from fanin.host.torch import backend
    finally:
        if collects:
            gc.enable()
    return backend


def _may_start_switch(backend_options: Any, pg_options: Any) -> bool:
    """Whether this rank is likely to start a switch: the world's rank 0, or its host's first, without an address."""
    is_world = not backend_options.global_ranks_in_group and backend_options.group_size > 1
    first = backend_options.group_rank == 0 or os.environ.get("LOCAL_RANK") == "0"
    told = getattr(pg_options, "switch", None) or os.environ.get("FANIN_SWITCH", "")
    return is_world and first and "://" not in str(told)

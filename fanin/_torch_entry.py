"""Loaded by `import torch` through the entry point group `torch.backends`: tiny, and never allowed to break it."""

from __future__ import annotations

import logging
from typing import Any


def register() -> None:
    """Make `init_process_group("fanin")` known. The backend itself is imported when a group is made.

    A second call does nothing. Errors are logged and cost only the backend: an exception here would break
    `import torch` for the whole environment.
    """
    try:
        import torch.distributed as dist

        if dist.is_available() and "FANIN" not in dist.Backend._plugins:
            dist.Backend.register_backend("fanin", _create, extended_api=True, devices=["cpu", "cuda"])
            # Since 2.15 torch hangs a recorder on every group whose backend is not named here, and fails on one that is
            # written in Python. Gloo records its own collectives.
            recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
            recording.add("fanin")
    except Exception:
        logging.getLogger("fanin").exception("the backend 'fanin' could not be registered with torch.distributed")


def _create(backend_options: Any, pg_options: Any) -> Any:
    """Raises ConfigurationError for a PyTorch older than OLDEST."""
    from fanin.torch_versions import OLDEST, require_torch

    require_torch("fanin", OLDEST)
    from fanin.host.torch.backend import create

    return create(backend_options, pg_options)

"""The machines under test by name: the Python twin, and the native one, which is None where it is not built."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fanin.extension import tag_algorithms
from fanin.host.machine.worker_machine import WorkerMachine
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.support.network import Worker


def native(name: str) -> Any:
    """A class of the extension, or None where it is not built."""
    try:
        return getattr(importlib.import_module("fanin._native"), name, None)
    except ImportError:
        return None


GUARDS: list[dict[str, Any]] = [
    {},
    {"checksum": True},
    *({"data_key": bytes(range(16)), "tag": algorithm} for algorithm in tag_algorithms(None)),
]
"""Fields of a job's spec by which its packets are protected: not at all, by a checksum, by tags."""
WORKER_MACHINES: dict[str, Callable[..., Worker]] = {"twin": WorkerMachine, "native": native("WorkerMachine")}
SWITCH_MACHINES: dict[str, Callable[[int], Any]] = {"twin": SwitchMachine, "native": native("SwitchMachine")}

"""The names, store, devices and timeout of a process group, as torch asks for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.host.torch.handles.timeouts import DefaultTimeout, seconds_of

_ProcessGroup: Any = dist.ProcessGroup


class TorchIdentity(_ProcessGroup):  # type: ignore[misc]
    """A process group's names, store, devices and timeout."""

    def __init__(self, store: c10d.Store, rank: int, size: int, name: str, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._name = name
        self._description = "undefined"
        self._sequence = 0
        self.default_timeout = DefaultTimeout(seconds_of(timeout))
        """The timeout of collectives that are given none."""
        self._bound_device: torch.device | None = None

    def _renamed(self) -> None:
        """Called when the group has a new name or description."""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend's name."""
        return "fanin"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """The name under which functional collectives find this group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Set by torch once the group is made."""
        self._name = name
        self._renamed()

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """The caller's description of the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's name
        """Set by torch once the group is made."""
        self._description = description
        self._renamed()

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if torch.cuda.is_available() else [torch.device("cpu")]

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that `init_process_group(device_id=...)` names."""
        return self._bound_device

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound_device = device

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def _get_backend(self, device: torch.device) -> TorchIdentity:
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """False: our memory is not quicker than torch's (`set_allocate_memory_from_process_group_for_comm` asks)."""
        return False

    def _has_hooks(self) -> bool:
        return False

    def get_group_store(self) -> c10d.Store:
        """The store that the ranks met through."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Ranks count alike from 0: nothing to agree on."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of collectives that are given none, for waits that begin after this."""
        self.default_timeout.seconds = seconds_of(timeout)

    _set_default_timeout = set_timeout

    @property
    def timeout_s(self) -> float:
        """The timeout of collectives that are given none, in seconds."""
        return self.default_timeout.seconds

    @property
    def store(self) -> c10d.Store:
        """The store through which the group's ranks found each other."""
        return self._store

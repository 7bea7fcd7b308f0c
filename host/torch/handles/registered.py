"""Works that torch's `wait_tensor` waits for: those of collectives whose results in flight may be a graph's inputs.

Inside `allow_inflight_collective_as_graph_input_ctx()`, torch notes the work of every collective, by the storage of its
tensors, so that `c10d_functional.wait_tensor` finds it. Its C++ does so behind its own groups' calls; a group written
in Python must do it itself.

Rules
-----
* A collective that is done when its call returns is not noted: nobody need wait for it.
* A note holds its work, and so its tensors, till either is waited for: `wait` empties its notes, and `wait_tensor`
  takes them out of torch's registry.
* torch can only be asked to take out all notes of one storage, waiting for each. So a work that was waited for has its
  notes taken out once no other work of ours has one there. An empty note weighs as much as its object.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.host.torch.handles.host_tensor import beneath_layers

_Work: Any = dist.Work
_NO_TIMEOUT = timedelta(0)

wanted = c10d._allow_inflight_collective_as_graph_input
"""Whether works are to be noted now."""

_open: Counter[int] = Counter()
"""Number of notes that are not empty for each storage, by its address."""
_lock = threading.Lock()


class Waited(Protocol):
    """A collective in flight (work.py)."""

    def wait(self) -> bool:
        """Return once the outputs hold the result; raise when they never will."""


class Note(_Work):  # type: ignore[misc]
    """Stands in torch's registry for a work."""

    def __init__(self, work: Waited, tensor: torch.Tensor) -> None:
        super().__init__()
        self._work: Waited | None = work
        self._storage = _address(tensor)
        with _lock:
            _open[self._storage] += 1
        c10d._register_work(tensor, self)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the work, unless the note is empty, since the work was waited for."""
        work = self._work
        return work is None or work.wait()

    def empty(self) -> bool:
        """Drop the work. Returns whether all notes of the storage are empty now, and may leave torch's registry."""
        with _lock:
            if self._work is not None:
                self._work = None
                _open[self._storage] -= 1
            last = _open[self._storage] <= 0
            if last:
                del _open[self._storage]
            return last


class Notes:
    """All notes of one work."""

    def __init__(self, work: Waited, tensors: Iterable[torch.Tensor]) -> None:
        by_storage = {_address(tensor): tensor for tensor in tensors if tensor.layout is torch.strided}
        self._notes = [(Note(work, tensor), tensor) for tensor in by_storage.values()]

    def close(self) -> None:
        """Empty the notes of a work that was waited for, and take them out of torch's registry where nobody waits."""
        notes, self._notes = self._notes, []
        for note, tensor in notes:
            if note.empty():
                with beneath_layers():
                    torch.ops._c10d_functional.wait_tensor(tensor)


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)

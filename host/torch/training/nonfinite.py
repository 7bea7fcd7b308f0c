"""Hearing of NaN and infinities that reach a sum: `on_nonfinite(callback)` and `nonfinite_reports()`.

    on_nonfinite(lambda report: print(report.step, report.ranks))

docs/nonfinite.md says which sums tell what. The log and the group's counters need no call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch.utils.hooks import RemovableHandle

from fanin.errors import ConfigurationError
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.nonfinite import Culprit, NonFiniteReport

__all__ = ["Culprit", "NonFiniteReport", "nonfinite_reports", "on_nonfinite"]


def on_nonfinite(
    callback: Callable[[NonFiniteReport], None], group: dist.ProcessGroup | None = None
) -> RemovableHandle:
    """Call `callback` once for each sum of the group that NaN or infinities reach; the handle's `remove()` ends it.

    It is called on every rank, before any wait for the sum returns, by whichever thread learns of it; what it raises
    reaches whoever waits for the sum. It must call no collective. `group`: a fanin group; None for the world's.
    Raises ConfigurationError for a group of another backend.
    """
    callbacks = _fanin_group(group).nonfinite.callbacks
    handle = RemovableHandle(callbacks)
    callbacks[handle.id] = callback
    return handle


def nonfinite_reports(group: dist.ProcessGroup | None = None) -> tuple[NonFiniteReport, ...]:
    """Sums of the group that NaN or infinities have reached, oldest first: the latest MAX_REPORTS.

    Raises ConfigurationError for a group of another backend.
    """
    return _fanin_group(group).nonfinite.reports


def _fanin_group(group: dist.ProcessGroup | None) -> FaninProcessGroup:
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, FaninProcessGroup):
        raise ConfigurationError(
            "only sums of a group whose backend is 'fanin' say who has spoiled them. Remedy: pass such a group"
        )
    return found

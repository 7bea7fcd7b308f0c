"""fanin under torchft: a process group that is made anew for every quorum (https://github.com/pytorch/torchft).

torchft's callbacks are right only if futures are complete when the callbacks are attached, and run them in the order in
which they were attached. gloo's futures of small sums nearly always are; this group's always, by
`Options.ordered_futures`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d
from torchft.process_group import ProcessGroupWrapper

from fanin import json_log
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.dynamo import keep_out
from fanin.options import Options

CONFIGURE_TIMEOUT = timedelta(seconds=60)
"""Default timeout of torchft's own groups."""

_Wrapper: Any = ProcessGroupWrapper


class ProcessGroupFanin(_Wrapper):  # type: ignore[misc]
    """A process group for `torchft.Manager(pg=...)`, in the place of torchft's ProcessGroupGloo."""

    def __init__(self, timeout: timedelta = CONFIGURE_TIMEOUT, options: Options | None = None) -> None:
        """`timeout`: of collectives, and of meeting the other replicas. `options`: None takes the environment's
        (FANIN_SWITCH and so on); `ordered_futures` is always on.

        Raises nothing of fanin's: a group is made, and its errors raised, by `configure`.
        """
        super().__init__(timeout)
        given = Options.from_environment(os.environ) if options is None else options
        self._options = dataclasses.replace(given, ordered_futures=True)

    def _create_pg(self, store: c10d.Store, rank: int, world_size: int) -> FaninProcessGroup:
        """The group of one quorum, which torchft has given a part of the store of its own."""
        name = f"torchft-{self._quorum_id or 0}-{self._group_rank or 0}"
        json_log.configure(os.environ)
        return FaninProcessGroup(store, rank, world_size, self._timeout, group_name=name, options=self._options)

    def getBackendName(self) -> str:  # noqa: N802 - torchft's name
        """The backend's name, as torchft's own groups have theirs."""
        return "torchft-fanin"

    def shutdown(self) -> None:
        """Leave the job; the other replicas are told."""
        group = self._pg
        super().shutdown()
        if group is not None:
            group.shutdown()


keep_out(sys.modules[__name__])

"""The first cause of a group's failure, told through its store to ranks that meet only the consequences.

With two levels a rank that dies is seen by its own host's ranks and by those that sum with it between hosts. They raise
and leave, and all others see only that these have left. Ranks at another host's leaf of a tree hear of a lost rank
with their next sum of the whole group, and there may be none.

Rules
-----
* A rank that knows the cause from its session tells it before it leaves; the first one that is told stays.
* A rank that knows of a consequence waits NAMING_TIMEOUT_S at most for the cause, and tells then what it knows itself.
* A store that has ended, as with rank 0's process, tells nothing: then each rank's own error counts. One that does not
  answer is asked again within NAMING_TIMEOUT_S, since it may be stopped, or its host busy.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError, StoreSilentError, SwitchLostError, WorkerLostError
from fanin.host.torch.handles.failures import NAMING_GRACE_S
from fanin.host.torch.meeting.side_store import asked_at
from fanin.protocol.job import LEFT_GRACE_S

if TYPE_CHECKING:
    from fanin.host.torch.handles.failures import Failures

NAMING_TIMEOUT_S = LEFT_GRACE_S + NAMING_GRACE_S
"""Longest wait for a cause: that of a session for ranks that left, and of the watch thread."""
LOOK_INTERVAL_S = 0.1


class FirstCause:
    """The first cause of one group's failure, kept in the group's store."""

    def __init__(self, store: c10d.Store, name: str, failures: Failures) -> None:
        """`name`: of the group, unique in the store."""
        # By a second connection, since the program's thread may be waiting in the store when a sum fails. It is opened
        # now, since connecting to a store that has ended takes as long as the store's timeout.
        self._side, self._key = asked_at(store), f"fanin/cause/{name}"
        self._failures, self._rank = failures, failures.rank

    def found(self, error: FaninError | None) -> FaninError | None:
        """The cause: the group's failure, or what another rank has told, or else `error`, this rank's own.

        None with no `error` where nobody knows a cause. Waits at most NAMING_TIMEOUT_S and ANSWER_TIMEOUT_S.
        """
        ends_s = time.monotonic() + NAMING_TIMEOUT_S
        try:
            while (failure := self._failures.failure) is None and time.monotonic() < ends_s:
                if (told := self._asked()) is not None:
                    return told
                time.sleep(LOOK_INTERVAL_S)
            cause = failure or error
            return None if cause is None else self._side.ask(self._rank, lambda store: self._tell(store, cause))
        except StoreSilentError:
            return self._failures.failure or error

    def _asked(self) -> FaninError | None:
        """Return what another rank has told, and None where the store has not answered yet."""
        try:
            return self._side.ask(self._rank, self._told)
        except StoreSilentError as error:
            if error.ended:
                raise
            return None

    def _told(self, store: c10d.Store) -> FaninError | None:
        return _read(store.get(self._key)) if store.check([self._key]) else None

    def _tell(self, store: c10d.Store, cause: FaninError) -> FaninError:
        """Tell `cause` unless another rank has told one before; returns the cause that was told first."""
        told = json.dumps(
            {
                "ranks": list(cause.ranks) if isinstance(cause, WorkerLostError) else None,
                "address": cause.address if isinstance(cause, SwitchLostError) else None,
                "text": str(cause),
            }
        )
        first = store.compare_set(self._key, "", told)
        return cause if first == told.encode() else _read(first)


def _read(told: bytes) -> FaninError:
    said = json.loads(told)
    if said["ranks"] is not None:
        return WorkerLostError(tuple(said["ranks"]), said["text"])
    if said["address"] is not None:
        return SwitchLostError(said["address"], said["text"])
    return FaninError(said["text"])

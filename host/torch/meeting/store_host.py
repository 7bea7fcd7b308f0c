"""When a rank may leave the world so that the world can be made again at once, on the same port.

torch's rank 0 serves the store that the ranks meet through, in its own process, as long as its group is there. A rank
that has destroyed its group, and makes the next one before rank 0 has destroyed its own, connects to the store of the
old world, which then dies under it. So each rank but 0 keeps a connection to that store's port, over which nothing is
said, and when it leaves waits for the end of the connection: then the store is gone, and the next one to answer at the
port is the next world's. The wait is short: rank 0 may have more to do, or the store may be one that stays.
"""

from __future__ import annotations

import os
import socket

from torch._C import _distributed_c10d as c10d

from fanin.interruptions import interrupts
from fanin.transports.polling import READABLE, is_ready

PARTING_TIMEOUT_S = 1.0
"""Longest wait for rank 0 to destroy its group, too."""
CONNECT_TIMEOUT_S = 1.0
"""Longest wait for the connection. The store has just answered here: if this fails, there is nothing to watch."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set to True by torchrun, whose agent serves the store and outlives every group."""


class StoreHost:
    """Watches, by a silent connection, a store that ends with the world's group, to tell when it has ended."""

    def __init__(self, store: c10d.Store, rank: int) -> None:
        """Connect to the store's port, where there is something to wait for."""
        self._connection: socket.socket | None = None
        while isinstance(store, c10d.PrefixStore):
            store = store.underlying_store
        if rank == 0 or not isinstance(store, c10d.TCPStore) or os.environ.get(AGENT_STORE) == "True":
            return
        try:
            self._connection = socket.create_connection((store.host, store.port), CONNECT_TIMEOUT_S)
        except OSError as error:
            if interrupts(error):
                raise

    def wait_until_gone(self, timeout_s: float = PARTING_TIMEOUT_S) -> bool:
        """Wait for the store's end; returns whether it came within `timeout_s`.

        Later calls, and all calls without a connection, return False at once.
        """
        if self._connection is None:
            return False
        with self._connection as connection:
            self._connection = None
            return is_ready([connection], READABLE, timeout_s)

    def close(self) -> None:
        """Stop watching. A second call does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

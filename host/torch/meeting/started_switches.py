"""The switches that this process has started: shared by all of its groups, closed when the last of them is, or at exit.

A switch that a rank has started serves the jobs of one secret only, so groups made later use the world's.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from fanin.endings import at_end
from fanin.host.session.embedded import EmbeddedSwitch, start_switch
from fanin.host.torch.meeting.network_interfaces import own_address_towards
from fanin.host.torch.meeting.reachable import reachable_host
from fanin.options import Options, SwitchAddress
from fanin.protocol.seal import SECRET_BYTES, Credentials

log = logging.getLogger("fanin")


@dataclass(slots=True)
class _Started:
    """A switch that this process has started, for the jobs of one secret."""

    switch: EmbeddedSwitch | None = None
    """This host's shard, where it has one, or a shard at each of its network cards, in one process."""
    leaves: EmbeddedSwitch | None = None
    """Leaves of all shards, for the ranks of this host."""
    users: int = 0


class StartedSwitches:
    """The switches that this process has started, one for each secret, and how many groups use each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[str, _Started] = {}
        self._inherited: list[_Started] = []
        """Kept, in a child of fork(), because dropping them would end them."""

    def secret(self) -> str:
        """Secret of a running switch, so that one serves all groups of this process; or a new one."""
        with self._lock:
            return next(iter(self._started), None) or secrets.token_hex(SECRET_BYTES)

    def start(
        self, options: Options, secret: str, hosts: Sequence[str] = (), rank: int | None = None
    ) -> tuple[SwitchAddress, ...]:
        """The addresses of this process's switches for the jobs of that secret, started now if they are not there yet.

        One listens at each of `hosts`, names or addresses of this machine; empty: one, where the other ranks reach this
        process. Call `release` once for all of them. `rank` is this process's, for errors.
        """
        with self._lock:
            started = self._started.get(secret)
            switch = None if started is None else started.switch
            if started is None or switch is None or not switch.is_running:  # it may have died, and the job have gone on
                users = 0 if started is None else started.users
                credentials = Credentials.of_job(secret)
                switch = start_switch(hosts or reachable_host(), options, credentials=credentials, rank=rank)
                for address in switch.addresses:
                    log.info("this process has started the switch %s; `fanin top %s` watches it", address, address)
                self._started[secret] = started = _Started(switch, users=users)
            started.users += 1
            assert started.switch is not None
            return started.switch.addresses

    def start_leaves(
        self, shards: Sequence[SwitchAddress], options: Options, secret: str, rank: int | None = None
    ) -> tuple[SwitchAddress, ...]:
        """Start a leaf of every shard on this host, for the world's group; closed with the switch of that secret.

        Where this process has started no such switch, call `release` once for the leaves.
        """
        with self._lock:
            credentials = Credentials.of_job(secret)
            own = reachable_host()
            # A parent sends results to the address that contributions come from, so through its network card.
            at = [(options.interfaces and own_address_towards(shard.host)) or own for shard in shards]
            leaves = start_switch(at, options, credentials=credentials, parents=shards, rank=rank)
            started = self._started.setdefault(secret, _Started())
            started.users = max(started.users, 1)
            started.leaves = leaves
            return leaves.addresses

    def release(self, secret: str) -> None:
        """Count one user less of the switch with that secret; it is closed when it has no user left."""
        with self._lock:
            started = self._started.get(secret)
            if started is None:
                return
            started.users -= 1
            if started.users == 0:
                _let_go(self._started.pop(secret))

    def forget(self) -> None:
        """Forget all switches in a child of fork(): they are its parent's, and the lock may be locked."""
        self._lock = threading.Lock()
        self._inherited += self._started.values()
        self._started = {}

    def close(self) -> None:
        """Let go of all of them at exit."""
        with self._lock:
            for started in self._started.values():
                _let_go(started)
            self._started.clear()


def _let_go(started: _Started) -> None:
    for switch in (started.leaves, started.switch):
        if switch is not None:
            switch.close()


STARTED = StartedSwitches()
at_end(STARTED.close)
os.register_at_fork(after_in_child=STARTED.forget)

"""Metrics of this process's sessions, at one HTTP port (Options.metrics): a label says which job, rank and switch.

The port is opened by the first session that asks for one, and given up with the last. Nothing is counted for it: a
scrape reads the counters that engines have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Protocol

from fanin.options import ENVIRONMENT_PREFIX, SwitchAddress
from fanin.watching.exporter import Exporter, address_of
from fanin.watching.metrics import Sample, of_rank

VARIABLE = f"{ENVIRONMENT_PREFIX}METRICS"


class Measured(Protocol):
    """A session, as far as its metrics go."""

    address: SwitchAddress
    job_name: str
    rank: int

    def counters(self) -> dict[str, int | float]:
        """The engine's counters by name."""


class Exported:
    """The sessions of this process whose metrics are served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: list[Measured] = []
        self._exporter: Exporter | None = None

    def add(self, session: Measured, where: str) -> None:
        """Serve this session's metrics as well; the first one opens the port, which is `where`'s and the rank more.

        ConfigurationError where the port cannot be had, or prometheus-client is not installed.
        """
        with self._lock:
            if self._exporter is None:
                host, port = address_of(where, VARIABLE)
                self._exporter = Exporter(host, port + session.rank if port else 0, self._samples)
            self._sessions.append(session)

    def remove(self, session: Measured) -> None:
        """Leave it out from now on; the last one gives up the port. Nothing happens where it was not added."""
        with self._lock:
            if session not in self._sessions:
                return
            self._sessions.remove(session)
            exporter, self._exporter = (None, self._exporter) if self._sessions else (self._exporter, None)
        if exporter is not None:
            exporter.close()

    @property
    def port(self) -> int | None:
        """Port where the metrics are; None if no session has asked for any."""
        with self._lock:
            return None if self._exporter is None else self._exporter.port

    def forget(self) -> None:
        """In a child of fork(): the port and the sessions are its parent's, and the lock may be locked."""
        self._lock, self._sessions, self._exporter = threading.Lock(), [], None

    def _samples(self) -> Iterator[Sample]:
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            yield from of_rank(session.job_name, session.rank, str(session.address), session.counters())


EXPORTED = Exported()
os.register_at_fork(after_in_child=EXPORTED.forget)

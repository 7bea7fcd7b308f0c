"""Metrics of this process's sessions, at one HTTP port (Options.metrics): a label says which job, rank and switch.

The first session that asks for the port opens it, and the last one closes it. Nothing is counted for the port alone: a
scrape reads the engines' counters.
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
    """The part of a session that its metrics need."""

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
        """Serve this session's metrics as well. The first session opens the port: that of `where` plus its rank.

        ConfigurationError where the port cannot be opened, or prometheus-client is not installed.
        """
        with self._lock:
            if self._exporter is None:
                host, port = address_of(where, VARIABLE)
                self._exporter = Exporter(host, port + session.rank if port else 0, self._samples)
            self._sessions.append(session)

    def remove(self, session: Measured) -> None:
        """Serve a session's metrics no more; the last one closes the port. One that was not added changes nothing."""
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

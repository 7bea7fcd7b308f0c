"""The HTTP port at which Prometheus finds metrics (prometheus-client, the extra `metrics`).

The port serves `/metrics` to whoever reaches it, with names of jobs and ranks and nothing that lets anybody in. Without
a host it is on loopback only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fanin import files
from fanin.addresses import host_and_port
from fanin.errors import ConfigurationError
from fanin.watching.metrics import Sample, families

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

DEFAULT_PORT = 9464
"""OpenTelemetry's for Prometheus exporters; a rank adds its number."""
LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535

log = logging.getLogger("fanin")


def address_of(text: str, name: str) -> tuple[str, int]:
    """Host and port of `:9464`, `9464`, `10.0.0.1:9464` or `[::1]:9464`; ConfigurationError, which says `name`, for
    anything else."""
    host, _, port = text.rpartition(":")
    if (
        not port.isascii()
        or not port.isdigit()
        or not 0 <= int(port) <= MAX_PORT
        or (host.count(":") and "[" not in host)
    ):
        raise ConfigurationError(
            f"{name}={text!r}: expected [HOST]:PORT with a port in 0..{MAX_PORT}, as in :9464", name
        )
    return host.strip("[]") or LOOPBACK, int(port)


def require_client() -> None:
    """ConfigurationError where prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigurationError("metrics need prometheus_client. Remedy: pip install 'fanin[metrics]'") from None


class Exporter:
    """A port that serves what `collect` returns whenever it is asked. A context manager, or `close`."""

    def __init__(self, host: str, port: int, collect: Callable[[], Iterable[Sample]]) -> None:
        """ConfigurationError where prometheus-client is not installed, or the port cannot be had."""
        require_client()
        from prometheus_client import CollectorRegistry

        from fanin.watching.metrics_server import MetricsServer

        registry = CollectorRegistry()
        registry.register(_Collector(collect))
        try:
            self._server = MetricsServer(host, port, registry)
        except OSError as error:
            at = host_and_port(host, port)
            raise ConfigurationError(f"metrics at {at} cannot be had: {files.of_port(error)}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="fanin-metrics", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def port(self) -> int:
        """The port that is open; the one that the system chose, where 0 was asked for."""
        return int(self._server.server_port)

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the port. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
        self._collect = collect

    def describe(self) -> list[Family]:
        """Return nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Family]:
        """Metrics as they are now; none, and a line in the log, where the source does not answer."""
        try:
            yield from families(list(self._collect()))
        except Exception as error:
            log.warning("metrics: %s", error)

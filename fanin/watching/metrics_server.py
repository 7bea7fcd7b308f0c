"""The HTTP server behind `Exporter`: a thread per request, which no client can make print a traceback.

A client that hangs up, sends half a request or does not read is left alone. Any other failure of a request, which a
strange request can bring about as well, has one line in the log, and no further one.
"""

from __future__ import annotations

import io
import logging
import socket
import sys
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

PATIENCE_S = 10.0
"""Longest wait for the next bytes of a request, and for room for those of its answer."""

log = logging.getLogger("fanin")


class _Request(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_message(self, *_: object) -> None:
        pass

    def get_stderr(self) -> io.StringIO:
        """Take what wsgiref would print: tracebacks."""
        return io.StringIO()


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers every request with what the registry collects."""

    daemon_threads = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """OSError where the port cannot be had."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, where = found[0]
        self._page: Any = make_wsgi_app(registry)
        self._told = False
        super().__init__((str(where[0]), port), _Request)
        self.set_app(self._answer)

    def _answer(self, environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        try:
            return list(self._page(environment, start))
        except Exception as error:
            self._tell(error, environment.get("REMOTE_ADDR"))
            raise  # wsgiref answers with status 500

    def handle_error(self, request: object, client_address: Any) -> None:
        """Take the exception that ended a request."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            self._tell(error, client_address[0])

    def _tell(self, error: Exception, client: object) -> None:
        if isinstance(error, OSError) or self._told:
            return
        self._told = True
        log.warning(
            "metrics: a request of %s failed: %s: %s; no line for further ones", client, type(error).__name__, error
        )

"""Metrics of a switch in this process: what its own control port answers to its operator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fanin.addresses import SwitchAddress
from fanin.cli.asking import ASK_TIMEOUT_S, ask_stats
from fanin.errors import FaninError
from fanin.protocol.seal import OPEN, Credentials
from fanin.watching.exporter import Exporter, address_of
from fanin.watching.metrics import Sample, of_switch

if TYPE_CHECKING:
    from fanin.host.session.control import ControlClient
    from fanin.switch.service.service import SwitchService

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that listen at every interface, and one at which such a switch can be asked."""


@contextlib.contextmanager
def exporter(where: str, service: SwitchService) -> Iterator[Exporter]:
    """Keep the port `where` ([HOST]:PORT) open, which asks that switch for its statistics at every scrape.

    The controller belongs to the thread that runs the service: so it is asked as anybody asks, with the switch's own
    key where it has one. ConfigurationError as for Exporter.
    """
    asked = _Asked(service)
    with contextlib.closing(asked), Exporter(*address_of(where, "--metrics"), asked.samples) as opened:
        yield opened


class _Asked:
    """A connection to the switch, opened at the first scrape and after an error. Scrapes may come at the same time."""

    def __init__(self, service: SwitchService) -> None:
        options = service.options
        host = ANY_HOST.get(service.host, service.host)
        self._address = SwitchAddress(options.schemes[0], host, service.port)
        self._curve = None if options.curve is None else options.curve.public
        self._credentials = OPEN if options.operator_key is None else Credentials(options.operator_key, discloses=False)
        self._lock = threading.Lock()
        self._client: ControlClient | None = None

    def samples(self) -> Iterator[Sample]:
        """Samples of now; FaninError where the switch does not answer."""
        from fanin.host.session.control import ControlClient

        with self._lock:
            if self._client is None:
                self._client = ControlClient(
                    self._address, curve_server_key=self._curve, timeout_s=ASK_TIMEOUT_S, credentials=self._credentials
                )
            try:
                answer = ask_stats(self._client)
            except FaninError:
                self._forget()
                raise
        return of_switch(answer)

    def close(self) -> None:
        """Close the connection; nobody asks any more."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

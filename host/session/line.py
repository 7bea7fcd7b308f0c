"""A member's control connection, open for as long as it is one: each end learns from its closing that the other died.

Rules
-----
* Nothing is said over it while the job runs. That it ends tells the switch at once that this process has ended.
* libzmq connects it anew by itself. The switch does not know whose the new connection is, as nothing is said over it:
  from there on only silence tells it of this rank's death.
* When it ends and nothing listens at the switch's port any more, the switch is gone. When something does, or nothing
  answers, that is for the data path to find out.
* A forked child has a copy of the connection, which is closed there (host/transports/forking.py).
"""

from __future__ import annotations

import socket
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from fanin.host.session.control import ControlClient
from fanin.host.transports.forking import OwnConnection

LOOK_INTERVAL_S = 0.1
"""How often at most it is looked at."""
PROBE_TIMEOUT_S = 1.0
"""How long the switch's port may take to refuse a connection; if it does not, nothing is concluded."""


class Line:
    """Owns the client. Any thread may look."""

    def __init__(self, client: ControlClient, *, serves_data: bool) -> None:
        """`serves_data`: whether the data path ends where this does.

        The controller of a switch that is programmed from outside may be restarted, and the job goes on.
        """
        self._client, self._serves_data = client, serves_data
        self._looking = threading.Lock()
        self._next_look_s = 0.0
        self._connection = OwnConnection(client.address.port)
        self._ended = False
        """Whether the connection has ended, and there is no new one."""
        self._closed = False
        self.look()

    def look(self) -> bool:
        """Whether the switch is gone, as far as can be seen from here. Seldom waits, PROBE_TIMEOUT_S at most."""
        now = time.monotonic()
        if now < self._next_look_s or not self._looking.acquire(blocking=False):
            return False
        try:
            self._next_look_s = now + LOOK_INTERVAL_S
            if self._closed:
                return False
            self._read_events()
            return self._ended and self._serves_data and self._refused()
        finally:
            self._looking.release()

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        with self._looking:
            if not self._closed:
                self._closed, self._connection.descriptor = True, None
                self._client.close()

    def _read_events(self) -> None:
        monitor = self._client.monitor
        while monitor.poll(0):
            message = recv_monitor_message(monitor)
            event = message["event"]
            if event == zmq.EVENT_CONNECTED:
                self._connection.descriptor = int(message["value"])
            elif event == zmq.EVENT_DISCONNECTED:
                self._ended, self._connection.descriptor = True, None
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._ended = False

    def _refused(self) -> bool:
        """Whether nothing listens at the switch's port."""
        try:
            socket.create_connection((self._client.host, self._client.address.port), PROBE_TIMEOUT_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

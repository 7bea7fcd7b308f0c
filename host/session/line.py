"""A member's control connection, open as long as the membership: by its closing each end learns that the other died.

Rules
-----
* While the job runs, nothing is sent over it but how this rank spends its time, every SPENT_INTERVAL_S, for `fanin top`
  and `fanin stats`. When the connection closes, the switch knows at once that this process has ended.
* libzmq reconnects by itself, however long that takes. The switch does not know whose the new connection is, as no Join
  is sent over it: from there on only silence tells it of this rank's death.
* A connection that ends is a suspicion, as it is for the switch (switch/machine/suspicion.py). Where the port refuses
  another one and nothing comes over the data path for SUSPICION_TIMEOUT_S, the process of the switch has ended.
* Where data comes all the same, something on the way refuses, as a firewall does. That is logged once, and from there
  on refusals count for nothing, until there is a connection again: the data path shows whether the switch lives.
* Where the port accepts one, this rank asks over it what became of the job. If the process there does not know the
  job, its key or this version, and nothing comes over the data path, the switch was restarted.
* If the port accepts connections, and the question is not answered for ANSWER_TIMEOUT_S in which nothing comes over the
  data path, another program has taken it.
* A controller that programs a switch from outside says so when that is gone. If nothing comes over the data path for
  DEVICE_TIMEOUT_S, in which another controller may take over, the switch has ended.
* If the port neither accepts nor refuses, nothing is concluded, and the data path decides, too.
* No poll waits: a thread that submits a reduction polls as well.
* A forked child has a copy of the connection, which is closed there (host/transports/forking.py).
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from fanin.errors import AdmissionError, FaninError
from fanin.host.session.control import ControlClient
from fanin.host.session.failures import End
from fanin.host.transports.forking import OwnConnection
from fanin.protocol.control import SPENT_INTERVAL_S, Explain, Explanation, Refusal, Refused, Reply, Spent
from fanin.protocol.job import SUSPICION_TIMEOUT_S
from fanin.transports.numeric import socket_address

LOOK_INTERVAL_S = 0.1
"""Least time between two looks at the connection."""
PROBE_TIMEOUT_S = 1.0
"""How long the switch's port may take to refuse a connection; if it does not, nothing is concluded."""
ANSWER_TIMEOUT_S = 5.0
"""How long a process that accepts connections may leave the question unanswered: it may be stopped for a moment."""
DEVICE_TIMEOUT_S = 10.0
"""How long nothing may come from a switch whose controller has said that it is gone."""
MAX_PROBE_INTERVAL_S = 2.0
"""Between two attempts, at most: the interval doubles while the port accepts, or does not answer."""

UNKNOWN = frozenset((Refusal.KEY.value, Refusal.VERSION.value, Refusal.MALFORMED.value))
"""Refusals of the question by a process that cannot be the job's switch."""

log = logging.getLogger("fanin")


class Line:
    """The control connection of one member. Owns the client; any thread may poll it."""

    def __init__(
        self,
        client: ControlClient,
        *,
        serves_data: bool,
        question: Explain,
        heard: Callable[[], int],
        spent: Callable[[], Spent | None] = lambda: None,
    ) -> None:
        """`question` is about this rank's job. `heard` returns how many packets have come over the data path so far
        whose tags hold, if the job has them. `spent` returns how this rank has spent its time, or None where its engine
        does not count that.

        `serves_data`: whether the data path ends in the same process. If not, this connection ends at a controller that
        programs a switch from outside: it may be restarted while the job goes on.
        """
        self._client, self._serves_data, self._question, self._heard = client, serves_data, question, heard
        self._looking = threading.Lock()
        self._next_look_s = 0.0
        self._connection = OwnConnection(client.address.port)
        self._ended_s: float | None = None
        """When the connection was seen to have ended, if there is no new one to a process that knows the job."""
        self._asked_s: float | None = None
        """When the question was put over a new connection, if it is not answered; None: there is none to ask over."""
        self._forgotten = False
        """Whether the process at the other end of the new connection has said that it does not know the job."""
        self._mute_s: float | None = None
        """Since when connections are accepted, and the question is not answered; None: they are not, or it is."""
        self._device_gone = False
        """Whether a controller has said that its switch is gone; False again once another one answers."""
        self._probe: Probe | None = None
        """Attempt to connect anew after the connection ended; None: there is none."""
        self._next_probe_s, self._probe_interval_s = 0.0, LOOK_INTERVAL_S
        self._spent: Callable[[], Spent | None] | None = spent
        self._next_account_s = time.monotonic() + SPENT_INTERVAL_S
        self._packets, self._heard_s = 0, 0.0
        """Number of packets at the last look, and the time when it was last seen to grow."""
        self.is_refused_by_others = False
        """Whether connections are refused though the switch lives: its data comes."""
        self._closed = False
        self.poll()

    @property
    def suspects(self) -> bool:
        """Whether the switch may be gone, so that `poll` should be called soon again."""
        return self._device_gone or (self._ended_s is not None and self._serves_data and not self.is_refused_by_others)

    def poll(self) -> End | None:
        """Look at the connection, and return how the switch's process is known to have ended. Does not wait."""
        now = time.monotonic()
        if now < self._next_look_s or not self._looking.acquire(blocking=False):
            return None
        try:
            self._next_look_s = now + LOOK_INTERVAL_S
            if self._closed:
                return None
            self._read_replies()  # first: what an earlier connection has brought must not pass for the new one's answer
            self._read_events(now)
            self._give_account(now)
            return self._end(now) if self.suspects else None
        finally:
            self._looking.release()

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        with self._looking:
            if not self._closed:
                self._closed, self._connection.descriptor = True, None
                self._end_probe()
                self._client.close()

    def _read_events(self, now: float) -> None:
        monitor = self._client.monitor
        while monitor.poll(0):
            message = recv_monitor_message(monitor)
            event = message["event"]
            if event == zmq.EVENT_CONNECTED:
                self._connection.descriptor = int(message["value"])
            elif event == zmq.EVENT_DISCONNECTED:
                self._connection.descriptor = self._asked_s = None
                self._forgotten = False
                if self._ended_s is None:
                    self._ended_s = now
                    self._listen(now)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._ended_s is not None:
                if self._serves_data:
                    self._end_probe()
                    self._ask(now)
                else:
                    self._connected_again()

    def _ask(self, now: float) -> None:
        self._asked_s = now
        self._note_accepted(now)
        self._client.send(self._question)

    def _read_replies(self) -> None:
        """Take in what has come over the connection: answers to the question, and to accounts of time."""
        try:
            while (reply := self._client.receive(0.0)) is not None:
                self._take(reply)
        except AdmissionError:  # the reply cannot be read, or whoever sends it does not have the job's key
            self._spent = None
            self._is_forgotten()
        except FaninError:
            self._spent = None

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Refused):
            self._spent = None
            if reply.code in UNKNOWN:
                self._is_forgotten()
            elif reply.code == Refusal.DEVICE_GONE.value and not self._device_gone:
                self._device_gone = True
                self._listen(time.monotonic())
        elif isinstance(reply, Explanation) and not reply.known:
            self._is_forgotten()
        elif isinstance(reply, Explanation) and self._asked_s is not None:  # else of a connection that has ended since
            self._connected_again()

    def _give_account(self, now: float) -> None:
        """Send the switch an account of this rank's time, if it is due; never again after a refusal."""
        if self._spent is None or self._ended_s is not None or now < self._next_account_s:
            return
        self._next_account_s = now + SPENT_INTERVAL_S
        try:
            account = self._spent()
        except FaninError:
            account = None
        if account is None:
            self._spent = None
        else:
            self._client.send(account)

    def _is_forgotten(self) -> None:
        """Take in that the process there cannot be the job's switch, if this rank has asked over this connection."""
        if self._asked_s is not None:
            self._asked_s, self._mute_s, self._forgotten = None, None, True
            self.is_refused_by_others = False

    def _note_accepted(self, now: float) -> None:
        """Take in that the port accepts a connection."""
        self._mute_s = now if self._mute_s is None else self._mute_s

    def _connected_again(self) -> None:
        if self.is_refused_by_others:
            log.warning("switch %s accepts control connections from here again", self._client.address)
        self._ended_s, self._asked_s, self._mute_s, self.is_refused_by_others = None, None, None, False
        self._device_gone = False
        self._next_probe_s, self._probe_interval_s = 0.0, LOOK_INTERVAL_S
        self._end_probe()

    def _listen(self, now: float) -> None:
        self._packets, self._heard_s = self._heard(), now

    def _end(self, now: float) -> End | None:
        if self._heard() != self._packets:
            self._listen(now)
        if self._device_gone:
            return End.DEVICE_GONE if now >= self._heard_s + DEVICE_TIMEOUT_S else None
        assert self._ended_s is not None
        if self._asked_s is not None and now >= self._asked_s + MAX_PROBE_INTERVAL_S:
            self._ask(now)  # again: the one before may have been lost with a connection
        if self._forgotten:
            return End.FORGOTTEN if now >= self._heard_s + SUSPICION_TIMEOUT_S else None
        if self._was_replaced(now):
            return End.REPLACED
        if self._asked_s is not None:
            return None
        refused = self._is_refused(now)
        # Packets that come soon after the end may have been under way when the process died.
        if refused and self._heard_s > self._ended_s + SUSPICION_TIMEOUT_S:
            self.is_refused_by_others = True
            log.warning(
                "TCP port %d of switch %s refuses connections from here, while its data packets come: a firewall "
                "rejects them. The job goes on; until a connection is possible again, questions from here (`fanin "
                "stats`, `fanin tune`) fail, and the switch's end shows by silence alone",
                self._client.address.port,
                self._client.address,
            )
            return None
        return End.REFUSED if refused and now >= self._heard_s + SUSPICION_TIMEOUT_S else None

    def _was_replaced(self, now: float) -> bool:
        """Whether connections are accepted and not answered, and nothing has come for as long, or comes regardless."""
        mute_s, heard_s = self._mute_s, self._heard_s
        if mute_s is None or heard_s >= mute_s + ANSWER_TIMEOUT_S:  # who answers there says nothing about the switch
            return False
        return now >= max(mute_s, heard_s) + ANSWER_TIMEOUT_S

    def _is_refused(self, now: float) -> bool:
        """Whether the port is known to refuse connections; if the last attempt was not refused, try again later."""
        try:
            if self._probe is None and now >= self._next_probe_s:
                self._probe = Probe(self._client.host, self._client.address.port, now)
            error = None if self._probe is None else self._probe.error(now)
        except OSError as failure:  # too many open files, or no way there
            error = failure.errno
        if error == 0:
            self._note_accepted(now)
        elif error is not None:
            self._mute_s = None
        if error not in (None, errno.ECONNREFUSED):  # a port may still accept while its process is being ended
            self._end_probe()
            self._next_probe_s = now + self._probe_interval_s
            self._probe_interval_s = min(2 * self._probe_interval_s, MAX_PROBE_INTERVAL_S)
        return error == errno.ECONNREFUSED

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None


class Probe:
    """One attempt to connect to a port, without waiting."""

    def __init__(self, host: str, port: int, now: float) -> None:
        self._until_s = now + PROBE_TIMEOUT_S
        family, address = socket_address(host, port)
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._error: int | None = self._socket.connect_ex(address)
        """0: accepted; None: not known yet."""
        if self._error == errno.EINPROGRESS:
            self._error = None

    def error(self, now: float) -> int | None:
        """Outcome of the attempt: 0, or an errno, ETIMEDOUT after PROBE_TIMEOUT_S; None while nothing is known."""
        if self._error is None:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if poll.poll(0):
                self._error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            elif now >= self._until_s:
                self._error = errno.ETIMEDOUT
        return self._error

    def close(self) -> None:
        """Give up the attempt."""
        self._socket.close()

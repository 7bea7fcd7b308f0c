"""The worker's end of the control channel: a DEALER socket whose every wait is bounded and every message sealed."""

from __future__ import annotations

import contextlib
import secrets
import time
from math import ceil
from types import TracebackType

import zmq

from fanin.addresses import host_and_port
from fanin.curve import encrypt_client
from fanin.errors import AdmissionError, SwitchUnreachableError
from fanin.host.session.path import Reached, reach, start_hint
from fanin.host.session.shared_context import CONTROL
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import SUCCESSOR
from fanin.protocol.conversation import Conversation, UnknownKey
from fanin.protocol.seal import OPEN, Credentials

RUNNING, ENDING = "running", "ending"
"""States of a job, as fanin.protocol.control.JobReport has them."""

SECOND_LOOK_S = 1.0
"""How long a port that accepted TCP before, and whose process does not answer, may take to accept it again."""
LINGER_MS = 300
"""How long closing waits for what was sent last (a Leave) to reach the system."""
_MONITORED = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
"""Events of the socket that its monitor reports."""


class ControlClient:
    """A connection to one switch's controller. One thread uses it."""

    def __init__(
        self,
        address: SwitchAddress,
        *,
        curve_server_key: str | None,
        timeout_s: float,
        patient: bool = False,
        credentials: Credentials = OPEN,
        otherwise_open: bool = False,
        asker: str = "",
    ) -> None:
        """Connect; SwitchUnreachableError when nothing accepts TCP there within `timeout_s` (see path.reach).

        `otherwise_open`: where the switch does not have the key of `credentials`, ask again without one, as anybody
        may. `asker`: the rank that asks, with which errors begin (`rank 1 of job 'j'`); empty for a command.
        """
        self.address = address
        self._before = asker and f"{asker}: "
        self._credentials = credentials
        self._otherwise_open = otherwise_open
        self._last: control.Request | None = None
        self._conversation = Conversation(secrets.randbits)
        self.reached = self._reach(timeout_s, patient=patient)
        """The address at which the switch was reached."""
        self.host = self.reached.host
        self._encrypted = curve_server_key is not None
        self._closed = False
        with contextlib.ExitStack() as opened:  # where files run out half way, too, nothing stays open
            self._context = CONTROL.open()
            opened.callback(CONTROL.release, self._context)
            self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
            opened.callback(self._socket.close, linger=0)
            self.monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(_MONITORED)
            """Reports when the connection comes and goes."""
            opened.callback(self.monitor.close, linger=0)
            opened.callback(self._socket.disable_monitor)
            self._configure(curve_server_key)
            self._socket.connect(f"tcp://{host_and_port(self.host, address.port)}")
            opened.pop_all()

    def send(self, request: control.Request) -> None:
        """Send without waiting. A request that the queue does not take is lost: callers repeat theirs."""
        self._last = request
        self._send(self._conversation.outgoing(request, self._credentials))

    def receive(self, timeout_s: float) -> control.Reply | None:
        """Return the next reply whose seal holds, or None. AdmissionError for bytes that this version cannot read."""
        deadline = time.monotonic() + timeout_s
        while self._socket.poll(ceil(max(deadline - time.monotonic(), 0.0) * 1000)):
            data = self._socket.recv(zmq.NOBLOCK)
            try:
                heard = self._conversation.incoming(data)
            except control.ControlError as error:
                remedy = "install the same fanin version on workers and switch"
                raise AdmissionError(
                    f"{self._before}the answer of {self.address} is not understood: {error}. Remedy: {remedy}"
                ) from error
            for again in self._conversation.to_say_again():
                self._send(again)
            if isinstance(heard, UnknownKey):
                if self._otherwise_open and self._last is not None and self._credentials is not OPEN:
                    self._credentials = OPEN
                    self.send(self._last)
                    continue
                raise self._unknown(heard)
            if heard is not None:
                return heard.reply
        return None

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(zmq.Again):
            self._socket.send(data, zmq.NOBLOCK)

    def _unknown(self, unknown: UnknownKey) -> AdmissionError:
        why = (
            "it serves the job of the rank that started it, and no other"
            if unknown.closed
            else "it was started with another one, or was restarted"
        )
        return AdmissionError(
            f"{self._before}the switch {self.address} does not have key {unknown.key}: {why}. Remedy: give all ranks "
            "of the job the same secret (one store, or FANIN_SECRET), and operators the key file that the "
            "switch was started with (--key-file)",
            control.Refusal.KEY.value,
        )

    def ask(self, request: control.Request, timeout_s: float) -> control.Reply:
        """Send and wait for one reply; SwitchUnreachableError after `timeout_s`."""
        self.send(request)
        reply = self.receive(timeout_s)
        if reply is None:
            raise self.silent(timeout_s)
        return reply

    def silent(self, waited_s: float) -> SwitchUnreachableError:
        """The error for a switch that does not answer: its port accepts TCP and says nothing, or does so no more."""
        try:
            self._reach(SECOND_LOOK_S, patient=False)
        except SwitchUnreachableError as error:
            return error
        if self._conversation.challenged or self._conversation.answered:
            short = self._conversation.challenged
            seen = "sent its challenge, which is short" if short else "has answered before"
            remedy = (
                f"see the path's MTU (`tracepath {self.host}`) and let ICMP through, or lower the MTU of the devices "
                "at both ends; where the path is in order, see the output of the switch"
            )
            text = (
                f"{self._before}switch {self.address} {seen}, and no answer came for {waited_s:.1f} s: the "
                "path drops long packets without saying so, or the switch hangs"
            )
            return SwitchUnreachableError(str(self.address), f"{text}. Remedy: {remedy}", remedy)
        key = "its key is not FANIN_CURVE_SERVER_KEY" if self._encrypted else "it wants FANIN_CURVE_SERVER_KEY"
        return SwitchUnreachableError(
            str(self.address),
            f"{self._before}{self.address} accepts TCP connections but did not answer for {waited_s:.1f} s: it is "
            f"not a fanin switch, it hangs, or {key}. {start_hint(self.address)}",
        )

    def _reach(self, timeout_s: float, *, patient: bool) -> Reached:
        """Reach the switch as path.reach does, whose errors name no rank."""
        try:
            return reach(self.address, timeout_s, patient=patient)
        except SwitchUnreachableError as error:
            if not self._before:
                raise
            raise SwitchUnreachableError(error.address, f"{self._before}{error}", error.remedy) from error

    def close(self) -> None:
        """Close the socket, giving the last message LINGER_MS. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._socket.disable_monitor()
            self.monitor.close(linger=0)
            self._socket.close(linger=LINGER_MS)
            CONTROL.release(self._context)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _configure(self, curve_server_key: str | None) -> None:
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, control.MAX_REPLY_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        if curve_server_key is not None:
            encrypt_client(self._socket, curve_server_key)


def job_state(
    address: SwitchAddress, job_name: str, options: Options, credentials: Credentials = OPEN, *, rank: int
) -> str | None:
    """The state of a job (fanin.protocol.control.JobReport), None when the switch has none of that name and key.

    `rank` asks.

    A job over shards that has lost some of them continues at the others under another name; it counts as the same job.
    SwitchUnreachableError when there is no answer in connect_timeout_s.
    """
    key, timeout_s = options.curve_server_key, options.connect_timeout_s
    asker = f"rank {rank} of job {job_name!r}"
    answer = ask(
        address, control.Ask(), curve_server_key=key, timeout_s=timeout_s, credentials=credentials, asker=asker
    )
    if not isinstance(answer, control.Stats):
        raise AdmissionError(
            f"{asker}: {address} answered {type(answer).__name__} to Ask: it is not a fanin switch. Remedy: see who "
            "listens there (`ss -ltnp`), and name the switch with FANIN_SWITCH"
        )
    states = [job.state for job in answer.jobs if job.name == job_name or job.name.startswith(job_name + SUCCESSOR)]
    return RUNNING if RUNNING in states else next(iter(states), None)


def ask(
    address: SwitchAddress,
    request: control.Request,
    *,
    curve_server_key: str | None = None,
    timeout_s: float,
    credentials: Credentials = OPEN,
    otherwise_open: bool = False,
    asker: str = "",
) -> control.Reply:
    """One question over a connection of its own; SwitchUnreachableError when there is no answer in `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    with ControlClient(
        address,
        curve_server_key=curve_server_key,
        timeout_s=timeout_s,
        credentials=credentials,
        otherwise_open=otherwise_open,
        asker=asker,
    ) as client:
        return client.ask(request, max(deadline - time.monotonic(), 0.0))

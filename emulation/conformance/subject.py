"""A switch under test, known by its address alone, and the jobs that we run at it as all of their workers.

Rules
-----
* A `Subject` joins a job as all of its workers at once, over the control channel, and sends each worker's packets from
  a UDP socket of its own. Strangers have sockets, too.
* A PROBE, and no waiting time, shows that the switch is done with a packet: the ECHO comes back behind everything that
  the switch has sent to the prober. Every worker's socket is probed, since each may have been sent something.
* Datagrams must not get lost on the way: a lost one looks like one that the switch did not send.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import fanin
from fanin.errors import AdmissionError, FaninError, SwitchUnreachableError
from fanin.host.session.control import ControlClient
from fanin.host.session.joining import spec_of
from fanin.host.session.path import discover
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import MAX_DATAGRAM_BYTES, Kind, Packet, WireError, parse
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.transports.polling import READABLE, is_ready

ANSWER_TIMEOUT_S = 5.0
"""Longest a switch may take for an ECHO: a software model of a pipeline takes milliseconds."""
PROBE_AGAIN_S = 0.5
LATE_TIMEOUT_S = 2.0
JOIN_TIMEOUT_S = 20.0
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 3.0
FENCES = 0x7D00_0000
"""First sequence number of our PROBEs; PROBEs of histories have smaller ones."""
STRANGERS = 100
"""Places from this number on are strangers, who belong to no job."""
ADDRESS = re.compile(r"\budp://(\[[0-9a-fA-F:]+\]|[^\s:/,;\[\]]+):(\d+)")
EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

Sent = dict[int, list[bytes]]
"""Datagrams by the place that received them: a worker's number, or STRANGERS or more."""


class SilentSubjectError(FaninError):
    """A switch under test did not answer a PROBE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The job that a history needs; the switch decides about packet size and all else."""

    workers: int
    quorum: int
    staleness: int = 0
    slots: int = 4


class Subject:
    """One job at the switch under test; this object plays all of its workers."""

    def __init__(self, address: SwitchAddress, wanted: Wanted, words: int | None = None) -> None:
        """Join. Raises AdmissionError if the switch refuses the job, SwitchUnreachableError if no switch answers.

        `words`: most words per packet, for a switch that would be slow with more; None: as many as it takes.
        """
        self._numbers = itertools.count(FENCES)
        self._sockets: dict[int, socket.socket] = {}
        self._clients: list[ControlClient] = []
        self._joins: list[control.Join] = []
        try:
            admitted = self._join(address, wanted, words)
            host = admitted[0].data_host or self._clients[0].host
            self._to = (host, admitted[0].ports[0])
            self.spec: JobSpec = _spec(admitted)
        except BaseException:
            self.close()
            raise

    def _join(self, address: SwitchAddress, wanted: Wanted, words: int | None) -> list[control.Admitted]:
        name = f"conformance-{secrets.token_hex(4)}"
        for rank in range(wanted.workers):
            client = ControlClient(address, curve_server_key=None, timeout_s=ANSWER_TIMEOUT_S)
            self._clients.append(client)
            facts = discover("udp", client.reached, address.port)
            self._joins.append(
                control.Join(
                    job=name,
                    rank=rank,
                    size=wanted.workers,
                    nonce=secrets.token_hex(8),
                    wire_version=WIRE_VERSION,
                    software=fanin.__version__,
                    process=f"conformance:{rank}",
                    scheme="udp",
                    path_mtu=facts.path_mtu,
                    receive_buffer_bytes=facts.receive_buffer_bytes,
                    slots=wanted.slots,
                    words_per_packet=words,
                    authenticate=False,
                    quorum=wanted.quorum,
                    staleness=wanted.staleness,
                    join_timeout_s=JOIN_TIMEOUT_S,
                )
            )
        admitted: dict[int, control.Admitted] = {}
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while len(admitted) < wanted.workers:
            for rank, (client, join) in enumerate(zip(self._clients, self._joins, strict=True)):
                if rank in admitted:
                    continue
                client.send(join)
                reply = client.receive(control.JOIN_INTERVAL_S)
                if isinstance(reply, control.Admitted):
                    admitted[rank] = reply
                elif isinstance(reply, control.Refused):
                    raise AdmissionError(f"{reply.reason}. Remedy: {reply.remedy}", reply.code)
            if time.monotonic() > deadline:
                raise SwitchUnreachableError(
                    str(address),
                    f"{address} did not admit a job of {wanted.workers} workers in {JOIN_TIMEOUT_S:.0f} s. "
                    "Remedy: see the output of that switch",
                )
        return [admitted[rank] for rank in range(wanted.workers)]

    # --- packets ---

    def exchange(self, place: int, data: bytes, expected: Mapping[int, int]) -> Sent:
        """Send a datagram from a place; returns all datagrams that it causes. SilentSubjectError without an ECHO.

        `expected`: how many datagrams the twin sends, by place. Datagrams that are missing after the ECHO are awaited
        for LATE_TIMEOUT_S more, because answers of a switch's processor may come later (docs/protocol.md).
        """
        sent: Sent = {}
        self._socket(place).sendto(data, self._to)
        workers = [each for each in self._sockets if each < STRANGERS and each != place]
        for each in (place, *workers):
            self._fence(each, sent)
        deadline = time.monotonic() + LATE_TIMEOUT_S
        for each, count in expected.items():
            while len(sent.get(each, ())) < count and self._take(each, deadline, sent) is not None:
                pass
        return sent

    def _take(self, place: int, deadline: float, sent: Sent) -> Packet | None:
        """Receive a place's next datagram, None at `deadline`; enter it in `sent` unless it is our ECHO or RECEIPT."""
        own = self._socket(place)
        while is_ready([own], READABLE, max(deadline - time.monotonic(), 0.0)):
            try:
                data = own.recv(MAX_DATAGRAM_BYTES)
            except ConnectionRefusedError:
                continue
            packet = _parsed(data)
            fences = packet.kind is Kind.ECHO and packet.slot >= FENCES
            if not fences and packet.kind is not Kind.RECEIPT:  # a receipt depends on time
                sent.setdefault(place, []).append(data)
            return packet
        return None

    def _fence(self, place: int, sent: Sent) -> None:
        """Receive what comes to a place until the ECHO of a new PROBE shows that nothing more is under way."""
        number = next(self._numbers)
        probe, own = Packet(kind=Kind.PROBE, slot=number).to_bytes(), self._socket(place)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (now := time.monotonic()) < deadline:
            own.sendto(probe, self._to)
            again = min(now + PROBE_AGAIN_S, deadline)
            while (packet := self._take(place, again, sent)) is not None:
                if packet.kind is Kind.ECHO and packet.slot == number:
                    return
        raise SilentSubjectError(
            f"udp://{self._to[0]}:{self._to[1]} did not send a PROBE of {self._name(place)} back in "
            f"{ANSWER_TIMEOUT_S:.0f} s. Remedy: a switch answers every PROBE by an ECHO (docs/protocol.md), in order "
            "with what else it sends there"
        )

    def _name(self, place: int) -> str:
        return f"worker {place}" if place < STRANGERS else "a stranger"

    def _socket(self, place: int) -> socket.socket:
        if place not in self._sockets:
            family = socket.AF_INET6 if ":" in self._to[0] else socket.AF_INET
            self._sockets[place] = socket.socket(family, socket.SOCK_DGRAM)
        return self._sockets[place]

    def close(self) -> None:
        """Leave the job, as all workers, and close everything."""
        for client, join in zip(self._clients, self._joins, strict=False):
            client.send(control.Leave(job=join.job, rank=join.rank, nonce=join.nonce))
        for client in self._clients:
            client.close()
        for each in self._sockets.values():
            each.close()


def _parsed(data: bytes) -> Packet:
    """The packet in `data`; if it holds none, a PROBE, which no caller looks for."""
    try:
        return parse(data)
    except WireError:
        return Packet(kind=Kind.PROBE)


def _spec(admitted: Sequence[control.Admitted]) -> JobSpec:
    """The job's facts, with the tokens of all workers."""
    return replace(spec_of(admitted[0]), tokens=tuple(each.token for each in admitted), places=())


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[SwitchAddress]:
    """Run the command of a switch from entry to exit; yields its control address, from a line with udp://HOST:PORT.

    Raises SwitchUnreachableError if the command ends first, or prints no such line in START_TIMEOUT_S.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise FaninError(
            f"{command[0]} cannot be started: {error.strerror or error}. Remedy: check the command"
        ) from None
    printed: list[SwitchAddress] = []
    known = threading.Event()

    def follow() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not printed and (found := ADDRESS.search(line)) is not None:
                host = EVERY_INTERFACE.get(found[1], found[1])
                printed.append(SwitchAddress.parse(f"udp://{host}:{found[2]}"))
                known.set()
        known.set()

    thread = threading.Thread(target=follow, name="fanin conformance subject", daemon=True)
    thread.start()
    try:
        if not known.wait(START_TIMEOUT_S) or not printed:
            printed_none = f"{command[0]} printed no line with udp://HOST:PORT"
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(STOP_GRACE_S if known.is_set() else 0)
                reason = f"{printed_none} and ended with status {status}. Remedy: see what it wrote to stderr"
                raise SwitchUnreachableError(command[0], reason)
            raise SwitchUnreachableError(command[0], f"{printed_none}. Remedy: give its address as well")
        yield printed[0]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join()
        assert process.stdout is not None
        process.stdout.close()

"""`python -m fanin.emulation.containers.job`: gathers the workers' containers, shows their progress, ends as they do.

It hands out ranks, prints what rank 0 reports, names whoever fails or is lost, and exits with the status of the job,
which the workers then exit with, too. It is no part of the training: workers reach each other and the switch directly.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from fanin.emulation.containers.channel import DEFAULT_PORT, Channel, ChannelError
from fanin.emulation.containers.roster import Member, Roster, State, TooLateError, Verdict
from fanin.errors import ConfigurationError, FaninError

TICK_S = 0.25
FAREWELL_S = 3.0
"""How long members may take to hear the verdict and go."""
STOPPED_STATUS = 143
"""Of a process that SIGTERM ended, as shells count."""


class JobServer:
    """The sockets around a Roster."""

    def __init__(self, roster: Roster, port: int, host: str = "0.0.0.0") -> None:
        self.roster = roster
        self._listener = socket.create_server((host, port))
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._members: dict[Channel, Member | None] = {}
        """None: connected, and has not joined (a health check never does)."""
        self.outcome: Verdict | None = None
        """Known before the members are told."""

    def run(self) -> Verdict:
        """Serve until the job has ended and its members have heard how."""
        while (verdict := self.roster.verdict(time.monotonic())) is None:
            self._turn()
        self.outcome = verdict
        for line in verdict.lines:
            say(line)
        say("the job succeeded" if verdict.status == 0 else "the job failed")
        self._bid_farewell(verdict)
        return verdict

    def close(self) -> None:
        """Give up the port and every connection."""
        self._selector.close()
        self._listener.close()
        for channel in self._members:
            channel.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._receive(key.data)
        now = time.monotonic()
        for member in self.roster.handle_timer(now):
            say(f"{member} is lost: {member.cause}")
        if self.roster.close_if_complete(now):
            self._start()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        channel = Channel(connection)
        self._members[channel] = None
        self._selector.register(channel, selectors.EVENT_READ, channel)

    def _receive(self, channel: Channel) -> None:
        try:
            messages = channel.receive()
        except ChannelError as error:
            say(f"a connection is closed: {error}")
            messages = None
        if messages is None:
            self._drop(channel)
            return
        for message in messages:
            if channel in self._members:
                self._take(channel, message)

    def _take(self, channel: Channel, message: Mapping[str, Any]) -> None:
        now, member, kind = time.monotonic(), self._members[channel], message["type"]
        if member is None:
            if kind == "join":
                self._join(channel, now)
        elif kind == "beat":
            self.roster.heard(member, now)
        elif kind == "report":
            self.roster.report(member, message["record"], now)
            show(member, message["record"])
        elif kind == "ended":
            self.roster.ended(member, int(message["status"]), str(message["cause"]), now)
            say(f"{member} ended with status {member.status}{': ' * bool(member.cause)}{member.cause}")

    def _join(self, channel: Channel, now: float) -> None:
        address = channel.peer_address
        try:
            self._members[channel] = self.roster.join(container_name(address), address, now)
        except TooLateError as error:
            say(str(error))
            with contextlib.suppress(OSError):
                channel.send("refused", text=str(error))

    def _start(self) -> None:
        members = self.roster.members
        say(f"{len(members)} workers")
        for channel, member in self._members.items():
            if member is not None:
                say(f"  {member}")
                with contextlib.suppress(OSError):  # its end is read in due time, and then it is lost
                    channel.send("start", rank=member.rank, workers=len(members), master=members[0].address)

    def _drop(self, channel: Channel) -> None:
        member = self._members.pop(channel)
        self._selector.unregister(channel)
        channel.close()
        if member is None:
            return
        if member.state is State.JOINED:
            self.roster.withdraw(member)
        elif member.state is State.RUNNING:
            self.roster.vanished(member, time.monotonic())
            say(f"{member} is lost: {member.cause}")

    def _bid_farewell(self, verdict: Verdict) -> None:
        for channel in self._members:
            with contextlib.suppress(OSError):
                channel.send("verdict", status=verdict.status)
        deadline = time.monotonic() + FAREWELL_S
        while self._members and time.monotonic() < deadline:
            for key, _ in self._selector.select(TICK_S):
                if key.fileobj is not self._listener:
                    self._receive(key.data)


def container_name(address: str) -> str:
    """What the network calls it: Docker's names end with the network's, which is left out."""
    try:
        return socket.gethostbyaddr(address)[0].partition(".")[0]
    except OSError:
        return address


def show(member: Member, record: Mapping[str, Any]) -> None:
    """Progress, as rank 0 reports it: figures are given as they came, times in milliseconds."""
    if record.get("event") == "epoch" and member.rank == 0:
        say(
            f"epoch {record['epoch']:3}  loss {record['loss']:.4f}  accuracy {record['accuracy']:6.1%}"
            f"  step {record['step_s'] * 1e3:.1f} ms, comm. {record['communication_s'] * 1e3:.1f} ms"
        )


def say(text: str) -> None:
    """One line for people, at once."""
    print(f"job: {text}", flush=True)


def main() -> None:
    """Command line. WORKERS, if set and not empty, is the number to wait for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    arguments = parser.parse_args()

    def stop(number: int, frame: object) -> None:
        # Compose stops everything as soon as the first container ended, which need not be this one.
        sys.exit(STOPPED_STATUS if server.outcome is None else server.outcome.status)

    try:
        server = JobServer(Roster(wanted_workers(os.environ)), arguments.port)
    except FaninError as error:
        sys.exit(f"job: {error}")
    signal.signal(signal.SIGTERM, stop)
    with contextlib.closing(server):
        sys.exit(server.run().status)


def wanted_workers(environment: Mapping[str, str]) -> int | None:
    """WORKERS as a number; None if unset or empty. ConfigurationError for anything else."""
    text = environment.get("WORKERS", "")
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigurationError(f"WORKERS={text!r}: expected a number")
    return int(text) if text else None


if __name__ == "__main__":
    main()

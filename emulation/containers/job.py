"""`python -m fanin.emulation.containers.job`: gathers the workers' containers, shows their progress, ends as they do.

It hands out ranks, prints what rank 0 reports, names every worker that fails or is lost, and exits with the status of
the job; workers then exit with the same status. Training does not pass through it: workers reach each other and the
switch directly.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from fanin.emulation.containers.channel import DEFAULT_PORT, Channel, ChannelError
from fanin.emulation.containers.recording import Recorder
from fanin.emulation.containers.roster import JobOutcome, Member, Roster, State, TooLateError
from fanin.emulation.progress import progress_of, unkept
from fanin.errors import ConfigurationError, FaninError

TICK_S = 0.25
FAREWELL_S = 3.0
"""How long members may take to hear the verdict and go."""
STOPPED_STATUS = 143
"""Exit status of a process that SIGTERM ended, as shells count."""


EPOCH_FORMATS: dict[str, Callable[[float], str]] = {
    "epoch": lambda value: f"epoch {value:3}",
    "loss": lambda value: f"loss {value:.4f}",
    "accuracy": lambda value: f"accuracy {value:6.1%}",
    "step_s": lambda value: f"step {value * 1e3:.1f} ms",
    "communication_s": lambda value: f"comm. {value * 1e3:.1f} ms",
}
"""Formats of a progress line's fields, by name."""


class JobServer:
    """Serves the members of a Roster over sockets; `recorder` gets their messages, and writes the record at the end."""

    def __init__(self, roster: Roster, port: int, host: str = "0.0.0.0", recorder: Recorder | None = None) -> None:
        self.roster = roster
        self._recorder = recorder
        self._listener = socket.create_server((host, port))
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._members: dict[Channel, Member | None] = {}
        """By connection, its member; None until it joins, which a health check never does."""
        self.outcome: JobOutcome | None = None
        """The verdict, once there is one; set before members are told."""

    def run(self) -> JobOutcome:
        """Serve until the job has ended and its members have heard the verdict."""
        while (verdict := self.roster.outcome(time.monotonic())) is None:
            self._turn()
        self.outcome = verdict
        for line in verdict.lines:
            say(line)
        # Before members hear the verdict: once one container has ended, the engine stops all containers, this one too.
        self.record("\n".join(verdict.lines))
        say("the job succeeded" if verdict.status == 0 else "the job failed")
        self._bid_farewell(verdict)
        return verdict

    def record(self, error: str) -> None:
        """Write the record and its page, if there is a recorder and the job has begun."""
        if self._recorder is None or not self.roster.closed:
            return
        outcome: Literal["finished", "failed", "interrupted"] = "interrupted"
        if self.outcome is not None:
            outcome = "failed" if self.outcome.status else "finished"
        for line in self._recorder.write(self.roster.members, outcome, error):
            say(line)

    def close(self) -> None:
        """Close the listening port and every connection."""
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
            self._tell_loss(member)
        if self.roster.close_if_complete(now):
            self._start()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:  # accept(2) also reports errors of a single connection
            return
        channel = Channel(connection, str(address[0]))
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
                self._join(channel, message, now)
        elif kind == "beat":
            self.roster.heard(member, now)
        elif kind == "report":
            self.roster.report(member, message["record"], now)
            if self._recorder is not None:
                self._recorder.reported(member, message["record"])
            show(member, message["record"])
        elif kind == "timeline":
            self.roster.heard(member, now)
            if self._recorder is not None:
                self._recorder.timeline(member, message["lines"])
        elif kind == "ended":
            self.roster.ended(member, int(message["status"]), str(message["cause"]), now)
            said = f"{member} ended with status {member.status}{': ' * bool(member.cause)}{member.cause}"
            say(said)
            if self._recorder is not None and member.status != 0:
                self._recorder.happened(said)

    def _join(self, channel: Channel, message: Mapping[str, Any], now: float) -> None:
        address = channel.peer_address
        try:
            member = self._members[channel] = self.roster.join(container_name(address), address, now)
            if self._recorder is not None:
                self._recorder.joined(member, message)
        except TooLateError as error:
            say(str(error))
            with contextlib.suppress(OSError):
                channel.send("refused", text=str(error))

    def _start(self) -> None:
        members = self.roster.members
        if self._recorder is not None:
            self._recorder.begin(members)
        say(f"{len(members)} workers")
        for channel, member in self._members.items():
            if member is not None:
                say(f"  {member}")
                # its connection has broken: `_receive` will notice, and count it as lost
                with contextlib.suppress(OSError):
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
            self._tell_loss(member)

    def _tell_loss(self, member: Member) -> None:
        said = f"{member} is lost: {member.cause}"
        say(said)
        if self._recorder is not None:
            self._recorder.happened(said)

    def _bid_farewell(self, verdict: JobOutcome) -> None:
        for channel in self._members:
            with contextlib.suppress(OSError):
                channel.send("verdict", status=verdict.status)
        deadline = time.monotonic() + FAREWELL_S
        while self._members and time.monotonic() < deadline:
            for key, _ in self._selector.select(TICK_S):
                if key.fileobj is not self._listener:
                    self._receive(key.data)


def container_name(address: str) -> str:
    """The container's name in the network, without the network's own name, which Docker appends."""
    try:
        return socket.gethostbyaddr(address)[0].partition(".")[0]
    except OSError:
        return address


def show(member: Member, record: Mapping[str, Any]) -> None:
    """Print a progress line from a report of rank 0; ignores other reports."""
    if record.get("event") != "epoch" or member.rank != 0:
        return
    progress, strange = progress_of(record, time_s=0.0, rank=0), unkept(record)
    parts = []
    for name, format_of in EPOCH_FORMATS.items():
        value = None if progress is None else getattr(progress, name)
        if name in strange:
            parts.append(f"{name} {strange[name]}")
        elif value is not None:
            parts.append(format_of(value))
    if parts:
        say("  ".join(parts))


def say(text: str) -> None:
    """Print one line for people, unbuffered."""
    print(f"job: {text}", flush=True)


def main() -> None:
    """Command line. WORKERS, if set and not empty, is the number to wait for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="for the record and its page; neither without")
    arguments = parser.parse_args()

    def stop(number: int, frame: object) -> None:
        if server.outcome is None:  # otherwise `run` is about to return the job's status
            sys.exit(STOPPED_STATUS)

    with contextlib.ExitStack() as stack:
        recorder = None if arguments.results is None else stack.enter_context(Recorder(arguments.results))
        try:
            server = JobServer(Roster(wanted_workers(os.environ)), arguments.port, recorder=recorder)
        except FaninError as error:
            sys.exit(f"job: {error}")
        stack.callback(server.close)
        signal.signal(signal.SIGTERM, stop)
        try:
            status = server.run().status
        except SystemExit:
            server.record("stopped from outside")
            raise
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a handler of ours would be gone before the interpreter is
        sys.exit(status)


def wanted_workers(environment: Mapping[str, str]) -> int | None:
    """WORKERS as a number; None if unset or empty. ConfigurationError for anything else."""
    text = environment.get("WORKERS", "")
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigurationError(f"WORKERS={text!r}: expected a number", "WORKERS")
    return int(text) if text else None


if __name__ == "__main__":
    main()

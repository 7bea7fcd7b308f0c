"""`python -m fanin.emulation.containers.worker COMMAND...`: joins a job as one of its workers, and runs COMMAND.

The job is at FANIN_JOB (host:port). COMMAND gets the environment variables that torchrun would set, and its output is
passed on. The exit status is the command's, or the job's where the command's is 0. The command is the program that a
user would start with torchrun, unchanged.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fanin import files
from fanin.emulation.containers.channel import DEFAULT_PORT, Channel
from fanin.emulation.containers.recording import settings_of
from fanin.emulation.containers.roster import BEAT_S
from fanin.emulation.network.timelines import read_lines
from fanin.emulation.process_log import MAX_LOG_BYTES, cause_in
from fanin.emulation.process_output import MAX_LINE_BYTES, MAX_REST_BYTES, object_in
from fanin.emulation.processes import STOP_GRACE_S
from fanin.errors import AdmissionError, ConfigurationError, FaninError

CONNECT_TIMEOUT_S = 60.0
"""Longest wait for the job's container, which may start after this one."""
CONNECT_INTERVAL_S = 0.5
MASTER_PORT = 29_500
"""torchrun's default, used in rank 0's container."""
VERDICT_TIMEOUT_S = 60.0
"""Longest wait for the other members once this one's program has ended."""
MAX_TIMELINE_LINES = 40_000
"""Most lines sent of a program's time line; later ones are dropped."""
TIMELINE_LINES_PER_MESSAGE = 1000
"""A line has some hundred bytes, so a message stays far below the channel's MAX_LINE_BYTES."""


def connect(host: str, port: int) -> Channel:
    """Connect to the job, trying for CONNECT_TIMEOUT_S; raises FaninError if it is not there by then."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return Channel(socket.create_connection((host, port), timeout=CONNECT_INTERVAL_S))
        except OSError as error:
            if time.monotonic() > deadline:
                raise FaninError(f"no job at {host}:{port}: {error}. Remedy: start the service `job`") from None
        time.sleep(CONNECT_INTERVAL_S)


def expect(channel: Channel, kind: str, timeout_s: float | None) -> dict[str, Any]:
    """Wait for the next message of that kind; FaninError if the job refuses or is gone, or after `timeout_s`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while deadline is None or time.monotonic() < deadline:
            if not selector.select(BEAT_S):
                continue
            messages = channel.receive()
            if messages is None:
                raise FaninError("the job is gone. Remedy: see the output of the service `job`")
            for message in messages:
                if message["type"] == "refused":
                    raise AdmissionError(str(message["text"]))
                if message["type"] == kind:
                    return message
    raise FaninError(f"the job did not answer within {timeout_s:g} s. Remedy: see the output of the service `job`")


class Program:
    """Runs the command as a rank of the job; passes its output on, and collects the JSON objects that it prints."""

    def __init__(self, command: list[str], rank: int, workers: int, master: str) -> None:
        ours = {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": master,
            "MASTER_PORT": str(MASTER_PORT),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(workers),
        }
        try:
            self._process = subprocess.Popen(
                command, env={**os.environ, **ours}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise ConfigurationError(f"{command[0]}: {files.in_words(error)}") from None
        self._partial = b""
        self._log = b""

    def follow(self, channel: Channel) -> tuple[int, str]:
        """Report to the job at least every BEAT_S until the command ends; returns its status, and a failure's cause."""
        process = self._process
        assert process.stdout
        assert process.stderr
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, self._take_output)
            selector.register(process.stderr, selectors.EVENT_READ, self._take_log)
            # bytes read after its end; bounded, because a grandchild that holds the pipes may write for ever
            rest_bytes = MAX_REST_BYTES
            while rest_bytes > 0:
                over = process.poll() is not None
                ready = selector.select(0 if over else BEAT_S)
                if over and not ready:
                    break
                records: list[dict[str, Any]] = []
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    rest_bytes -= len(data) * over
                    if data:
                        records += key.data(data)
                    else:
                        selector.unregister(key.fileobj)
                tell(channel, records)
                if not selector.get_map():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(BEAT_S)
        status = process.returncode
        if status < 0:
            return 128 - status, f"ended by {signal.Signals(-status).name}"
        return status, "" if status == 0 else cause_in(self._log.decode(errors="replace"))

    def stop(self) -> None:
        """End the command if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _take_output(self, data: bytes) -> list[dict[str, Any]]:
        pass_on(data, sys.stdout.fileno())
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-MAX_LINE_BYTES:]
        return [found for line in lines if (found := object_in(line)) is not None]

    def _take_log(self, data: bytes) -> list[dict[str, Any]]:
        pass_on(data, sys.stderr.fileno())
        self._log = (self._log + data)[-MAX_LOG_BYTES:]
        return []


def pass_on(data: bytes, descriptor: int) -> None:
    """Write all of `data` to the descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]


def tell(channel: Channel, records: list[dict[str, Any]]) -> None:
    """Send the records, or a beat if there are none. Ignores a job that is gone: training goes on without it."""
    with contextlib.suppress(OSError):
        for record in records:
            channel.send("report", record=record)
        if not records:
            channel.send("beat")


def take_part(channel: Channel, command: list[str]) -> int:
    """Join, run the command as the rank that the job hands out, wait for the verdict; returns the exit status."""
    channel.send("join", command=shlex.join(command), settings=settings_of(os.environ))
    start = expect(channel, "start", None)
    rank, workers = int(start["rank"]), int(start["workers"])
    print(f"worker: rank {rank} of {workers}, rank 0 is at {start['master']}", flush=True)
    program = Program(command, rank, workers, str(start["master"]))
    try:
        status, cause = program.follow(channel)
    finally:
        program.stop()
    with contextlib.suppress(OSError):
        send_timeline(channel, rank)
        channel.send("ended", status=status, cause=cause)
    # After a failure, too: the engine stops all containers once one has ended, and the others still have to report.
    try:
        verdict = int(expect(channel, "verdict", VERDICT_TIMEOUT_S)["status"])
    except FaninError:
        if status == 0:
            raise
        return status
    return status or verdict


def send_timeline(channel: Channel, rank: int) -> None:
    """Send the time line that the process group wrote, if FANIN_TIMELINE names a file for it."""
    path = os.environ.get("FANIN_TIMELINE")
    if not path:
        return
    lines = iter(read_lines(Path(path.replace("%r", str(rank))))[:MAX_TIMELINE_LINES])
    while part := list(islice(lines, TIMELINE_LINES_PER_MESSAGE)):
        channel.send("timeline", lines=part)


def job_address(text: str) -> tuple[str, int]:
    """Parse `host` or `host:port`; raises ConfigurationError for anything else."""
    host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit())):
        raise ConfigurationError(f"FANIN_JOB={text!r}: expected host or host:port", "FANIN_JOB")
    return host, int(port or DEFAULT_PORT)


def main() -> None:
    """Run the command line of a member's container."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        if len(sys.argv) < 2:
            raise ConfigurationError(
                "no command. Usage: python -m fanin.emulation.containers.worker COMMAND.... "
                "Remedy: name the command to run"
            )
        with contextlib.closing(connect(*job_address(os.environ.get("FANIN_JOB", "job")))) as channel:
            status = take_part(channel, sys.argv[1:])
    except FaninError as error:
        sys.exit(f"worker: {error}")
    sys.exit(status)


if __name__ == "__main__":
    main()

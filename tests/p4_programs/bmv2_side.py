"""BMv2 as a side of differential.py: simple_switch_grpc behind P4Runtime, veth pairs at its ports.

The effects of a frame are complete when BMv2 has nothing left to do: all of its threads sleep. So no program needs a
frame that says "the rest has come", and nothing waits for time to pass.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from fanin.emulation.bmv2_process import Links, launched
from tests.p4_programs.client import Client
from tests.p4_programs.differential import RefusedProgramError, Sample, Sent

QUIET_SAMPLES = 3
"""Looks at BMv2's threads in a row that must find all of them asleep."""
QUIET_TIMEOUT_S = 20.0
SHORTEST_FRAME = 14
"""Bytes of the shortest frame that an interface takes."""


class EndedError(Exception):
    """BMv2 has crashed, or works on without an end."""


class Bmv2Side:
    """simple_switch_grpc as a side of the comparison."""

    def __init__(self, client: Client, switch: subprocess.Popen[bytes], sockets: dict[int, socket.socket]) -> None:
        self._client = client
        self._switch = switch
        self._sockets = sockets

    def write(self, update: Any) -> int:
        """Implements the protocol `differential.Side`."""
        code = self._client.write(update)
        if self._switch.poll() is not None:
            raise EndedError(f"BMv2 ends at the write of {text_format.MessageToString(update, as_one_line=True)}")
        return code

    def exchange(self, port: int, frame: bytes) -> Sent | None:
        """See Side; in order at each port."""
        if len(frame) < SHORTEST_FRAME:
            return None
        self._sockets[port].send(frame)
        self._until_quiet()
        self._client.taken()
        return [(each, data) for each, tap in sorted(self._sockets.items()) for data in waiting(tap)]

    def _until_quiet(self) -> None:
        deadline, quiet = time.monotonic() + QUIET_TIMEOUT_S, 0
        while quiet < QUIET_SAMPLES:
            if self._switch.poll() is not None:
                raise EndedError("BMv2 ends at this frame")
            quiet = quiet + 1 if _asleep(self._switch.pid) else 0
            if time.monotonic() > deadline:
                raise EndedError("BMv2 works on this frame without an end")


def _asleep(pid: int) -> bool:
    """Whether no thread of a process runs or wants to."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ends meanwhile
            if (task / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] != "S":
                return False
    return True


def waiting(tap: socket.socket) -> Iterator[bytes]:
    """Yield the frames that wait at a raw socket, which does not block."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield tap.recv(1 << 16)


@contextlib.contextmanager
def bmv2_side(sample: Sample, links: Links, folder: Path) -> Iterator[Bmv2Side]:
    """BMv2 with the program."""
    for tap in links.sockets.values():
        tap.setblocking(False)  # with a timeout, recv waits for it even where MSG_DONTWAIT says not to
        list(waiting(tap))
    with launched(folder / "bmv2.log", links) as (address, switch), Client(address, sample.p4info) as client:
        try:
            client.load(sample.program)
        except grpc.RpcError as error:
            if switch.poll() is not None:
                raise EndedError("BMv2 ends when it is given the program") from None
            raise RefusedProgramError(error.details()) from None
        yield Bmv2Side(client, switch, links.sockets)

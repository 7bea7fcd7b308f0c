"""Cables for tests: pairs of interfaces, one end for a switch's port, and a packet socket on the other."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

WAIT_S = 20.0
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for veth pairs and packet sockets")
NUMBERS = itertools.count()
SHORTEST = 60
"""No Ethernet frame is shorter; the router reads two bytes of it."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def veth() -> Iterator[tuple[str, socket.socket]]:
    """An interface for a port, and a socket on the other end of its cable."""
    name = f"fr{os.getpid()}n{next(NUMBERS)}"[-13:]
    ip("link", "add", f"{name}s", "type", "veth", "peer", "name", f"{name}h")
    try:
        for end in "sh":
            Path(f"/proc/sys/net/ipv6/conf/{name}{end}/disable_ipv6").write_text("1", encoding="ascii")
            ip("link", "set", f"{name}{end}", "up")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as tap:
            tap.bind((f"{name}h", 3))
            tap.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
            _until_it_carries(f"{name}s", tap)
            tap.settimeout(WAIT_S)
            yield f"{name}s", tap
    finally:
        ip("link", "delete", f"{name}s")


def _until_it_carries(name: str, tap: socket.socket) -> None:
    """A new cable loses what is sent before the kernel has noticed that both ends are up."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as other:
        other.bind((name, 3))
        for ends in ((tap, other), (other, tap)):
            ends[1].settimeout(0.05)
            for _ in range(int(WAIT_S / 0.05)):
                ends[0].send(frame(0xFF))
                with contextlib.suppress(TimeoutError):
                    ends[1].recv(2000)
                    break
            else:
                raise AssertionError(f"nothing passes {name}")
        tap.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while tap.recv(2000):
                pass


def frame(*head: int) -> bytes:
    return bytes(head) + bytes(SHORTEST - len(head))

"""Cables for tests: pairs of interfaces, one end for a switch's port, and a packet socket on the other."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from fanin.emulation.bmv2_process import ETH_P_ALL, linked

WAIT_S = 20.0
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for veth pairs and packet sockets")
SHORTEST = 60
"""No Ethernet frame is shorter; the router reads two bytes of it."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def veth() -> Iterator[tuple[str, socket.socket]]:
    """An interface for a port, and a socket on the other end of its cable."""
    with linked([0]) as links:
        name, tap = links.interfaces[0], links.sockets[0]
        _until_it_carries(name, tap)
        tap.settimeout(WAIT_S)
        yield name, tap


def _until_it_carries(name: str, tap: socket.socket) -> None:
    """A new cable loses what is sent before the kernel has noticed that both ends are up."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as other:
        other.bind((name, ETH_P_ALL))
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

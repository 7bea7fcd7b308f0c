"""Measures the bytes that this process has sent and received, for any backend."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

import torch.distributed as dist

TCP_INFO_BYTES = 256
"""Size of the buffer for struct tcp_info: more than any kernel's."""
BYTE_COUNTS = struct.Struct("=120xQQ")
"""tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info (linux/tcp.h, since 4.1)."""


class Traffic(NamedTuple):
    """Payload bytes of UDP or TCP, without headers of these protocols."""

    sent: int
    received: int


def traffic() -> Traffic:
    """Traffic of this process so far: TCP's by the kernel's counts, fanin's by its world group's."""
    sent, received = _tcp_traffic()
    counters = getattr(dist.group.WORLD, "counters", None)
    if counters is not None:
        counted = counters()
        sent += counted.get("engine.bytes_out", 0)  # a world of one rank has no engine
        received += counted.get("engine.bytes_in", 0)
    return Traffic(sent, received)


def _tcp_traffic() -> tuple[int, int]:
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:  # not TCP, or closed meanwhile
            continue
        acked, came = BYTE_COUNTS.unpack_from(info)
        sent, received = sent + acked, received + came
    return sent, received

"""Marks of explicit congestion notification at a UDP socket (fanin/protocol/ecn.py, RFC 3168)."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from typing import Any

from fanin.protocol.ecn import ECN_CAPABLE, ECN_CONGESTION, ECN_MASK, Capable
from fanin.transports.polling import WRITABLE, is_ready

IP_RECVTOS, IPV6_RECVTCLASS, IPV6_TCLASS = 13, 66, 67
"""Linux's numbers (linux/in.h, linux/in6.h); the first is not in Python 3.10's socket module."""
CONTROL_BYTES = socket.CMSG_SPACE(4)

Control = list[tuple[int, int, bytes]]
NONE: Control = []

_FIELD = ECN_CAPABLE.to_bytes(4, sys.byteorder)
_IPV4 = (socket.IPPROTO_IP, socket.IP_TOS, _FIELD)
AS_CAPABLE: dict[int, Control] = {
    socket.AF_INET: [_IPV4],
    socket.AF_INET6: [(socket.IPPROTO_IPV6, IPV6_TCLASS, _FIELD), _IPV4],
}
"""Control messages, by family, that make a datagram ECN-capable. A socket for IPv6 may carry IPv4."""


def report_marks(opened: socket.socket) -> None:
    """Have the kernel report ECN marks of datagrams; where it cannot, congestion shows by losses only."""
    options = [(socket.IPPROTO_IP, IP_RECVTOS)]
    if opened.family == socket.AF_INET6:  # IPv4 comes here as well
        options.append((socket.IPPROTO_IPV6, IPV6_RECVTCLASS))
    for level, name in options:
        with contextlib.suppress(OSError):
            opened.setsockopt(level, name, 1)


def is_marked(control: Control) -> bool:
    """Whether the control messages of a received datagram say that it met congestion."""
    return ECN_CONGESTION in marks_of(control)


def marks_of(control: Control) -> set[int]:
    """The ECN fields that the control messages of a received datagram report: one, or none."""
    return {
        data[0] & ECN_MASK
        for level, kind, data in control
        if data and (level, kind) in ((socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, IPV6_TCLASS))
    }


class Sender:
    """Sends datagrams, `Capable` ones as ECN-capable as long as the kernel accepts that."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._as_capable = AS_CAPABLE[opened.family]

    def wait_for_room(self, timeout_s: float) -> bool:
        """Whether a full send buffer takes something again within that time."""
        return is_ready([self._socket], WRITABLE, timeout_s)

    def send(self, data: bytes, *to: Any, control: Control = NONE) -> None:
        """One datagram, to the socket's peer or to that address, with what `control` tells the kernel besides."""
        if not self._as_capable or not isinstance(data, Capable):
            self._socket.sendmsg([data], control, 0, *to)
            return
        try:
            self._socket.sendmsg([data], [*self._as_capable, *control], 0, *to)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                raise
            # The kernel refuses the field (old kernels, sandboxes) or this datagram: sending without it shows which.
            self._socket.sendmsg([data], control, 0, *to)
            self._as_capable = []

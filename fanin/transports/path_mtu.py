"""How long packets may be on the way to a host, as far as the kernel knows; nothing is sent to find out.

For a datagram socket's path it knows the MTU of this machine's own device, unless a router has reported less. It hears
of no limit at the other host's device, as with jumbo frames on some hosts of a segment, nor of a tunnel that drops long
packets. A TCP connection knows more: each end tells its longest segment when it opens (MSS, RFC 9293 section 3.7.1),
and routers of narrow paths lower that on the way.
"""

from __future__ import annotations

import contextlib
import socket
import struct

DEFAULT_MTU = 1500
"""Ethernet's, where the system does not say."""
LARGEST_MTU = 65_536
"""Loopback's: no packet is longer."""
IP_MTU, IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h; the socket module has no names for them
TCP_INFO = struct.Struct("=5xB10xI")
"""Fields of struct tcp_info (linux/tcp.h): tcpi_options and tcpi_snd_mss."""
TIMESTAMPS = 1
"""Bit of tcpi_options: each segment has twelve bytes more before its data, which the MSS leaves out."""
HEADERS = {socket.AF_INET: 20 + 20, socket.AF_INET6: 40 + 20}
TIMESTAMP_BYTES = 12


def datagram_mtu(connected: socket.socket) -> int:
    """MTU of a connected datagram socket's path."""
    wide = connected.family == socket.AF_INET6
    with contextlib.suppress(OSError):
        level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if wide else (socket.IPPROTO_IP, IP_MTU)
        return connected.getsockopt(level, option)
    return DEFAULT_MTU


def stream_mtu(connected: socket.socket) -> int:
    """The longest packet that TCP would send on this connection; LARGEST_MTU where the system does not say."""
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        options, segment_bytes = TCP_INFO.unpack(info)
    except (AttributeError, OSError, struct.error):  # struct.error: a system whose answer is shorter, as qemu's
        return LARGEST_MTU
    return int(segment_bytes) + HEADERS[connected.family] + TIMESTAMP_BYTES * bool(options & TIMESTAMPS)

"""How long packets may be, as the kernel knows it."""

from __future__ import annotations

import socket

import pytest

from fanin.transports.path_mtu import LARGEST_MTU, datagram_mtu, stream_mtu

IPV4, IPV6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(("family", "host", "headers"), [(IPV4, "127.0.0.1", 40), (IPV6, "::1", 60)])
@pytest.mark.parametrize("segment_bytes", [1220, 1460])
def test_a_stream_carries_what_its_other_end_takes(
    family: socket.AddressFamily, host: str, headers: int, segment_bytes: int
) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
        listener.bind((host, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as connected:
            assert stream_mtu(connected) == segment_bytes + headers


def test_where_the_system_says_nothing_a_stream_limits_nothing_and_a_datagram_is_ethernets() -> None:
    with socket.socket(IPV4, socket.SOCK_DGRAM) as unconnected:
        assert stream_mtu(unconnected) == LARGEST_MTU
        assert datagram_mtu(unconnected) == 1500

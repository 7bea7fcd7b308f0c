"""Packet and window sizes: legal for every path, and never more than an ordinary receive buffer holds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.protocol.window import (
    DEFAULT_RECEIVE_BUFFER_BYTES,
    IP_UDP_HEADER_BYTES,
    MAX_WINDOW_BYTES,
    packet_shape,
    slots_for,
    truesize,
)
from fanin.protocol.wire import datagram_bytes
from tests.support.builders import job_spec


@given(st.integers(128, 1 << 17))
def test_a_packet_fits_its_path_and_makes_a_legal_job(mtu: int) -> None:
    words, codes = packet_shape(mtu)
    spec = job_spec(workers=1, slots=1, words_per_packet=words, codes_per_packet=codes)
    assert spec.packet_bytes <= mtu - IP_UDP_HEADER_BYTES


def test_an_ethernet_packet_is_nearly_full() -> None:
    assert packet_shape(1500) == (352, 1)


def test_a_longer_path_never_makes_a_shorter_packet() -> None:
    shapes = [packet_shape(mtu) for mtu in range(128, 70_000, 7)]
    sizes = [datagram_bytes(codes, words) for words, codes in shapes]
    assert all(later >= earlier - 128 for earlier, later in itertools.pairwise(sizes))


def test_an_impossible_path_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        packet_shape(100)


@given(st.integers(36, 65_507), st.integers(4608, 1 << 26), st.integers(1, 32))
def test_a_window_fits_three_quarters_of_the_buffer(packet_bytes: int, buffer_bytes: int, senders: int) -> None:
    slots = slots_for(buffer_bytes, packet_bytes, senders=senders)
    assert slots >= 1
    if slots > 1:
        assert slots * senders * truesize(packet_bytes) <= buffer_bytes * 3 // 4
        assert slots * packet_bytes <= MAX_WINDOW_BYTES


def test_a_default_buffer_holds_a_window_worth_having() -> None:
    for mtu in (1500, 9000, 65_536):
        words, codes = packet_shape(mtu)
        packet_bytes = datagram_bytes(codes, words)
        assert slots_for(DEFAULT_RECEIVE_BUFFER_BYTES, packet_bytes) * packet_bytes > 96 << 10

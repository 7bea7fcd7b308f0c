"""The packet and the window that a controller chooses."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fanin.protocol.window import MAX_SHARDS, MIN_SHARE_SLOTS
from fanin.protocol.wire import HEADER_BYTES
from fanin.switch.controller.job_shape import SwitchBuffers, choose_shape
from tests.support.builders import job_spec
from tests.support.controllers import join

OWN = SwitchBuffers(receive_buffer_bytes=425_984, shared=False)
WIDE = SwitchBuffers(receive_buffer_bytes=1 << 23, shared=False)
SHARED = SwitchBuffers(receive_buffer_bytes=425_984, shared=True)


@given(
    st.lists(
        st.builds(
            lambda mtu, buffer_bytes, words, slots: join(
                0, path_mtu=mtu, receive_buffer_bytes=buffer_bytes, words_per_packet=words, slots=slots
            ),
            st.integers(576, 65_536),
            st.integers(0, 1 << 24),
            st.none() | st.integers(1, 2044).map(lambda eighths: 8 * eighths),
            st.none() | st.integers(1, 65_536),
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_every_choice_is_a_legal_job_whose_packets_fit_every_path(joins: list[object], shared: bool) -> None:
    shape = choose_shape(joins, SHARED if shared else OWN)  # type: ignore[arg-type]
    spec = job_spec(
        workers=1, slots=shape.slots, words_per_packet=shape.words_per_packet, codes_per_packet=shape.codes_per_packet
    )
    assert HEADER_BYTES < spec.packet_bytes <= min(one.path_mtu for one in joins) - 28  # type: ignore[attr-defined]


def test_workers_that_share_a_socket_of_the_switch_share_its_buffer() -> None:
    joins = [join(rank, 8) for rank in range(8)]
    assert choose_shape(joins, SHARED).slots < choose_shape(joins, OWN).slots


def test_flows_to_several_shards_share_the_window_of_one() -> None:
    """They are behind one link, whose queue they would fill otherwise, each with a window of its own."""
    one, eight, many = (
        choose_shape(
            [join(rank, 8, path_mtu=1500, receive_buffer_bytes=1 << 23, share=1 / shards) for rank in range(8)], WIDE
        )
        for shards in (1, 8, MAX_SHARDS)
    )
    assert eight.slots == one.slots // 8
    assert many.slots == MIN_SHARE_SLOTS


def test_flows_between_processes_of_one_machine_share_two_windows() -> None:
    """A machine with many cores has many flows, and every worker's rings hold each window twice."""
    ranks = [join(rank, 8, path_mtu=65_536, receive_buffer_bytes=1 << 23) for rank in range(8)]
    one, two, four, many = (choose_shape(ranks, replace(WIDE, flows=flows)).slots for flows in (1, 2, 4, 16))
    assert one == two == 2 * four
    assert many == MIN_SHARE_SLOTS


def test_packets_carry_no_more_scale_codes_than_the_switch_takes() -> None:
    loopback = join(0, path_mtu=65_536)
    assert choose_shape([loopback], SHARED).codes_per_packet > 1
    one_code = SwitchBuffers(receive_buffer_bytes=425_984, shared=True, codes_per_packet=1)
    assert choose_shape([loopback], one_code).codes_per_packet == 1
    device = SwitchBuffers(receive_buffer_bytes=425_984, shared=True, words_per_packet=16, codes_per_packet=1)
    shape = choose_shape([loopback], device)
    assert (shape.words_per_packet, shape.codes_per_packet) == (16, 1)

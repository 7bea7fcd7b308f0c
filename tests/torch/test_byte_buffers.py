"""Memory that gathers use again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fanin.host.torch.training.byte_buffers import MAX_SPARE, ByteBuffers  # noqa: E402


def test_a_buffer_that_was_given_back_serves_the_next_of_its_size_alone() -> None:
    buffers = ByteBuffers()
    first = buffers.take(100)
    buffers.give_back(first)
    other = buffers.take(99)
    assert len(other) == 99
    assert buffers.take(100).data_ptr() == first.data_ptr()
    assert buffers.take(100).data_ptr() != first.data_ptr(), "it is in use"


def test_no_more_are_kept_than_are_under_way_at_once() -> None:
    buffers = ByteBuffers()
    taken = [buffers.take(100) for _ in range(MAX_SPARE + 3)]
    for each in taken:
        buffers.give_back(each)
    last = {each.data_ptr() for each in taken[-MAX_SPARE:]}
    assert {buffers.take(100).data_ptr() for _ in range(MAX_SPARE)} == last
    assert buffers.take(100).data_ptr() not in last

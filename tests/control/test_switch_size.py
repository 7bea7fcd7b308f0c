"""How large a switch is that was not told, on machines that this one is not."""

from __future__ import annotations

import pytest

from fanin.protocol.window import packet_shape, slots_for
from fanin.switch_size import (
    DEFAULT_SOURCE_SHARE,
    FLOW_MEMORY_BYTES,
    LEAST_MEMORY_BYTES,
    default_flows,
    default_memory_bytes,
)
from fanin.transports.path_mtu import LARGEST_MTU
from tests.support.builders import job_spec

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "there", "flows", "memory"),
    [
        (2, 24 * GIB, 1, GIB),
        (2, 2 * GIB, 1, LEAST_MEMORY_BYTES),
        (16, 128 * GIB, 4, 4 * GIB),
        (64, 512 * GIB, 16, 16 * GIB),
        (256, 64 * GIB, 16, 8 * GIB),
        (64, 4 * GIB, 1, LEAST_MEMORY_BYTES),  # a container that sees all of its machine's cores
    ],
)
def test_flows_follow_cores_and_memory_and_memory_follows_flows(
    cores: int, there: int, flows: int, memory: int
) -> None:
    assert default_flows(cores, there) == flows
    assert default_memory_bytes(flows, there) == memory


@pytest.mark.parametrize("flows", [1, 2, 4, 8, 16])
def test_a_program_has_some_dozen_groups_however_many_flows_there_are(flows: int) -> None:
    """The last quarter of what one address may hold is for slots alone, without rings and accumulators."""
    words, codes = packet_shape(LARGEST_MTU)
    spec = job_spec(workers=4, words_per_packet=words, codes_per_packet=codes)
    slots = slots_for(1 << 23, spec.packet_bytes, flows=flows)
    pool = job_spec(workers=4, slots=slots, words_per_packet=words, codes_per_packet=codes).pool_bytes * flows
    assert flows * FLOW_MEMORY_BYTES * DEFAULT_SOURCE_SHARE / 4 / pool >= 50

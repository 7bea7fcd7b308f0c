"""Sums of device tensors over the simulator's links: copies, codes and words overlap, and loss changes nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from fanin.host.torch.device import lines
from tests.support.network import Link
from tests.support.virtual_ranks import Program, VirtualGroup, VirtualWorld
from tests.support.virtual_sums import KINDS, gradients, of_host, same_bits

BYTES_PER_S = 10e6
"""Rate of the links, and of copies: what does not overlap costs as much again."""
LARGE_BYTES, PIECE_BYTES = 256 << 10, 16 << 10
JOB: dict[str, Any] = {"slots": 64, "words_per_packet": 320}


def time_of(world: VirtualWorld, sums: list[tuple[int, torch.dtype, int]]) -> float:
    """Virtual seconds that all ranks take for sums which they begin one after the other, with the host's bits."""
    begins_s = world.clock.now_s
    seen: dict[tuple[int, int], torch.Tensor] = {}

    def train(rank: int, groups: list[VirtualGroup]) -> Program:
        tensors = [gradients(rank, number, count, dtype) for number, (_, dtype, count) in enumerate(sums)]
        works = [groups[0].average(x, lanes) for x, (lanes, _, _) in zip(tensors, sums, strict=True)]
        for number, (x, work) in enumerate(zip(tensors, works, strict=True)):
            work.wait()
            groups[0].device.look(seen, (rank, number), x)
        yield

    world.on_all(train)
    world.run()
    assert len(seen) == world.ranks * len(sums)
    for (_, number), result in seen.items():
        lanes, dtype, count = sums[number]
        assert same_bits(result, of_host(world, lanes, number, count, dtype)), sums[number]
    return world.clock.now_s - begins_s


@pytest.mark.parametrize(("lanes", "dtype"), [(32, torch.int32), (8, torch.float32)], ids=["as it is", "coded"])
def test_copies_out_the_network_and_copies_in_overlap_piece_by_piece(
    lanes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = LARGE_BYTES * 8 // lanes
    bytes_alone_s = LARGE_BYTES / BYTES_PER_S
    took: dict[int, float] = {}
    for slot_bytes in (LARGE_BYTES * 5 // 4, PIECE_BYTES):  # words of a device fill whole blocks
        monkeypatch.setattr(lines, "SLOT_BYTES", slot_bytes)
        link = Link(bytes_per_s=BYTES_PER_S)
        world = VirtualWorld(ring_slots=4, link=link, copies_bytes_per_s=BYTES_PER_S, **JOB)
        took[slot_bytes] = time_of(world, [(lanes, dtype, count)])
    in_one, in_pieces = took.values()
    assert in_one >= 3 * bytes_alone_s, "out, through the network and in, one after the other"
    assert bytes_alone_s <= in_pieces <= 1.5 * bytes_alone_s


def test_codes_of_later_buckets_do_not_wait_behind_words_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a long link a bucket costs the round trip of its agreement, and its words travel beside the next one's."""
    monkeypatch.setattr(lines, "SLOT_BYTES", PIECE_BYTES)
    round_trip_s, buckets = 10e-3, 6
    world = VirtualWorld(ring_slots=8, link=Link(delay_s=round_trip_s / 2), **{**JOB, "slots": 256})
    took_s = time_of(world, [(8, torch.float32, 8_000)] * buckets)
    assert (buckets + 1) * round_trip_s <= took_s <= (buckets + 3) * round_trip_s < 2 * buckets * round_trip_s


@pytest.mark.parametrize("seed", range(10))
def test_order_and_bits_hold_whatever_links_lose_repeat_and_hold_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = random.Random(seed)
    monkeypatch.setattr(lines, "SLOT_BYTES", 1 << drawn.randint(9, 12))
    monkeypatch.setattr(lines, "CODE_SLOT_BYTES", 64)
    link = Link(
        bytes_per_s=BYTES_PER_S, loss=0.05, duplicate=0.02, reorder=0.1, stray=0.02, stray_s=0.05,
        queue_bytes=drawn.choice((4_000, 1 << 20)),
    )  # fmt: skip
    world = VirtualWorld(
        seed, ranks=drawn.choice((2, 3)), ring_slots=drawn.randint(1, 4), link=link,
        copies_bytes_per_s=drawn.choice((0.0, BYTES_PER_S)),
    )  # fmt: skip
    time_of(world, [(*drawn.choice(KINDS), drawn.randint(1, 4_000)) for _ in range(5)])
    assert world.lost_packets() > 0

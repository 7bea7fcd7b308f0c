"""Keyed tags of packets: SipHash's own vectors, the golden packets, and that nothing but the packet itself holds.

tests/wire/test_gcm_siv.py has the vectors of the other algorithm.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.protocol import packet_tag
from fanin.protocol.packet_tag import Direction, MemberKeys, PacketKeys
from fanin.protocol.seal import Credentials, data_key
from fanin.protocol.tag_algorithm import GCM_SIV, SIPHASH, TAG_ALGORITHMS, TagAlgorithm
from fanin.protocol.wire import HEADER_BYTES, SWITCH_WORKER, Kind, Packet
from tests.golden.generate import TAG_KEY, TAG_TOKENS
from tests.support.machines import native

FILES: dict[TagAlgorithm, str] = {SIPHASH: "tags.json", GCM_SIV: "tags_gcm_siv.json"}
GOLDEN = [
    {**case, "algorithm": algorithm}
    for algorithm, name in FILES.items()
    for case in json.loads((Path(__file__).parents[1] / "golden" / name).read_text())
]
VECTORS = {0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 8: "6224939a79f5f593", 15: "e545be4961ca29a1"}
"""Tags of the reference implementation, by length of the message 00 01 02 ...; key 00 01 .. 0f."""


@pytest.mark.parametrize("length", VECTORS)
def test_siphash_gives_the_reference_s_vectors(length: int) -> None:
    hashed = packet_tag.siphash24(bytes(range(16)), bytes(range(length)))
    assert hashed.to_bytes(8, "little").hex() == VECTORS[length]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['name']}, {case['algorithm']}")
def test_every_golden_packet_holds_for_whom_it_is_and_for_nobody_else(case: dict[str, Any]) -> None:
    data, worker = bytes.fromhex(case["bytes"]), case["worker"]
    keys = PacketKeys(TAG_KEY, TAG_TOKENS, case["algorithm"])
    members = [MemberKeys(TAG_KEY, token, case["algorithm"]) for token in TAG_TOKENS]
    said_by = [keys.holds(data, each) for each in range(len(TAG_TOKENS))]
    said_to = [member.holds(data) for member in members]
    if case["direction"] == "TO_SWITCH":
        assert said_by == [each == worker for each in range(len(TAG_TOKENS))]
        assert not any(said_to), "what a worker says cannot be sent back to it"
    else:
        assert not any(said_by)
        assert said_to == [worker in (each, SWITCH_WORKER) for each in range(len(TAG_TOKENS))]


PACKETS = st.sampled_from([(bytes.fromhex(case["bytes"]), case["algorithm"]) for case in GOLDEN])
SWITCH = {algorithm: PacketKeys(TAG_KEY, TAG_TOKENS, algorithm) for algorithm in TAG_ALGORITHMS}


def holds(data: bytes, algorithm: TagAlgorithm) -> bool:
    """For anybody in the job."""
    by = any(SWITCH[algorithm].holds(data, worker) for worker in range(len(TAG_TOKENS)))
    return by or any(MemberKeys(TAG_KEY, token, algorithm).holds(data) for token in TAG_TOKENS)


@settings(max_examples=60)
@given(PACKETS, st.data())
def test_no_packet_with_a_flipped_bit_holds(packet: tuple[bytes, TagAlgorithm], draw: st.DataObject) -> None:
    data, algorithm = packet
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    assert holds(data, algorithm)
    assert not holds(bytes(changed), algorithm)


@settings(max_examples=60)
@given(PACKETS, st.data())
def test_no_prefix_of_a_packet_and_nothing_appended_to_it_holds(
    packet: tuple[bytes, TagAlgorithm], draw: st.DataObject
) -> None:
    data, algorithm = packet
    assert not holds(data + draw.draw(st.binary(min_size=1, max_size=40)), algorithm)
    if len(data) > HEADER_BYTES:
        assert not holds(data[: draw.draw(st.integers(HEADER_BYTES, len(data) - 1))], algorithm)


@given(st.binary(min_size=HEADER_BYTES, max_size=200))
def test_a_lane_is_siphash_of_its_number_and_its_words(data: bytes) -> None:
    padded = data[:32] + Direction.TO_SWITCH.to_bytes(4, "big") + data[36:] + bytes(-len(data) % 32)
    lanes = [
        packet_tag.siphash24(
            TAG_KEY,
            lane.to_bytes(8, "little") + b"".join(padded[at : at + 8] for at in range(8 * lane, len(padded), 32)),
        )
        for lane in range(4)
    ]
    whole = b"".join(number.to_bytes(8, "little") for number in (len(data), *lanes))
    assert packet_tag.tag(TAG_KEY, data, Direction.TO_SWITCH) == packet_tag.siphash24(TAG_KEY, whole) & 0xFFFFFFFF


@pytest.mark.parametrize("algorithm", TAG_ALGORITHMS)
def test_a_padded_zero_is_not_the_packet_without_it(algorithm: TagAlgorithm) -> None:
    """Blocks are padded with zeros: it is the length that tells."""
    packet = Packet(kind=Kind.CONTRIBUTION).to_bytes()
    tags = {packet_tag.tag(TAG_KEY, packet + bytes(more), Direction.TO_SWITCH, algorithm) for more in range(0, 64, 4)}
    assert len(tags) == 16


def test_keys_differ_by_secret_job_generation_algorithm_flow_and_token() -> None:
    keys = {
        packet_tag.of_worker(
            packet_tag.of_flow(data_key(Credentials.of_job(secret).key, job, generation, algorithm), flow), token
        )
        for secret in ("one", "two")
        for job in (1, 2)
        for generation in (1, 2)
        for algorithm in TAG_ALGORITHMS
        for flow in (0, 1)
        for token in (1, 2)
    }
    assert len(keys) == 64


def test_a_member_whose_token_is_renewed_is_another() -> None:
    keys, before = PacketKeys(TAG_KEY, TAG_TOKENS), MemberKeys(TAG_KEY, TAG_TOKENS[1])
    said = before.finish(Packet(kind=Kind.CONTRIBUTION, worker=1).to_bytes())
    assert keys.holds(said, 1)
    keys.renew(1, 4711)
    assert not keys.holds(said, 1)
    assert keys.holds(MemberKeys(TAG_KEY, 4711).finish(said), 1)


TRAINS = st.lists(
    st.tuples(st.integers(1, 7), st.integers(HEADER_BYTES, 300), st.binary(min_size=16, max_size=16)), max_size=4
)
"""Runs of datagrams of one length: how many, the length, and a key of each run."""


@pytest.mark.skipif(native("SwitchMachine") is None, reason="the native extension is not built")
@pytest.mark.parametrize("kernels", ["avx512", "avx2", "portable"])
@settings(max_examples=40)
@given(TRAINS, st.sampled_from(Direction), st.randoms(use_true_random=False))
def test_tags_that_are_computed_side_by_side_are_those_of_each_datagram_alone(
    kernels: str, trains: list[tuple[int, int, bytes]], direction: Direction, dice: random.Random
) -> None:
    from fanin import _native

    before = _native.kernels_in_use()
    if not _native.use_kernels(kernels):
        pytest.skip(f"this processor has no {kernels}")
    try:
        keys = [bytes(byte ^ place for byte in key) for count, _, key in trains for place in range(count)]
        data = [dice.randbytes(length) for count, length, _ in trains for _ in range(count)]
        tags = _native.packet_tags(keys, data, direction is Direction.TO_SWITCH)
    finally:
        assert _native.use_kernels(before)
    assert tags == [packet_tag.tag(key, each, direction) for key, each in zip(keys, data, strict=True)]

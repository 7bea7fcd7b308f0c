"""The wire format: golden packets, a round trip for every legal packet, and nothing but WireError for all else."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.numerics.reduction import WIDE_SUMS
from fanin.protocol.wire import (
    HEADER_BYTES,
    MAX_CODES,
    MAX_DATAGRAM_BYTES,
    MAX_RUN,
    OFFSET_CHECKSUM,
    OFFSET_CODE_COUNT,
    OFFSET_FLAGS,
    OFFSET_KIND,
    OFFSET_LANES,
    OFFSET_VERSION,
    WORD_BYTES,
    Flag,
    Kind,
    LaneField,
    Packet,
    Reason,
    WireError,
    codes_bytes,
    datagram_bytes,
    parse,
)
from tests.golden import generate

GOLDEN = json.loads((generate.HERE / "wire.json").read_text(encoding="utf-8"))
FIELDS = ("job", "worker", "flags", "generation", "slot", "base", "signature", "bitmap", "contributors")

word_lists = st.lists(st.integers(0, 2**32 - 1), max_size=40)
packets = st.builds(
    lambda words, **fields: Packet(words=np.array(words, np.uint32), **fields),
    kind=st.sampled_from(Kind),
    job=st.integers(0, 0xFFFF),
    worker=st.integers(0, 0xFF),
    flags=st.integers(0, 7).map(Flag),
    generation=st.integers(0, 2**32 - 1),
    slot=st.integers(0, 2**32 - 1),
    base=st.integers(0, 2**32 - 1),
    signature=st.integers(0, 2**32 - 1),
    bitmap=st.integers(0, 2**32 - 1),
    contributors=st.integers(0, 0xFFFF),
    codes=st.lists(st.integers(0, 0xFFFF), max_size=MAX_CODES).map(tuple),
    words=word_lists,
)


def fields_of(packet: Packet) -> dict[str, Any]:
    fields = {name: int(getattr(packet, name)) for name in FIELDS}
    return {
        **fields,
        "lanes": packet.lanes_field,
        "kind": packet.kind.name,
        "codes": list(packet.codes),
        "words": packet.words.tolist(),
    }


def reason_of(data: bytes) -> Reason | None:
    """Why these bytes are refused; None when they are legal. Anything but WireError escapes and fails the test."""
    try:
        parse(data)
    except WireError as error:
        return error.reason
    return None


LEGAL_LANES = {LaneField(*widths, shift=shift).field for widths in WIDE_SUMS.values() for shift in range(16)}


@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.RESULT, Kind.ANSWER, Kind.RECEIPT, Kind.HELLO])
def test_lanes_that_no_switch_adds_up_are_refused_and_so_are_any_of_packets_without_words(kind: Kind) -> None:
    data = Packet(kind=kind, words=np.zeros(4, np.uint32)).to_bytes()
    for field in range(1, 256):
        legal = field in LEGAL_LANES and kind in (Kind.CONTRIBUTION, Kind.RESULT, Kind.ANSWER)
        assert reason_of(with_byte(data, OFFSET_LANES, field)) is (None if legal else Reason.LENGTH)
        for flag in (Flag.PASS, Flag.BARE):
            # BARE in a contribution is about its result: it has words of its own.
            still_legal = legal and kind is Kind.CONTRIBUTION and flag is Flag.BARE
            flagged = with_byte(with_byte(data, OFFSET_LANES, field), OFFSET_FLAGS, flag)
            assert reason_of(flagged) is (None if still_legal else Reason.LENGTH)


def with_byte(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + bytes([value]) + data[offset + 1 :]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_packets_mean_what_they_say(case: dict[str, Any]) -> None:
    packet = parse(bytes.fromhex(case["bytes"]))
    assert fields_of(packet) == {name: case[name] for name in fields_of(packet)}
    assert packet.to_bytes().hex() == case["bytes"]


def test_every_kind_has_a_golden_packet() -> None:
    assert {case["kind"] for case in GOLDEN} == {kind.name for kind in Kind}


@given(packet=packets)
def test_a_packet_survives_the_wire(packet: Packet) -> None:
    data = packet.to_bytes()
    assert len(data) == datagram_bytes(len(packet.codes), len(packet.words))
    for buffer in (data, bytearray(data), memoryview(data)):
        assert fields_of(parse(buffer)) == fields_of(packet)


@given(packet=packets)
def test_every_prefix_is_refused_or_is_a_packet_with_fewer_words(packet: Packet) -> None:
    data = packet.to_bytes()
    words_at = HEADER_BYTES + codes_bytes(len(packet.codes))
    for length in range(len(data)):
        reason = reason_of(data[:length])
        if length < HEADER_BYTES:
            assert reason is Reason.TOO_SHORT
        elif length < words_at or (length - words_at) % WORD_BYTES:
            assert reason is Reason.LENGTH
        else:
            assert reason is (Reason.CHECKSUM if packet.flags & Flag.CHECKSUM else None)


@given(packet=packets, tail=st.binary(min_size=1, max_size=9))
def test_trailing_bytes_are_refused_unless_they_are_whole_words(packet: Packet, tail: bytes) -> None:
    reason = reason_of(packet.to_bytes() + tail)
    if len(tail) % WORD_BYTES:
        assert reason is Reason.LENGTH
    elif packet.flags & Flag.CHECKSUM:
        assert reason is Reason.CHECKSUM
    else:
        assert reason is None


@given(packet=packets, data=st.data())
def test_mutations_end_in_a_packet_or_in_a_wire_error(packet: Packet, data: st.DataObject) -> None:
    mutated = bytearray(packet.to_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        offset = data.draw(st.integers(0, min(len(mutated), HEADER_BYTES + 8) - 1))
        mutated[offset] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mutated)))
    for candidate in (bytes(mutated), bytes(mutated[:cut])):
        if reason_of(candidate) is None:
            survivor = parse(candidate)
            again = parse(survivor.to_bytes())
            assert fields_of(again) == fields_of(survivor)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_end_in_a_packet_or_in_a_wire_error(data: bytes) -> None:
    reason_of(data)
    reason_of(struct.pack("!HB", 0xFA19, 1) + data)


@given(packet=packets, bit=st.integers(0))
def test_a_checksum_finds_every_flipped_bit(packet: Packet, bit: int) -> None:
    data = bytearray(with_byte(packet.to_bytes(), OFFSET_FLAGS, packet.flags | Flag.CHECKSUM))
    data[OFFSET_CHECKSUM:HEADER_BYTES] = bytes(4)
    data[OFFSET_CHECKSUM:HEADER_BYTES] = struct.pack("!I", zlib.crc32(data))
    assert reason_of(bytes(data)) is None
    bit %= len(data) * 8
    data[bit // 8] ^= 1 << bit % 8
    is_checksum_flag = bit // 8 == OFFSET_FLAGS and 1 << bit % 8 == Flag.CHECKSUM
    assert (reason_of(bytes(data)) is None) == is_checksum_flag  # whoever wants checksums refuses packets without


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, 0x00, Reason.BAD_MAGIC),
        (1, 0x00, Reason.BAD_MAGIC),
        (OFFSET_VERSION, 0, Reason.VERSION),
        (OFFSET_VERSION, 2, Reason.VERSION),
        (OFFSET_KIND, 0, Reason.KIND),
        (OFFSET_KIND, max(Kind) + 1, Reason.KIND),
        (OFFSET_FLAGS, 16, Reason.LENGTH),
        (OFFSET_CODE_COUNT, MAX_CODES + 1, Reason.LENGTH),
        (OFFSET_CODE_COUNT, 0xFF, Reason.LENGTH),
        (OFFSET_LANES, 1, Reason.LENGTH),
    ],
)
def test_a_field_out_of_range_is_refused_under_its_own_reason(offset: int, value: int, reason: Reason) -> None:
    legal = Packet(kind=Kind.RESULT, words=np.zeros(200, np.uint32)).to_bytes()
    assert reason_of(legal) is None
    assert reason_of(with_byte(legal, offset, value)) is reason


passes = st.builds(
    Packet,
    kind=st.just(Kind.CONTRIBUTION),
    worker=st.integers(0, 31),
    flags=st.sampled_from([Flag.PASS, Flag.PASS | Flag.BARE, Flag.PASS | Flag.CHECKSUM]),
    slot=st.integers(0, 9),
    base=st.integers(0, 2**32 - 2),
    signature=st.integers(0, 9),
    bitmap=st.integers(0, 2**32 - 1),
)
bare_results = st.builds(
    Packet,
    kind=st.just(Kind.RESULT),
    worker=st.just(0xFF),
    flags=st.sampled_from([Flag.BARE, Flag.BARE | Flag.CHECKSUM]),
    slot=st.integers(0, 9),
    base=st.integers(0, 2**32 - 2),
    signature=st.integers(0, 9),
    bitmap=st.integers(0, 2**32 - 1),
    contributors=st.integers(0, 32),
)


@given(st.data(), passes | bare_results, st.integers(2, MAX_RUN + 2), st.integers(10, 40), st.integers(0, MAX_CODES))
def test_consecutive_packets_make_a_run_and_come_out_of_it_as_they_were(
    data: st.DataObject, first: Packet, count: int, slots: int, code_count: int
) -> None:
    """Each one's slot, base, order and codes: the rest is alike."""
    singles = []
    for index in range(count):
        at = first.slot + index
        codes = data.draw(st.tuples(*[st.integers(0, 0xFFFF)] * code_count)) if first.kind is Kind.RESULT else ()
        order = first.bitmap
        if first.kind is Kind.CONTRIBUTION and order:
            order = (order + index) % 2**32
        singles.append(replace(first, slot=at % slots, base=first.base + at // slots, bitmap=order, codes=codes))
    run: Packet | None = singles[0]
    for index, single in enumerate(singles[1:], 1):
        assert run is not None
        run = run.followed_by(single, slots)
        if index >= MAX_RUN:
            assert run is None
            return
    assert run is not None
    told = run.to_bytes()
    assert len(told) == HEADER_BYTES + count * codes_bytes(len(first.codes or singles[0].codes))
    assert [parse(told).part(index, slots).to_bytes() for index in range(count)] == [one.to_bytes() for one in singles]


@pytest.mark.parametrize(
    "changed",
    [{"slot": 4}, {"base": 6}, {"signature": 9}, {"bitmap": 22}, {"worker": 2}, {"generation": 1}, {"codes": (1,)},
     {"flags": Flag.PASS | Flag.BARE}, {"flags": Flag.PASS | Flag.LATE}, {"kind": Kind.RESULT}],
    ids=str,
)  # fmt: skip
def test_what_differs_makes_no_run(changed: dict[str, Any]) -> None:
    first = Packet(kind=Kind.CONTRIBUTION, flags=Flag.PASS, worker=1, slot=2, base=5, signature=8, bitmap=20)
    second = replace(first, slot=3, bitmap=21)
    assert first.followed_by(second, 8) is not None
    assert first.followed_by(replace(second, **changed), 8) is None


@pytest.mark.parametrize("run", [0, 1, MAX_RUN + 1, 255])
@pytest.mark.parametrize("codes", [(), (7,)])
def test_a_run_of_no_legal_length_is_refused(run: int, codes: tuple[int, ...]) -> None:
    words = np.zeros(max(run - 1, 0) * bool(codes), np.uint32)
    told = Packet(kind=Kind.RESULT, flags=Flag.BARE | Flag.RUN, codes=codes, words=words, run=2).to_bytes()
    assert reason_of(with_byte(told, OFFSET_LANES, run)) is Reason.LENGTH


@pytest.mark.parametrize(("kind", "flags"), [
    (Kind.CONTRIBUTION, Flag.RUN), (Kind.CONTRIBUTION, Flag.RUN | Flag.BARE), (Kind.RESULT, Flag.RUN),
    (Kind.RESULT, Flag.RUN | Flag.PASS), (Kind.ANSWER, Flag.RUN | Flag.BARE), (Kind.HELLO, Flag.RUN),
    (Kind.RECEIPT, Flag.RUN | Flag.BARE), (Kind.PROBE, Flag.RUN | Flag.PASS),
])  # fmt: skip
def test_only_passes_and_bare_results_come_as_runs(kind: Kind, flags: Flag) -> None:
    assert reason_of(Packet(kind=kind, flags=flags, run=2).to_bytes()) is Reason.LENGTH
    assert reason_of(Packet(kind=Kind.RESULT, flags=Flag.BARE | Flag.RUN, run=2).to_bytes()) is None


@pytest.mark.parametrize("words", [0, 1, 3, 15])
def test_a_run_has_exactly_the_codes_of_its_results(words: int) -> None:
    told = Packet(kind=Kind.RESULT, flags=Flag.BARE | Flag.RUN, codes=(7,), words=np.zeros(words, np.uint32), run=3)
    assert reason_of(told.to_bytes()) is Reason.LENGTH
    assert reason_of(replace(told, words=np.zeros(2, np.uint32)).to_bytes()) is None


def test_a_datagram_that_udp_cannot_carry_is_refused() -> None:
    most_words = (MAX_DATAGRAM_BYTES - HEADER_BYTES) // WORD_BYTES
    assert reason_of(Packet(kind=Kind.RESULT, words=np.zeros(most_words, np.uint32)).to_bytes()) is None
    assert reason_of(Packet(kind=Kind.RESULT, words=np.zeros(most_words + 1, np.uint32)).to_bytes()) is Reason.LENGTH


@given(code_count=st.integers(0, MAX_CODES), word_count=st.integers(0, 16_000))
def test_words_are_aligned_to_whole_words_after_any_number_of_codes(code_count: int, word_count: int) -> None:
    assert codes_bytes(code_count) % WORD_BYTES == 0
    assert 0 <= codes_bytes(code_count) - 2 * code_count < WORD_BYTES
    assert datagram_bytes(code_count, word_count) == HEADER_BYTES + codes_bytes(code_count) + 4 * word_count

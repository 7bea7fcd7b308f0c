"""Packets that are refused: under which reason they count, who is told, and that nothing else happens."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from fanin.protocol.wire import (
    HEADER_BYTES,
    MAX_DATAGRAM_BYTES,
    OFFSET_CHECKSUM,
    OFFSET_CODE_COUNT,
    OFFSET_FLAGS,
    OFFSET_KIND,
    OFFSET_LANES,
    OFFSET_MAGIC,
    OFFSET_VERSION,
    Flag,
    Kind,
    Packet,
    Reason,
    datagram_bytes,
)
from tests.support.bench import Bench, MachineType, address, make_spec, reasons


def patched(data: bytes, offset: int, *values: int) -> bytes:
    return data[:offset] + bytes(values) + data[offset + len(values) :]


def contribution(bench: Bench, **changes: object) -> bytes:
    packet = bench.packet(Kind.CONTRIBUTION, 0, words=(1, 2), codes=(3,))
    return dataclasses.replace(packet, **changes).to_bytes()  # type: ignore[arg-type]


def silently_dropped(bench: Bench, data: bytes, reason: str) -> bool:
    members = bench.machine.members(1)
    before = bench.dropped().get(reason, 0)
    sent = bench.say(data, address(0))
    assert bench.dropped() == {reason: before + 1}
    assert bench.machine.members(1) == members
    assert bench.counter("contributions") == bench.counter("passes") == 0
    return sent == []


@pytest.mark.parametrize("length", [0, 1, 2, 4, HEADER_BYTES - 1])
def test_too_short_for_a_header(machine_type: MachineType, length: int) -> None:
    bench = Bench(machine_type)
    assert silently_dropped(bench, contribution(bench)[:length], "too_short")


def test_another_magic(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert silently_dropped(bench, patched(contribution(bench), OFFSET_MAGIC, 0xFA, 0x18), "bad_magic")


@pytest.mark.parametrize("kind", [0, 11, 255])
def test_a_kind_that_does_not_exist(machine_type: MachineType, kind: int) -> None:
    bench = Bench(machine_type)
    assert silently_dropped(bench, patched(contribution(bench), OFFSET_KIND, kind), "kind")


@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.ANSWER, Kind.WELCOME, Kind.NOTICE, Kind.ECHO])
def test_kinds_that_only_a_switch_sends(machine_type: MachineType, kind: Kind) -> None:
    """Otherwise two switches, set up by a forged source address, could keep each other busy."""
    bench = Bench(machine_type)
    assert silently_dropped(bench, contribution(bench, kind=kind), "kind")


@pytest.mark.parametrize("cut", [1, 2, 3, 9, 10, 11, 12])
def test_lengths_that_are_no_whole_words_or_lack_codes(machine_type: MachineType, cut: int) -> None:
    bench = Bench(machine_type)
    data = contribution(bench)
    assert len(data) == HEADER_BYTES + 4 + 8
    if cut != 12 and cut % 4:
        assert silently_dropped(bench, data[:-cut], "length")
    if cut == 12:
        assert silently_dropped(bench, data[:-cut], "length"), "a code is announced and not there"


@pytest.mark.parametrize(
    ("offset", "value"), [(OFFSET_FLAGS, 8), (OFFSET_FLAGS, 0x80), (OFFSET_LANES, 1), (OFFSET_CODE_COUNT, 65)]
)
def test_reserved_bits_and_too_many_codes(machine_type: MachineType, offset: int, value: int) -> None:
    bench = Bench(machine_type)
    data = contribution(bench, words=bench.packet(Kind.HELLO, 0, words=[0] * 40).words)
    assert silently_dropped(bench, patched(data, offset, value), "length")


def test_longer_than_any_datagram(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    data = contribution(bench).ljust(MAX_DATAGRAM_BYTES + 1, b"\0")
    assert len(data) % 4 == 0
    assert silently_dropped(bench, data, "length")


@pytest.mark.parametrize("position", [OFFSET_CHECKSUM, HEADER_BYTES, -1])
def test_a_wrong_checksum(machine_type: MachineType, position: int) -> None:
    bench = Bench(machine_type)
    data = bytearray(contribution(bench, flags=Flag.CHECKSUM))
    data[position] ^= 0x10
    assert silently_dropped(bench, bytes(data), "checksum")


def test_a_rank_that_the_job_has_not(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for kind in (Kind.CONTRIBUTION, Kind.HELLO, Kind.BYE):
        for worker in (2, 31, 32, 255):
            data = contribution(bench, kind=kind, worker=worker, codes=())
            assert silently_dropped(bench, data, "worker_range")


@pytest.mark.parametrize("slot", [2, 2**31, 2**32 - 1])
def test_a_slot_that_the_job_has_not(machine_type: MachineType, slot: int) -> None:
    bench = Bench(machine_type)
    assert silently_dropped(bench, contribution(bench, slot=slot), "slot_range")


def test_contributions_that_do_not_fit_the_job(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(words=16, codes=2))
    nine = bench.packet(Kind.HELLO, 0, words=[0] * 17).words
    assert silently_dropped(bench, contribution(bench, codes=(1, 2), words=nine), "length")
    assert silently_dropped(bench, contribution(bench, codes=(1,)), "length")
    assert silently_dropped(bench, contribution(bench, codes=(1, 2, 3)), "length")


def test_a_pass_with_anything_in_it(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert silently_dropped(bench, contribution(bench, flags=Flag.PASS), "length")
    assert silently_dropped(bench, contribution(bench, flags=Flag.PASS, codes=()), "length")
    empty = bench.packet(Kind.CONTRIBUTION, 0).words
    assert silently_dropped(bench, contribution(bench, flags=Flag.PASS, words=empty), "length")


# --- those who are told ---


@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.HELLO, Kind.BYE])
def test_a_job_that_is_not_there(machine_type: MachineType, kind: Kind) -> None:
    bench = Bench(machine_type)
    for job in (0, 2, 65535):
        sent = bench.say(contribution(bench, kind=kind, job=job), 7)
        assert reasons(sent) == [(Reason.UNKNOWN_JOB, 7)]
        assert (sent[0][0].job, sent[0][0].words.tolist()) == (job, [0, 0])
    bench.machine.remove(1)
    assert reasons(bench.say(contribution(bench, kind=kind), address(0))) == [(Reason.UNKNOWN_JOB, 100)]


@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.HELLO, Kind.BYE])
def test_an_old_generation(machine_type: MachineType, kind: Kind) -> None:
    bench = Bench(machine_type)
    sent = bench.say(contribution(bench, kind=kind, generation=bench.spec.generation ^ 1), address(0))
    assert reasons(sent) == [(Reason.GENERATION, 100)]
    assert bench.dropped() == {"generation": 1}


@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.HELLO, Kind.BYE, Kind.PROBE])
def test_another_protocol_version(machine_type: MachineType, kind: Kind) -> None:
    bench = Bench(machine_type)
    data = patched(contribution(bench, kind=kind, slot=3, base=4), OFFSET_VERSION, 2)
    ((notice, destination),) = bench.say(data, 7)
    assert destination == 7
    assert (notice.kind, notice.contributors, notice.job, notice.slot, notice.base) == (Kind.NOTICE, 3, 1, 3, 4)
    assert bench.dropped() == {"version": 1}


@pytest.mark.parametrize("kind", [0, Kind.RESULT, Kind.NOTICE, Kind.ECHO, 200])
def test_another_version_of_a_switch_is_not_answered(machine_type: MachineType, kind: int) -> None:
    """Two switches of different versions would otherwise notify each other for ever."""
    bench = Bench(machine_type)
    data = patched(contribution(bench), OFFSET_VERSION, 2, kind)
    assert silently_dropped(bench, data, "version")


# --- probes, and how much a stranger can make a switch send ---


@pytest.mark.parametrize("word_count", [0, 1, 300, (MAX_DATAGRAM_BYTES - HEADER_BYTES) // 4])
@pytest.mark.parametrize("flags", [Flag(0), Flag.CHECKSUM])
def test_a_probe_comes_back_as_it_is(machine_type: MachineType, word_count: int, flags: Flag) -> None:
    bench = Bench(machine_type, registered=False)
    probe = bench.packet(Kind.PROBE, 9, flags=flags, slot=4, words=range(word_count))
    ((echo, destination),) = bench.say(probe, 3)
    assert destination == 3
    assert echo.to_bytes() == dataclasses.replace(probe, kind=Kind.ECHO).to_bytes()


def test_strangers_get_at_most_8_bytes_more_than_they_send(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    for kind in range(12):
        for version in (1, 2):
            for words in ((), (0, 0), (bench.spec.tokens[0] >> 32, bench.spec.tokens[0] & 0xFFFFFFFF), (1,) * 5):
                for job in (1, 2):
                    packet = bench.packet(Kind.HELLO, 0, words=words)
                    data = patched(dataclasses.replace(packet, job=job).to_bytes(), OFFSET_VERSION, version, kind)
                    bench.machine.receive_datagram(data, 7, 0.0)
                    sent = bench.machine.datagrams_to_send(0.0)
                    assert len(sent) <= 1
                    assert all(destination == 7 for _, destination in sent)
                    assert sum(len(out) for out, _ in sent) <= len(data) + 8


def test_what_is_refused_is_counted_where_it_belongs(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    bench.machine.admit(make_spec(job=2))
    before = bench.machine.job_counters(1)["packets_in"]
    bench.say(contribution(bench, generation=1), address(0))
    bench.say(contribution(bench)[:10], address(0))
    assert bench.machine.job_counters(1)["packets_in"] == before + 1
    assert bench.machine.job_counters(1)["dropped_generation"] == 1
    assert bench.machine.job_counters(1)["dropped_too_short"] == 0
    assert sum(bench.machine.job_counters(2).values()) == 0
    assert bench.machine.counters()["packets_in"] == before + 2


def test_every_prefix_of_every_kind_is_survived(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(checksum=False))
    for kind in Kind:
        data = Packet(kind=kind, job=1, generation=bench.spec.generation, words=bench.hello(0).words).to_bytes()
        for length in range(len(data) + 1):
            bench.say(data[:length], address(0))
            bench.say(data + b"\0" * length, address(0))
    assert bench.counter("packets_in") > 500


@pytest.mark.parametrize("offset", range(0, HEADER_BYTES, 4))
def test_every_bit_of_the_header_can_be_flipped(machine_type: MachineType, offset: int) -> None:
    bench = Bench(machine_type)
    data = contribution(bench)
    (word,) = struct.unpack_from("!I", data, offset)
    for bit in range(32):
        flipped = patched(data, offset, *struct.pack("!I", word ^ 1 << bit))
        for packet, destination in bench.say(flipped, address(0)):
            assert destination == address(0)
            assert len(packet.to_bytes()) <= max(len(data), datagram_bytes(0, 2))

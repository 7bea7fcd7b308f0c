"""native/wire/wire_constants.hpp and p4/shared/constants.p4 are what the Python modules say, to the letter."""

import re
from pathlib import Path

from fanin.constants import cpp_header, p4_header, shared_constants
from fanin.protocol import job, timers, wire
from tools import p4_words

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_header_has_not_drifted() -> None:
    committed = (ROOT / "native" / "wire" / "wire_constants.hpp").read_text(encoding="utf-8")
    assert committed == cpp_header(), "run: python -m fanin.constants native/wire/wire_constants.hpp"


def test_the_committed_p4_constants_have_not_drifted() -> None:
    committed = (ROOT / "p4" / "shared" / "constants.p4").read_text(encoding="utf-8")
    assert committed == p4_header(), "run: python -m fanin.constants p4/shared/constants.p4"


def test_the_committed_p4_loops_have_not_drifted() -> None:
    committed = (ROOT / "p4" / "tna" / "words.p4").read_text(encoding="utf-8")
    assert committed == p4_words.text(), "run: python -m tools.p4_words > p4/tna/words.p4"
    assert p4_words.MAX_WORKERS == wire.MAX_WORKERS


def test_the_p4_header_has_its_fields_where_the_wire_format_has_them() -> None:
    text = (ROOT / "p4" / "shared" / "headers.p4").read_text(encoding="utf-8")
    (body,) = re.findall(r"header fanin_t \{(.*?)\}", text, re.DOTALL)
    at_bits, offsets = 0, {}
    for width, name in re.findall(r"bit<(\d+)> (\w+);", body):
        offsets[name] = at_bits
        at_bits += int(width)
    assert at_bits == wire.HEADER_BYTES * 8
    shared = shared_constants(wire)
    offsets["lanes"] = offsets.pop("reserved")  # to a pipeline, which adds whole words
    assert offsets == {name: shared[f"OFFSET_{name.upper()}"] * 8 for name in offsets}


def test_every_module_shares_only_what_it_defines_itself() -> None:
    assert shared_constants(wire)["HEADER_BYTES"] == 36
    assert "MAX_WORKERS" not in shared_constants(job)
    assert shared_constants(job)["LIVENESS_TIMEOUT_S"] == job.LIVENESS_TIMEOUT_S
    assert shared_constants(timers)["ALPHA"] == 1 / 8


def test_every_kind_flag_and_reason_is_in_the_header() -> None:
    header = cpp_header()
    for flag in wire.Flag:
        assert f" FLAG_{flag.name} = {flag.value};" in header
    for member in [*wire.Kind, *wire.Reason]:
        assert f"  {member.name.lower()} = {member.value}," in header


def test_offsets_are_where_the_header_struct_puts_them() -> None:
    offsets = [value for name, value in shared_constants(wire).items() if name.startswith("OFFSET_")]
    packet = wire.Packet(kind=wire.Kind.ANSWER, job=0x0101, worker=2, flags=wire.Flag.BARE, generation=3).to_bytes()
    assert offsets == sorted(offsets)
    assert packet[wire.OFFSET_KIND] == wire.Kind.ANSWER
    assert packet[wire.OFFSET_JOB : wire.OFFSET_JOB + 2] == b"\1\1"
    assert packet[wire.OFFSET_WORKER] == 2
    assert packet[wire.OFFSET_FLAGS] == wire.Flag.BARE
    assert packet[wire.OFFSET_GENERATION : wire.OFFSET_SLOT] == b"\0\0\0\3"

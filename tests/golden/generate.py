"""Writes the golden vectors: `python -m tests.golden.generate`. Another implementation of fanin starts from these.

tests/golden/numerics.json: for each case the inputs of every worker and what the numerics make of them, as hexadecimal
bytes: elements little-endian (as in memory), codes and words big-endian (as on the wire).
tests/golden/exact.json: the same of exact reductions.
tests/golden/wide_sums.json: the same of wide sums.
tests/golden/wire.json: a packet of every kind, its bytes and its fields.
tests/golden/tags.json: those that workers and a switch send each other, with keyed tags.

The numpy oracle writes them, and the tests hold it, the native kernels and this script to what is committed: a change
of a bit is a change of the protocol, and shows as a diff.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.numerics import exact
from fanin.numerics.fixed_point import DTYPES, Array, Codec
from fanin.numerics.reduction import WIDE_SUMS, Element, Operator
from fanin.numerics.wide_sums import WideCodec, accumulated, narrowed
from fanin.protocol.packet_tag import MemberKeys, PacketKeys
from fanin.protocol.tag_algorithm import GCM_SIV, SIPHASH, TagAlgorithm
from fanin.protocol.wire import HELLO_RUNS, Flag, Kind, LaneField, Packet, Reason

HERE = Path(__file__).parent
BLOCK_ELEMENTS = 16
COUNT = 37
"""Two full blocks and a tail that fills no word of narrow lanes."""

EXTREMES = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.0**-149, 2.0**-126, 3.4028234663852886e38, 1e-20, -(2.0**100), 65504.0)


def numerics_cases() -> list[dict[str, Any]]:
    """Every element over every lane width, with factor, divisor, error feedback, extremes and NaN among them."""
    cases = []
    for element in sorted(set(Element) - {Element.INT64}):
        for lanes in (32, 16, 8, 4) if element.floating and element is not Element.FLOAT64 else (32,):
            for contributions, factor, divisor in ((4, 1.0, 1.0), (3, 0.75, 3.0)):
                if not element.floating:
                    factor = divisor = 1.0
                seed = 1000 * element + 10 * lanes + contributions
                cases.append(_case(element, lanes, contributions, factor, divisor, seed))
    return cases


def _case(element: Element, lanes: int, contributions: int, factor: float, divisor: float, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    codec = Codec(element, lanes, contributions)
    inputs = [_input(element, generator) for _ in range(contributions)]
    feedback = element.floating and element is not Element.FLOAT64 and factor != 1.0
    residuals = [generator.normal(size=COUNT).astype(np.float32) if feedback else None for _ in inputs]
    pairs = list(zip(inputs, residuals, strict=True))
    own = [codec.codes(x, BLOCK_ELEMENTS, factor, residual) for x, residual in pairs]
    agreed = np.max(own, axis=0)
    words = [codec.quantize(x, agreed, BLOCK_ELEMENTS, factor, residual) for x, residual in pairs]
    total = np.array(words).sum(axis=0, dtype=np.uint32)
    after = [codec.residual_after(x, agreed, BLOCK_ELEMENTS, factor, residual) for x, residual in pairs if feedback]
    return {
        "element": element.name,
        "lanes": lanes,
        "contributions": contributions,
        "count": COUNT,
        "block_elements": BLOCK_ELEMENTS,
        "factor": factor,
        "divisor": divisor,
        "bound": codec.bound,
        "inputs": [_hex(x) for x in inputs],
        "residuals": [_hex(residual) for residual in residuals if residual is not None],
        "own_codes": [_hex(codes.astype(">u2")) for codes in own],
        "agreed_codes": _hex(agreed.astype(">u2")),
        "words": [_hex(each.astype(">u4")) for each in words],
        "sum": _hex(total.astype(">u4")),
        "result": _hex(codec.dequantize(total, agreed, BLOCK_ELEMENTS, COUNT, contributions, divisor)),
        "residuals_after": [_hex(each) for each in after],
    }


def _input(element: Element, generator: np.random.Generator) -> Array:
    """Values of one magnitude in the first block, extremes in the second, a NaN now and then in the tail."""
    dtype = DTYPES[element]
    if not element.floating:
        return generator.integers(0, 256, COUNT * element.bytes, np.uint8).view(dtype)
    values = generator.normal(size=COUNT)
    values[BLOCK_ELEMENTS : BLOCK_ELEMENTS + len(EXTREMES)] = generator.permutation(EXTREMES)
    if generator.random() < 0.1:
        values[-1] = np.nan
    if element is Element.FLOAT16:
        values = np.where(np.abs(values) > 65504.0, 1.0, values)
    if element is Element.BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(dtype)


def exact_cases() -> list[dict[str, Any]]:
    """Every element and operator of three ranks: words of each, their sum, the result, also without rank 1."""
    cases = []
    for element in Element:
        for operator in Operator:
            if operator.bitwise and element.floating:
                continue
            generator = np.random.default_rng(100 * element + operator)
            inputs = [_exact_input(element, generator) for _ in range(3)]
            words = [exact.encode(x, element) for x in inputs]
            row = np.concatenate(words)
            divisor = 3.0 if element.floating and operator is Operator.SUM else 1.0
            codec = exact.ExactCodec(element, operator, 3)
            cases.append(
                {
                    "element": element.name,
                    "operator": operator.name,
                    "count": COUNT,
                    "divisor": divisor,
                    "inputs": [_hex(x) for x in inputs],
                    "words": [_hex(each.astype(">u4")) for each in words],
                    "result": _hex(codec.decode(row, COUNT)),
                    "mean": _hex(codec.decode(row, COUNT, divisor)),
                    "without_rank_1": _hex(codec.decode(row, COUNT, present=0b101)),
                }
            )
    return cases


def wide_cases() -> list[dict[str, Any]]:
    """Wide sums of four workers at every width: their words, the narrowed sum with its shift, the mean."""
    cases = []
    for number, (up, down) in WIDE_SUMS.items():
        for element in (Element.FLOAT32, Element.FLOAT16, Element.BFLOAT16):
            generator = np.random.default_rng(1000 * element + number)
            codec = WideCodec(element, number, 4)
            inputs = [_input(element, generator) for _ in range(4)]
            agreed = np.max([codec.fixed.codes(x, BLOCK_ELEMENTS) for x in inputs], axis=0)
            words = [codec.quantize(x, agreed, BLOCK_ELEMENTS, 1.0, None) for x in inputs]
            total = np.asarray(sum(accumulated(each, codec.lanes, 2) for each in words), np.int16)
            result, shift = narrowed(total, down)
            cases.append(
                {
                    "element": element.name, "up": up, "down": down, "count": COUNT, "block_elements": BLOCK_ELEMENTS,
                    "inputs": [_hex(x) for x in inputs], "agreed_codes": _hex(agreed.astype(">u2")),
                    "words": [_hex(each.astype(">u4")) for each in words], "sums": total.tolist(),
                    "narrowed": _hex(result.astype(">u4")), "shift": shift,
                    "mean": _hex(codec.dequantize(result, agreed, BLOCK_ELEMENTS, COUNT, 4, 4.0, shift)),
                }
            )  # fmt: skip
    return cases


def _exact_input(element: Element, generator: np.random.Generator) -> Array:
    """Any bits, and among floats those that are special, more than chance would have them."""
    bits = generator.integers(0, 256, COUNT * element.bytes, np.uint8).view(DTYPES[element])
    if element.floating:
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 5e-324, 3e38, 65504.0])
        bits[: len(special)] = exact.narrow(generator.permutation(special), element)
    return bits


def wire_packets() -> dict[str, Packet]:
    """At least one packet of every kind, with each field in use somewhere."""
    token = np.array([0x01234567, 0x89ABCDEF], np.uint32)
    words = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32)
    job: dict[str, Any] = {"job": 7, "generation": 0xCAFEF00D}
    aggregate: dict[str, Any] = {**job, "slot": 3, "base": 5, "signature": 0x5EED5EED}
    masks = np.array([0b0100, 0b1000], np.uint32)
    switch: dict[str, Any] = {**aggregate, "bitmap": 0b1111, "contributors": 4}
    return {
        "hello": Packet(kind=Kind.HELLO, worker=2, slot=9, bitmap=HELLO_RUNS, words=token, **job),
        "hello_padded": Packet(kind=Kind.HELLO, worker=2, words=np.pad(token, (0, 8)), **job),
        "welcome": Packet(kind=Kind.WELCOME, worker=2, slot=9, bitmap=0b0111, words=masks, **job),
        "contribution": Packet(kind=Kind.CONTRIBUTION, worker=1, codes=(0x7FE0,), words=words, **aggregate),
        "contribution_codes_only": Packet(kind=Kind.CONTRIBUTION, worker=1, codes=(1, 2, 0xFFFF), **aggregate),
        "contribution_with_order": Packet(
            kind=Kind.CONTRIBUTION, worker=1, bitmap=0xFEDCBA98, words=words, **aggregate
        ),
        "receipt": Packet(
            kind=Kind.RECEIPT, worker=1, slot=0xFEDCBA98, signature=0xFEDCBA99, bitmap=0xFFFFFFFB, contributors=1, **job
        ),
        "contribution_of_lanes": Packet(
            kind=Kind.CONTRIBUTION, worker=1, codes=(0x7FE0,), words=words, lanes=LaneField(4, 8), **aggregate
        ),
        "contribution_of_a_branch": Packet(
            kind=Kind.CONTRIBUTION, worker=1, contributors=9, words=words, lanes=LaneField(8, 8, 3), **aggregate
        ),
        "result_of_lanes": Packet(kind=Kind.RESULT, worker=0xFF, words=words, lanes=LaneField(8, 8, 2), **switch),
        "contribution_of_integers": Packet(kind=Kind.CONTRIBUTION, worker=1, words=words, **aggregate),
        "pass": Packet(kind=Kind.CONTRIBUTION, worker=1, flags=Flag.PASS, **aggregate),
        "late_pass": Packet(kind=Kind.CONTRIBUTION, worker=1, flags=Flag.PASS | Flag.LATE, **aggregate),
        "run_of_passes": Packet(
            kind=Kind.CONTRIBUTION, worker=1, flags=Flag.PASS | Flag.RUN, bitmap=0xFFFFFFFF, run=16, **aggregate
        ),
        "run_of_bare_results": Packet(
            kind=Kind.RESULT, worker=0xFF, flags=Flag.BARE | Flag.RUN, codes=(0x7FE0, 0, 1),
            words=np.array([0x7FE17FE2, 0x7FE30000, 0x7FE40000, 0x00050000], np.uint32), run=3, **switch,
        ),
        "welcome_to_runs": Packet(
            kind=Kind.WELCOME, worker=2, flags=Flag.RUN, slot=9, bitmap=0b0111, words=masks, **job
        ),
        "result": Packet(kind=Kind.RESULT, worker=0xFF, codes=(0x7FE0, 0), words=words, **switch),
        "result_of_passes": Packet(kind=Kind.RESULT, worker=0xFF, bitmap=0b1111, **aggregate),
        "result_checksummed": Packet(kind=Kind.RESULT, worker=0xFF, flags=Flag.CHECKSUM, words=words, **switch),
        "answer": Packet(kind=Kind.ANSWER, worker=3, codes=(0x7FE0, 0), words=words, **switch),
        "answer_bare": Packet(kind=Kind.ANSWER, worker=3, flags=Flag.BARE, **switch),
        "notice_worker_lost": Packet(kind=Kind.NOTICE, worker=1, contributors=Reason.WORKER_LOST, words=masks, **job),
        "bye": Packet(kind=Kind.BYE, worker=2, words=token, **job),
        "probe": Packet(kind=Kind.PROBE, slot=1, words=np.zeros(4, np.uint32)),
        "echo": Packet(kind=Kind.ECHO, slot=1, words=np.zeros(4, np.uint32)),
        "largest_fields": Packet(
            kind=Kind.ANSWER, job=0xFFFF, worker=0xFF, flags=Flag.PASS | Flag.CHECKSUM | Flag.BARE | Flag.LATE,
            generation=0xFFFFFFFF, slot=0xFFFFFFFF, base=0xFFFFFFFF, signature=0xFFFFFFFF, bitmap=0xFFFFFFFF,
            contributors=0xFFFF, codes=(0xFFFF,) * 64, words=np.full(2, 0xFFFFFFFF, np.uint32),
        ),
    }  # fmt: skip


def wire_cases() -> list[dict[str, Any]]:
    """The packets as plain data."""
    return [
        {
            "name": name,
            "kind": packet.kind.name,
            "job": packet.job,
            "worker": packet.worker,
            "flags": int(packet.flags),
            "generation": packet.generation,
            "slot": packet.slot,
            "base": packet.base,
            "signature": packet.signature,
            "bitmap": packet.bitmap,
            "contributors": int(packet.contributors),
            "lanes": packet.lanes_field,
            "codes": list(packet.codes),
            "words": packet.words.tolist(),
            "bytes": packet.to_bytes().hex(),
        }
        for name, packet in wire_packets().items()
    ]


TAG_KEY = bytes(range(16))
TAG_TOKENS = tuple(0x0123456789ABCDEF + worker for worker in range(4))


def tag_cases(algorithm: TagAlgorithm) -> list[dict[str, Any]]:
    """The packets that workers and a switch send each other, and a long one, with their keyed tags."""
    packets = wire_packets()
    packets["contribution_of_300_words"] = replace(packets["contribution"], words=np.arange(300, dtype=np.uint32))
    packets["result_of_300_words"] = replace(packets["result"], words=np.arange(300, dtype=np.uint32))
    cases: list[dict[str, Any]] = []
    for name, packet in packets.items():
        if packet.kind in (Kind.PROBE, Kind.ECHO) or packet.flags & Flag.CHECKSUM:
            continue
        if packet.kind in (Kind.CONTRIBUTION, Kind.HELLO, Kind.BYE):
            said = MemberKeys(TAG_KEY, TAG_TOKENS[packet.worker], algorithm).finish(packet.to_bytes())
            cases.append({"name": name, "worker": packet.worker, "direction": "TO_SWITCH", "bytes": said.hex()})
        if packet.kind not in (Kind.CONTRIBUTION, Kind.HELLO):
            said = PacketKeys(TAG_KEY, TAG_TOKENS, algorithm).finish(packet.to_bytes())
            cases.append({"name": name, "worker": packet.worker, "direction": "FROM_SWITCH", "bytes": said.hex()})
    return cases


def _hex(array: npt.NDArray[Any]) -> str:
    return array.tobytes().hex()


def files() -> dict[str, str]:
    """The text of each golden file, by its name."""
    cases = {"numerics.json": numerics_cases(), "exact.json": exact_cases(), "wire.json": wire_cases()}
    cases["tags.json"], cases["tags_gcm_siv.json"] = tag_cases(SIPHASH), tag_cases(GCM_SIV)
    cases["wide_sums.json"] = wide_cases()
    return {name: json.dumps(rows, indent=1) + "\n" for name, rows in cases.items()}


if __name__ == "__main__":
    for file_name, text in files().items():
        (HERE / file_name).write_text(text, encoding="utf-8")

"""Hashes and checksums: the algorithms that v1model names, and the bytes that they are computed over."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable

from fanin.errors import UnsupportedError
from fanin.switch.p4.bounds import MAX_FIELD_BITS, MAX_HASHED_BITS, SourceBudget
from fanin.switch.p4.document import Node
from fanin.switch.p4.layout import Header, Layout

Algorithm = Callable[[bytes], int]


def internet_checksum(data: bytes) -> int:
    """The ones' complement of the ones' complement sum of 16-bit words (RFC 1071)."""
    value = int.from_bytes(data + b"\0" * (len(data) % 2), "big")
    total = value % 0xFFFF or (0xFFFF if value else 0)  # 2^16 is 1 modulo 0xFFFF, which is the end-around carry
    return ~total & 0xFFFF


def crc16(data: bytes) -> int:
    """CRC-16/ARC: polynomial 0x8005, reflected, no initial and no final value."""
    remainder = 0
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xA001 if remainder & 1 else 0)
    return remainder


def crc_ccitt(data: bytes) -> int:
    """CRC-16/CCITT-FALSE: polynomial 0x1021, initially 0xFFFF, not reflected."""
    return binascii.crc_hqx(data, 0xFFFF)


def identity(data: bytes) -> int:
    """The first eight bytes as they are."""
    return int.from_bytes(data[:8], "big")


def xor16(data: bytes) -> int:
    """Exclusive or of the 16-bit words, the last one padded."""
    padded, folded = data + b"\0" * (len(data) % 2), 0
    for at in range(0, len(padded), 2):
        folded ^= padded[at] << 8 | padded[at + 1]
    return folded


ALGORITHMS: dict[str, Algorithm] = {
    "csum16": internet_checksum,
    "cksum16": internet_checksum,
    "crc16": crc16,
    "crc16_custom": crc16,
    "crc32": zlib.crc32,
    "crc32_custom": zlib.crc32,
    "crcCCITT": crc_ccitt,
    "identity": identity,
    "xor16": xor16,
}
"""Algorithms by their name in a compiled program. The custom ones keep their initial parameters."""


def algorithm(node: Node) -> Algorithm:
    """The algorithm that `node` names; UnsupportedError for any other."""
    if node.text not in ALGORITHMS:
        raise UnsupportedError(f"{node.path}: hash algorithm {node.text!r} is not implemented")
    return ALGORITHMS[node.text]


def calculation_source(symbol: str, node: Node, layout: Layout, budget: SourceBudget) -> list[str]:
    """A function `symbol(f, k)` that collects the input of calculation `node` and returns its hash.

    Fields of headers that are not valid are left out. The last byte is padded with zeros.
    """
    lines = [f"def {symbol}(f, k):", " v = n = 0"]
    payload, total = "", 0
    for each in node["input"]:
        kind = each["type"].text
        total += _input_bits(each, kind, layout)
        if total > MAX_HASHED_BITS:
            raise each.fail(f"the input up to here has {total:,} bits; at most {MAX_HASHED_BITS:,}")
        budget.spend(lines[-1:])
        if kind == "payload":
            payload = " + k.payload"
        elif kind == "hexstr":
            bits = _input_bits(each, kind, layout)
            value = each["value"].hexadecimal & ((1 << bits) - 1)
            lines.append(f" v = v << {bits} | {value:#x}; n += {bits}")
        elif kind == "field":
            header = layout.header(each["value"][0])
            place, field = layout.field(each["value"])
            width = f"f[{header.valid + 1}]" if field.variable else str(field.bits)
            lines += _when_valid(header, f"v = v << {width} | {field.unsigned(f'f[{place}]')}; n += {width}")
        elif kind == "header":
            header = layout.header(each["value"])
            parts = []
            for at, field in enumerate(header.type.fields):
                width = f"f[{header.valid + 1}]" if field.variable else str(field.bits)
                parts.append(f"v = v << {width} | {field.unsigned(f'f[{header.base + at}]')}; n += {width}")
            lines += _when_valid(header, "; ".join(parts))
        else:
            raise UnsupportedError(f"{each.path}: inputs of type {kind!r} are not implemented")
    lines.append(f" return H_{symbol}((v << (-n & 7)).to_bytes((n + 7) // 8, 'big'){payload})")
    return lines


def _input_bits(node: Node, kind: str, layout: Layout) -> int:
    if kind == "hexstr":
        return node["bitwidth"].at_most(MAX_FIELD_BITS, "bits of a constant")
    if kind == "field":
        return layout.field(node["value"])[1].bits
    return layout.header(node["value"]).type.state_bits if kind == "header" else 0


def _when_valid(header: Header, statement: str) -> list[str]:
    return [f" {statement}" if header.metadata else f" if f[{header.valid}]: {statement}"]

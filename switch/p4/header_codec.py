"""Python source that reads headers from bytes and writes them: struct if all fields are machine words, else shifts."""

from __future__ import annotations

import struct

from fanin.errors import UnsupportedError
from fanin.switch.p4.layout import Field, Header, HeaderType

CODES = {8: ("B", "b"), 16: ("H", "h"), 32: ("I", "i"), 64: ("Q", "q")}
"""Format letters of struct by width in bits: unsigned and signed."""


def word_format(kind: HeaderType) -> struct.Struct | None:
    """The struct of a header whose fields all have 8, 16, 32 or 64 bits; None for any other header."""
    if any(field.bits not in CODES or field.variable for field in kind.fields) or not kind.fields:
        return None
    return struct.Struct("!" + "".join(CODES[field.bits][field.signed] for field in kind.fields))


def read_lines(kind: HeaderType, base: str, symbol: str) -> list[str]:
    """Statements that read a header without a variable part from bytes `d` at `a`, into places from `base` on.

    `symbol` names its struct, if it has one.
    """
    count, size = len(kind.fields), kind.fixed_bits // 8
    if not count:
        return []
    if word_format(kind) is not None:
        return [f"f[{base}:{base} + {count}] = {symbol}.unpack_from(d, a)"]
    lines, left = [f"x = int.from_bytes(d[a:a + {size}], 'big')"], kind.fixed_bits
    for at, field in enumerate(kind.fields):
        left -= field.bits
        lines.append(f"f[{base} + {at}] = {_cut(field, 'x', left)}")
    return lines


def read_variable_lines(kind: HeaderType, base: str, too_long: int) -> list[str]:
    """Statements that read a header with a variable part of `n` bits; `too_long`: error code of a longer one."""
    variable = kind.variable
    assert variable is not None
    most = kind.max_bytes if kind.max_bytes is not None else (kind.fixed_bits + variable.bits) // 8
    after = sum(field.bits for field in kind.fields[variable.offset + 1 :])
    lines = [
        f"if {kind.fixed_bits} + n > {most * 8}: raise ParserStop({too_long}, a)",
        f"x = int.from_bytes(d[a:a + ({kind.fixed_bits} + n) // 8], 'big')",
        f"f[{base} + {len(kind.fields) + 1}] = n",
    ]
    left = kind.fixed_bits
    for at, field in enumerate(kind.fields):
        if field.variable:
            lines.append(f"f[{base} + {at}] = x >> {after} & ((1 << n) - 1)")
            continue
        left -= field.bits
        shift = str(left) if at > variable.offset else f"({left} + n)"
        lines.append(f"f[{base} + {at}] = {_cut(field, 'x', shift)}")
    return lines


def _cut(field: Field, source: str, shift: int | str) -> str:
    moved = source if shift == 0 else f"{source} >> {shift}"
    return field.wrapped(f"({moved})" if field.signed else moved)


def bytes_source(header: Header, symbol: str) -> str:
    """Source of an expression for the bytes of a header."""
    kind, base = header.type, header.base
    if not kind.fields:
        return "b''"
    if word_format(kind) is not None:
        return f"{symbol}.pack(*f[{base}:{header.end}])"
    if kind.fixed_bits == 0 and kind.variable is None:
        raise UnsupportedError(f"header {header.name}: a header without bits cannot be emitted")
    parts, left, variable = [], "", kind.variable
    shift = 0
    for field in reversed(kind.fields):
        moved = (
            f"{field.unsigned(f'f[{base + field.offset}]')} << {shift}{left}"
            if shift or left
            else (field.unsigned(f"f[{base + field.offset}]"))
        )
        parts.append(moved)
        if field.variable:
            left = f" + f[{header.valid + 1}]"
        else:
            shift += field.bits
    length = str(kind.fixed_bits // 8) if variable is None else f"{kind.fixed_bits // 8} + f[{header.valid + 1}] // 8"
    return f"({' | '.join(parts)}).to_bytes({length}, 'big')"

"""Writes the constants that C++ and P4 share with Python:
`python -m fanin.constants native/wire/wire_constants.hpp`, or
`p4/shared/constants.p4`.

The Python modules are the source: offsets, kinds, flags, reasons and limits of fanin.protocol.wire, the liveness times
of fanin.protocol.job, the retransmission timer of fanin.protocol.timers, the window and pace of fanin.protocol.pace,
the values of fanin.protocol.ecn.
Nobody copies a number by hand;
tests/wire/test_constants.py fails when a committed file and the modules drift apart.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from types import ModuleType

from fanin.protocol import ecn, job, pace, timers, wire

ENUM_TYPES: dict[type[enum.IntEnum], str] = {wire.Kind: "std::uint8_t", wire.Reason: "std::uint16_t"}
"""Enumerations that are shared, with their width on the wire (a Reason travels in the contributors field)."""

P4_REASONS = [reason for reason in wire.Reason if reason < wire.Reason.WORKER_JOINED]
"""Reasons that a pipeline may report: only software switches take newcomers in, or are leaves of trees."""
P4_KINDS = [kind for kind in wire.Kind if kind is not wire.Kind.RECEIPT]
"""Kinds that a pipeline may read or send: only software switches give receipts."""
P4_FLAGS = [flag for flag in wire.Flag if flag is not wire.Flag.RUN]
"""Flags that a pipeline may read or send: only software switches take and send runs."""
P4_WIDTHS = {
    "MAGIC": 16,
    "VERSION": 8,
    "HEADER_BYTES": 16,
    "MAX_CODES": 8,
    "MAX_WORKERS": 8,
    "MAX_BASE": 32,
    "SWITCH_WORKER": 8,
}
"""Constants of fanin.protocol.wire that P4 programs need, each with the width in bits of the field it is compared with.
"""


def shared_constants(module: ModuleType) -> dict[str, int | float]:
    """The public upper-case numbers that `module` itself defines (not those it imports), in order of definition."""
    imported = set(vars(wire)) if module is not wire else set()
    return {
        name: value
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and name not in imported and type(value) in (int, float)
    }


def cpp_header() -> str:
    """The text of native/wire/wire_constants.hpp."""
    parts = [
        "// By `python -m fanin.constants native/wire/wire_constants.hpp`, "
        "from fanin/protocol/{wire,job,timers,pace,ecn}.py.",
        "// clang-format off",
        "#pragma once",
        "",
        "#include <array>",
        "#include <cstddef>",
        "#include <cstdint>",
        "",
        "namespace fanin {",
    ]
    for module in (wire, job, timers, pace, ecn):
        parts += ["", f"// {module.__name__}"]
        parts += [_cpp_constant(name, value) for name, value in shared_constants(module).items()]
    parts += ["", "// Bits of the flags field."]
    parts += [f"inline constexpr std::uint8_t FLAG_{flag.name} = {flag.value};" for flag in wire.Flag]
    for enumeration, cpp_type in ENUM_TYPES.items():
        parts += ["", f"enum class {enumeration.__name__} : {cpp_type} {{"]
        parts += [f"  {member.name.lower()} = {member.value}," for member in enumeration]
        parts += ["};"]
    names = ['""', *(f'"{reason.name.lower()}"' for reason in wire.Reason)]
    assert [reason.value for reason in wire.Reason] == list(range(1, len(names))), "the table is indexed by the value"
    parts += [
        "",
        "// Lower-case names of the reasons, indexed by value: the keys of the drop counters.",
        f"inline constexpr std::array<const char*, {len(names)}> REASON_NAMES = {{",
        *(f"    {name}," for name in names),
        "};",
        "",
        "// Whether the sender of a packet is told the reason by a NOTICE, indexed by the reason's value.",
        f"inline constexpr std::array<bool, {len(names)}> TOLD_BY_NOTICE = {{",
        "    false,",
        *(f"    {str(reason in wire.TOLD_BY_NOTICE).lower()},  // {reason.name}" for reason in wire.Reason),
        "};",
        "",
        "}  // namespace fanin",
    ]
    return "\n".join(parts) + "\n"


def p4_header() -> str:
    """The text of p4/shared/constants.p4."""
    shared = shared_constants(wire)
    parts = [
        "/* Generated from fanin/protocol/wire.py by `python -m fanin.constants p4/shared/constants.p4`. */",
        "#ifndef FANIN_CONSTANTS_P4",
        "#define FANIN_CONSTANTS_P4",
        "",
        *(f'@noWarn("unused") const bit<{width}> {name} = {shared[name]:#x};' for name, width in P4_WIDTHS.items()),
        "",
        *(f'@noWarn("unused") const bit<8> KIND_{kind.name} = {kind.value};' for kind in P4_KINDS),
        "",
        *(f'@noWarn("unused") const bit<8> FLAG_{flag.name} = {flag.value};' for flag in P4_FLAGS),
        f"const bit<8> KNOWN_FLAGS = {sum(flag.value for flag in P4_FLAGS)};",
        "",
        *(f'@noWarn("unused") const bit<16> REASON_{reason.name} = {reason.value};' for reason in P4_REASONS),
        "",
        "#endif",
    ]
    return "\n".join(parts) + "\n"


def _cpp_constant(name: str, value: int | float) -> str:
    assert not isinstance(value, enum.Enum)
    if isinstance(value, float) or name.endswith("_S"):
        return f"inline constexpr double {name} = {float(value)!r};"
    is_size = name.startswith("OFFSET_") or name.endswith("_BYTES")
    return f"inline constexpr {'std::size_t' if is_size else 'std::uint32_t'} {name} = {value};"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        target = Path(sys.argv[1])
        target.write_text(p4_header() if target.suffix == ".p4" else cpp_header(), encoding="utf-8")
    else:
        sys.stdout.write(cpp_header())

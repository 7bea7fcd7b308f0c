"""Comparison of a P4Info's objects with those of the program that it describes, one kind at a time.

A pair of two builds must not run: a controller reads from the P4Info how many words a packet has, and the program adds
fewer of them. So whatever both files declare must agree: names, kinds and widths of keys and parameters, sizes,
widths of cells, units of meters, fields of digests and of the control plane's headers.

An object that one file alone has is an error where p4c writes it to both:

* Registers, value sets, counters and meters: p4c keeps them although no packet gets there. A P4Info without a single
  register, or a single value set, is legal: p4c described neither until 2019.
* Direct counters of a table that the program has. The program alone has those that belong to no table, and the P4Info
  alone direct meters that no action reads.
* Action profiles of a table that the program has.
* Actions of a table that both have.

Digests and tables that the P4Info alone has are legal, because p4c leaves out of the program what no packet reaches.
Fields of the control plane's headers may be in the program alone: those marked @hidden, and padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from p4.config.v1 import p4info_pb2

from fanin.errors import ProgramError
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.externs import Counter
from fanin.switch.p4.layout import HeaderType, Layout
from fanin.switch.p4.meters import MeterArray
from fanin.switch.p4.program import LearnList, Program
from fanin.switch.p4.tables import MatchKind, Table

MATCH_KINDS = {
    p4info_pb2.MatchField.EXACT: (MatchKind.EXACT, MatchKind.VALID),
    p4info_pb2.MatchField.LPM: (MatchKind.LPM,),
    p4info_pb2.MatchField.TERNARY: (MatchKind.TERNARY,),
    p4info_pb2.MatchField.RANGE: (MatchKind.RANGE,),
    p4info_pb2.MatchField.OPTIONAL: (MatchKind.TERNARY,),
}
"""By match type of a P4Info, the kinds that a compiled program may have for it."""
REMEDY = "Remedy: take both files of one run of the compiler"
DECLARED = (("register", "registers"), ("value set", "value_sets"), ("counter", "counters"), ("meter", "meters"))
"""Kinds of objects that both files declare, with the name that P4Info and Program give to them."""
LATER = ("register", "value set")
"""Kinds that compilers before 2019 did not describe."""
NUMBERED = re.compile(r"_?\d+")
"""Ending of a parameter's name by which compilers tell several of one name apart."""


def equal(what: str, described: object, compiled: object) -> None:
    """Raise ProgramError if P4Info and program differ in `what`."""
    if described != compiled:
        raise ProgramError(f"{what} is {described} in the P4Info and {compiled} in the program. {REMEDY}")


def absent(what: str, name: str, missing: str) -> ProgramError:
    """The error for an object that `missing`, one of the two files, lacks."""
    has = "the program" if missing == "the P4Info" else "the P4Info"
    return ProgramError(f"{has} has a {what} {name!r}, and {missing} has none. {REMEDY}")


def check_declared(info: Any, program: Program) -> None:
    """Raise ProgramError for a register, value set, counter or meter that one of both lacks."""
    for what, kind in DECLARED:
        described = {each.preamble.name for each in getattr(info, kind)}
        compiled = {
            name for name, each in getattr(program, kind).items() if getattr(each, "table", None) is None
        }  # without direct ones
        if lost := sorted(described - compiled):
            raise absent(what, lost[0], "the program")
        if (described or what not in LATER) and (lost := sorted(compiled - described)):
            raise absent(what, lost[0], "the P4Info")


def check_table(described: Any, table: Table, info: Any, program: Program) -> None:
    """Raise ProgramError if a table differs from its description in the P4Info."""
    name = described.preamble.name
    _check_key(described, table)
    if table.key and not table.immutable:  # for tables that accept no entries p4c writes other sizes
        equal(f"table {name}: size", described.size, table.max_size)
    if described.is_const_table and not table.immutable:
        raise ProgramError(f"table {name} is constant in the P4Info, and not in the program. {REMEDY}")
    if described.idle_timeout_behavior and not table.ages:
        raise ProgramError(f"table {name} has idle timeouts in the P4Info, and none in the program. {REMEDY}")
    profiles = {each.preamble.id: each.preamble.name for each in info.action_profiles}
    if described.implementation_id or table.profile is not None:
        profile = profiles.get(described.implementation_id)
        equal(f"table {name}: action profile", profile, table.profile)
    _check_actions(described, table, info, program)


def _check_key(described: Any, table: Table) -> None:
    name = described.preamble.name
    equal(f"table {name}: number of key fields", len(described.match_fields), len(table.key))
    for number, (part, compiled) in enumerate(zip(described.match_fields, table.key, strict=True), 1):
        # A document without names for keys has header and field, which are the last parts of p4c's names.
        if part.name != compiled.name and not part.name.endswith(f".{compiled.name}"):
            equal(f"table {name}: key field {number}", part.name, compiled.name)
        if part.bitwidth or part.HasField("type_name"):  # else a value of type error, which p4c describes as a name
            equal(f"table {name}, field {part.name}: width", part.bitwidth, compiled.bits)
        if compiled.kind not in MATCH_KINDS.get(part.match_type, ()):
            kind = p4info_pb2.MatchField.MatchType.Name(part.match_type).lower()
            equal(f"table {name}, field {part.name}: kind of match", kind, compiled.kind.value)


def _check_actions(described: Any, table: Table, info: Any, program: Program) -> None:
    name, actions, known = described.preamble.name, {each.preamble.id: each for each in info.actions}, set()
    for reference in described.action_refs:
        if reference.id not in actions:
            raise ProgramError(f"table {name}: the P4Info has no action with id {reference.id}. {REMEDY}")
        action = actions[reference.id]
        known.add(action.preamble.name)
        if action.preamble.name not in table.actions:
            raise ProgramError(f"table {name}: the program has no action {action.preamble.name!r}. {REMEDY}")
        _check_parameters(action, table.actions[action.preamble.name].widths, program)
    if lost := sorted(table.actions.keys() - known):
        raise ProgramError(f"table {name}: the P4Info has no action {lost[0]!r}. {REMEDY}")


def _check_parameters(action: Any, compiled: tuple[int, ...], program: Program) -> None:
    name, widths = action.preamble.name, tuple(parameter.bitwidth for parameter in action.params)
    if len(widths) == len(compiled):  # of a value of an enum or an error p4c describes the type alone
        widths = tuple(bits or each for bits, each in zip(widths, compiled, strict=True))
    equal(f"action {name}: widths of parameters", widths, compiled)
    for number, (parameter, known) in enumerate(zip(action.params, program.actions.get(name, ()), strict=False), 1):
        if not known.startswith(parameter.name) or not NUMBERED.fullmatch(known[len(parameter.name) :] or "0"):
            equal(f"action {name}: parameter {number}", parameter.name, known)


def check_direct(what: str, described: Any, compiled: Counter | MeterArray | None, info: Any, program: Program) -> None:
    """Raise ProgramError if a table's direct counters or meters are not those of the program."""
    name = described.preamble.name
    table = next(
        (each.preamble.name for each in info.tables if each.preamble.id == described.direct_table_id), "no table"
    )
    if compiled is not None:
        equal(f"direct {what} {name}: its table", table, compiled.table)
    elif table in program.tables and what == "counter":
        raise absent("direct counter", name, "the program")


def check_meters(described: Any, compiled: MeterArray) -> None:
    """Raise ProgramError for meters of another unit."""
    if described.spec.unit:
        by_bytes = described.spec.unit == p4info_pb2.MeterSpec.BYTES
        units = {True: "bytes", False: "packets"}
        equal(f"meter {described.preamble.name}: unit", units[by_bytes], units[compiled.by_bytes])


def check_profile(described: Any, compiled: ActionProfile) -> None:
    """Raise ProgramError for an action profile of another size, or that has a selector in one of both only."""
    name = described.preamble.name
    equal(f"action profile {name}: size", described.size, compiled.max_size)
    equal(f"action profile {name}: whether it has a selector", described.with_selector, compiled.selector is not None)


def check_profile_left_out(described: Any, info: Any, program: Program) -> None:
    """Raise ProgramError for an action profile that the program lacks, although it has one of its tables."""
    tables = {each.preamble.id: each.preamble.name for each in info.tables}
    if any(tables.get(number) in program.tables for number in described.table_ids):
        raise absent("action profile", described.preamble.name, "the program")


def check_width(what: str, described: Any, bits: int, info: Any) -> None:
    """Raise ProgramError if values of a type that the P4Info describes have another width; unknown ones pass."""
    widths = _widths(described, info)
    if widths is not None and len(widths) == 1 and widths[0] is not None:
        equal(f"{what}: width", widths[0], bits)


def check_value_set(described: Any, bits: int) -> None:
    """Raise ProgramError for a value set with members of another width."""
    equal(f"value set {described.preamble.name}: width", sum(each.bitwidth for each in described.match), bits)


def check_digest(described: Any, compiled: LearnList, info: Any) -> None:
    """Raise ProgramError for a digest with other fields."""
    widths, name = _widths(described.type_spec, info), described.preamble.name
    if widths is None:
        return
    bits = [each for _, each in compiled.places]
    equal(f"digest {name}: number of fields", len(widths), len(bits))
    for number, (width, each) in enumerate(zip(widths, bits, strict=True), 1):
        if width is not None:
            equal(f"digest {name}, field {number}: width", width, each)


def _widths(spec: Any, info: Any) -> list[int | None] | None:
    """Widths of a type's fields, None for those that the P4Info does not say; None where it does not say how many."""
    kind, types = spec.WhichOneof("type_spec"), info.type_info
    if kind == "bitstring":
        return [spec.bitstring.bit.bitwidth or spec.bitstring.int.bitwidth or None]
    if kind == "bool":
        return [1]
    if kind == "serializable_enum":
        name = spec.serializable_enum.name
        known = name in types.serializable_enums
        return [types.serializable_enums[name].underlying_type.bitwidth if known else None]
    if kind in ("error", "enum", "new_type"):
        name = spec.new_type.name
        plain = kind == "new_type" and name in types.new_types and types.new_types[name].HasField("original_type")
        return _widths(types.new_types[name].original_type, info) if plain else [None]
    if kind == "tuple":
        return _all(spec.tuple.members, info)
    if kind == "struct" and spec.struct.name in types.structs:
        return _all((each.type_spec for each in types.structs[spec.struct.name].members), info)
    return None


def _all(specs: Iterable[Any], info: Any) -> list[int | None] | None:
    widths: list[int | None] = []
    for each in specs:
        part = _widths(each, info)
        if part is None:
            return None
        widths += part
    return widths


def check_header(described: Any, layout: Layout) -> None:
    """Raise ProgramError if no header type of the program can be this header of the control plane.

    The program does not say which of its headers are the control plane's. The one called as in the P4Info is, and else
    those with fields of the same names; a program without either does not use the header.
    """
    name, parts = described.preamble.name, [(each.name, each.bitwidth) for each in described.metadata]
    instance = layout.headers.get(name)
    names = {each for each, _ in parts}
    likely = [each for each in layout.types.values() if names and names <= {field.name for field in each.fields}]
    if instance is not None:
        likely = [instance.type]
    if likely and not any(_fits(parts, each) for each in likely):
        compiled = ", ".join(f"{field.name} of {field.bits}" for field in likely[0].fields)
        fields = ", ".join(f"{each} of {bits}" for each, bits in parts)
        raise ProgramError(f"{name} has fields {fields} bits in the P4Info and {compiled} in the program. {REMEDY}")


def _fits(parts: Sequence[tuple[str, int]], kind: HeaderType) -> bool:
    """Whether a header has these fields in this order, among others."""
    if any("." in name for name, _ in parts):  # of a struct in the header, whose fields the program calls otherwise
        return _within((bits for _, bits in parts), (field.bits for field in kind.fields))
    return _within(parts, ((field.name, field.bits) for field in kind.fields))


def _within(parts: Iterable[object], whole: Iterable[object]) -> bool:
    left: Iterator[object] = iter(whole)
    return all(part in left for part in parts)

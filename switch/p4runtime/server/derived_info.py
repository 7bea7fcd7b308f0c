"""Derive a P4Info from a compiled program alone, for programs that come without one.

Names, widths, sizes and kinds of match are the program's. Ids are those that p4c assigns: the kind's prefix above 24
bits of the name's hash, or the next free number; ids that the program sets by @id are not known here.

The JSON lacks some facts of a P4Info:

* Tables without a key and with one action are made by p4c from plain statements, and are left out.
* Optional fields become ternary ones. Counters count packets and bytes. A value set has one field.
* The control plane's headers are the instances called packet_in and packet_out. Without these, packets have no header.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4.config.v1 import p4info_pb2, p4types_pb2

from fanin.switch.p4.layout import HeaderType
from fanin.switch.p4.program import Program
from fanin.switch.p4.tables import MatchKind, Table

ACTION, TABLE, VALUE_SET, CONTROLLER_HEADER, PROFILE = 0x01, 0x02, 0x03, 0x04, 0x11
COUNTER, DIRECT_COUNTER, METER, DIRECT_METER, REGISTER, DIGEST = 0x12, 0x13, 0x14, 0x15, 0x16, 0x17
"""Prefixes of ids, from P4Ids.Prefix of p4info.proto."""
ID_BITS = 24
MAX_MEMBERS = 1024
"""Size stated for value sets, because the JSON lacks it."""
KINDS = {
    MatchKind.EXACT: p4info_pb2.MatchField.EXACT,
    MatchKind.VALID: p4info_pb2.MatchField.EXACT,
    MatchKind.LPM: p4info_pb2.MatchField.LPM,
    MatchKind.TERNARY: p4info_pb2.MatchField.TERNARY,
    MatchKind.RANGE: p4info_pb2.MatchField.RANGE,
}


def derive(program: Program) -> Any:
    """The P4Info message of a program."""
    info = p4info_pb2.P4Info()
    info.pkg_info.arch = "v1model"
    tables = [each for each in program.tables.values() if each.key or len(each.actions) > 1]
    names = _Names(tables, program)
    profiles = names.of(PROFILE, program.profiles)
    tables_by_name = names.of(TABLE, (each.name for each in tables))
    actions = _add_actions(info, tables, program, names)
    for table in tables:
        made = info.tables.add(size=table.max_size, is_const_table=table.immutable)
        names.fill(made, TABLE, table.name)
        _add_key(made, table)
        for action in table.actions:
            made.action_refs.add(id=actions[action])
        if table.profile is not None:
            made.implementation_id = profiles[table.profile]
        if table.fixed_default and table.miss.action:
            made.const_default_action_id = actions[table.miss.action]
        if table.ages:
            made.idle_timeout_behavior = p4info_pb2.Table.NOTIFY_CONTROL
    _add_arrays(info, program, names, tables_by_name)
    for name, profile in program.profiles.items():
        users = [tables_by_name[each] for each in profile.tables if each in tables_by_name]
        made = info.action_profiles.add(
            size=profile.max_size, table_ids=users, with_selector=profile.selector is not None
        )
        names.fill(made, PROFILE, name)
    for name in program.value_sets:
        made = info.value_sets.add(size=MAX_MEMBERS)
        names.fill(made, VALUE_SET, name)
        made.match.add(
            id=1, name="value", bitwidth=program.value_sets[name].bits, match_type=p4info_pb2.MatchField.EXACT
        )
    for learned in program.learn_lists.values():
        made = info.digests.add()
        names.fill(made, DIGEST, learned.name)
        for _, bits in learned.places:
            made.type_spec.tuple.members.add().CopyFrom(_bits(bits))
    for header in ("packet_in", "packet_out"):
        if (instance := program.layout.headers.get(header)) is not None:
            _add_header(info, names, header, instance.type)
    return info


def _add_actions(info: Any, tables: Iterable[Table], program: Program, names: _Names) -> dict[str, int]:
    ids: dict[str, int] = {}
    for table in tables:
        for name, facts in table.actions.items():
            if name in ids:
                continue
            made = info.actions.add()
            ids[name] = names.fill(made, ACTION, name)
            for number, (parameter, bits) in enumerate(zip(program.actions[name], facts.widths, strict=True), 1):
                made.params.add(id=number, name=parameter, bitwidth=bits)
    return ids


def _add_key(made: Any, table: Table) -> None:
    for number, part in enumerate(table.key, 1):
        made.match_fields.add(id=number, name=part.name, bitwidth=part.bits, match_type=KINDS[part.kind])


def _add_arrays(info: Any, program: Program, names: _Names, tables: dict[str, int]) -> None:
    """Add counters, meters and registers; direct ones are also listed in their tables."""
    by_id = {each.preamble.id: each for each in info.tables}
    for name, counter in program.counters.items():
        if counter.table is None:
            made = info.counters.add(size=counter.size)
            names.fill(made, COUNTER, name)
        elif counter.table in tables:
            made = info.direct_counters.add(direct_table_id=tables[counter.table])
            by_id[made.direct_table_id].direct_resource_ids.append(names.fill(made, DIRECT_COUNTER, name))
        else:
            continue
        made.spec.unit = p4info_pb2.CounterSpec.BOTH
    for name, meters in program.meters.items():
        if meters.table is None:
            made = info.meters.add(size=meters.size)
            names.fill(made, METER, name)
        elif meters.table in tables:
            made = info.direct_meters.add(direct_table_id=tables[meters.table])
            by_id[made.direct_table_id].direct_resource_ids.append(names.fill(made, DIRECT_METER, name))
        else:
            continue
        made.spec.unit = p4info_pb2.MeterSpec.BYTES if meters.by_bytes else p4info_pb2.MeterSpec.PACKETS
    for name, register in program.registers.items():
        made = info.registers.add(size=register.size, type_spec=_bits(register.bits))
        names.fill(made, REGISTER, name)


def _add_header(info: Any, names: _Names, name: str, kind: HeaderType) -> None:
    made = info.controller_packet_metadata.add()
    names.fill(made, CONTROLLER_HEADER, name, hashed_name=kind.name)
    made.preamble.annotations.append(f'@controller_header("{name}")')
    for number, field in enumerate(kind.fields, 1):
        made.metadata.add(id=number, name=field.name, bitwidth=field.bits)


def _bits(count: int) -> Any:
    made = p4types_pb2.P4DataTypeSpec()
    made.bitstring.bit.bitwidth = count
    return made


class _Names:
    """Chooses ids and aliases of the program's objects."""

    def __init__(self, tables: Iterable[Table], program: Program) -> None:
        whole = {each.name for each in tables} | set(program.actions) | set(program.counters) | set(program.meters)
        whole |= set(program.registers) | set(program.profiles) | set(program.value_sets)
        ends = [".".join(each.split(".")[at:]) for each in whole for at in range(each.count(".") + 1)]
        self._shared = {each for each in ends if ends.count(each) > 1} if len(ends) < MAX_MEMBERS else set(ends)
        self._ids: dict[tuple[int, str], int] = {}
        self._taken: set[int] = set()

    def of(self, prefix: int, names: Iterable[str]) -> dict[str, int]:
        """Return the id of each named object; `prefix` is the id's top bits, which state the kind of object."""
        return {name: self.id(prefix, name) for name in names}

    def id(self, prefix: int, name: str) -> int:
        """The id of an object; the same in every call."""
        if (prefix, name) not in self._ids:
            number = hashed(name) & (1 << ID_BITS) - 1
            while prefix << ID_BITS | number in self._taken:
                number = number + 1 & (1 << ID_BITS) - 1
            self._taken.add(prefix << ID_BITS | number)
            self._ids[prefix, name] = prefix << ID_BITS | number
        return self._ids[prefix, name]

    def fill(self, made: Any, prefix: int, name: str, hashed_name: str | None = None) -> int:
        """Write a preamble: id, name, and as alias the shortest unique end of the name. Returns the id.

        `hashed_name`: the name from which the id is computed, if it is another one.
        """
        preamble = made.preamble
        preamble.id, preamble.name = self.id(prefix, hashed_name or name), name
        parts = name.split(".")
        ends = [".".join(parts[at:]) for at in range(len(parts) - 1, -1, -1)]
        preamble.alias = next((end for end in ends if end not in self._shared), name)
        return int(preamble.id)


def hashed(name: str) -> int:
    """Jenkins's one-at-a-time hash, 32 bits (B. Jenkins, Algorithm Alley, Dr. Dobb's Journal, September 1997)."""
    value = 0
    for byte in name.encode():
        value = (value + byte) & 0xFFFF_FFFF
        value = (value + (value << 10)) & 0xFFFF_FFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFF_FFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFF_FFFF

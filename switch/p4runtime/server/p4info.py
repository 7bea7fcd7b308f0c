"""P4Info: names, ids and widths of what a control plane may touch, held against the program that it describes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from fanin.errors import ProgramError
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.meters import MeterArray
from fanin.switch.p4.program import Program
from fanin.switch.p4.tables import MatchKind, Table

MATCH_KINDS = {
    p4info_pb2.MatchField.EXACT: (MatchKind.EXACT, MatchKind.VALID),
    p4info_pb2.MatchField.LPM: (MatchKind.LPM,),
    p4info_pb2.MatchField.TERNARY: (MatchKind.TERNARY,),
    p4info_pb2.MatchField.RANGE: (MatchKind.RANGE,),
    p4info_pb2.MatchField.OPTIONAL: (MatchKind.TERNARY,),
}
"""How a compiled program may carry out each match type of a P4Info."""


def read_p4info(text: str) -> Any:
    """A P4Info message from its text form; ProgramError for anything else."""
    try:
        return text_format.Parse(text, p4info_pb2.P4Info())
    except text_format.ParseError as error:
        raise ProgramError(f"the P4Info is malformed: {error}") from None


@dataclass(slots=True)
class Described:
    """A program with the ids that its P4Info gives to its parts."""

    program: Program
    info: Any
    tables: dict[int, tuple[Any, Table]] = field(default_factory=dict)
    actions: dict[int, Any] = field(default_factory=dict)
    counters: dict[int, Any] = field(default_factory=dict)
    direct_counters: dict[int, Any] = field(default_factory=dict)
    """By the id of their table."""
    registers: dict[int, Any] = field(default_factory=dict)
    value_sets: dict[int, Any] = field(default_factory=dict)
    meters: dict[int, MeterArray] = field(default_factory=dict)
    """Indirect ones."""
    direct_meters: dict[int, MeterArray] = field(default_factory=dict)
    """By the id of their table."""
    profiles: dict[int, ActionProfile] = field(default_factory=dict)
    digests: dict[int, Any] = field(default_factory=dict)
    digest_ids: dict[int, int] = field(default_factory=dict)
    """By the number of the learn list."""
    packet_in: Any = None
    packet_out: Any = None

    @classmethod
    def match(cls, program: Program, info: Any) -> Described:
        """Pair a program with its P4Info; ProgramError names the first thing that does not fit."""
        described = cls(program, info)
        described.actions = {each.preamble.id: each for each in info.actions}
        for each in info.tables:
            described.tables[each.preamble.id] = each, _table(program, each, described.actions)
        for each in info.counters:
            counter = _named(program.counters, "counter", each)
            _equal(f"counter {each.preamble.name}: size", each.size, counter.size)
            described.counters[each.preamble.id] = each
        for each in info.direct_counters:
            described.direct_counters[each.direct_table_id] = each
        for each in info.registers:
            register = _named(program.registers, "register", each)
            _equal(f"register {each.preamble.name}: size", each.size, register.size)
            described.registers[each.preamble.id] = each
        for each in info.value_sets:
            _named(program.value_sets, "value set", each)
            described.value_sets[each.preamble.id] = each
        for each in info.controller_packet_metadata:
            if each.preamble.name == "packet_in":
                described.packet_in = each
            elif each.preamble.name == "packet_out":
                described.packet_out = each
        for each in info.meters:
            meters = _named(program.meters, "meter", each)
            _equal(f"meter {each.preamble.name}: size", each.size, meters.size)
            described.meters[each.preamble.id] = meters
        for each in info.direct_meters:
            described.direct_meters[each.direct_table_id] = _named(program.meters, "meter", each)
        for each in info.action_profiles:
            profile = _named(program.profiles, "action profile", each)
            _equal(f"action profile {each.preamble.name}: size", each.size, profile.max_size)
            described.profiles[each.preamble.id] = profile
        described._match_digests()
        if len(info.externs):
            raise ProgramError("the P4Info has externs, which the program loaded here cannot have")
        described._check_complete()
        return described

    def _match_digests(self) -> None:
        lists = {each.name: number for number, each in self.program.learn_lists.items()}
        for each in self.info.digests:
            number = _named(lists, "digest", each)
            self.digests[each.preamble.id], self.digest_ids[number] = each, each.preamble.id
        for number, made in self.program.learn_lists.items():
            if number not in self.digest_ids:
                raise ProgramError(f"the program has a digest {made.name!r}, and the P4Info has none")

    def _check_complete(self) -> None:
        """ProgramError for a P4Info that leaves out what the program has, as an empty one or another program's does.

        Tables that the compiler made itself are in no P4Info: they have no key and run one action.
        """
        names = {table.name for _, table in self.tables.values()}
        for name, table in self.program.tables.items():
            if name not in names and (table.key or len(table.actions) > 1):
                raise ProgramError(
                    f"the program has a table {name!r}, and the P4Info has none: compile both in one run"
                )


def _named(objects: Any, kind: str, described: Any) -> Any:
    name = described.preamble.name
    if name not in objects:
        raise ProgramError(f"the P4Info has a {kind} {name!r}, and the program has none: compile both in one run")
    return objects[name]


def _equal(what: str, described: object, compiled: object) -> None:
    if described != compiled:
        raise ProgramError(
            f"{what} is {described} in the P4Info and {compiled} in the program: compile both in one run"
        )


def _table(program: Program, described: Any, actions: dict[int, Any]) -> Table:
    table: Table = _named(program.tables, "table", described)
    name = described.preamble.name
    _equal(f"table {name}: number of key fields", len(described.match_fields), len(table.key))
    if not table.immutable:  # of constant entries, a program says how many there are, and a P4Info something else
        _equal(f"table {name}: size", described.size, table.max_size)
    for part, compiled in zip(described.match_fields, table.key, strict=True):
        _equal(f"table {name}, field {part.name}: width", part.bitwidth, compiled.bits)
        if compiled.kind not in MATCH_KINDS.get(part.match_type, ()):
            raise ProgramError(f"table {name}, field {part.name}: the program matches it as {compiled.kind.value}")
    _equal(f"table {name}: whether it has an action profile", bool(described.implementation_id), bool(table.profile))
    for reference in described.action_refs:
        if reference.id not in actions:
            raise ProgramError(f"table {name}: the P4Info has no action with id {reference.id}")
        action = actions[reference.id]
        if action.preamble.name not in table.actions:
            raise ProgramError(
                f"table {name}: the program has no action {action.preamble.name!r}: compile both in one run"
            )
        widths = tuple(parameter.bitwidth for parameter in action.params)
        _equal(f"action {action.preamble.name}: widths", widths, table.actions[action.preamble.name].widths)
    return table


def by_id(things: Iterable[Any]) -> dict[int, Any]:
    """Match fields or parameters by their ids."""
    return {each.id: each for each in things}

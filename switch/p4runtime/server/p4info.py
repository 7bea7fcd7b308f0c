"""P4Info: names, ids and widths of the objects of a control plane, checked against the program that it describes.

p4c writes the P4Info from the source, and the JSON after simplifying it. So each may have objects that the other
lacks, although both belong to one program:

* The P4Info alone has objects that no packet reaches, such as an action profile without tables. They are listed in
  `Described.removed`, and requests that name them are refused.
* The program alone has tables that the compiler has made, for example of a `switch` statement, and those marked @hidden
  in the source. They are not for the control plane: their entries are constant, or they have no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from fanin import files
from fanin.errors import ConfigurationError, ProgramError
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.document import MAX_DOCUMENT_BYTES
from fanin.switch.p4.keeping import kept
from fanin.switch.p4.meters import MeterArray
from fanin.switch.p4.program import Program
from fanin.switch.p4.tables import Table
from fanin.switch.p4runtime.server import comparison
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.translated import Configured, Names, Values

Thing = TypeVar("Thing")
TEXT_FORM = "Remedy: name the file that p4c writes for --p4runtime-files, ending in .p4info.txtpb"
NO_ACTION = "NoAction"
"""The action of core.p4, which also unrelated programs share."""


def read_p4info(text: str) -> Any:
    """A P4Info message from its text form; ProgramError for anything else."""
    info = p4info_pb2.P4Info()
    info.CopyFrom(_parsed(text))  # copying the cached message takes a tenth of the time of parsing
    return info


@kept
def _parsed(text: str) -> Any:
    try:
        return text_format.Parse(text, p4info_pb2.P4Info())
    except (text_format.ParseError, RecursionError) as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise ProgramError(f"the P4Info is malformed: {said}. {TEXT_FORM}") from None


def read_p4info_file(path: Path) -> str:
    """The text of a P4Info's file, which `read_p4info` takes; ConfigurationError for any other file."""
    named = f"--p4info {files.name(path)}"
    try:
        text = files.read(path, "--p4info", MAX_DOCUMENT_BYTES).decode()
        if not read_p4info(text).ByteSize():
            raise ConfigurationError(f"{named} is empty. {TEXT_FORM}")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{named} is no text. {TEXT_FORM}") from None
    except ProgramError as error:
        raise ConfigurationError(f"{named}: {error}") from None
    return text


@dataclass(slots=True)
class Described:
    """A program with the ids that its P4Info gives to its parts."""

    program: Program
    info: Any
    values: Values
    tables: dict[int, tuple[Any, Table]] = field(default_factory=dict)
    actions: dict[int, Any] = field(default_factory=dict)
    counters: dict[int, Any] = field(default_factory=dict)
    direct_counters: dict[int, Any] = field(default_factory=dict)
    """By the id of the table that they belong to."""
    registers: dict[int, Any] = field(default_factory=dict)
    value_sets: dict[int, Any] = field(default_factory=dict)
    meters: dict[int, MeterArray] = field(default_factory=dict)
    """Meters that are not direct."""
    direct_meters: dict[int, MeterArray] = field(default_factory=dict)
    """By the id of the table that they belong to."""
    profiles: dict[int, ActionProfile] = field(default_factory=dict)
    group_sizes: dict[int, int] = field(default_factory=dict)
    """By id of an action profile: the largest `max_size` of a group; 0: any."""
    digests: dict[int, Any] = field(default_factory=dict)
    digest_ids: dict[int, int] = field(default_factory=dict)
    """Ids of digests, by the number of their learn list."""
    packet_in: Any = None
    packet_out: Any = None
    removed: dict[int, str] = field(default_factory=dict)
    """Names of objects that the compiler has left out of the program, by id."""

    @classmethod
    def match(cls, program: Program, info: Any, names: Configured = MappingProxyType({})) -> Described:
        """Pair a program with its P4Info; ProgramError names the first thing that does not fit.

        `names`: names and numbers for types that are translated to strings, as far as they are configured.
        """
        info, kinds = _untranslated(program, info)
        given = {kind: names.get(kind, names.get(_uri(info, kind), {})) for kind in kinds}
        described = cls(
            program,
            info,
            Values(program.errors, {kind: Names(kind, bits, given[kind]) for kind, bits in kinds.items()}),
        )
        described.actions = {each.preamble.id: each for each in info.actions}
        if len(info.externs):
            raise ProgramError(
                f"the P4Info has externs of type {info.externs[0].extern_type_name}, which no program here can have. "
                f"{comparison.REMEDY}"
            )
        described._match_tables()
        comparison.check_declared(info, program)
        described._match_arrays()
        for each in info.controller_packet_metadata:
            comparison.check_header(each, program.layout)
            if each.preamble.name == "packet_in":
                described.packet_in = each
            elif each.preamble.name == "packet_out":
                described.packet_out = each
        described._match_digests()
        return described

    def _match_tables(self) -> None:
        """Pair tables and action profiles, and what belongs to a table."""
        info, program = self.info, self.program
        for each, table in self._there(info.tables, program.tables):
            comparison.check_table(each, table, info, program)
            self.tables[each.preamble.id] = each, table
        self._check_complete()
        for each in info.direct_counters:
            comparison.check_direct("counter", each, program.counters.get(each.preamble.name), info, program)
            self.direct_counters[each.direct_table_id] = each
        for each, meters in self._there(info.direct_meters, program.meters):
            comparison.check_meters(each, meters)
            self.direct_meters[each.direct_table_id] = meters
        for each in info.direct_meters:
            comparison.check_direct("meter", each, program.meters.get(each.preamble.name), info, program)
        for each, profile in self._there(info.action_profiles, program.profiles):
            comparison.check_profile(each, profile)
            self.profiles[each.preamble.id] = profile
            self.group_sizes[each.preamble.id] = each.max_group_size
        for each in info.action_profiles:
            if each.preamble.id in self.removed:
                comparison.check_profile_left_out(each, info, program)

    def _match_arrays(self) -> None:
        """Pair registers, value sets, counters and meters that belong to no table."""
        info, program = self.info, self.program
        for each, register in self._there(info.registers, program.registers):
            name = f"register {each.preamble.name}"
            comparison.equal(f"{name}: size", each.size, register.size)
            comparison.check_width(name, each.type_spec, register.bits, info)
            self.registers[each.preamble.id] = each
        for each, values in self._there(info.value_sets, program.value_sets):
            comparison.check_value_set(each, values.bits)
            self.value_sets[each.preamble.id] = each
        for each, counter in self._there(info.counters, program.counters):
            comparison.equal(f"counter {each.preamble.name}: size", each.size, counter.size)
            self.counters[each.preamble.id] = each
        for each, meters in self._there(info.meters, program.meters):
            comparison.equal(f"meter {each.preamble.name}: size", each.size, meters.size)
            comparison.check_meters(each, meters)
            self.meters[each.preamble.id] = meters

    def known(self, things: Mapping[int, Thing], number: int, what: str) -> Thing:
        """The table, counter, ... with an id that a request names; StatusError without one."""
        if number in self.removed:
            raise StatusError(
                Code.UNKNOWN, f"no packet gets to the {what} {self.removed[number]!r}: the compiler has left it out"
            )
        if number not in things:
            raise StatusError(Code.INVALID_ARGUMENT, f"there is no {what} with id {number:#x}")
        return things[number]

    def _there(self, infos: Iterable[Any], objects: Mapping[str, Thing]) -> list[tuple[Any, Thing]]:
        """Pairs of an object of the P4Info and the program's object of the same name."""
        found = []
        for each in infos:
            if each.preamble.name in objects:
                found.append((each, objects[each.preamble.name]))
            else:
                self.removed[each.preamble.id] = each.preamble.name
        return found

    def _match_digests(self) -> None:
        lists = {each.name: number for number, each in self.program.learn_lists.items()}
        infos = list(self.info.digests)
        if not any(each.preamble.name in lists for each in infos) and len(infos) == len(lists):
            # p4c calls digests that are no named struct "digest_0" in one file, and "tuple_0" in the other.
            lists = dict(zip((each.preamble.name for each in infos), sorted(lists.values()), strict=True))
        for each, number in self._there(infos, lists):
            comparison.check_digest(each, self.program.learn_lists[number], self.info)
            self.digests[each.preamble.id], self.digest_ids[number] = each, each.preamble.id
        for number, made in self.program.learn_lists.items():
            if number not in self.digest_ids:
                raise comparison.absent("digest", made.name, "the P4Info")

    def _check_complete(self) -> None:
        """Raise ProgramError for a P4Info that lacks objects of the program: it is empty, or of another program.

        Hidden tables are in no P4Info: no entry of them can be written, or they have no key and run one action. Their
        default action cannot be changed, although the JSON marks it as constant for some of them only.
        """
        actions = {each.preamble.name for each in self.info.actions} - {NO_ACTION}
        if self.removed and actions and not actions & self.program.actions.keys():
            raise ProgramError(f"the P4Info has none of the program's actions. {comparison.REMEDY}")
        names = {table.name for _, table in self.tables.values()}
        for name, table in self.program.tables.items():
            if name not in names and not table.immutable and (table.key or len(table.actions) > 1):
                raise comparison.absent("table", name, "the P4Info")


def _uri(info: Any, kind: str) -> str:
    return str(info.type_info.new_types[kind].translated_type.uri)


def _untranslated(program: Program, info: Any) -> tuple[Any, dict[str, int]]:
    """A P4Info with the program's widths instead of those that p4runtime_translation gives to types.

    The P4Info does not define how numbers are translated, so that they are passed on unchanged and must fit the
    program's widths. Also returns the types that are translated to strings, with their widths.
    """
    translated = {name for name, each in info.type_info.new_types.items() if each.HasField("translated_type")}
    if not translated:
        return info, {}
    changed = p4info_pb2.P4Info()
    changed.CopyFrom(info)
    parts: list[tuple[Any, int]] = []
    widths: dict[str, tuple[int, ...]] = {}
    for each in changed.tables:
        if (table := program.tables.get(each.preamble.name)) is not None:
            parts += zip(each.match_fields, (part.bits for part in table.key), strict=False)
            widths |= {name: facts.widths for name, facts in table.actions.items()}
    for each in changed.actions:  # if the numbers of widths differ, the P4Info is of another program
        parts += zip(each.params, widths.get(each.preamble.name, ()), strict=False)
    for each in changed.controller_packet_metadata:
        parts += zip(each.metadata, _field_widths(program, [field.name for field in each.metadata]), strict=False)
    for each in changed.value_sets:
        value_set = program.value_sets.get(each.preamble.name)
        if value_set is not None and len(each.match) == 1:
            parts.append((each.match[0], value_set.bits))
    kinds: dict[str, int] = {}
    for part, bits in parts:
        if (kind := part.type_name.name) in translated:
            part.bitwidth = bits
            if info.type_info.new_types[kind].translated_type.HasField("sdn_string"):
                comparison.equal(f"{part.name}: width of a {kind}", bits, kinds.setdefault(kind, bits))
    return changed, kinds


def _field_widths(program: Program, names: list[str]) -> list[int]:
    """Widths of a header with these fields, since the compiled program does not mark the control plane's headers."""
    types = (each.fields for each in program.layout.types.values())
    return next(([field.bits for field in each] for each in types if [field.name for field in each] == names), [])


def by_id(things: Iterable[Any]) -> dict[int, Any]:
    """Match fields or parameters by their ids."""
    return {each.id: each for each in things}

"""Translation of the controller's P4Runtime to BfRt and back: table entries, default actions and counters.

Both take names from the program, so that a table, field or action of the P4Info is found by its name in bf-rt.json; the
numbers differ. In BfRt a value has as many bytes as its field's bits need. Only exact matches are translated, since the
controller writes no others: another kind is refused by name. groups.py handles multicast groups.
"""

from __future__ import annotations

from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from fanin.errors import ProgramError
from fanin.switch.p4runtime.bfrt import messages
from fanin.switch.p4runtime.bfrt.info import BfrtField, BfrtInfo, BfrtTable
from fanin.switch.p4runtime.bfrt.messages import UpdateType
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.values import encoded

TYPES = {
    p4runtime_pb2.Update.INSERT: UpdateType.INSERT,
    p4runtime_pb2.Update.MODIFY: UpdateType.MODIFY,
    p4runtime_pb2.Update.DELETE: UpdateType.DELETE,
}
COUNTER_INDEX, COUNTED_PACKETS, COUNTED_BYTES = "$COUNTER_INDEX", "$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES"


class Translation:
    """Translates for one program, by its P4Info and the device's bf-rt.json."""

    def __init__(self, p4info: Any, info: BfrtInfo) -> None:
        """Pair the objects of both by name. ProgramError if the device lacks one that the P4Info names."""
        self._tables = {each.preamble.id: each for each in p4info.tables}
        self._actions = {each.preamble.id: each for each in p4info.actions}
        self._names = {each.preamble.id: each.preamble.name for each in (*p4info.tables, *p4info.counters)}
        self._there = {number: info.table(name) for number, name in self._names.items()}
        self._numbers = {table.number: number for number, table in self._there.items()}

    # --- writing ---

    def update(self, update: Any) -> Any:
        """Translate an Update of a table entry, a default action or a counter's cell. StatusError for any other."""
        kind = update.entity.WhichOneof("entity")
        written = messages.Update(type=TYPES[update.type])
        entry = written.entity.table_entry
        if kind == "table_entry":
            self._entry(entry, update.entity.table_entry, deletes=update.type == p4runtime_pb2.Update.DELETE)
        elif kind == "counter_entry":
            self._counter(entry, update.entity.counter_entry)
        else:
            raise StatusError(Code.UNIMPLEMENTED, f"{kind} is not written over BfRt")
        return written

    def _entry(self, entry: Any, given: Any, *, deletes: bool) -> None:
        described, table = self._both(given.table_id)
        entry.table_id, entry.is_default_entry = table.number, given.is_default_action
        if not given.is_default_action:
            self._key(entry, described, table, given)
        if not deletes:
            self._action(entry, table, given.action.action)

    def _key(self, entry: Any, described: Any, table: BfrtTable, given: Any) -> None:
        matched = {each.field_id: each for each in given.match}
        for field in described.match_fields:
            there = _field(table, table.key, field.name)
            if field.match_type != p4info_pb2.MatchField.EXACT:
                raise StatusError(
                    Code.UNIMPLEMENTED, f"{table.name}: key {field.name} is {there.match}; only exact ones are written"
                )
            value = int.from_bytes(matched[field.id].exact.value, "big")
            entry.key.fields.add(field_id=there.number).exact.value = there.stream(value)

    def _action(self, entry: Any, table: BfrtTable, given: Any) -> None:
        described = self._actions[given.action_id]
        action = table.action(described.preamble.name)
        entry.data.action_id = action.number
        values = {each.param_id: int.from_bytes(each.value, "big") for each in given.params}
        for parameter in described.params:
            if parameter.name not in action.fields:
                raise ProgramError(
                    f"action {action.name} has no {parameter.name!r} on the device. "
                    "Remedy: load fanin's program of this version on the device"
                )
            there = action.fields[parameter.name]
            entry.data.fields.add(field_id=there.number, stream=there.stream(values[parameter.id]))

    def _counter(self, entry: Any, given: Any) -> None:
        table = self._there[given.counter_id]
        self._cell(entry, table, given.index.index)
        counted = {COUNTED_PACKETS: given.data.packet_count, COUNTED_BYTES: given.data.byte_count}
        for name, value in counted.items():
            if name in table.data:
                there = table.data[name]
                entry.data.fields.add(field_id=there.number, stream=there.stream(value))

    def _cell(self, entry: Any, table: BfrtTable, index: int) -> None:
        there = _field(table, table.key, COUNTER_INDEX)
        entry.table_id = table.number
        entry.key.fields.add(field_id=there.number).exact.value = there.stream(index)

    # --- reading ---

    def wanted(self, entity: Any) -> Any:
        """Translate the entity of a read request: for a whole table, a default action, one cell or all cells."""
        kind = entity.WhichOneof("entity")
        entry = messages.TableEntry()
        if kind == "table_entry":
            given = entity.table_entry
            if given.match:
                raise StatusError(Code.UNIMPLEMENTED, "only whole tables are read over BfRt")
            _, table = self._both(given.table_id)
            entry.table_id, entry.is_default_entry = table.number, given.is_default_action
        elif kind == "counter_entry":
            table = self._there[entity.counter_entry.counter_id]
            entry.table_id = table.number
            if entity.counter_entry.HasField("index"):
                self._cell(entry, table, entity.counter_entry.index.index)
        else:
            raise StatusError(Code.UNIMPLEMENTED, f"{kind} is not read over BfRt")
        return entry

    def found(self, entry: Any) -> Any:
        """Translate an entry that was read from the device to an entity."""
        number = self._numbers[entry.table_id]
        entity = p4runtime_pb2.Entity()
        if number in self._tables:
            self._found_entry(entity.table_entry, number, entry)
        else:
            self._found_cell(entity.counter_entry, number, entry)
        return entity

    def _found_entry(self, found: Any, number: int, entry: Any) -> None:
        described, table = self._both(number)
        found.table_id, found.is_default_action = number, entry.is_default_entry
        names = {field.number: field.name for field in table.key.values()}
        values = {names[each.field_id]: each.exact.value for each in entry.key.fields}
        if not entry.is_default_entry:
            for field in described.match_fields:
                value = int.from_bytes(values[field.name], "big")
                found.match.add(field_id=field.id).exact.value = encoded(value)
        there = next(each for each in table.actions.values() if each.number == entry.data.action_id)
        action = found.action.action
        for reference in described.action_refs:
            name = self._actions[reference.id].preamble.name
            if there.name == name or there.name.endswith(f".{name}"):
                action.action_id = reference.id
        named = {field.number: field.name for field in there.fields.values()}
        data = {named[each.field_id]: each.stream for each in entry.data.fields if each.field_id in named}
        for parameter in self._actions[action.action_id].params if action.action_id else ():
            value = int.from_bytes(data[parameter.name], "big")
            action.params.add(param_id=parameter.id, value=encoded(value))

    def _found_cell(self, found: Any, number: int, entry: Any) -> None:
        table = self._there[number]
        found.counter_id = number
        found.index.index = int.from_bytes(entry.key.fields[0].exact.value, "big")
        names = {field.number: field.name for field in table.data.values()}
        for each in entry.data.fields:  # a field for each pipe, where the device does not add them up
            count = int.from_bytes(each.stream, "big")
            if names.get(each.field_id) == COUNTED_PACKETS:
                found.data.packet_count += count
            elif names.get(each.field_id) == COUNTED_BYTES:
                found.data.byte_count += count

    def _both(self, number: int) -> tuple[Any, BfrtTable]:
        if number not in self._tables:
            raise StatusError(Code.NOT_FOUND, f"the program has no table {number}")
        return self._tables[number], self._there[number]


def _field(table: BfrtTable, fields: Any, name: str) -> BfrtField:
    if name not in fields:
        raise ProgramError(
            f"table {table.name} has no field {name!r} on the device. "
            "Remedy: load fanin's program of this version on the device"
        )
    found: BfrtField = fields[name]
    return found

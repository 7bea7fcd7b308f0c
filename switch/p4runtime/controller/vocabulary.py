"""Build a controller's messages to a P4Runtime device: names go in, the ids of the P4Info come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from fanin.errors import ProgramError
from fanin.switch.p4runtime.server.values import encoded

INSERT, MODIFY, DELETE = (getattr(p4runtime_pb2.Update, name) for name in ("INSERT", "MODIFY", "DELETE"))


class Vocabulary:
    """Builds and reads messages for one program. ProgramError for a name that the program does not have."""

    def __init__(self, info: Any) -> None:
        """`info`: the P4Info. Tables, counters and registers are found by the last part of their names."""
        self._tables = _by_last_part(info.tables)
        self._actions = {each.preamble.id: each for each in info.actions}
        self._counters = _by_last_part(info.counters)
        self._registers = _by_last_part(info.registers)
        self._register_names = [each.preamble.name.rpartition(".")[2] for each in info.registers]
        self.register_bits = [each.type_spec.bitstring.bit.bitwidth for each in info.registers]
        """Widths of all register arrays: several have the same last name."""
        metadata = {each.preamble.name: each for each in info.controller_packet_metadata}
        if not {"packet_in", "packet_out"} <= metadata.keys():
            raise ProgramError(
                "the program has no packet_in and packet_out headers: it is not a fanin program. "
                "Remedy: load fanin's program of this version on the device"
            )
        self._in = {each.id: each.name for each in metadata["packet_in"].metadata}
        self._out = {each.name: each.id for each in metadata["packet_out"].metadata}

    def has_table(self, name: str) -> bool:
        """Whether the program has a table of that name."""
        return name in self._tables

    def has_counter(self, name: str) -> bool:
        """Whether the program has a counter of that name."""
        return name in self._counters

    def has_register(self, name: str) -> bool:
        """Whether the program has a register array of that name."""
        return name in self._registers

    def register_size(self, name: str) -> int:
        """Number of cells of a register array."""
        return int(_found(self._registers, "register", name).size)

    def register_count(self, name: str) -> int:
        """Number of register arrays whose names have that last part."""
        return self._register_names.count(name)

    @property
    def packet_out_metadata(self) -> frozenset[str]:
        """Names of the metadata of a packet from the controller."""
        return frozenset(self._out)

    def size(self, table: str) -> int:
        """Number of entries that a table can hold."""
        return int(_found(self._tables, "table", table).size)

    def parameters(self, table: str, action: str) -> tuple[str, ...]:
        """Names of an action's parameters."""
        return tuple(each.name for each in self._action(_found(self._tables, "table", table), action).params)

    def entry(
        self,
        kind: int,
        table: str,
        match: Mapping[str, int],
        action: str = "",
        values: Mapping[str, int] | None = None,
        *,
        priority: int = 0,
    ) -> Any:
        """An Update of an entry; without `action`, to delete it.

        An optional field that is missing in `match` matches any value; a table with such fields needs a `priority`.
        """
        update = p4runtime_pb2.Update(type=kind)
        info = _found(self._tables, "table", table)
        entry = update.entity.table_entry
        entry.table_id, entry.priority = info.preamble.id, priority
        for field in info.match_fields:
            if field.match_type != p4info_pb2.MatchField.OPTIONAL:
                entry.match.add(field_id=field.id).exact.value = encoded(match[field.name])
            elif field.name in match:
                entry.match.add(field_id=field.id).optional.value = encoded(match[field.name])
        if action:
            self._fill(entry, info, action, values or {})
        return update

    def default(self, table: str, action: str, values: Mapping[str, int]) -> Any:
        """An Update of a table's default action."""
        update = p4runtime_pb2.Update(type=MODIFY)
        info = _found(self._tables, "table", table)
        entry = update.entity.table_entry
        entry.table_id, entry.is_default_action = info.preamble.id, True
        self._fill(entry, info, action, values)
        return update

    def group(self, kind: int, number: int, replicas: Iterable[tuple[int, int]] = ()) -> Any:
        """An Update of a multicast group; `replicas` are pairs (port, instance)."""
        update = p4runtime_pb2.Update(type=kind)
        entry = update.entity.packet_replication_engine_entry.multicast_group_entry
        entry.multicast_group_id = number
        for port, instance in replicas:
            entry.replicas.add(egress_port=port, instance=instance)
        return update

    def counter(self, name: str, index: int | None, *, reset: bool = False) -> Any:
        """An entity that reads a counter's cell (None: all cells), or with `reset` an Update that sets it to 0."""
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = _found(self._counters, "counter", name).preamble.id
        if index is not None:
            entity.counter_entry.index.index = index
        if not reset:
            return entity
        entity.counter_entry.data.SetInParent()
        return p4runtime_pb2.Update(type=MODIFY, entity=entity)

    def all_entries(self, table: str) -> Any:
        """An entity that reads a whole table."""
        return p4runtime_pb2.Entity(
            table_entry=p4runtime_pb2.TableEntry(table_id=_found(self._tables, "table", table).preamble.id)
        )

    def all_groups(self) -> Any:
        """An entity that reads all multicast groups."""
        entity = p4runtime_pb2.Entity()
        entity.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        return entity

    def read_entry(self, table: str, entry: Any) -> tuple[dict[str, int], str, dict[str, int]]:
        """Match, action name and parameters of an entry that was read."""
        info = _found(self._tables, "table", table)
        names = {field.id: field.name for field in info.match_fields}
        match = {
            names[each.field_id]: int.from_bytes((each.exact if each.HasField("exact") else each.optional).value, "big")
            for each in entry.match
        }
        action = self._actions[entry.action.action.action_id]
        named = {each.id: each.name for each in action.params}
        values = {named[each.param_id]: int.from_bytes(each.value, "big") for each in entry.action.action.params}
        return match, str(action.preamble.name).rpartition(".")[2], values

    def packet_out(self, payload: bytes, **metadata: int) -> Any:
        """A PacketOut for the device; metadata that is not given is 0."""
        packet = p4runtime_pb2.PacketOut(payload=payload)
        if unknown := metadata.keys() - self._out.keys():
            raise ProgramError(
                f"packet_out has no metadata {min(unknown)!r}. "
                "Remedy: load fanin's program of this version on the device"
            )
        for name, number in self._out.items():
            packet.metadata.add(metadata_id=number, value=encoded(metadata.get(name, 0)))
        return packet

    def packet_in(self, packet: Any) -> tuple[bytes, dict[str, int]]:
        """Payload and metadata of a packet from the device."""
        metadata = {self._in[each.metadata_id]: int.from_bytes(each.value, "big") for each in packet.metadata}
        return bytes(packet.payload), metadata

    def _action(self, table: Any, name: str) -> Any:
        for reference in table.action_refs:
            action = self._actions[reference.id]
            if action.preamble.name.rpartition(".")[2] == name:
                return action
        raise ProgramError(
            f"table {table.preamble.name} has no action {name!r}. "
            "Remedy: load fanin's program of this version on the device"
        )

    def _fill(self, entry: Any, table: Any, name: str, values: Mapping[str, int]) -> None:
        action = self._action(table, name)
        entry.action.action.action_id = action.preamble.id
        for parameter in action.params:
            if parameter.name not in values:
                raise ProgramError(
                    f"action {action.preamble.name} wants {parameter.name!r}, which is unknown here. "
                    "Remedy: load fanin's program of this version on the device"
                )
            entry.action.action.params.add(param_id=parameter.id, value=encoded(values[parameter.name]))


def _by_last_part(things: Any) -> dict[str, Any]:
    return {each.preamble.name.rpartition(".")[2]: each for each in things}


def _found(things: dict[str, Any], kind: str, name: str) -> Any:
    if name not in things:
        raise ProgramError(
            f"the program has no {kind} {name!r}: it is no program of ours, or of another version. "
            "Remedy: load fanin's program of this version on the device"
        )
    return things[name]

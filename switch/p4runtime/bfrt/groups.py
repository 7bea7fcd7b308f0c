"""Multicast groups in a Tofino's replication engine: tables $pre.mgid and $pre.node.

A group is a list of nodes; a node is a replication id (P4Runtime's instance) and the ports that get a copy with it.
When a group changes, unchanged nodes are kept, new ones are written first, then the group, and old nodes are deleted
last, so that no packet meets a group without its nodes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

from p4.v1 import p4runtime_pb2

from fanin.switch.p4runtime.bfrt import messages
from fanin.switch.p4runtime.bfrt.info import BfrtField, BfrtInfo, BfrtTable
from fanin.switch.p4runtime.bfrt.messages import UpdateType
from fanin.switch.p4runtime.controller.links import RefusedError
from fanin.switch.p4runtime.server.status import Code

MGID, NODE = "$pre.mgid", "$pre.node"
NODE_ID = "$MULTICAST_NODE_ID"
REPLICATION_ID, LAGS, PORTS = "$MULTICAST_RID", "$MULTICAST_LAG_ID", "$DEV_PORT"
PRUNED, PRUNING_ID = "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"

Node = tuple[int, tuple[int, ...]]
"""Replication id and ports, in order."""


class Writes(Protocol):
    """A writer of the device (client.py)."""

    def write(self, updates: list[Any]) -> None: ...
    def read(self, entries: list[Any]) -> list[Any]: ...


class Groups:
    """All multicast groups of a device, of which this controller must be the only writer."""

    def __init__(self, client: Writes, info: BfrtInfo) -> None:
        """Read the groups on the device. ProgramError if it has no such tables."""
        self._client = client
        self._groups, self._nodes = info.table(MGID), info.table(NODE)
        self._made: dict[int, Node] = {}
        """Nodes on the device, by id."""
        self._members: dict[int, list[int]] = {}
        """Node ids, by group."""
        for entry in client.read([messages.TableEntry(table_id=self._nodes.number)]):
            values = _values(self._nodes, entry)
            self._made[_key_of(entry)] = (
                int.from_bytes(values[REPLICATION_ID].stream, "big"),
                tuple(sorted(values[PORTS].int_arr_val.val)),
            )
        for entry in client.read([messages.TableEntry(table_id=self._groups.number)]):
            values = _values(self._groups, entry)
            self._members[_key_of(entry)] = list(values[NODE_ID].int_arr_val.val) if NODE_ID in values else []

    def write(self, update: Any) -> None:
        """Carry out an Update of a multicast group. RefusedError with the codes of P4Runtime."""
        given = update.entity.packet_replication_engine_entry.multicast_group_entry
        number = given.multicast_group_id
        inserts, deletes = update.type == p4runtime_pb2.Update.INSERT, update.type == p4runtime_pb2.Update.DELETE
        if inserts and number in self._members:
            raise RefusedError(Code.ALREADY_EXISTS, f"multicast group {number} is there already")
        if not inserts and number not in self._members:
            raise RefusedError(Code.NOT_FOUND, f"there is no multicast group {number}")
        if deletes:
            old = self._members[number]
            self._client.write([self._group(UpdateType.DELETE, number)])
            del self._members[number]
        else:
            old = self._change(number, _nodes_of(given.replicas), UpdateType.INSERT if inserts else UpdateType.MODIFY)
        self._client.write([self._node(UpdateType.DELETE, each) for each in old])
        for each in old:
            del self._made[each]

    def _change(self, number: int, wanted: list[Node], kind: UpdateType) -> list[int]:
        """Write a group with the wanted nodes; return the ids of nodes that it no longer has."""
        old = self._members.get(number, [])
        staying = {self._made[each]: each for each in old}
        free = (each for each in itertools.count(1) if each not in self._made)
        fresh = {node: next(free) for node in wanted if node not in staying}
        members = [(staying | fresh)[node] for node in wanted]
        try:
            self._client.write([self._node(UpdateType.INSERT, each, node) for node, each in fresh.items()])
            self._client.write([self._group(kind, number, members)])
        except RefusedError:
            # Delete the new nodes, which no group has. The device complains of those that it has refused to create.
            with contextlib.suppress(RefusedError):
                self._client.write([self._node(UpdateType.DELETE, each) for each in fresh.values()])
            raise
        self._made |= {each: node for node, each in fresh.items()}
        self._members[number] = members
        return [each for each in old if each not in members]

    def read(self) -> list[Any]:
        """Entities of all multicast groups."""
        found = []
        for number, members in sorted(self._members.items()):
            entity = p4runtime_pb2.Entity()
            group = entity.packet_replication_engine_entry.multicast_group_entry
            group.multicast_group_id = number
            for instance, ports in (self._made[each] for each in members):
                for port in ports:
                    group.replicas.add(egress_port=port, instance=instance)
            found.append(entity)
        return found

    def _group(self, kind: UpdateType, number: int, members: Iterable[int] | None = None) -> Any:
        update = _update(kind, self._groups, number)
        if members is not None:
            entry, nodes = update.entity.table_entry, list(members)
            _data(entry, self._groups, NODE_ID).int_arr_val.val.extend(nodes)
            _data(entry, self._groups, PRUNED).bool_arr_val.val.extend([False] * len(nodes))
            _data(entry, self._groups, PRUNING_ID).int_arr_val.val.extend([0] * len(nodes))
        return update

    def _node(self, kind: UpdateType, number: int, node: Node | None = None) -> Any:
        update = _update(kind, self._nodes, number)
        if node is not None:
            entry = update.entity.table_entry
            _data(entry, self._nodes, REPLICATION_ID).stream = self._nodes.data[REPLICATION_ID].stream(node[0])
            _data(entry, self._nodes, LAGS).int_arr_val.SetInParent()
            _data(entry, self._nodes, PORTS).int_arr_val.val.extend(node[1])
        return update


def _nodes_of(replicas: Iterable[Any]) -> list[Node]:
    """The nodes of a group with these replicas, one for each instance."""
    ports: defaultdict[int, set[int]] = defaultdict(set)
    for each in replicas:
        ports[each.instance].add(each.egress_port)
    return [(instance, tuple(sorted(found))) for instance, found in ports.items()]


def _update(kind: UpdateType, table: BfrtTable, number: int) -> Any:
    update = messages.Update(type=kind)
    entry = update.entity.table_entry
    (key,) = table.key.values()
    entry.table_id = table.number
    entry.key.fields.add(field_id=key.number).exact.value = key.stream(number)
    return update


def _data(entry: Any, table: BfrtTable, name: str) -> Any:
    field: BfrtField = table.data[name]
    return entry.data.fields.add(field_id=field.number)


def _key_of(entry: Any) -> int:
    return int.from_bytes(entry.key.fields[0].exact.value, "big")


def _values(table: BfrtTable, entry: Any) -> dict[str, Any]:
    names = {field.number: field.name for field in table.data.values()}
    return {names[each.field_id]: each for each in entry.data.fields if each.field_id in names}

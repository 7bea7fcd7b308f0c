"""Random writes for any program, from its P4Info: what a controller that knows nothing of it might write."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from tests.p4_programs.random_values import value

PORTS = (1, 2, 3, 4, 5)
GROUPS = (1, 2, 3)
ENTRIES = 6
"""Most entries of one table."""
MEMBERS = 4
"""Most members of one action profile."""
Kinds = p4info_pb2.MatchField


def number(value: int) -> bytes:
    """Write a number as P4Runtime does: big-endian, as short as possible."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def updates(info: Any, random: Random) -> Iterator[Any]:
    """Updates in an order in which they can be carried out."""
    for group in GROUPS:
        for entry in (_multicast(group, random), _session(group, random)):
            update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
            update.entity.packet_replication_engine_entry.CopyFrom(entry)
            yield update
    actions = {each.preamble.id: each for each in info.actions}
    tables = {each.preamble.id: each for each in info.tables}
    for each in info.value_sets:
        update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.MODIFY)
        entry = update.entity.value_set_entry
        entry.value_set_id = each.preamble.id
        for _ in range(min(each.size, random.randrange(1, 4))):
            member = entry.members.add()
            for field in each.match:
                match = member.match.add(field_id=field.id)
                match.exact.value = number(value(random, field.bitwidth))
        yield update
    members: dict[int, list[int]] = {}
    for profile in info.action_profiles:
        members[profile.preamble.id] = []
        refs = [ref for table in profile.table_ids if table in tables for ref in tables[table].action_refs]
        refs = [ref for ref in refs if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY]
        for at in range(MEMBERS if refs else 0):
            update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
            member = update.entity.action_profile_member
            member.action_profile_id, member.member_id = profile.preamble.id, at + 1
            _fill_action(member.action, actions[random.choice(refs).id], random)
            members[profile.preamble.id].append(at + 1)
            yield update
    for table in info.tables:
        yield from _of_table(table, actions, members, random)


def _of_table(table: Any, actions: dict[int, Any], members: dict[int, list[int]], random: Random) -> Iterator[Any]:
    refs = [ref for ref in table.action_refs if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY]
    written = set()
    if table.match_fields and refs and not table.is_const_table:
        ranked = any(f.match_type in (Kinds.TERNARY, Kinds.RANGE, Kinds.OPTIONAL) for f in table.match_fields)
        for at in range(random.randrange(ENTRIES // 2, ENTRIES + 1)):
            update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
            entry = update.entity.table_entry
            entry.table_id = table.preamble.id
            entry.priority = (at + 1) * ranked
            for field in table.match_fields:
                _match(entry, field, random)
            if (key := tuple(each.SerializeToString() for each in entry.match)) in written and not ranked:
                continue
            written.add(key)
            if table.implementation_id:
                if not members.get(table.implementation_id):
                    continue
                entry.action.action_profile_member_id = random.choice(members[table.implementation_id])
            else:
                _fill_action(entry.action.action, actions[random.choice(refs).id], random)
            yield update
    refs = [ref for ref in table.action_refs if ref.scope != p4info_pb2.ActionRef.TABLE_ONLY]
    if refs and not table.const_default_action_id and not table.implementation_id and random.random() < 0.5:
        update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.MODIFY)
        entry = update.entity.table_entry
        entry.table_id, entry.is_default_action = table.preamble.id, True
        _fill_action(entry.action.action, actions[random.choice(refs).id], random)
        yield update


def _named(part: Any) -> bool:
    """Whether the part's type is translated to strings."""
    return not part.bitwidth and bool(part.type_name.name)


def _name(random: Random) -> bytes:
    return f"name {random.randrange(4)}".encode()


def _match(entry: Any, field: Any, random: Random) -> None:
    if _named(field):
        if field.match_type == Kinds.EXACT:
            entry.match.add(field_id=field.id).exact.value = _name(random)
        elif field.match_type == Kinds.OPTIONAL:
            entry.match.add(field_id=field.id).optional.value = _name(random)
        return
    bits = field.bitwidth
    whole, drawn = (1 << bits) - 1, value(random, bits)
    if field.match_type == Kinds.EXACT:
        entry.match.add(field_id=field.id).exact.value = number(drawn)
    elif field.match_type == Kinds.LPM:
        if length := random.choice((0, bits, bits, random.randrange(bits + 1))):
            match = entry.match.add(field_id=field.id).lpm
            match.value, match.prefix_len = number(drawn & whole - (whole >> length)), length
    elif field.match_type == Kinds.TERNARY:
        if mask := random.choice((0, whole, whole, random.getrandbits(bits))):
            match = entry.match.add(field_id=field.id).ternary
            match.value, match.mask = number(drawn & mask), number(mask)
    elif field.match_type == Kinds.RANGE:
        low, high = sorted((drawn, value(random, bits)))
        if (low, high) != (0, whole):
            match = entry.match.add(field_id=field.id).range
            match.low, match.high = number(low), number(high)
    elif field.match_type == Kinds.OPTIONAL and random.random() < 0.7:
        entry.match.add(field_id=field.id).optional.value = number(drawn)


def _fill_action(action: Any, info: Any, random: Random) -> None:
    action.action_id = info.preamble.id
    for each in info.params:
        if _named(each):
            action.params.add(param_id=each.id, value=_name(random))
            continue
        drawn = random.choice(PORTS) if each.bitwidth == 9 else value(random, each.bitwidth)
        action.params.add(param_id=each.id, value=number(drawn))


def _multicast(group: int, random: Random) -> Any:
    entry = p4runtime_pb2.PacketReplicationEngineEntry()
    entry.multicast_group_entry.multicast_group_id = group
    for port in random.sample(PORTS, random.randrange(1, 4)):
        entry.multicast_group_entry.replicas.add(egress_port=port, instance=random.randrange(4))
    return entry


def _session(session: int, random: Random) -> Any:
    entry = p4runtime_pb2.PacketReplicationEngineEntry()
    entry.clone_session_entry.session_id = session
    entry.clone_session_entry.replicas.add(egress_port=random.choice(PORTS), instance=1)
    entry.clone_session_entry.packet_length_bytes = random.choice((0, 0, 20))
    return entry

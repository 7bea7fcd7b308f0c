"""Run command files of BMv2's simple_switch_CLI on a V1Switch of this process, without Thrift.

Rules
-----
* A line is a command with its words; `#` begins a comment. Names of tables, actions, registers, ... may leave out
  leading parts if the rest is unambiguous. Handles are assigned from 0 on, the lowest free one first, as by BMv2.
* A value is a number as Python writes it, or, for 32, 48 and 128 bits, an IPv4, MAC or IPv6 address. A key field is
  VALUE, VALUE/LENGTH, VALUE&&&MASK or LOW->HIGH, as its table matches it. The lowest priority wins, as in BMv2.
* Rates of meters are in tokens per microsecond, `RATE:BURST`, the committed one first.
* Commands on queues are ignored, since this switch has none, and so are commands that only show something. A command
  that cannot be carried out raises CommandError with its line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fanin.p4_ports import DROP_PORT
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.actions import Group, Member, TableError
from fanin.switch.p4.command_words import (
    CommandError,
    at_most,
    find,
    free_number,
    lowest_free_handle,
    match,
    node_of,
    number,
    rates,
    value,
)
from fanin.switch.p4.replication import MAX_GROUP, MAX_SESSION, MirrorSession, Replica
from fanin.switch.p4.tables import Match, Table
from fanin.switch.p4.v1model import V1Switch

MAX_PRIORITY = 1 << 24
"""Largest priority in a command. The switch's priority is this minus BMv2's, since the highest wins in P4Runtime."""
MAX_LINES = 1 << 20
MAX_NODES = 1 << 16
SHOWING = (
    "act_prof_dump", "act_prof_dump_group", "act_prof_dump_member", "counter_read", "get_time_elapsed",
    "get_time_since_epoch", "help", "mc_dump", "meter_get_rates", "mirroring_get", "port_add", "port_remove", "pvs_get",
    "register_read", "show_actions", "show_ports", "show_pvs", "show_tables", "switch_info", "table_dump",
    "table_dump_entry", "table_dump_entry_from_key", "table_dump_group", "table_dump_member", "table_info",
    "table_num_entries", "table_show_actions",
)  # fmt: skip
"""Ignored commands: those that change nothing, and those on ports, which are fixed when the switch starts."""
QUEUES = ("set_queue_depth", "set_queue_rate")


@dataclass
class Commands:
    """Carries out commands on a switch, and keeps the objects that their handles refer to."""

    switch: V1Switch
    passed_over: list[str] = field(default_factory=list)
    """Names of ignored commands that were met, each once."""
    _entries: dict[str, dict[int, tuple[tuple[Match, ...], int]]] = field(default_factory=dict)
    """Match and priority of each entry, by table and handle."""
    _freed: dict[str, list[int]] = field(default_factory=dict)
    """By table, the free handles below the highest one in use, as a heap."""
    _nodes: dict[int, tuple[Replica, ...]] = field(default_factory=dict)
    _groups: dict[int, list[int]] = field(default_factory=dict)
    """Handles of the nodes of each multicast group."""
    _sessions: dict[int, int] = field(default_factory=dict)
    """By clone session that goes to a multicast group, that group."""

    def run(self, text: str, source: str = "commands") -> None:
        """Carry out all lines. CommandError names `source` and the line; the lines before it have taken effect."""
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            raise CommandError(f"{source}: {len(lines):,} lines; at most {MAX_LINES:,}")
        for at, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                self._line(words[0], words[1:])
            except (TableError, CommandError, ValueError) as error:
                raise CommandError(f"{source}, line {at}: {words[0]}: {error}") from None

    def _line(self, name: str, words: list[str]) -> None:
        if name in SHOWING or name in QUEUES:
            if name not in self.passed_over:
                self.passed_over.append(name)
            return
        command = COMMANDS.get(name)
        if command is None:
            raise CommandError("there is no such command here")
        least, most, work = command
        if len(words) < least or (most is not None and len(words) > most):
            wanted = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            raise CommandError(f"{wanted} words are expected behind it, not {len(words)}")
        work(self, words)

    # --- tables ---

    def _table(self, name: str) -> Table:
        return find(name, self.switch.program.tables, "table")

    def _action(self, table: Table, name: str, given: Iterable[str]) -> tuple[str, tuple[int, ...]]:
        facts = find(name, table.actions, f"action of table {table.name}")
        words = list(given)
        if len(words) != len(facts.widths):
            raise CommandError(f"action {facts.name} takes {len(facts.widths)} values, not {len(words)}")
        return facts.name, tuple(value(word, bits) for word, bits in zip(words, facts.widths, strict=True))

    def _split(self, table: Table, words: list[str]) -> tuple[tuple[Match, ...], list[str], int]:
        """Split into the matches, the words behind `=>`, and the priority."""
        priority = 0
        if table.ranked:
            if not words or not 0 <= number(words[-1]) <= MAX_PRIORITY:
                raise CommandError(f"table {table.name} wants a priority at the end, 0..{MAX_PRIORITY}")
            priority, words = MAX_PRIORITY - number(words[-1]), words[:-1]
        at = words.index("=>") if "=>" in words else len(words)
        if at != len(table.key):
            raise CommandError(f"table {table.name} has {len(table.key)} key fields, not {at}")
        matches = tuple(match(word, part) for word, part in zip(words[:at], table.key, strict=True))
        return matches, words[at + 1 :], priority

    def _note(self, table: Table, matches: tuple[Match, ...], priority: int) -> None:
        entries, freed = self._entries.setdefault(table.name, {}), self._freed.get(table.name)
        entries[heapq.heappop(freed) if freed else len(entries)] = matches, priority

    def _entry(self, table: Table, handle: str) -> tuple[tuple[Match, ...], int]:
        entries = self._entries.get(table.name, {})
        if number(handle) not in entries:
            raise CommandError(f"table {table.name} has no entry with handle {handle}")
        return entries[number(handle)]

    def table_add(self, words: list[str]) -> None:
        """Carry out `table_add TABLE ACTION KEY... => DATA... [PRIORITY]`."""
        table = self._table(words[0])
        matches, given, priority = self._split(table, words[2:])
        action, data = self._action(table, words[1], given)
        table.insert(matches, priority, action, data)
        self._note(table, matches, priority)

    def table_indirect_add(self, words: list[str], *, group: bool = False) -> None:
        """Carry out `table_indirect_add TABLE KEY... => MEMBER [PRIORITY]`, or the same with a group."""
        table = self._table(words[0])
        if table.profile is None:
            raise CommandError(f"table {table.name} has no action profile")
        matches, given, priority = self._split(table, words[1:])
        profile = self.switch.program.profiles[table.profile]
        if len(given) != 1:
            raise CommandError("one member or group is expected behind =>")
        handle = given[0]
        target: Member | Group = profile.group(number(handle) + 1) if group else profile.member(number(handle) + 1)
        table.insert(matches, priority, "", (), target)
        self._note(table, matches, priority)

    def table_modify(self, words: list[str]) -> None:
        """Carry out `table_modify TABLE ACTION HANDLE DATA...`."""
        table = self._table(words[0])
        action, data = self._action(table, words[1], [word for word in words[3:] if word != "=>"])
        table.modify(*self._entry(table, words[2]), action, data)

    def table_delete(self, words: list[str]) -> None:
        """Carry out `table_delete TABLE HANDLE`."""
        table = self._table(words[0])
        table.delete(*self._entry(table, words[1]))
        del self._entries[table.name][number(words[1])]
        heapq.heappush(self._freed.setdefault(table.name, []), number(words[1]))

    def table_clear(self, words: list[str]) -> None:
        """Carry out `table_clear TABLE`."""
        table = self._table(words[0])
        table.clear()
        self._entries.pop(table.name, None)
        self._freed.pop(table.name, None)

    def table_set_default(self, words: list[str]) -> None:
        """Carry out `table_set_default TABLE ACTION DATA...`."""
        table = self._table(words[0])
        table.set_default(*self._action(table, words[1], [word for word in words[2:] if word != "=>"]))

    def table_set_timeout(self, words: list[str]) -> None:
        """Carry out `table_set_timeout TABLE HANDLE MILLISECONDS`."""
        table = self._table(words[0])
        if not table.ages:
            raise CommandError(f"entries of table {table.name} have no idle timeout")
        table.lookup(*self._entry(table, words[1])).idle_us = number(words[2]) * 1000

    # --- action profiles ---

    def _profile(self, name: str) -> ActionProfile:
        return find(name, self.switch.program.profiles, "action profile")

    def create_member(self, words: list[str]) -> None:
        """Carry out `act_prof_create_member PROFILE ACTION DATA...`."""
        profile = self._profile(words[0])
        profile.insert_member(free_number(profile.members), *self._member_action(profile, words[1:]))

    def modify_member(self, words: list[str]) -> None:
        """Carry out `act_prof_modify_member PROFILE ACTION MEMBER DATA...`."""
        profile = self._profile(words[0])
        profile.modify_member(number(words[2]) + 1, *self._member_action(profile, [words[1], *words[3:]]))

    def _member_action(self, profile: ActionProfile, words: list[str]) -> tuple[str, tuple[int, ...]]:
        facts = find(words[0], profile.actions, f"action of action profile {profile.name}")
        if len(words) - 1 != len(facts.widths):
            raise CommandError(f"action {facts.name} takes {len(facts.widths)} values, not {len(words) - 1}")
        return facts.name, tuple(value(word, bits) for word, bits in zip(words[1:], facts.widths, strict=True))

    def delete_member(self, words: list[str]) -> None:
        """Carry out `act_prof_delete_member PROFILE MEMBER`."""
        profile = self._profile(words[0])
        member = profile.member(number(words[1]) + 1)
        profile.delete_member(member.number, self._used(profile, member))

    def create_group(self, words: list[str]) -> None:
        """Carry out `act_prof_create_group PROFILE`."""
        profile = self._profile(words[0])
        profile.insert_group(free_number(profile.groups), {}, 0)

    def delete_group(self, words: list[str]) -> None:
        """Carry out `act_prof_delete_group PROFILE GROUP`."""
        profile = self._profile(words[0])
        group = profile.group(number(words[1]) + 1)
        profile.delete_group(group.number, self._used(profile, group))

    def _used(self, profile: ActionProfile, target: Member | Group) -> bool:
        tables = (self.switch.program.tables[name] for name in profile.tables)
        return any(entry.target is target for table in tables for entry in table)

    def change_group(self, words: list[str], *, add: bool) -> None:
        """Carry out `act_prof_add_member_to_group PROFILE MEMBER GROUP`, or `act_prof_remove_member_from_group`."""
        profile = self._profile(words[0])
        member, group = number(words[1]) + 1, profile.group(number(words[2]) + 1)
        weights = {share.member.number: share.weight for share in group.shares}
        if (member in weights) == add:
            raise CommandError(f"member {words[1]} is {'already' if add else 'not'} in group {words[2]}")
        changed = {**weights, member: 1} if add else {each: weights[each] for each in weights if each != member}
        profile.modify_group(group.number, changed)

    # --- copies ---

    def group_create(self, words: list[str]) -> None:
        """Carry out `mc_mgrp_create GROUP`."""
        group = at_most(words[0], MAX_GROUP, "multicast group")
        if group in self._groups:
            raise CommandError(f"multicast group {group} exists already")
        self._groups[group] = []
        self._refresh()

    def group_destroy(self, words: list[str]) -> None:
        """Carry out `mc_mgrp_destroy GROUP`."""
        group = self._group(words[0])
        del self._groups[group], self.switch.groups[group]
        self._refresh()

    def node_create(self, words: list[str]) -> None:
        """Carry out `mc_node_create INSTANCE PORT... [| LAG...]`."""
        if len(self._nodes) >= MAX_NODES:
            raise CommandError(f"more than {MAX_NODES} nodes")
        self._nodes[lowest_free_handle(self._nodes)] = node_of(words[0], words[1:])

    def node_update(self, words: list[str]) -> None:
        """Carry out `mc_node_update NODE PORT... [| LAG...]`."""
        node = self._node(words[0])
        instance = self._nodes[node][0].instance if self._nodes[node] else 0
        self._nodes[node] = node_of(str(instance), words[1:])
        self._refresh()

    def node_destroy(self, words: list[str]) -> None:
        """Carry out `mc_node_destroy NODE`."""
        node = self._node(words[0])
        del self._nodes[node]
        self._groups = {group: [each for each in nodes if each != node] for group, nodes in self._groups.items()}
        self._refresh()

    def associate(self, words: list[str], *, add: bool) -> None:
        """Carry out `mc_node_associate GROUP NODE`, or `mc_node_dissociate`."""
        group, node = self._group(words[0]), self._node(words[1])
        if (node in self._groups[group]) == add:
            raise CommandError(f"node {node} is {'already' if add else 'not'} in multicast group {group}")
        if add:
            self._groups[group].append(node)
        else:
            self._groups[group].remove(node)
        self._refresh()

    def _group(self, word: str) -> int:
        if (group := number(word)) not in self._groups:
            raise CommandError(f"there is no multicast group {group}")
        return group

    def _node(self, word: str) -> int:
        if (node := number(word)) not in self._nodes:
            raise CommandError(f"there is no node with handle {node}")
        return node

    def _refresh(self) -> None:
        """Write all groups, and the sessions that go to groups, to the switch."""
        for group, nodes in self._groups.items():
            self.switch.groups[group] = tuple(replica for node in nodes for replica in self._nodes[node])
        for session, group in self._sessions.items():
            self.switch.mirrors[session] = MirrorSession(tuple(self.switch.groups.get(group, ())))

    def mirror(self, words: list[str], *, group: bool) -> None:
        """Carry out `mirroring_add SESSION PORT`, or `mirroring_add_mc SESSION GROUP`."""
        session = at_most(words[0], MAX_SESSION, "mirror session")
        self._sessions.pop(session, None)
        if group:
            self._sessions[session] = at_most(words[1], MAX_GROUP, "multicast group")
            self._refresh()
        else:
            self.switch.mirrors[session] = MirrorSession((Replica(at_most(words[1], DROP_PORT - 1, "port"), 0),))

    def mirror_delete(self, words: list[str]) -> None:
        """Carry out `mirroring_delete SESSION`."""
        session = number(words[0])
        if session not in self.switch.mirrors:
            raise CommandError(f"there is no mirror session {session}")
        self._sessions.pop(session, None)
        del self.switch.mirrors[session]

    # --- cells ---

    def register_write(self, words: list[str]) -> None:
        """Carry out `register_write REGISTER INDEX VALUE`."""
        register = find(words[0], self.switch.program.registers, "register array")
        register.cells[at_most(words[1], register.size - 1, "index")] = value(words[2], register.bits)

    def register_reset(self, words: list[str]) -> None:
        """Carry out `register_reset REGISTER`."""
        find(words[0], self.switch.program.registers, "register array").reset()

    def counter_write(self, words: list[str]) -> None:
        """Carry out `counter_write COUNTER INDEX PACKETS BYTES`."""
        counter = find(words[0], self.switch.program.counters, "counter array")
        at = at_most(words[1], counter.size - 1, "index")
        counter.packets[at], counter.bytes[at] = value(words[2], 63), value(words[3], 63)

    def counter_reset(self, words: list[str]) -> None:
        """Carry out `counter_reset COUNTER`."""
        counter = find(words[0], self.switch.program.counters, "counter array")
        for at in range(counter.size):
            counter.packets[at] = counter.bytes[at] = 0
        if counter.table is not None:
            for entry in self.switch.program.tables[counter.table]:
                entry.counts[0] = entry.counts[1] = 0

    def meter_array_set_rates(self, words: list[str]) -> None:
        """Carry out `meter_array_set_rates METER RATE:BURST RATE:BURST`."""
        meters = find(words[0], self.switch.program.meters, "meter array")
        given = rates(words[1:])
        if meters.table is not None:
            for entry in self.switch.program.tables[meters.table]:
                assert entry.meter is not None
                entry.meter.set(given)
        for at in range(meters.size):
            meters[at].set(given)

    def meter_set_rates(self, words: list[str]) -> None:
        """Carry out `meter_set_rates METER INDEX RATE:BURST RATE:BURST`; INDEX is a handle for a direct meter."""
        meters, given = find(words[0], self.switch.program.meters, "meter array"), rates(words[2:])
        if meters.table is None:
            meters[at_most(words[1], meters.size - 1, "index")].set(given)
            return
        table = self.switch.program.tables[meters.table]
        entry = table.lookup(*self._entry(table, words[1]))
        assert entry.meter is not None
        entry.meter.set(given)

    def value_set(self, words: list[str], *, add: bool) -> None:
        """Carry out `pvs_add VALUE_SET VALUE`, or `pvs_remove`."""
        members = find(words[0], self.switch.program.value_sets, "parse value set")
        given = {value(words[1], members.bits)}
        members.values = members.values | given if add else members.values - given

    def value_set_clear(self, words: list[str]) -> None:
        """Carry out `pvs_clear VALUE_SET`."""
        find(words[0], self.switch.program.value_sets, "parse value set").values = set()


Work = Callable[[Commands, list[str]], None]
COMMANDS: dict[str, tuple[int, int | None, Work]] = {
    "table_add": (3, None, Commands.table_add),
    "table_indirect_add": (3, None, Commands.table_indirect_add),
    "table_indirect_add_with_group": (3, None, lambda c, words: c.table_indirect_add(words, group=True)),
    "table_modify": (3, None, Commands.table_modify),
    "table_delete": (2, 2, Commands.table_delete),
    "table_indirect_delete": (2, 2, Commands.table_delete),
    "table_clear": (1, 1, Commands.table_clear),
    "table_set_default": (2, None, Commands.table_set_default),
    "table_reset_default": (1, 1, lambda c, words: c._table(words[0]).set_default(None)),
    "table_set_timeout": (3, 3, Commands.table_set_timeout),
    "act_prof_create_member": (2, None, Commands.create_member),
    "act_prof_modify_member": (3, None, Commands.modify_member),
    "act_prof_delete_member": (2, 2, Commands.delete_member),
    "act_prof_create_group": (1, 1, Commands.create_group),
    "act_prof_delete_group": (2, 2, Commands.delete_group),
    "act_prof_add_member_to_group": (3, 3, lambda c, words: c.change_group(words, add=True)),
    "act_prof_remove_member_from_group": (3, 3, lambda c, words: c.change_group(words, add=False)),
    "mc_mgrp_create": (1, 1, Commands.group_create),
    "mc_mgrp_destroy": (1, 1, Commands.group_destroy),
    "mc_node_create": (1, None, Commands.node_create),
    "mc_node_update": (1, None, Commands.node_update),
    "mc_node_destroy": (1, 1, Commands.node_destroy),
    "mc_node_associate": (2, 2, lambda c, words: c.associate(words, add=True)),
    "mc_node_dissociate": (2, 2, lambda c, words: c.associate(words, add=False)),
    "mirroring_add": (2, 2, lambda c, words: c.mirror(words, group=False)),
    "mirroring_add_mc": (2, 2, lambda c, words: c.mirror(words, group=True)),
    "mirroring_delete": (1, 1, Commands.mirror_delete),
    "register_write": (3, 3, Commands.register_write),
    "register_reset": (1, 1, Commands.register_reset),
    "counter_write": (4, 4, Commands.counter_write),
    "counter_reset": (1, 1, Commands.counter_reset),
    "meter_array_set_rates": (3, 3, Commands.meter_array_set_rates),
    "meter_set_rates": (4, 4, Commands.meter_set_rates),
    "pvs_add": (2, 2, lambda c, words: c.value_set(words, add=True)),
    "pvs_remove": (2, 2, lambda c, words: c.value_set(words, add=False)),
    "pvs_clear": (1, 1, Commands.value_set_clear),
}
"""By command name: the fewest and the most words behind it (None: any number), and the function that runs it."""

"""The native interpreter behind a V1Switch: it receives the program's code, and every change of tables and groups.

Registers, counters and the counts of entries are Python's memory, on which both interpreters work. Entries, multicast
groups and mirror sessions are copied: `Table.watcher` and `Watched` report every change.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from fanin.switch.p4.action_profiles import NO_MEMBER, ActionProfile
from fanin.switch.p4.actions import Group, Member
from fanin.switch.p4.externs import WideCells
from fanin.switch.p4.native_code import LIMB_BITS, STATE_LIMBS, NotNative, split
from fanin.switch.p4.native_program import NO_ACTION, NativeProgram, key_limbs, next_name, translate
from fanin.switch.p4.program import Program
from fanin.switch.p4.replication import MirrorSession, Replica
from fanin.switch.p4.tables import Entry, Table

Outcome = tuple[list[tuple[int, bytes]], int, int, int, int, str]
"""Packets that leave, with their ports; bytes in; bytes out; copies dropped; packets lost; reason of the last loss."""

PortsOutcome = tuple[list[tuple[int, bytes]], int, int, int, int, str, int]
"""Like Outcome, for packets from native ports: lists only packets for other ports, and ends with all that left."""


class NativeMachine:
    """A program in the native interpreter. Raises NotNative for a program that it cannot run."""

    def __init__(
        self, extension: ModuleType, program: Program, places: Mapping[str, int], limits: Mapping[str, int]
    ) -> None:
        """`places`: of the fields that the architecture uses, by name. `limits`: max_states, max_passes, drop_port."""
        operations = {name: number for number, name in enumerate(extension.P4_OPERATIONS)}
        self._code = translate(program, operations, places.values())
        self._machine = extension.P4Machine(_described(program, self._code, places, limits))
        self.process_ports: Callable[[Any, int], PortsOutcome] = self._machine.process_ports
        self.process: Callable[[list[tuple[int, bytes]], int], Outcome] = self._machine.process
        self._endless = 0
        self._learned = {number: each.places for number, each in program.learn_lists.items()}
        for number, table in enumerate(program.tables[name] for name in self._code.tables):
            profile = None if table.profile is None else program.profiles[table.profile]
            table.watcher = watcher = _TableWatcher(self._machine, number, table, self._code, profile)
            if profile is not None:
                profile.watchers.append(watcher.retarget)

    def take_digests(self) -> list[tuple[int, tuple[int, ...]]]:
        """Take the learn lists, with their values, of the digests since the last call."""
        found = []
        for number, limbs in self._machine.take_digests():
            values, at = [], 0
            for _, bits in self._learned[number]:
                count = -(-bits // LIMB_BITS)
                whole = sum(limb << LIMB_BITS * place for place, limb in enumerate(limbs[at : at + count]))
                values.append(whole & (1 << bits) - 1)
                at += count
            found.append((number, tuple(values)))
        return found

    def endless_since_last(self) -> int:
        """Number of packets lost to more than max_passes passes since the last call."""
        before, self._endless = self._endless, self._machine.endless()
        return self._endless - before

    def set_group(self, number: int, replicas: tuple[Replica, ...] | None) -> None:
        """Set a multicast group; None: remove it."""
        self._machine.set_group(number, None if replicas is None else list(replicas))

    def set_mirror(self, number: int, session: MirrorSession | None) -> None:
        """Set a mirror session; None: remove it."""
        if session is None:
            self._machine.set_mirror(number, None, 0)
        else:
            self._machine.set_mirror(number, list(session.replicas), session.cut)


class _TableWatcher:
    """Copies every change of a table's entries to the interpreter."""

    def __init__(
        self, machine: Any, number: int, table: Table, code: NativeProgram, profile: ActionProfile | None
    ) -> None:
        self._machine = machine
        self._number = number
        self._table = table
        self._code = code
        self._entries: dict[int, int] = {}
        """Numbers of entries in the interpreter, by id() of the entry."""
        self._limbs = key_limbs(table)
        self._profile = profile
        self._lists: dict[int, tuple[int, Group, int]] = {}
        """By id() of a group that entries name: its number in the interpreter, the group, and the count of entries."""
        self._targeted: dict[int, Entry] = {}
        """Entries that name a member, by id() of the entry."""
        for entry in table:
            self.put(entry)
        self.missed(table.miss)

    def put(self, entry: Entry) -> None:
        """Copy a new entry, behind those of the same rank."""
        ranges = [(shift, whole.bit_length(), low, high) for shift, whole, low, high in entry.ranges]
        counts = None
        if self._table.counts:
            entry.counts = counts = array("q", entry.counts)
        choices = 0
        if isinstance(entry.target, Group):
            choices = self._list_of(entry.target)
        elif entry.target is not None:
            self._targeted[id(entry)] = entry
        self._entries[id(entry)] = self._machine.put(
            self._number,
            split(entry.value, self._limbs),
            split(entry.mask, self._limbs),
            ranges,
            entry.rank,
            *self._action_of(entry),
            counts,
            None if entry.meter is None else entry.meter.cells,
            choices,
        )

    def take(self, entry: Entry) -> None:
        """Remove the copy of an entry."""
        self._machine.take(self._number, self._entries.pop(id(entry)))
        self._targeted.pop(id(entry), None)
        if isinstance(entry.target, Group):
            number, group, users = self._lists.pop(id(entry.target))
            if users > 1:
                self._lists[id(group)] = number, group, users - 1
            else:
                self._machine.remove_choices(number)

    def missed(self, entry: Entry) -> None:
        """Copy the new action of a miss."""
        self._machine.set_miss(self._number, *self._action_of(entry))

    def retarget(self, changed: Member | Group | None) -> None:
        """Copy a changed member or group of the profile; None: the set of ports that are down has changed."""
        for entry in self._targeted.values():
            if entry.target is changed:
                self._machine.set_action(self._number, self._entries[id(entry)], *self._action_of(entry))
        for number, group, _ in self._lists.values():
            if changed is None or changed is group or any(changed is share.member for share in group.shares):
                self._machine.set_choices(number, *self._spread(group))

    def _list_of(self, group: Group) -> int:
        """The number of a group's choices in the interpreter; counts one more entry that names the group."""
        if (known := self._lists.get(id(group))) is not None:
            self._lists[id(group)] = known[0], group, known[2] + 1
            return known[0]
        number = int(self._machine.add_choices(*self._spread(group)))
        self._lists[id(group)] = number, group, 1
        return number

    def _spread(self, group: Group) -> tuple[list[tuple[int, int, list[int]]], list[int]]:
        """Actions of the group's members, and for each remainder of the hash the index of the chosen member."""
        assert self._profile is not None
        chosen = group.spread(self._profile.down) or (NO_MEMBER,)
        if self._profile.hashed is None:
            chosen = chosen[:1]
        members = list({id(each): each for each in chosen}.values())
        places = {id(each): at for at, each in enumerate(members)}
        return [self._does(each) for each in members], [places[id(each)] for each in chosen]

    def _action_of(self, entry: Entry) -> tuple[int, int, list[int]]:
        """Start of an entry's action in the code, start of the code that follows it, and the action's data."""
        if isinstance(entry.target, Member):
            return self._does(entry.target)
        start = self._code.starts[entry.run.__name__ if entry.action else NO_ACTION]
        return start, self._code.starts[next_name(entry)], self._data(entry.action, entry.data)

    def _does(self, member: Member) -> tuple[int, int, list[int]]:
        following = self._table.after(member.action, True)
        after = "None" if following is None else str(getattr(following, "__name__", None))
        start = self._code.starts[member.run.__name__ if member.action else NO_ACTION]
        return start, self._code.starts[after], self._data(member.action, member.data)

    def _data(self, action: str, data: tuple[int, ...]) -> list[int]:
        if not action:
            return []
        facts = self._table.actions if self._profile is None else self._profile.actions
        limbs: list[int] = []
        for value, bits in zip(data, facts[action].widths, strict=True):
            limbs += split(value, max(1, -(-bits // LIMB_BITS)))
        return limbs


def _described(
    program: Program, code: NativeProgram, places: Mapping[str, int], limits: Mapping[str, int]
) -> dict[str, Any]:
    """The description of a program that the interpreter's constructor takes."""
    layout = program.layout
    blank = [0] * STATE_LIMBS
    for value, place in zip(layout.blank, code.places, strict=True):
        blank += split(value, place.limbs)
    metadata = []
    for header in layout.headers.values():
        if header.metadata:
            metadata += [code.places[at][:2] for at in range(header.base, header.base + header.type.places)]
    for table in program.tables.values():
        if any(part.bits > LIMB_BITS for part in table.key if part.kind.value == "range"):
            raise NotNative("ranges of more than 64 bits")
    registers = []
    for each in program.registers.values():
        limbs = -(-each.bits // LIMB_BITS)
        cells = each.cells
        memory = cells.memory if isinstance(cells, WideCells) else cells
        registers.append((memory, each.size, limbs, limbs * 8 if each.bits > 32 else 4))
    return {
        "code": code.code,
        "blank": blank,
        "beginning": code.beginning,
        "carried": code.carried,
        "constants": code.constants,
        "constants_at": code.constants_at,
        "parameters": code.parameters_at,
        "parser": code.starts["parser_start"],
        "ingress": code.starts["ingress_start"],
        "egress": code.starts["egress_start"],
        "verify": code.starts["verify"],
        "update": code.starts["update"],
        "deparse": code.starts["deparse"],
        "no_error": program.errors["NoError"],
        "failures": code.failures,
        "field_lists": {
            number: [code.places[at][:2] for at in fields] for number, fields in program.field_lists.items()
        },
        "metadata": metadata,
        "places": {name: code.places[at].at for name, at in places.items()},
        "tables": [(key_limbs(table), table.is_exact) for table in map(program.tables.__getitem__, code.tables)],
        "registers": registers,
        "counters": [(each.packets, each.bytes, each.size) for each in program.counters.values()],
        "meters": [(each.cells, each.size) for each in program.meters.values()],
        "learn_lists": {
            number: [code.places[at][:2] for at, _ in each.places] for number, each in program.learn_lists.items()
        },
        **limits,
    }

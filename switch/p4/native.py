"""The native interpreter behind a V1Switch: it gets the program's code, and every change of tables and groups.

Registers, counters and the counts of entries are Python's memory, which both interpreters work on. Entries, multicast
groups and mirror sessions are copied: `Table.watcher` and `Watched` say what changes, when it changes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from fanin.switch.p4.externs import WideCells
from fanin.switch.p4.native_code import LIMB_BITS, STATE_LIMBS, NotNative, split
from fanin.switch.p4.native_program import NO_ACTION, NativeProgram, key_limbs, next_name, translate
from fanin.switch.p4.program import Program
from fanin.switch.p4.replication import MirrorSession, Replica
from fanin.switch.p4.tables import Entry, Table

Outcome = tuple[list[tuple[int, bytes]], int, int, int, int, str]
"""What leaves, bytes that came and that leave, copies dropped, packets lost, and why the last of these was."""

PortsOutcome = tuple[list[tuple[int, bytes]], int, int, int, int, str, int]
"""The same of what arrived at native ports, of what leaves only that for none of them; and how many left in all."""


class NativeMachine:
    """A program in the native interpreter. NotNative for one that it does not run."""

    def __init__(
        self, extension: ModuleType, program: Program, places: Mapping[str, int], limits: Mapping[str, int]
    ) -> None:
        """`places` are those of the fields that the architecture knows; `limits`: max_states, max_passes, drop_port."""
        operations = {name: number for number, name in enumerate(extension.P4_OPERATIONS)}
        self._code = translate(program, operations, places.values())
        self._machine = extension.P4Machine(_described(program, self._code, places, limits))
        self.process_ports: Callable[[Any, int], PortsOutcome] = self._machine.process_ports
        self.process: Callable[[list[tuple[int, bytes]], int], Outcome] = self._machine.process
        self._endless = 0
        for number, table in enumerate(program.tables[name] for name in self._code.tables):
            table.watcher = _TableWatcher(self._machine, number, table, self._code)

    def endless_since_last(self) -> int:
        """Packets lost to more than max_passes passes, since this was last asked."""
        before, self._endless = self._endless, self._machine.endless()
        return self._endless - before

    def set_group(self, number: int, replicas: tuple[Replica, ...] | None) -> None:
        """A multicast group is another one, or gone."""
        self._machine.set_group(number, None if replicas is None else list(replicas))

    def set_mirror(self, number: int, session: MirrorSession | None) -> None:
        """The same of a mirror session."""
        if session is None:
            self._machine.set_mirror(number, None, 0)
        else:
            self._machine.set_mirror(number, list(session.replicas), session.cut)


class _TableWatcher:
    """Tells the interpreter what becomes of a table's entries."""

    def __init__(self, machine: Any, number: int, table: Table, code: NativeProgram) -> None:
        self._machine = machine
        self._number = number
        self._table = table
        self._code = code
        self._entries: dict[int, int] = {}
        """Numbers of entries in the interpreter, by identity."""
        self._limbs = key_limbs(table)
        for entry in table:
            self.put(entry)
        self.missed(table.miss)

    def put(self, entry: Entry) -> None:
        """An entry was added, behind those of the same rank."""
        ranges = [(shift, whole.bit_length(), low, high) for shift, whole, low, high in entry.ranges]
        counts = None
        if self._table.counts:
            entry.counts = counts = array("q", entry.counts)
        self._entries[id(entry)] = self._machine.put(
            self._number,
            split(entry.value, self._limbs),
            split(entry.mask, self._limbs),
            ranges,
            entry.rank,
            self._start(entry),
            self._code.starts[next_name(entry)],
            self._data(entry),
            counts,
        )

    def take(self, entry: Entry) -> None:
        """An entry is gone."""
        self._machine.take(self._number, self._entries.pop(id(entry)))

    def missed(self, entry: Entry) -> None:
        """What is done on a miss has changed."""
        start, following = self._start(entry), self._code.starts[next_name(entry)]
        self._machine.set_miss(self._number, start, following, self._data(entry))

    def _start(self, entry: Entry) -> int:
        return self._code.starts[entry.run.__name__ if entry.action else NO_ACTION]

    def _data(self, entry: Entry) -> list[int]:
        if not entry.action:
            return []
        widths = self._table.actions[entry.action].widths
        limbs: list[int] = []
        for value, bits in zip(entry.data, widths, strict=True):
            limbs += split(value, max(1, -(-bits // LIMB_BITS)))
        return limbs


def _described(
    program: Program, code: NativeProgram, places: Mapping[str, int], limits: Mapping[str, int]
) -> dict[str, Any]:
    """A program as the interpreter takes it."""
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
        **limits,
    }

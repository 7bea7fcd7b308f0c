"""Trace packets step by step: parser states, tables with keys and entries, fields that change, copies.

Rules
-----
* A program is traced in the Python interpreter, whose functions are called one by one; it is compiled in the same way
  as without tracing.
* A step is a line. The fields that a state or a table has changed follow it, a field a line, indented.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from fanin.errors import PacketError
from fanin.switch.p4.actions import Member
from fanin.switch.p4.externs import WideCells
from fanin.switch.p4.layout import Layout
from fanin.switch.p4.packet_state import PacketState, ParserStop
from fanin.switch.p4.program import Program
from fanin.switch.p4.tables import Entry, Match, MatchKind, Table
from fanin.switch.p4.v1model import MAX_PARSE_STATES, V1Switch

MAX_SHOWN_BYTES = 32
"""Longest value that is shown in full, in bytes; of longer ones, only the upper bytes are shown."""
MAX_CHANGES = 64
"""Most changed fields that are shown for one step, since nobody reads a header of a thousand bytes."""

Report = Callable[[list[str]], None]


class TracedCells:
    """A register array that reports every read and write."""

    def __init__(self, name: str, cells: WideCells | MutableSequence[int], say: Callable[[str], None]) -> None:
        self._name, self._cells, self._say = name, cells, say

    def __getitem__(self, at: int) -> int:
        value = self._cells[at]
        self._say(f"read register {self._name}[{at}] = {shown(value)}")
        return value

    def __setitem__(self, at: int, value: int) -> None:
        self._cells[at] = value
        self._say(f"write register {self._name}[{at}] = {shown(value)}")


@dataclass(slots=True)
class TracedSwitch(V1Switch):
    """A switch that reports a trace of every packet, pass by pass through parser and pipelines."""

    report: Report = field(default=lambda lines: None)
    """Called with the trace of a packet once all packets that it caused have left, or it is lost."""
    _lines: list[str] = field(init=False, default_factory=list)
    _within: list[str] = field(init=False, default_factory=list)
    """Lines about register accesses in the current step."""
    _names: list[str] = field(init=False, default_factory=list)
    _code: dict[str, CodeType] = field(init=False, default_factory=dict)
    """By function name of a table or condition: compiled expression of its key, or of its test."""

    def __post_init__(self) -> None:
        self.native = False
        super(TracedSwitch, self).__post_init__()
        self._names = place_names(self.program.layout)
        self._code = _expressions(self.program)
        self.watch_registers()

    def watch_registers(self) -> None:
        """Report reads and writes of the cells that the registers have now."""
        for register in self.program.registers.values():
            self.program.names[register.symbol] = TracedCells(register.name, register.cells, self._within.append)

    def process(self, port: int, data: bytes, now: float) -> list[tuple[int, bytes]]:
        """Process a packet as V1Switch does, and trace it."""
        self._lines = [f"packet of {len(data)} bytes at port {port}: {data[:MAX_SHOWN_BYTES].hex()}"]
        try:
            sent = super(TracedSwitch, self).process(port, data, now)
        except PacketError as error:
            self._lines.append(f"lost: {error}")
            raise
        finally:
            self.report(self._lines)
        return sent

    def _process_here(self, port: int, data: bytes, now: float) -> list[tuple[int, bytes]]:
        sent = super(TracedSwitch, self)._process_here(port, data, now)
        for to, leaving in sent:
            self._lines.append(f"leaves port {to} with {len(leaving)} bytes: {leaving[:MAX_SHOWN_BYTES].hex()}")
        if not sent:
            self._lines.append("nothing leaves")
        return sent

    def process_batch(self, packets: Any, now: float) -> tuple[list[tuple[int, bytes]], str]:
        """Process packets as V1Switch does, and trace them."""
        sent: list[tuple[int, bytes]] = []
        reason = ""
        for port, data in packets:
            try:
                sent += self.process(port, data, now)
            except PacketError as error:
                reason = str(error)
        return sent, reason

    def _read(self, f: list[int], data: bytes, k: PacketState) -> tuple[int, int]:
        state, at, left = self.program.parser_start, 0, MAX_PARSE_STATES
        self._lines.append("parser")
        while state is not None and left:
            left -= 1
            before, name = f.copy(), self._called(state)[1]
            try:
                state, following = state(f, data, at, k)
            except ParserStop as stop:
                error = next((name for name, code in self.program.errors.items() if code == stop.code), str(stop.code))
                self._step(f"state {name}: stops with {error} after {stop.at} bytes", before, f)
                return stop.code, stop.at
            self._step(f"state {name}: {following - at} bytes", before, f)
            at = following
        if not left:
            raise PacketError(f"the parser went through more than {MAX_PARSE_STATES} states")
        return self.program.errors["NoError"], at

    def _walk(self, node: Callable[..., Any] | None, f: list[int], k: PacketState) -> None:
        egress = node is not None and node is self.program.egress_start
        port = f[self._places["egress_port"]] if egress else f[self._places["ingress_port"]]
        self._lines.append(f"{'egress' if egress else 'ingress'}, port {port}")
        while node is not None:
            before, (kind, name) = f.copy(), self._called(node)
            code, text = self._code.get(node.__name__), f"{kind} {name}"
            if kind == "table":
                text = f"table {name}{self._lookup(node, code, f, k)}"
            elif kind == "condition" and code is not None:
                text = f"condition {name}: {str(bool(self._value(code, f, k))).lower()}"
            self._within.clear()
            try:
                node = node(f, k)
            finally:
                self._step(text, before, f)

    def _called(self, node: Callable[..., Any]) -> tuple[str, str]:
        return self.program.nodes.get(node.__name__, ("", node.__name__))

    def _value(self, code: CodeType, f: list[int], k: PacketState) -> Any:
        value = eval(code, self.program.names, {"f": f, "k": k})
        self._within.clear()
        return value

    def _lookup(self, node: Callable[..., Any], code: CodeType | None, f: list[int], k: PacketState) -> str:
        """Text of a table's key, and the entry and action that it leads to."""
        table: Table = self.program.names[f"T_{node.__name__}"]
        if code is None:
            return f": {action_text(self.program, table.miss)}"
        key = self._value(code, f, k)
        parts = [
            f"{part.name}={shown(key >> shift & ((1 << part.bits) - 1))}"
            for part, shift in zip(table.key, table.shifts(), strict=True)
        ]
        found = (table.exact.get(key) or table.miss) if table.is_exact else table.find(key)
        outcome = "miss" if found is table.miss else f"hit {entry_text(table, found)}"
        return f" ({', '.join(parts)}): {outcome}: {action_text(self.program, found)}"

    def _step(self, text: str, before: list[int], after: list[int]) -> None:
        self._lines.append(f"  {text}")
        self._lines += [f"    {line}" for line in self._within]
        self._within.clear()
        changed = [at for at, value in enumerate(before) if value != after[at]]
        for at in changed[:MAX_CHANGES]:
            self._lines.append(f"    {self._names[at]}: {shown(before[at])} -> {shown(after[at])}")
        if len(changed) > MAX_CHANGES:
            self._lines.append(f"    and {len(changed) - MAX_CHANGES} fields more")


def shown(value: int) -> str:
    """A number as text: in base 16 from 10 on, and shortened beyond MAX_SHOWN_BYTES."""
    if abs(value) < 10:
        return str(value)
    text = hex(value)
    if len(text) > 2 * MAX_SHOWN_BYTES:
        return f"{text[: 2 * MAX_SHOWN_BYTES]}... ({value.bit_length()} bits)"
    return text


def place_names(layout: Layout) -> list[str]:
    """Names of the fields, by place in the list of fields."""
    names = [""] * len(layout.blank)
    for header in layout.headers.values():
        for each in header.type.fields:
            names[header.base + each.offset] = f"{header.name}.{each.name}"
        names[header.valid] = f"{header.name} is valid"
        if header.type.variable is not None:
            names[header.valid + 1] = f"{header.name}: bits of {header.type.variable.name}"
    for stack in layout.stacks.values():
        names[stack.next] = f"{stack.name}: elements"
    for unions in layout.union_stacks.values():
        names[unions.next] = f"{unions.name}: elements"
    return names


def action_text(program: Program, entry: Entry) -> str:
    """An entry's action with its data as text, or its member or group; "no action" without one."""
    if entry.target is not None:
        return f"{'member' if isinstance(entry.target, Member) else 'group'} {entry.target.number}"
    if not entry.action:
        return "no action"
    names = program.actions.get(entry.action, ())
    data = ", ".join(
        f"{name}={shown(value)}" if name else shown(value)
        for name, value in zip((*names, *([""] * len(entry.data))), entry.data, strict=False)
    )
    return f"{entry.action}({data})"


def entry_text(table: Table, entry: Entry) -> str:
    """Condition of an entry, as text."""
    parts = [
        f"{part.name}={_match_text(match, part.kind, part.bits)}"
        for part, match in zip(table.key, entry.matches, strict=True)
    ]
    return "[" + ", ".join(parts) + "]" + (f" priority {-entry.rank}" if table.ranked else "")


def _match_text(match: Match, kind: MatchKind, bits: int) -> str:
    whole = (1 << bits) - 1
    if match.low is not None and match.high is not None:
        return f"{shown(match.low)}..{shown(match.high)}"
    mask = match.mask & whole
    if mask == whole:
        return shown(match.value)
    if not mask:
        return "any"
    return f"{shown(match.value)}/{mask.bit_count()}" if kind is MatchKind.LPM else f"{shown(match.value)}&{hex(mask)}"


def _expressions(program: Program) -> dict[str, CodeType]:
    """Compiled expressions of tables' keys and conditions' tests, taken from the program's source."""
    found = {}
    for function in ast.parse(program.source).body:
        if not isinstance(function, ast.FunctionDef) or function.name not in program.nodes:
            continue
        first = function.body[0]
        kind = program.nodes[function.name][0]
        value: ast.expr | None = None
        if kind == "table" and isinstance(first, ast.Assign) and ast.unparse(first.targets[0]) == "x":
            value = first.value
        elif kind == "condition" and isinstance(first, ast.Return) and isinstance(first.value, ast.IfExp):
            value = first.value.test
        if value is not None:
            found[function.name] = compile(ast.Expression(value), "<key>", "eval")
    return found

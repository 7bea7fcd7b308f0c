"""Translate a loaded program to code of the native interpreter, function by function.

Rules
-----
* The input is `Program.source`, which Python runs: parser states, actions, tables, conditions, checksums and deparser
  are functions there, and become sequences of instructions that jump to each other here.
* A table whose only possible action is fixed (p4c makes such tables of plain statements) is replaced by the action.
* NotNative names the part that the interpreter cannot run; Python then runs the program.
"""

from __future__ import annotations

import ast
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fanin.switch.p4 import calculations
from fanin.switch.p4.header_codec import CODES
from fanin.switch.p4.keeping import MAX_KEPT_BYTES, PROGRAMS_KEPT
from fanin.switch.p4.meters import MeterArray
from fanin.switch.p4.native_code import (
    CLONE_ASKED,
    LIMB_BITS,
    MAX_FRAME_LIMBS,
    STATE,
    STATE_LIMBS,
    Emitter,
    NotNative,
    Place,
    Val,
    field_places,
)
from fanin.switch.p4.native_liveness import Extent, Liveness, TableWays, mask_of, what_matters
from fanin.switch.p4.native_values import Values
from fanin.switch.p4.program import Program
from fanin.switch.p4.tables import Entry, Table

HASHES: dict[Callable[[bytes], int], tuple[int, int]] = {
    calculations.internet_checksum: (0, 16), calculations.crc16: (1, 16), zlib.crc32: (2, 32),
    calculations.crc_ccitt: (3, 16), calculations.identity: (4, 64), calculations.xor16: (5, 16),
}  # fmt: skip
"""By algorithm: its number in native/p4/p4_code.hpp, and the width of its result in bits."""
WIDTHS = {letter: bits for bits, letters in CODES.items() for letter in letters}
UNCOUNTED_STATES = 1024
"""Parsers without loops and with at most so many states need not count the states that a packet passes."""
MAX_LIVENESS_BITS = 1 << 28
"""Most instructions times limbs of fields, for each of which native_liveness.py keeps a bit: 32 MiB."""
JUMP_NAMES = ("t", "u")
"""Local variables of an action that keep their values from block to block (switch/p4/primitives.py)."""
COLOUR_BITS = 2
NO_ACTION = "nothing"
"""The action on a miss in a table without a default action (switch/p4/actions.py)."""


@dataclass(frozen=True, slots=True)
class NativeProgram:
    """Code of a program, with the places of its functions in the code and of its fields in a frame."""

    code: bytes
    starts: Mapping[str, int]
    """The first instruction of every function, by its name in the source; "None": the end of a pipeline."""
    places: list[Place]
    parameters_at: int
    constants: list[int]
    constants_at: int
    failures: list[str]
    tables: tuple[str, ...]
    """Names, in the order of their numbers."""
    beginning: list[Extent]
    """Fields that must be initialized for a new packet."""
    carried: list[Extent]
    """Fields that a replica copies from its original."""


_TRANSLATED: dict[tuple[str | bytes, str], NativeProgram] = {}
"""Latest translations, by document and source; they hold no state. Translating takes more than half of a reload."""


def translate(program: Program, operations: Mapping[str, int], read: Collection[int]) -> NativeProgram:
    """Translate the whole program. NotNative for a part that the interpreter does not run.

    `operations`: numbers of the instructions. `read`: places of the fields that the architecture itself reads.
    """
    of = (program.document, program.source)
    if (kept := _TRANSLATED.get(of)) is not None:
        return kept
    try:
        made = _Translation(program, operations, read).run()
    except RecursionError:
        raise NotNative("expressions that are nested so deeply") from None
    except struct.error:
        raise NotNative("fields of 65,536 bits or more") from None
    if len(program.document) <= MAX_KEPT_BYTES:
        if len(_TRANSLATED) >= PROGRAMS_KEPT:
            _TRANSLATED.pop(next(iter(_TRANSLATED)), None)
        _TRANSLATED[of] = made
    return made


@dataclass(slots=True)
class _Translation:
    program: Program
    operations: Mapping[str, int]
    read: Collection[int]
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    e: Emitter = field(init=False)
    v: Values = field(init=False)
    _loop: tuple[int, int] | None = None
    """Labels of the begin and the end of the loop that is being translated; None outside of loops."""
    _in_circles: bool = field(init=False, default=True)
    """Whether the states that a packet passes in the parser must be counted."""
    _finish: Callable[[ast.Return], None] = field(init=False)
    """Translates `return` in the current function."""

    def run(self) -> NativeProgram:
        if self.program.python_only:
            raise NotNative(self.program.python_only[0])
        tree = ast.parse(self.program.source)
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._in_circles = in_circles([node for name, node in self.functions.items() if name.startswith("S_")])
        names, places = self.program.names, field_places(self.program.layout)
        parameters_at = STATE_LIMBS + sum(place.limbs for place in places)
        widest = max((sum(map(_limbs, facts.widths)) for facts in self._facts().values()), default=0)
        self.e = Emitter(self.operations, parameters_at + widest)
        registers = {each.symbol: (at, each) for at, each in enumerate(self.program.registers.values())}
        meters = {each.symbol: (at, each.by_bytes) for at, each in enumerate(self.program.meters.values())}
        self.v = Values(self.e, places, registers, self._hash, meters)
        for name in ("None", NO_ACTION, *self.functions):
            self.labels[name] = self.e.label()
        self.e.place(self.labels["None"])
        self.e.emit("HALT")
        self.e.place(self.labels[NO_ACTION])
        self.e.emit("ACTION_END")
        for name, function in self.functions.items():
            self._function(name, function, parameters_at)
        if self.e.constants_at + len(self.e.constants) > MAX_FRAME_LIMBS:
            raise NotNative(f"fields and values of more than {MAX_FRAME_LIMBS * LIMB_BITS:,} bits in all")
        code, where = self.e.finished(self.labels.values())
        beginning, carried = self._what_matters(parameters_at)
        starts = {name: where[label] for name, label in self.labels.items() if where[label] >= 0}
        for name in ("parser_start", "ingress_start", "egress_start"):
            first = names.get(name)
            starts[name] = starts["None" if first is None else first.__name__]
        return NativeProgram(
            code=code,
            starts=starts,
            places=places,
            parameters_at=parameters_at,
            constants=self.e.constants,
            constants_at=self.e.constants_at,
            failures=self.e.failures,
            tables=tuple(self.tables),
            beginning=beginning,
            carried=carried,
        )

    def _what_matters(self, parameters_at: int) -> tuple[list[Extent], list[Extent]]:
        """Extents by native_liveness.py; the architecture reads its own fields, and those kept for a second pass."""
        program, names = self.program, self.program.names
        ways = [self._ways(program.tables[name]) for name in self.tables]
        registers = [_limbs(each.bits) for each in program.registers.values()]
        starts = {part: self.labels[part] for part in ("verify", "update", "deparse")}
        for part in ("parser_start", "ingress_start", "egress_start"):
            first = names.get(part)
            starts[part] = self.labels["None" if first is None else first.__name__]
        always = 0
        learned = ((at for at, _ in each.places) for each in program.learn_lists.values())
        for at in chain(self.read, *program.field_lists.values(), *learned):
            always |= mask_of(*self.v.places[at][:2])
        if len(self.e.code) * parameters_at > MAX_LIVENESS_BITS:
            raise NotNative("programs with so many statements and so many fields")
        liveness = Liveness(self.e.code, self.e.labels, ways, registers)
        return what_matters(liveness, starts, always, STATE_LIMBS, parameters_at)

    def _ways(self, table: Table) -> TableWays:
        facts = table.actions if table.profile is None else self.program.profiles[table.profile].actions
        actions = {self.labels[each.run.__name__] for each in facts.values()} | {self.labels[NO_ACTION]}
        nexts = {table.after(name, hit) for name in ("", *facts) for hit in (True, False)} | {table.miss.next}
        names = ("None" if each is None else each.__name__ for each in nexts)
        return TableWays(key_limbs(table), frozenset(actions), frozenset(self.labels[name] for name in names))

    def _facts(self) -> dict[str, Any]:
        """Facts about every action of a table, by the name of its function."""
        return {facts.run.__name__: facts for table in self.program.tables.values() for facts in table.actions.values()}

    # --- functions ---

    def _function(self, name: str, function: ast.FunctionDef, parameters_at: int) -> None:
        self.e.forget()
        self.v.names.clear()
        if name.startswith("K_"):
            return  # calculations are translated where they are called
        if name.startswith("A_"):
            facts = self._facts().get(name)
            if facts is None:
                return  # an action of no table is translated where it is called
            self.e.place(self.labels[name])
            self._action(function, parameter_values(facts.widths, parameters_at))
            self.e.emit("ACTION_END")
            return
        self.e.place(self.labels[name])
        if name.startswith("N_"):
            table = self.program.names.get(f"T_{name}")
            if isinstance(table, Table):
                self._table(function, table)
                return
            self._finish = self._to_next_node
        elif name.startswith("S_"):
            self._finish = self._to_next_state
        else:
            self._finish = self._done
        self._statements(function.body)
        self.e.emit("HALT")

    def _done(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Constant) and node.value.value is True:
            self.e.store(self.e.constant(1), STATE["result"], 1)
        self.e.emit("HALT")

    def _to_next_node(self, node: ast.Return) -> None:
        value = node.value
        if isinstance(value, ast.IfExp) and ast.unparse(value.test) == "k.exit":
            self.e.emit("JUMP_NONZERO", d=self.labels["None"], a=STATE["exit"])
            value = value.orelse
        if isinstance(value, ast.IfExp):
            self.v.branch(value.test, self._label(value.body), self._label(value.orelse))
        else:
            self.e.emit("JUMP", d=self._label(value))

    def _to_next_state(self, node: ast.Return) -> None:
        assert isinstance(node.value, ast.Tuple)
        if self._in_circles:
            self.e.emit("TRANSIT")
        self.e.emit("JUMP", d=self._label(node.value.elts[0]))

    def _label(self, node: ast.expr | None) -> int:
        name = "None" if node is None else ast.unparse(node)
        if name not in self.labels:
            raise NotNative(f"the way to {name[:60]!r}")
        return self.labels[name]

    def _action(self, function: ast.FunctionDef, parameters: list[Val]) -> None:
        """Translate an action's statements in line."""
        kept, self.v.parameters = self.v.parameters, parameters
        self.v.names.clear()
        self._statements(function.body)
        self.v.names.clear()
        self.v.parameters = kept

    # --- tables ---

    def _table(self, function: ast.FunctionDef, table: Table) -> None:
        exits = "k.exit" in ast.unparse(function.body[-1])
        plain = table.profile is None and table.meters is None
        if plain and not table.key and table.fixed_default and table.miss.run.__name__ in self.functions:
            miss = table.miss
            data = [self.e.constant(value) for value in miss.data]
            self._action(self.functions[miss.run.__name__], data)
            if exits:
                self.e.emit("JUMP_NONZERO", d=self.labels["None"], a=STATE["exit"])
            self.e.emit("JUMP", d=self.labels[next_name(miss)])
            return
        number = len(self.tables)
        self.tables.append(table.name)
        if not table.key:
            self.e.emit("MISS", d=number)
        else:
            assign = function.body[0]
            assert isinstance(assign, ast.Assign)
            key = self.e.widened(self.v.value(assign.value), key_limbs(table))
            self.e.emit("FIND", d=number, a=key.at)
        if table.counts:
            self.e.emit("COUNT_ENTRY")
        if table.meters is not None:
            self._meter_of_entry(self.program.meters[table.meters])
        if table.profile is not None and (selector := self.program.profiles[table.profile].selector) is not None:
            self.e.emit("SELECT", a=self._hash(selector).at)
        self.e.emit("RUN")

    def _meter_of_entry(self, meters: MeterArray) -> None:
        """Store the colour by the entry's meter in its field; on a miss the field keeps its value."""
        assert meters.target is not None
        header = self.program.layout.headers[meters.target[0]]
        part = next(each for each in header.type.fields if each.name == meters.target[1])
        place = self.v.places[header.base + part.offset]
        if place.signed or part.saturating or place.limbs > 1:
            raise NotNative("a meter's colour in a field of this kind")
        self.e.emit("METER_ENTRY", n=min(place.bits, COLOUR_BITS), d=place.at, b=int(meters.by_bytes))

    # --- statements ---

    def _statements(self, body: list[ast.stmt]) -> None:
        skip = False
        for at, statement in enumerate(body):
            if skip:
                skip = False
                continue
            following = body[at + 1] if at + 1 < len(body) else None
            if (joined := _joined(statement, following)) is not None:
                skip, statement = True, joined
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Pass):
            return
        if isinstance(node, ast.Assign):
            self._assign(node)
        elif isinstance(node, ast.AugAssign):
            self._in_place(node)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.Return):
            self._finish(node)
        elif isinstance(node, ast.While):
            self._while(node)
        elif isinstance(node, (ast.Continue, ast.Break)) and self._loop is not None:
            self.e.emit("JUMP", d=self._loop[isinstance(node, ast.Break)])
        elif isinstance(node, ast.Raise):
            self._raise(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call(node.value)
        else:
            raise NotNative(f"the statement {ast.unparse(node)[:60]!r}")

    def _if(self, node: ast.If) -> None:
        otherwise = self.e.label()
        self.v.branch(node.test, None, otherwise)
        self._statements(node.body)
        if node.orelse:
            end = self.e.label()
            self.e.emit("JUMP", d=end)
            self.e.place(otherwise)
            self._statements(node.orelse)
            self.e.place(end)
        else:
            self.e.place(otherwise)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store) and inner.id not in JUMP_NAMES:
                self.v.names.pop(inner.id, None)

    def _while(self, node: ast.While) -> None:
        self._loop = begin, end = self.e.label(), self.e.label()
        self.e.place(begin)
        self._statements(node.body)
        self.e.place(end)
        self._loop = None

    def _raise(self, node: ast.Raise) -> None:
        error = node.exc
        assert isinstance(error, ast.Call)
        if ast.unparse(error.func) == "ParserStop":
            code = self.v.index(error.args[0])
            self.e.emit("STOP", a=code.at)
            return
        assert isinstance(error.args[0], ast.Constant)
        self.e.fail(str(error.args[0].value))

    def _call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name.startswith("A_"):
            self._action(self.functions[name], [])
        elif name == "parts.append":
            self._emitted(node.args[0])
        else:
            raise NotNative(_WHAT.get(name, f"the function {name!r}"))

    def _assign(self, node: ast.Assign) -> None:
        target = node.targets[-1]
        if isinstance(target, ast.Name):
            for each in node.targets:
                assert isinstance(each, ast.Name)
                self._name(each.id, node.value)
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=True):
                assert isinstance(name, ast.Name)
                self._name(name.id, value)
        elif isinstance(target, ast.Attribute):
            self._state(target, node.value)
        elif isinstance(target, ast.Subscript):
            self._element(target, node.value)
        else:
            raise NotNative(f"the statement {ast.unparse(node)[:60]!r}")

    def _name(self, name: str, value: ast.expr) -> None:
        if name == "parts" or (name in ("v", "n") and isinstance(value, ast.Constant)):
            return  # the native output of deparser and checksums starts empty
        if name == "a":
            self.e.store(self.v.value(value), STATE["at"], 1)
        elif name in JUMP_NAMES:
            if name not in self.v.names:
                self.v.names[name] = Val(self.e.temporary(1), 1, 0, 1 << 31)
            kept = self.v.names[name]
            assert isinstance(kept, Val)
            self.e.store(self.v.value(value), kept.at, 1)
        elif (window := self.v.window(value)) is not None:
            self.v.names[name] = window
        else:
            # No use of the name may change the value that it stands for.
            self.v.names[name] = self.v.value(value)._replace(fresh=False)

    def _state(self, target: ast.Attribute, value: ast.expr) -> None:
        if target.attr == "clone" and isinstance(value, ast.Tuple):
            session = self.v.index(value.elts[0])
            asked = self.e.constant(CLONE_ASKED)
            self.e.emit("OR", n=LIMB_BITS, d=STATE["clone"], a=session.at, b=asked.at)
            self.e.store(self.v.value(value.elts[1]), STATE["clone_fields"], 1)
        elif target.attr in ("exit", "cut", "resubmit", "recirculate", "digest"):
            self.e.store(self.v.index(value), STATE[target.attr], 1)
        else:
            raise NotNative(f"the statement {ast.unparse(target)!r}")

    def _element(self, target: ast.Subscript, value: ast.expr) -> None:
        name = target.value.id if isinstance(target.value, ast.Name) else ast.unparse(target.value)
        if name != "f":
            self._cell(name, target.slice, value)
        elif isinstance(target.slice, ast.Slice):
            self._fields(target.slice, value)
        else:
            place = self.v.places[self.v.integer(target.slice)]
            if place.limbs == 1 and (choice := self.v.choice(value)) is not None:
                self._either(place, *choice)
            else:
                self._field(place, self.v.value(value))

    def _either(self, place: Place, test: ast.expr, yes: ast.expr, no: ast.expr) -> None:
        """Store one of two values in a field, without a temporary."""
        otherwise, end = self.e.label(), self.e.label()
        self.v.branch(test, None, otherwise)
        self._field(place, self.v.value(yes))
        self.e.emit("JUMP", d=end)
        self.e.place(otherwise)
        self._field(place, self.v.value(no))
        self.e.place(end)

    def _field(self, place: Place, value: Val) -> None:
        bounds = place.value
        if value.low < bounds.low or value.high > bounds.high:
            raise NotNative("a value that a field has no room for")
        self.e.store(value, place.at, place.limbs)

    def _cell(self, name: str, index_node: ast.expr, value_node: ast.expr) -> None:
        if name not in self.v.registers:
            raise NotNative(f"an assignment to {name!r}")
        number, array = self.v.registers[name]
        index, value = self.v.index(index_node), self.v.value(value_node)
        if value.low < 0 or value.high >> array.bits:
            raise NotNative("a value that a register has no room for")
        value = self.e.widened(value, _limbs(array.bits))
        operation = "WRITE_WIDE" if array.bits > LIMB_BITS else "WRITE32" if array.bits <= 32 else "WRITE64"
        self.e.emit(operation, d=number, a=value.at, b=index.at)

    def _fields(self, target: ast.Slice, value: ast.expr) -> None:
        """Assign all fields of a header: read from the packet, zeros, or those of another header."""
        assert target.lower is not None
        first = self.v.integer(target.lower)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "unpack_from":
            offset = 0
            for at, letter in enumerate(self._form(value.func.value)):
                loaded = self.v.load(offset, WIDTHS[letter])
                place = self.v.places[first + at]
                if place.signed:
                    bounds = place.value
                    loaded = self.e.compute("SEXT", place.bits, loaded.at, 0, bounds.low, bounds.high)
                self._field(place, loaded)
                offset += WIDTHS[letter]
            return
        at, limbs = self.v.extent(target)
        if isinstance(value, ast.Tuple):  # of zeros
            self.e.emit("ZERO", n=limbs, d=at)
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            source, count = self.v.extent(value.slice)
            if count != limbs:
                raise NotNative("headers of different types")
            self.e.emit("COPY_WIDE", n=limbs, d=at, a=source)
        else:
            raise NotNative(f"the form {ast.unparse(value)[:60]!r}")

    def _form(self, node: ast.expr) -> str:
        form = self.program.names[ast.unparse(node)]
        assert isinstance(form, struct.Struct)
        return form.format.removeprefix("!")

    def _in_place(self, node: ast.AugAssign) -> None:
        target, text = node.target, ast.unparse(node.target)
        if isinstance(target, ast.Attribute) and text == "k.length":
            amount = self.v.value(node.value)
            operation = "ADD" if isinstance(node.op, ast.Add) else "SUB"
            self.e.emit(operation, n=LIMB_BITS, d=STATE["length"], a=STATE["length"], b=amount.at)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
            counters = {each.symbol: at for at, each in enumerate(self.program.counters.values())}
            symbol, what = ast.unparse(target.value.value), target.value.attr
            if symbol not in counters:
                raise NotNative(f"the statement {ast.unparse(node)[:60]!r}")
            operation = "COUNT_PACKET" if what == "packets" else "COUNT_BYTES"
            self.e.emit(operation, d=counters[symbol], b=self.v.index(target.slice).at)
        elif text == "n":
            return  # the interpreter counts the bits of a checksum itself
        elif text == "u":
            kept = self.v.names["u"]
            assert isinstance(kept, Val)
            self.e.emit("ADD", n=LIMB_BITS, d=kept.at, a=kept.at, b=self.v.value(node.value).at)
        else:
            raise NotNative("header stacks" if text.startswith("f[") else f"the statement {ast.unparse(node)[:60]!r}")

    # --- sequences of bits: checksums and the deparser ---

    def _hash(self, name: str) -> Val:
        """Translate a calculation in line."""
        body = self.functions[name].body
        self.e.emit("HASH_BEGIN")
        for statement in body[:-1]:
            self._hashed(statement)
        result = body[-1]
        assert isinstance(result, ast.Return)
        assert isinstance(result.value, ast.Call)
        payload = isinstance(result.value.args[0], ast.BinOp)
        algorithm = HASHES.get(self.program.names[ast.unparse(result.value.func)])
        if algorithm is None:
            raise NotNative("a hash that is not listed")
        number, bits = algorithm
        return self.e.compute("HASH", 0, number, int(payload), 0, (1 << bits) - 1)

    def _hashed(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            otherwise = self.e.label()
            self.v.branch(node.test, None, otherwise)
            for each in node.body:
                self._hashed(each)
            self.e.place(otherwise)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            shifted = node.value.left  # v = v << width | value
            assert isinstance(shifted, ast.BinOp)
            self._put("HASH_PUT", self.v.value(node.value.right), self.v.integer(shifted.right))
        elif not isinstance(node, (ast.Assign, ast.AugAssign)):
            raise NotNative(f"the statement {ast.unparse(node)[:60]!r}")

    def _put(self, operation: str, value: Val, bits: int) -> None:
        if bits >= 1 << 16:
            raise NotNative("fields of 65,536 bits or more")
        if value.high >> bits and value.low >= 0:
            raise NotNative("a value that a field has no room for")
        self.e.emit(operation, n=bits, a=self.e.widened(value, _limbs(bits)).at)

    def _emitted(self, node: ast.expr) -> None:
        """Translate an expression for bytes of the deparsed packet."""
        if isinstance(node, ast.Attribute):
            self.e.emit("EMIT_PAYLOAD")
        elif isinstance(node, ast.Constant) and node.value == b"":
            return
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pack":
            starred = node.args[0]
            assert isinstance(starred, ast.Starred)
            assert isinstance(starred.value, ast.Subscript)
            assert isinstance(starred.value.slice, ast.Slice)
            assert starred.value.slice.lower is not None
            first = self.v.integer(starred.value.slice.lower)
            for at, letter in enumerate(self._form(node.func.value)):
                self.e.emit("EMIT", n=WIDTHS[letter], a=self.v.places[first + at].at)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to_bytes":
            left = self.v.integer(node.args[0]) * 8
            terms = sorted(_terms(node.func.value, self.v), key=lambda term: -term[1])
            for part, shift in terms:
                self._put("EMIT", self.v.value(part), left - shift)
                left = shift
        else:
            raise NotNative(f"the form {ast.unparse(node)[:60]!r}")


_WHAT = {"k.log": "log messages", "pushed": "header stacks", "popped": "header stacks"}


def _limbs(bits: int) -> int:
    return max(1, -(-bits // LIMB_BITS))


def key_limbs(table: Table) -> int:
    """Number of limbs of a table's key."""
    return _limbs(sum(part.bits for part in table.key))


def next_name(entry: Entry) -> str:
    """The function that comes after an entry's action."""
    return "None" if entry.next is None else str(getattr(entry.next, "__name__", None))


def in_circles(states: Sequence[ast.FunctionDef]) -> bool:
    """Whether the parser has a loop, or more than UNCOUNTED_STATES states."""
    if len(states) > UNCOUNTED_STATES:
        return True
    following = {
        state.name: {node.id for node in ast.walk(state) if isinstance(node, ast.Name) and node.id.startswith("S_")}
        for state in states
    }
    while following:  # states without successors are no part of a loop
        last = {name for name, after in following.items() if not after & following.keys()}
        if not last:
            return True
        following = {name: after for name, after in following.items() if name not in last}
    return False


def parameter_values(widths: tuple[int, ...], at: int) -> list[Val]:
    """Values of an entry's data, of these widths, in the frame from `at` on."""
    values = []
    for bits in widths:
        values.append(Val(at, _limbs(bits), 0, (1 << bits) - 1))
        at += _limbs(bits)
    return values


def _joined(first: ast.stmt, second: ast.stmt | None) -> ast.Assign | None:
    """`x = value` and a following `target = x` as one assignment; None for other statements."""
    if (
        isinstance(first, ast.Assign)
        and isinstance(second, ast.Assign)
        and isinstance(first.targets[0], ast.Name)
        and isinstance(second.value, ast.Name)
        and first.targets[0].id == second.value.id == "x"
        and isinstance(second.targets[0], ast.Subscript)
    ):
        return ast.Assign(targets=second.targets, value=first.value)
    return None


def _terms(node: ast.expr, values: Values) -> list[tuple[ast.expr, int]]:
    """The parts of a sum such as `a << 8 | b`, with their shifts in bits."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _terms(node.left, values) + _terms(node.right, values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        return [(node.left, values.integer(node.right))]
    return [(node, 0)]

"""Parser and deparser of a program as Python source.

A parse state becomes a function `(f, d, a, k)` of fields, packet, position in bytes and packet state, which returns the
next state and the new position, or raises ParserStop with the program's error code.
"""

from __future__ import annotations

from fanin.errors import UnsupportedError
from fanin.switch.p4.bounds import MAX_FIELD_BITS, MAX_LOOKAHEAD_OFFSET_BITS
from fanin.switch.p4.document import Node
from fanin.switch.p4.expressions import Value, others_invalid
from fanin.switch.p4.header_codec import bytes_source, read_lines, read_variable_lines
from fanin.switch.p4.layout import HeaderType
from fanin.switch.p4.primitives import Compiler

CORE_ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)
"""Errors of core.p4, in its order."""


def read_errors(root: Node) -> dict[str, int]:
    """Error codes by name: the program's `errors`, then those of core.p4 that it leaves out."""
    errors = {node[0].text: node[1].integer for node in root.each("errors")}
    for name in CORE_ERRORS:
        errors.setdefault(name, max(errors.values(), default=-1) + 1)
    return errors


class ParserCompiler:
    """Compiles one parser's states."""

    def __init__(
        self, compiler: Compiler, errors: dict[str, int], structs: dict[str, str], value_sets: dict[str, str]
    ) -> None:
        """`structs`: symbols of structs, by header type. `value_sets`: symbols of parse value sets, by name."""
        self._compiler = compiler
        self._layout = compiler.layout
        self._errors = errors
        self._structs = structs
        self._value_sets = value_sets
        self.symbols: dict[str, str] = {}
        """Names of the functions, by state."""

    def states(self, node: Node) -> list[str]:
        """Compile all states of a parser; the function of the initial state is `parser_start`."""
        for at, state in enumerate(node["parse_states"]):
            if state["name"].text in self.symbols:
                raise state.fail(f"parse state {state['name'].text!r} is declared twice")
            self.symbols[state["name"].text] = f"S_{node['id'].integer}_{at}"
        lines: list[str] = []
        for state in node["parse_states"]:
            lines += self._state(state)
        return [*lines, f"parser_start = {self._next(node['init_state'])}"]

    def _next(self, node: Node | None) -> str:
        if node is None or node.value is None:
            return "None"
        if node.text not in self.symbols:
            raise node.fail(f"there is no parse state {node.text!r}")
        return self.symbols[node.text]

    def _state(self, state: Node) -> list[str]:
        lines = [f"def {self.symbols[state['name'].text]}(f, d, a, k):"]
        spend = self._compiler.objects.budget.spend
        for operation in state["parser_ops"]:
            lines += [f" {line}" for line in spend(self._operation(operation))]
        lines += [f" {line}" for line in spend(self._select(state))]
        return lines

    # --- operations ---

    def _operation(self, node: Node) -> list[str]:
        name, given = node["op"].text, node["parameters"]
        if name in ("extract", "extract_VL"):
            return self._extract(given)
        if name == "set":
            return self._set(given)
        if name == "verify":
            code = self._compiler.data(given[1]).source
            return [f"if not {self._compiler.expressions.truth(given[0])}: raise ParserStop({code}, a)"]
        if name == "advance":
            return [
                f"n = {self._compiler.data(given[0]).source}",
                *self._whole_bytes(),
                *self._ahead("n // 8"),
                "a = e",
            ]
        if name == "shift":
            return [*self._ahead(str(given[0].integer)), "a = e"]
        if name == "primitive":
            return self._compiler.statements(given[0])
        raise UnsupportedError(f"{node.path}: parser operation {name!r} is not implemented")

    def _extract(self, given: Node) -> list[str]:
        kind, target = given[0]["type"].text, given[0]["value"]
        before: list[str] = []
        if kind == "regular":
            header = self._layout.header(target)
            value = Value(str(header.base), "header", header_type=header.type, header=header)
            after = self._compiler.become_valid(value)
            base, header_type = str(header.base), header.type
        elif kind == "stack":
            stack = self._layout.stack(target)
            before = [
                f"if f[{stack.next}] >= {len(stack.headers)}: raise ParserStop({self._errors['StackOutOfBounds']}, a)",
                f"h = {stack.bases}[f[{stack.next}]]",
            ]
            after = [f"f[h + {len(stack.type.fields)}] = 1", f"f[{stack.next}] += 1"]
            base, header_type = "h", stack.type
        elif kind == "union_stack":
            unions, member = self._layout.union_member(target)
            header_type, base = unions.unions[0][member].type, "h"
            before = [
                f"if f[{unions.next}] >= {len(unions.unions)}: raise ParserStop({self._errors['StackOutOfBounds']}, a)",
                f"i = f[{unions.next}]",
                f"h = {unions.bases(member)}[i]",
            ]
            after = [
                *others_invalid(Value("h", "header", header_type=header_type, union_stack=unions, index="i")),
                f"f[h + {len(header_type.fields)}] = 1",
                f"f[{unions.next}] += 1",
            ]
        else:
            raise UnsupportedError(f"{given.path}: extraction to {kind!r} is not implemented")
        if header_type.variable is None:
            size = header_type.fixed_bits // 8
            reads = [*self._ahead(str(size)), *read_lines(header_type, base, self._structs.get(header_type.name, ""))]
        else:
            reads = self._extract_variable(header_type, base, given)
        return [*before, *reads, *after, "a = e"]

    def _extract_variable(self, header_type: HeaderType, base: str, given: Node) -> list[str]:
        if len(given) != 2:
            raise UnsupportedError(f"{given.path}: a header whose own expression is its length is not implemented")
        return [
            f"n = {self._compiler.data(given[1]).source}",
            *self._whole_bytes(),
            *self._ahead(f"({header_type.fixed_bits} + n) // 8"),
            *read_variable_lines(header_type, base, self._errors["HeaderTooShort"]),
        ]

    def _whole_bytes(self) -> list[str]:
        return [f"if n & 7 or n < 0: raise ParserStop({self._errors['ParserInvalidArgument']}, a)"]

    def _ahead(self, size: str) -> list[str]:
        """Statements that set `e` to the position `size` bytes ahead, or stop with PacketTooShort."""
        return [f"e = a + {size}", f"if e > len(d): raise ParserStop({self._errors['PacketTooShort']}, a)"]

    def _set(self, given: Node) -> list[str]:
        if given[1]["type"].text != "lookahead":
            return self._compiler.store(given[0], self._compiler.data(given[1]))
        lines, source, bits = self._lookahead(given[1]["value"])
        return [*lines, *self._compiler.store(given[0], Value(source, bits=bits))]

    def _lookahead(self, node: Node) -> tuple[list[str], str, int]:
        """A look-ahead as statements to run before, source of its value, and its width in bits."""
        offset = node[0].at_most(MAX_LOOKAHEAD_OFFSET_BITS, "bits ahead")
        bits = node[1].at_most(MAX_FIELD_BITS, "bits of a look-ahead")
        first, end = offset // 8, (offset + bits + 7) // 8
        spare = end * 8 - offset - bits
        source = f"(int.from_bytes(d[a + {first}:a + {end}], 'big') >> {spare} & {(1 << bits) - 1:#x})"
        return self._ahead(str(end)), source, bits

    # --- transitions ---

    def _select(self, state: Node) -> list[str]:
        transitions = list(state["transitions"])
        default = next((each for each in transitions if _is_default(each)), None)
        last = f"return {self._next(None if default is None else default.get('next_state'))}, a"
        keys = list(state["transition_key"])
        if not keys:
            return [last]
        lines, parts, widths = [], [], []
        for key in keys:
            before, source, bits = self._key(key)
            lines += before
            parts.append((source, bits))
            widths.append(-(-bits // 8) * 8)
        # Each part is padded to whole bytes, like the values in the document that it is compared with.
        total, shifts = sum(widths), []
        for width in widths:
            total -= width
            shifts.append(total)
        terms = [
            source if not shift else f"{source} << {shift}" for (source, _), shift in zip(parts, shifts, strict=True)
        ]
        lines.append(f"x = {' | '.join(terms)}")
        for each in transitions:
            if not _is_default(each):
                case = self._case(each, [bits for _, bits in parts])
                lines.append(f"if {case}: return {self._next(each.get('next_state'))}, a")
        return [*lines, last]

    def _key(self, node: Node) -> tuple[list[str], str, int]:
        if node["type"].text == "lookahead":
            return self._lookahead(node["value"])
        if node["type"].text == "field":
            place, field = self._layout.field(node["value"])
            return [], field.unsigned(f"f[{place}]"), field.bits
        if node["type"].text == "union_stack_field":
            value = self._compiler.expressions.any(node)
            unions, member = self._layout.union_member(node["value"])
            field = unions.unions[0][member].type.field_named(node["value"][2].text, node)
            return [], field.unsigned(value.source), field.bits
        if node["type"].text == "stack_field":
            value = self._compiler.expressions.any(node)
            field = self._layout.stack(node["value"][0]).type.field_named(node["value"][1].text, node)
            return [], field.unsigned(value.source), field.bits
        raise UnsupportedError(f"{node.path}: keys of type {node['type'].text!r} are not implemented")

    def _case(self, node: Node, widths: list[int]) -> str:
        kind, mask = "hexstr" if node.get("type") is None else node["type"].text, node.get("mask")
        if kind == "hexstr":
            value = node["value"].hexadecimal
            if mask is None:
                return f"x == {value:#x}"
            return f"x & {mask.hexadecimal:#x} == {value & mask.hexadecimal:#x}"
        if kind == "parse_vset":
            name = node["value"]
            if name.text not in self._value_sets:
                raise name.fail(f"there is no parse value set {name.text!r}")
            chosen = "x" if mask is None else f"x & {mask.hexadecimal:#x}"
            members = f"{self._value_sets[name.text]}.padded({tuple(widths)})"
            if mask is None:
                return f"{chosen} in {members}"
            return f"{chosen} in {{v & {mask.hexadecimal:#x} for v in {members}}}"
        raise UnsupportedError(f"{node.path}: transitions of type {kind!r} are not implemented")


def _is_default(node: Node) -> bool:
    kind = node.get("type")
    return kind.text == "default" if kind is not None else node["value"].value == "default"


def deparser_lines(node: Node, compiler: Compiler, structs: dict[str, str]) -> list[str]:
    """Source of a function `deparse(f, k)` that returns the packet's bytes."""
    lines = ["def deparse(f, k):"]
    for primitive in node.each("primitives"):
        lines += [f" {line}" for line in compiler.statements(primitive)]
    lines.append(" parts = []")
    for name in node["order"]:
        header = compiler.layout.header(name)
        source = bytes_source(header, structs.get(header.type.name, ""))
        lines += compiler.objects.budget.spend([f" if f[{header.valid}]: parts.append({source})"])
    return [*lines, " parts.append(k.payload)", " return b''.join(parts)"]


class ValueSet:
    """A parse value set, whose values the control plane writes."""

    def __init__(self, name: str, bits: int) -> None:
        self.name = name
        self.bits = bits
        self.values: set[int] = set()

    def padded(self, widths: tuple[int, ...]) -> set[int]:
        """The values with each part, of `widths` bits, padded to whole bytes."""
        if len(widths) == 1:
            return self.values
        padded = set()
        for value in self.values:
            left, whole = sum(widths), 0
            for width in widths:
                left -= width
                whole = whole << -(-width // 8) * 8 | value >> left & ((1 << width) - 1)
            padded.add(whole)
        return padded

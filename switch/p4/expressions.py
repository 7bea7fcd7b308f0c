"""Expressions of a program as Python source over `f`, the list of fields (switch/p4/layout.py).

Rules
-----
* Arithmetic has unlimited precision, as the format defines; a store wraps its value. An expression knows how many bits
  its value fits in if that is certain, so that most stores need no wrapping.
* `p` is the tuple of an action's parameters and `R_n` a register array, where these may be used.
* An operator, operand or type that is not listed here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fanin.errors import UnsupportedError
from fanin.switch.p4.bounds import MAX_FIELD_BITS
from fanin.switch.p4.document import Node
from fanin.switch.p4.externs import Register
from fanin.switch.p4.layout import Header, HeaderType, Layout, Stack, UnionStack

MAX_SHIFT = MAX_FIELD_BITS
"""A left shift by this many bits or more yields 0: no field is wider, so that every bit would be cut off."""
ARITHMETIC = {"+": "+", "-": "-", "*": "*", "&": "&", "|": "|", "^": "^", "/": "//", "%": "%"}
COMPARISONS = ("==", "!=", ">", ">=", "<", "<=")

Kind = Literal["data", "bool", "header", "stack", "union", "union_stack"]


@dataclass(frozen=True, slots=True)
class Value:
    """A compiled expression. `header`, `stack` and `union` are set for values of those kinds."""

    source: str
    kind: Kind = "data"
    bits: int | None = None
    """Width that the value, which is then not negative, is known to fit in; None: unknown."""
    header_type: HeaderType | None = None
    stack: Stack | None = None
    union: tuple[Header, ...] = ()
    union_stack: UnionStack | None = None
    """For an element of a union stack, or a member of one, whose index only the packet determines: that stack."""
    index: str = ""
    """Source of the element's index in `union_stack`."""
    header: Header | None = None
    """The header, if it is known at compile time; otherwise `source` finds its base at run time."""


class Expressions:
    """Compiles expressions of one program."""

    def __init__(self, layout: Layout, registers: Mapping[str, Register], parameters: tuple[int, ...] = ()) -> None:
        """`parameters`: widths in bits of the parameters of the enclosing action."""
        self.layout = layout
        self._registers = registers
        self._parameters = parameters

    def data(self, node: Node) -> Value:
        """Compile an expression whose value is a number; a boolean becomes 0 or 1."""
        value = self.any(node)
        if value.kind == "bool":
            return Value(f"int({value.source})", bits=1)
        if value.kind != "data":
            raise node.fail(f"a number is expected, not a {value.kind}")
        return value

    def truth(self, node: Node) -> str:
        """Source of an expression whose value is a boolean."""
        value = self.any(node)
        if value.kind != "bool":
            raise node.fail(f"true or false is expected, not {value.kind}")
        return value.source

    def header(self, node: Node) -> Value:
        """Compile an expression that denotes a header."""
        value = self.any(node)
        if value.kind != "header":
            raise node.fail(f"a header is expected, not {value.kind}")
        return value

    def any(self, node: Node) -> Value:
        """Compile any expression or operand."""
        kind, value = node["type"].text, node["value"]
        if kind == "expression":
            assert isinstance(value.value, dict) or value.fail("an object is expected")
            return self._operation(value) if isinstance(value.value, dict) and "op" in value.value else self.any(value)
        if kind == "field":
            if len(value) == 2 and isinstance(value[0].value, dict):
                return self._field_of_element(value)
            place, field = self.layout.field(value)
            return Value(f"f[{place}]", bits=None if field.signed else field.bits)
        if kind == "hexstr":
            number = value.hexadecimal
            written = str(number) if number.bit_length() <= 64 else f"{number:#x}"  # Python writes no 10,000 digits
            return Value(written if number >= 0 else f"({written})", bits=number.bit_length() if number >= 0 else None)
        if kind == "bool":
            if not isinstance(value.value, bool):
                raise value.fail("true or false is expected")
            return Value(str(value.value), "bool")
        if kind in ("local", "runtime_data"):
            return self._parameter(value)
        if kind == "header":
            header = self.layout.header(value)
            return Value(str(header.base), "header", header_type=header.type, header=header)
        if kind == "header_stack":
            return Value("", "stack", stack=self.layout.stack(value))
        if kind == "header_union":
            return Value("", "union", union=self.layout.union(value))
        if kind == "stack_field":
            return self._last_field(value)
        if kind == "header_union_stack":
            return Value("", "union_stack", union_stack=self.layout.union_stack(value))
        if kind == "union_stack_field":
            stack, member = self.layout.union_member(value)
            field = stack.unions[0][member].type.field_named(value[2].text, value[2])
            base = f"last(f, {stack.bases(member)}, {stack.next})"
            return Value(f"f[{base} + {field.offset}]", bits=None if field.signed else field.bits)
        if kind == "register":
            return self._register(value)
        raise UnsupportedError(f"{node.path}: operands of type {kind!r} are not implemented")

    # --- operands ---

    def _parameter(self, node: Node) -> Value:
        if node.integer >= len(self._parameters):
            raise node.fail(f"the action has {len(self._parameters)} parameters")
        return Value(f"p[{node.integer}]", bits=self._parameters[node.integer])

    def _field_of_element(self, node: Node) -> Value:
        """A field, or the validity, of a header that only the packet determines."""
        header = self._operation(node[0])
        if header.header_type is None:
            raise node[0].fail(f"a header is expected, not a {header.kind}")
        field = header.header_type.field_named(node[1].text, node[1])
        return Value(f"f[{header.source} + {field.offset}]", bits=None if field.signed else field.bits)

    def _last_field(self, node: Node) -> Value:
        stack = self.layout.stack(node[0])
        base = f"last(f, {stack.bases}, {stack.next})"
        if node[1].text == "last" and all(each.name != "last" for each in stack.type.fields):
            # p4c names the whole last element (`meta.h = hdr.stack.last`) as if "last" were one of its fields.
            return Value(base, "header", header_type=stack.type)
        field = stack.type.field_named(node[1].text, node[1])
        source = f"f[{base} + {field.offset}]"
        return Value(source, bits=None if field.signed else field.bits)

    def _register(self, node: Node) -> Value:
        name = node[0].text
        if name not in self._registers:
            raise node.fail(f"there is no register array {name!r}")
        array = self._registers[name]
        return Value(f"{array.symbol}[{self.data(node[1]).source}]", bits=array.bits)

    # --- operations ---

    def _operation(self, node: Node) -> Value:
        operator = node["op"].text
        if operator in ARITHMETIC:
            return self._arithmetic(node, operator)
        if operator in COMPARISONS:
            return self._comparison(node, operator)
        if operator in ("<<", ">>"):
            return self._shift(node, operator)
        if operator in ("and", "or"):
            return Value(f"({self.truth(node['left'])} {operator} {self.truth(node['right'])})", "bool")
        if operator == "not":
            return Value(f"(not {self.truth(node['right'])})", "bool")
        if operator == "~":
            return Value(f"(~{self.data(node['right']).source})")
        if operator == "valid":
            return Value(f"(f[{self.validity(self.header(node['right']))}] == 1)", "bool")
        if operator == "valid_union":
            union = self.any(node["right"])
            if union.union_stack is not None:
                return Value(f"any(f[v] == 1 for v in {_element(union)})", "bool")
            members = union.union
            if not members:
                raise node["right"].fail(f"a header union is expected, not a {union.kind}")
            return Value("(" + " or ".join(f"f[{header.valid}] == 1" for header in members) + ")", "bool")
        if operator == "d2b":
            return Value(f"({self.data(node['right']).source} != 0)", "bool")
        if operator == "b2d":
            return Value(f"int({self.truth(node['right'])})", bits=1)
        if operator == "?":
            return self._choice(node)
        if operator in ("two_comp_mod", "usat_cast", "sat_cast"):
            return self._cast(node, operator)
        return self._structure(node, operator)

    def _arithmetic(self, node: Node, operator: str) -> Value:
        if operator == "-" and node.get("left") is None:
            return Value(f"(-{self.data(node['right']).source})")
        left, right = self.data(node["left"]), self.data(node["right"])
        bits = None
        if left.bits is not None and right.bits is not None:
            widths = left.bits, right.bits
            bits = {"+": max(widths) + 1, "*": sum(widths), "/": widths[0], "%": widths[1]}.get(operator)
            if operator in ("|", "^"):
                bits = max(widths)
        if operator == "&":
            known = [value.bits for value in (left, right) if value.bits is not None]
            bits = min(known, default=None)
        return Value(f"({left.source} {ARITHMETIC[operator]} {right.source})", bits=bits)

    def _comparison(self, node: Node, operator: str) -> Value:
        left, right = self.any(node["left"]), self.any(node["right"])
        if left.kind != right.kind:
            raise node.fail(f"{left.kind} and {right.kind} cannot be compared")
        if left.kind in ("data", "bool"):
            return Value(f"({left.source} {operator} {right.source})", "bool")
        kind = left.header_type
        if kind is not None and operator in ("==", "!=") and kind is right.header_type:
            count = len(kind.fields)
            ends = f"f[{left.source}:{left.source} + {count + 1}]", f"f[{right.source}:{right.source} + {count + 1}]"
            equal = f"(f[{self.validity(left)}] == 1 and {ends[0]} == {ends[1]})"
            return Value(equal if operator == "==" else f"(not {equal})", "bool")
        raise UnsupportedError(f"{node.path}: {operator!r} between a {left.kind} and a {right.kind} is not implemented")

    def _shift(self, node: Node, operator: str) -> Value:
        left, right = self.data(node["left"]), self.data(node["right"])
        if operator == ">>":
            return Value(f"({left.source} >> {right.source})", bits=left.bits)
        if right.source.isdigit():
            amount = min(int(right.source), MAX_SHIFT)
            return Value(f"({left.source} << {amount})", bits=None if left.bits is None else left.bits + amount)
        return Value(f"shifted({left.source}, {right.source})")

    def _choice(self, node: Node) -> Value:
        condition, left, right = self.truth(node["cond"]), self.any(node["left"]), self.any(node["right"])
        if left.kind != right.kind or left.kind not in ("data", "bool"):
            raise UnsupportedError(f"{node.path}: '?' between a {left.kind} and a {right.kind} is not implemented")
        bits = None if left.bits is None or right.bits is None else max(left.bits, right.bits)
        return Value(f"({left.source} if {condition} else {right.source})", left.kind, bits)

    def _cast(self, node: Node, operator: str) -> Value:
        source, width = self.data(node["left"]).source, self.data(node["right"]).source
        bits = int(width) if width.isdigit() else 0
        if not 0 < bits <= MAX_FIELD_BITS:
            raise node["right"].fail(f"a constant width of 1..{MAX_FIELD_BITS:,} bits is expected")
        half = 1 << (bits - 1)
        if operator == "usat_cast":
            return Value(f"min(max({source}, 0), {(1 << bits) - 1:#x})", bits=bits)
        if operator == "sat_cast":
            return Value(f"min(max({source}, {-half:#x}), {half - 1:#x})")
        return Value(f"((({source} + {half:#x}) & {(1 << bits) - 1:#x}) - {half:#x})")

    def _structure(self, node: Node, operator: str) -> Value:
        """Compile operators on headers and stacks whose element only the packet determines."""
        if operator == "dereference_header_stack":
            stack = self._stack(node["left"])
            return Value(f"element({stack.bases}, {self.data(node['right']).source})", "header", header_type=stack.type)
        if operator == "dereference_union_stack":
            stacked = self.any(node["left"]).union_stack
            if stacked is None:
                raise node["left"].fail("a stack of header unions is expected")
            return Value("", "union", union_stack=stacked, index=self.data(node["right"]).source)
        if operator == "last_stack_index":
            return Value(f"(f[{self._filled(node['right'])}] - 1)")
        if operator == "size_stack":
            return Value(f"f[{self._filled(node['right'])}]", bits=32)
        if operator == "access_field":
            header, at = self.header(node["left"]), node["right"].integer
            assert header.header_type is not None
            if at >= header.header_type.places:
                raise node["right"].fail(f"header type {header.header_type.name} has no field number {at}")
            fields = header.header_type.fields
            bits = 1 if at >= len(fields) else None if fields[at].signed else fields[at].bits
            return Value(f"f[{header.source} + {at}]", bits=bits)
        if operator == "access_union_header":
            found, at = self.any(node["left"]), node["right"].integer
            if found.kind == "union" and (several := found.union_stack) is not None:
                if at >= len(several.members):
                    raise node["right"].fail(f"the union has {len(several.members)} members")
                base = f"element({several.bases(at)}, {found.index})"
                kind = several.unions[0][at].type
                return Value(base, "header", header_type=kind, union_stack=several, index=found.index)
            union = found.union
            if at >= len(union):
                raise node["right"].fail(f"the union has {len(union)} members")
            return Value(str(union[at].base), "header", header_type=union[at].type, header=union[at])
        raise UnsupportedError(f"{node.path}: operator {operator!r} is not implemented")

    def _filled(self, node: Node) -> int:
        """The place of the fill level of a stack of headers or unions."""
        value = self.any(node)
        return value.union_stack.next if value.union_stack is not None else self._stack(node).next

    def _stack(self, node: Node) -> Stack:
        value = self.any(node)
        if value.stack is None:
            raise node.fail(f"a header stack is expected, not a {value.kind}")
        return value.stack

    def validity(self, header: Value) -> str:
        """Source of the place of a header's validity."""
        if header.header is not None:
            return str(header.header.valid)
        assert header.header_type is not None
        return f"{header.source} + {len(header.header_type.fields)}"


def _element(union: Value) -> str:
    """Source of the places of the members' validities, for a union whose index only the packet determines."""
    assert union.union_stack is not None
    return f"element({union.union_stack.validities}, {union.index})"


def others_invalid(member: Value) -> list[str]:
    """Statements that make all members of the union of `member` invalid; only the packet determines which union."""
    return [f"for v in {_element(member)}: f[v] = 0"]

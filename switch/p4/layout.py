"""Layout of a packet's fields: every header instance has its place in one flat list of integers.

Rules
-----
* A header instance of n fields takes n + 1 places, fields in order and then its validity (0 or 1), or n + 2 if one of
  its fields has a variable length: the last is that length in bits.
* A header stack takes one more place: the index of its first empty element (`next` of P4_16).
* Values are as wide as their fields and, for signed fields, signed: every store wraps its value (`Field.wrapped`).
* A packet starts as a copy of `Layout.blank`, in which only metadata is valid and all fields are zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanin.errors import ProgramError
from fanin.switch.p4.bounds import (
    MAX_FIELD_BITS,
    MAX_INTEGER,
    MAX_PLACES,
    MAX_STACK_ELEMENTS,
    MAX_STATE_BITS,
    MAX_TYPE_FIELDS,
)
from fanin.switch.p4.document import Node

VALID = "$valid$"
"""Name of the hidden field of every header, its validity."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a header type."""

    name: str
    bits: int
    """Width; the largest one of a variable-length field."""
    offset: int
    """Place within its header."""
    signed: bool = False
    saturating: bool = False
    variable: bool = False

    def wrapped(self, source: str, bits: int | None = None) -> str:
        """Python source of `source` wrapped to this field; `bits`: width that its unsigned value is known to fit in."""
        if self.saturating:
            low, high = (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.signed else (0, (1 << self.bits) - 1)
            return f"min(max({source}, {low:#x}), {high:#x})"
        if self.signed:
            half = 1 << (self.bits - 1)
            return f"(({source} + {half:#x}) & {(1 << self.bits) - 1:#x}) - {half:#x}"
        if bits is not None and bits <= self.bits:
            return source
        return f"({source}) & {(1 << self.bits) - 1:#x}"

    def unsigned(self, source: str) -> str:
        """Python source of the bits of a stored value."""
        return f"({source} & {(1 << self.bits) - 1:#x})" if self.signed else source


@dataclass(frozen=True, slots=True)
class HeaderType:
    """Fields in order. `fixed_bits` leaves a variable-length field out."""

    name: str
    fields: tuple[Field, ...]
    max_bytes: int | None = None
    """Length of the longest header in bytes, if a field has a variable length."""

    @property
    def variable(self) -> Field | None:
        """The field of variable length."""
        return next((field for field in self.fields if field.variable), None)

    @property
    def fixed_bits(self) -> int:
        """Width of all fields of fixed length."""
        return sum(field.bits for field in self.fields if not field.variable)

    @property
    def state_bits(self) -> int:
        """Total width of all fields, with the largest width of a variable one."""
        return sum(field.bits for field in self.fields)

    @property
    def places(self) -> int:
        """Number of places that an instance takes in the list."""
        return len(self.fields) + 1 + (self.variable is not None)

    def field_named(self, name: str, where: Node) -> Field:
        """The field of that name, or VALID; ProgramError at `where` without one."""
        if name == VALID:
            return Field(VALID, 1, len(self.fields))
        for each in self.fields:
            if each.name == name:
                return each
        raise where.fail(f"header type {self.name} has no field {name!r}")


@dataclass(frozen=True, slots=True)
class Header:
    """A header instance: `base` is its first place."""

    name: str
    type: HeaderType
    base: int
    metadata: bool

    @property
    def valid(self) -> int:
        """Index of the value that says whether the packet has this header."""
        return self.base + len(self.type.fields)

    @property
    def end(self) -> int:
        """Index of the first value behind its last field."""
        return self.base + len(self.type.fields)


@dataclass(frozen=True, slots=True)
class Stack:
    """A header stack; `next` is the place of its fill level."""

    name: str
    type: HeaderType
    headers: tuple[Header, ...]
    next: int

    @property
    def bases(self) -> tuple[int, ...]:
        """First places of its elements."""
        return tuple(header.base for header in self.headers)


@dataclass(frozen=True, slots=True)
class UnionStack:
    """A stack of header unions; `next` is the place of its fill level."""

    name: str
    members: tuple[str, ...]
    """Names of the members of its unions."""
    unions: tuple[tuple[Header, ...], ...]
    next: int

    def bases(self, member: int) -> tuple[int, ...]:
        """First places of one member, by element."""
        return tuple(union[member].base for union in self.unions)

    @property
    def validities(self) -> tuple[tuple[int, ...], ...]:
        """Places of the members' validity, by element."""
        return tuple(tuple(header.valid for header in union) for union in self.unions)


@dataclass(slots=True)
class Layout:
    """All header instances, stacks and unions of a program, by name."""

    types: dict[str, HeaderType] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    unions: dict[str, tuple[Header, ...]] = field(default_factory=dict)
    union_stacks: dict[str, UnionStack] = field(default_factory=dict)
    siblings: dict[str, tuple[Header, ...]] = field(default_factory=dict)
    """By header: the other members of its union, which become invalid when it becomes valid."""
    aliases: dict[str, tuple[str, str]] = field(default_factory=dict)
    blank: list[int] = field(default_factory=list)
    bits: int = 0
    """Widths of all fields."""

    @classmethod
    def read(cls, root: Node) -> Layout:
        """Read `header_types`, `headers`, `header_stacks`, `header_unions` and `field_aliases` of a document."""
        layout = cls()
        by_id: dict[int, Header] = {}
        for node in root["header_types"]:
            kind = _read_type(node)
            if kind.name in layout.types:
                raise node.fail(f"header type {kind.name!r} is declared twice")
            layout.types[kind.name] = kind
        union_types = {node["name"].text: node for node in root.each("header_union_types")}
        for node in root["headers"]:
            if node["header_type"].text in union_types:
                # p4c 1.2.5.16 writes a union of which only members are used as a header of the union's type.
                name, union = node["name"].text, union_types[node["header_type"].text]
                layout._add_union(
                    name,
                    tuple(layout._add_header(f"{name}.{each[0].text}", each[1], node) for each in union["headers"]),
                )
                continue
            header = layout._add_header(node["name"].text, node["header_type"], node, metadata=node.flag("metadata"))
            if by_id.setdefault(node["id"].integer, header) is not header:
                raise node.fail(f"header id {node['id'].integer} is given twice")
        for node in root.each("header_stacks"):
            members = _members(node, by_id)
            stack = Stack(node["name"].text, layout._type(node["header_type"]), members, len(layout.blank))
            if any(header.type is not stack.type for header in members) or not members:
                raise node.fail(f"stack {stack.name!r} has elements of another type, or none")
            if stack.name in layout.stacks:
                raise node.fail(f"stack {stack.name!r} is declared twice")
            layout._reserve(1, 0, node)
            layout.stacks[stack.name] = stack
        for node in root.each("header_unions"):
            if node["name"].text in layout.unions:
                raise node.fail(f"union {node['name'].text!r} is declared twice")
            layout._add_union(node["name"].text, _members(node, by_id))
        layout._read_union_stacks(root)
        for node in root.each("field_aliases"):
            layout.aliases[node[0].text] = node[1].name_pair()
        return layout

    def _add_header(self, name: str, kind: Node, where: Node, *, metadata: bool = False) -> Header:
        """Add a header instance of the type that `kind` names; `where`: the instance's node in the document."""
        header = Header(name, self._type(kind), len(self.blank), metadata)
        if name in self.headers:
            raise where.fail(f"header {name!r} is declared twice")
        if header.type.fixed_bits % 8 and not metadata:
            raise where.fail(f"header {name!r} has {header.type.fixed_bits} bits, which are no whole bytes")
        self._reserve(header.type.places, header.type.state_bits, where)
        self.blank[header.valid] = int(metadata)
        self.headers[name] = header
        return header

    def _reserve(self, places: int, bits: int, where: Node) -> None:
        """Add `places` zeros to `blank`, for fields of `bits` bits in total. ProgramError beyond the bounds."""
        self.bits += bits
        if len(self.blank) + places > MAX_PLACES or self.bits > MAX_STATE_BITS:
            raise where.fail(
                f"the headers up to here have {len(self.blank) + places:,} fields of {self.bits:,} bits; at most "
                f"{MAX_PLACES:,} and {MAX_STATE_BITS:,}"
            )
        self.blank += [0] * places

    def _add_union(self, name: str, members: tuple[Header, ...]) -> None:
        self.unions[name] = members
        for header in members:
            self.siblings[header.name] = tuple(other for other in members if other is not header)

    def _read_union_stacks(self, root: Node) -> None:
        members = {
            node["name"].text: tuple(each[0].text for each in node["headers"])
            for node in root.each("header_union_types")
        }
        by_id = {node["id"].integer: node["name"].text for node in root.each("header_unions")}
        for node in root.each("header_union_stacks"):
            kind = node["union_type"]
            if kind.text not in members:
                raise kind.fail(f"there is no header union type {kind.text!r}")
            unions = []
            for each in node["header_union_ids"].no_more_than(MAX_STACK_ELEMENTS, "elements of a stack"):
                if each.integer not in by_id:
                    raise each.fail(f"there is no header union with id {each.integer}")
                unions.append(self.unions[by_id[each.integer]])
            if not unions or any([h.type for h in each] != [h.type for h in unions[0]] for each in unions):
                raise node.fail("a stack of unions has elements of one type, and one at least")
            if len(unions[0]) != len(members[kind.text]):
                raise node.fail("its unions have other members than their type")
            name = node["name"].text
            if name in self.union_stacks:
                raise node.fail(f"stack {name!r} is declared twice")
            self.union_stacks[name] = UnionStack(name, members[kind.text], tuple(unions), len(self.blank))
            self._reserve(1, 0, node)

    def union_stack(self, node: Node) -> UnionStack:
        """The stack of header unions that `node` names."""
        if node.text not in self.union_stacks:
            raise node.fail(f"there is no stack of header unions {node.text!r}")
        return self.union_stacks[node.text]

    def union_member(self, node: Node) -> tuple[UnionStack, int]:
        """The stack and the number of the member that `node`, which begins with two names, refers to."""
        stack = self.union_stack(node[0])
        if node[1].text not in stack.members:
            raise node[1].fail(f"the unions of {stack.name} have no member {node[1].text!r}")
        return stack, stack.members.index(node[1].text)

    def _type(self, node: Node) -> HeaderType:
        if node.text not in self.types:
            raise node.fail(f"there is no header type {node.text!r}")
        return self.types[node.text]

    def header(self, node: Node) -> Header:
        """The header instance that `node` names."""
        if node.text not in self.headers:
            raise node.fail(f"there is no header {node.text!r}")
        return self.headers[node.text]

    def stack(self, node: Node) -> Stack:
        """The header stack that `node` names."""
        if node.text not in self.stacks:
            raise node.fail(f"there is no header stack {node.text!r}")
        return self.stacks[node.text]

    def union(self, node: Node) -> tuple[Header, ...]:
        """The members of the header union that `node` names."""
        if node.text not in self.unions:
            raise node.fail(f"there is no header union {node.text!r}")
        return self.unions[node.text]

    def field(self, node: Node) -> tuple[int, Field]:
        """Place and field that `node`, a pair of names, refers to."""
        if len(node) != 2:
            raise node.fail("header and field names are expected")
        header = self.header(node[0])
        found = header.type.field_named(node[1].text, node[1])
        return header.base + found.offset, found

    def intrinsic(self, header: str, name: str) -> tuple[int, Field] | None:
        """Place and field that the architecture names, directly or by an alias; None if the program has none."""
        header, name = self.aliases.get(f"{header}.{name}", (header, name))
        if header not in self.headers:
            return None
        instance = self.headers[header]
        return next(
            ((instance.base + at, each) for at, each in enumerate(instance.type.fields) if each.name == name), None
        )

    def required(self, header: str, name: str) -> tuple[int, Field]:
        """Place and field that the architecture names; ProgramError if the program has none."""
        found = self.intrinsic(header, name)
        if found is None:
            raise ProgramError(f"the program has no field {header}.{name}: it was compiled for another architecture")
        return found


def _read_type(node: Node) -> HeaderType:
    fields: list[Field] = []
    max_length = node.get("max_length")
    most = None if max_length is None else max_length.at_most(MAX_INTEGER // 8, "bytes of a header")
    for at, each in enumerate(node["fields"].no_more_than(MAX_TYPE_FIELDS, "fields of a header type")):
        signed, saturating = (each[1].value != "*" and len(each) > more and each[more].value is True for more in (2, 3))
        if each[1].value == "*":
            rest = sum(other[1].integer for other in node["fields"] if other[1].value != "*")
            bits = node["max_length"].integer * 8 - rest
        else:
            bits = each[1].integer
        if not 0 < bits <= MAX_FIELD_BITS:
            raise each.fail(f"a field of {bits:,} bits; it has at least one and at most {MAX_FIELD_BITS:,}")
        fields.append(Field(each[0].text, bits, at, signed, saturating, variable=each[1].value == "*"))
    if sum(field.variable for field in fields) > 1:
        raise node.fail("more than one field of variable length")
    return HeaderType(node["name"].text, tuple(fields), most)


def _members(node: Node, by_id: dict[int, Header]) -> tuple[Header, ...]:
    for each in node["header_ids"].no_more_than(MAX_STACK_ELEMENTS, "elements"):
        if each.integer not in by_id:
            raise each.fail(f"there is no header with id {each.integer}")
    return tuple(by_id[each.integer] for each in node["header_ids"])

"""Compile actions: each primitive becomes statements of Python.

Rules
-----
* A primitive is a function from its JSON parameters to lines of source; PRIMITIVES lists them by the format's names.
  Any other primitive is refused when the program is loaded, not when a packet reaches it.
* Compiled code uses `f` (fields), `k` (the packet's other state, switch/p4/packet_state.py) and `p` (the action's
  parameters).
* A block of primitives between jump targets runs only if no jump skips it: `t` is the target of the last jump. A
  backward jump, of a loop, starts again at the top and skips all blocks before its target; `u` counts these jumps, and
  a packet that makes more than MAX_TURNS in one action is lost.
* An index beyond the end of a register or counter array does nothing; reading leaves the destination as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fanin.errors import UnsupportedError
from fanin.switch.p4.bounds import SourceBudget
from fanin.switch.p4.document import Node
from fanin.switch.p4.expressions import Expressions, Value, others_invalid
from fanin.switch.p4.externs import Counter, Register
from fanin.switch.p4.layout import Field, Header, Layout, UnionStack
from fanin.switch.p4.meters import MeterArray

MAX_TURNS = 1 << 17
"""Most backward jumps in one action: enough for two nested loops over all values of a byte."""
MAX_FORMATTED = 64
"""Most values in one log message."""


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of a program that primitives refer to."""

    layout: Layout
    registers: Mapping[str, Register]
    counters: Mapping[str, Counter]
    calculations: Mapping[str, str]
    """Symbols of calculations by name."""
    field_lists: frozenset[int]
    drop_port: int
    meters: Mapping[str, MeterArray]
    learn_lists: frozenset[int]
    budget: SourceBudget


class Compiler:
    """Compiles the primitives of one action."""

    def __init__(self, objects: Objects, parameters: tuple[int, ...]) -> None:
        """`parameters`: widths in bits of the action's parameters."""
        self.objects = objects
        self.layout = objects.layout
        self.expressions = Expressions(objects.layout, objects.registers, parameters)

    def body(self, primitives: list[Node]) -> list[str]:
        """Compile all primitives of an action, to lines indented by one space."""
        targets = {at: self._target(node, len(primitives)) for at, node in enumerate(primitives) if _is_jump(node)}
        begins = {0, *targets.values(), *(at + 1 for at in targets)} if targets else set()
        lines: list[str] = []
        for at, node in enumerate(primitives):
            if at in begins:
                lines.append(f"if t <= {at}:")
            statements = self._jump(node, at, targets[at]) if at in targets else self.statements(node)
            lines += [f"{' ' * bool(targets)}{line}" for line in statements or ["pass"]]
        if any(target <= at for at, target in targets.items()):
            lines = ["t = u = 0", "while True:", *(f" {line}" for line in lines), " break"]
        elif targets:
            lines = ["t = 0", *lines]
        return [f" {line}" for line in lines or ["pass"]]

    def statements(self, node: Node) -> list[str]:
        """Compile one primitive to statements."""
        name = node["op"].text
        if name not in PRIMITIVES:
            raise UnsupportedError(f"{node.path}: primitive {name!r} is not implemented")
        count, make = PRIMITIVES[name]
        given = len(node["parameters"])
        if given != count and (name, given) not in SHORTER_FORMS:
            raise node.fail(f"primitive {name!r} has {count} parameters, not {given}")
        return self.objects.budget.spend(make(self, node["parameters"]))

    def _target(self, node: Node, count: int) -> int:
        """Index of the primitive to which a jump leads; `count`: the end of the action."""
        where = node["parameters"][len(node["parameters"]) - 1]
        if where["type"].text != "hexstr" or not 0 <= (target := where["value"].hexadecimal) <= count:
            raise UnsupportedError(f"{node.path}: a jump that does not lead to a primitive is not implemented")
        return target

    def _jump(self, node: Node, at: int, target: int) -> list[str]:
        jump = [f"t = {target}"]
        if target <= at:
            endless = f"{node.path}: a loop with more than {MAX_TURNS} turns"
            jump += ["u += 1", f"if u > {MAX_TURNS}: raise PacketError({endless!r})", "continue"]
        if node["op"].text == "_jump":
            return jump
        return [f"if {self.data(node['parameters'][0]).source} == 0:", *(f" {line}" for line in jump)]

    # --- parameters ---

    def data(self, node: Node) -> Value:
        """Compile a parameter that is a number."""
        return self.expressions.data(node)

    def store(self, node: Node, value: Value) -> list[str]:
        """Statements that assign `value` to the lvalue `node`."""
        kind = node["type"].text
        if kind == "field":
            place, field = self.layout.field(node["value"])
            if field.name == "$valid$":
                raise node.fail("validity is written by setValid and setInvalid only")
            return [f"f[{place}] = {field.wrapped(value.source, value.bits)}"]
        if kind == "stack_field":
            stack = self.layout.stack(node["value"][0])
            field = stack.type.field_named(node["value"][1].text, node)
            at = f"last(f, {stack.bases}, {stack.next}) + {field.offset}"
            return [f"f[{at}] = {field.wrapped(value.source, value.bits)}"]
        if kind == "register":
            array = self.register(node["value"][0])
            index = self.data(node["value"][1]).source
            return [f"i = {index}", f"if i < {array.size}: {array.symbol}[i] = {_cell(array, value)}"]
        if kind == "expression":
            inner = node["value"]
            if isinstance(inner.value, dict) and "op" not in inner.value:
                return self.store(inner, value)
            if inner["op"].text == "access_field":
                header, number = self.expressions.header(inner["left"]), inner["right"].integer
                assert header.header_type is not None
                if number < len(header.header_type.fields):
                    field = header.header_type.fields[number]
                    return [f"f[{header.source} + {number}] = {field.wrapped(value.source, value.bits)}"]
        raise UnsupportedError(f"{node.path}: assignment to a {kind!r} of this form is not implemented")

    def field_of(self, node: Node) -> tuple[int, Field, Header]:
        """Place, field and header of a field that is known at compile time."""
        if node["type"].text != "field":
            raise UnsupportedError(f"{node.path}: a field is expected here, not {node['type'].text!r}")
        return *self.layout.field(node["value"]), self.layout.header(node["value"][0])

    def register(self, node: Node) -> Register:
        """A register array by name."""
        if node.text not in self.objects.registers:
            raise node.fail(f"there is no register array {node.text!r}")
        return self.objects.registers[node.text]

    def become_valid(self, header: Value) -> list[str]:
        """Statements that make a header valid, and the other members of its union invalid."""
        others = self.layout.siblings.get(header.header.name, ()) if header.header is not None else ()
        if header.union_stack is not None:
            return [*others_invalid(header), f"f[{self.expressions.validity(header)}] = 1"]
        return [f"f[{self.expressions.validity(header)}] = 1", *(f"f[{other.valid}] = 0" for other in others)]


Make = Callable[[Compiler, Node], list[str]]


def _is_jump(node: Node) -> bool:
    return node["op"].text in ("_jump", "_jump_if_zero")


def _cell(array: Register, value: Value) -> str:
    return Field("", array.bits, 0).wrapped(value.source, value.bits)


def _assign(c: Compiler, given: Node) -> list[str]:
    return c.store(given[0], c.data(given[1]))


def _operate(operator: str) -> Make:
    def make(c: Compiler, given: Node) -> list[str]:
        left, right = c.data(given[1]).source, c.data(given[2]).source
        source = f"shifted({left}, {right})" if operator == "<<" else f"({left} {operator} {right})"
        return c.store(given[0], Value(source))

    return make


def _in_place(operator: str) -> Make:
    def make(c: Compiler, given: Node) -> list[str]:
        return c.store(given[0], Value(f"({c.data(given[0]).source} {operator} {c.data(given[1]).source})"))

    return make


def _assign_variable(c: Compiler, given: Node) -> list[str]:
    (to, kind, to_header), (source, other, from_header) = c.field_of(given[0]), c.field_of(given[1])
    if not kind.variable or not other.variable:
        raise given.fail("both fields must have a variable length")
    return [f"f[{to}] = f[{source}]", f"f[{to_header.valid + 1}] = f[{from_header.valid + 1}]"]


def _assign_header(c: Compiler, given: Node) -> list[str]:
    to, source = c.expressions.header(given[0]), c.expressions.header(given[1])
    return _copied(c, to, source, given)


def _copied(c: Compiler, to: Value, source: Value, given: Node) -> list[str]:
    if to.header_type is None or to.header_type is not source.header_type:
        raise given.fail("headers of different types cannot be assigned")
    places = to.header_type.places
    return [
        f"h, g = {to.source}, {source.source}",
        f"if f[g + {len(to.header_type.fields)}]:",
        f" f[h:h + {places}] = f[g:g + {places}]",
        *(f" {line}" for line in c.become_valid(to)),
        f"else: f[h + {len(to.header_type.fields)}] = 0",
    ]


def _as_value(header: Header) -> Value:
    return Value(str(header.base), "header", header_type=header.type, header=header)


def _assign_union(c: Compiler, given: Node) -> list[str]:
    to, source = c.expressions.any(given[0]).union, c.expressions.any(given[1]).union
    return _copied_union(to, source, given)


def _copied_union(to: tuple[Header, ...], source: tuple[Header, ...], given: Node) -> list[str]:
    if not to or len(to) != len(source):
        raise given.fail("unions of different types cannot be assigned")
    # Invalidate all members first, since assigning the valid one must not be undone by the others.
    lines = [f"f[{header.valid}] = 0" for header in to]
    for left, right in zip(to, source, strict=True):
        places = left.type.places
        lines += [f"if f[{right.valid}]: f[{left.base}:{left.base + places}] = f[{right.base}:{right.base + places}]"]
    return lines


def _assign_stack(c: Compiler, given: Node) -> list[str]:
    to, source = c.expressions.any(given[0]).stack, c.expressions.any(given[1]).stack
    if to is None or source is None or len(to.headers) != len(source.headers):
        raise given.fail("stacks of different types cannot be assigned")
    lines = [f"f[{to.next}] = f[{source.next}]"]
    for left, right in zip(to.headers, source.headers, strict=True):
        lines += _copied(c, _as_value(left), _as_value(right), given)
    return lines


def _shift_stack(direction: int) -> Make:
    def make(c: Compiler, given: Node) -> list[str]:
        found = c.expressions.any(given[0])
        stack = found.stack
        count = c.data(given[1]).source
        call = "pushed" if direction > 0 else "popped"
        if found.kind == "union_stack" and found.union_stack is not None:
            return _shift_unions(found.union_stack, call, count)
        if stack is None:
            raise given.fail("a header stack is expected")
        return [f"{call}(f, {stack.bases}, {stack.next}, {stack.type.places}, {len(stack.type.fields)}, {count})"]

    return make


def _shift_unions(stack: UnionStack, call: str, count: str) -> list[str]:
    """Statements that shift a stack of unions member by member, each time from the same fill level."""
    lines = [f"n, i = {count}, f[{stack.next}]"]
    for at, header in enumerate(stack.unions[0]):
        lines.append(f"f[{stack.next}] = i")
        lines.append(f"{call}(f, {stack.bases(at)}, {stack.next}, {header.type.places}, {len(header.type.fields)}, n)")
    return lines


def _assign_union_stack(c: Compiler, given: Node) -> list[str]:
    to, source = (c.expressions.any(given[at]).union_stack for at in (0, 1))
    if to is None or source is None or len(to.unions) != len(source.unions):
        raise given.fail("stacks of unions of different types cannot be assigned")
    lines = [f"f[{to.next}] = f[{source.next}]"]
    for left, right in zip(to.unions, source.unions, strict=True):
        lines += _copied_union(left, right, given)
    return lines


def _add_header(c: Compiler, given: Node) -> list[str]:
    header = c.expressions.header(given[0])
    assert header.header_type is not None
    places, count = header.header_type.places, len(header.header_type.fields)
    return [
        f"h = {header.source}",
        f"if not f[h + {count}]:",
        f" f[h:h + {places}] = {(0,) * places}",
        f" k.length += {header.header_type.fixed_bits // 8}",
        *(f" {line}" for line in c.become_valid(header)),
    ]


def _remove_header(c: Compiler, given: Node) -> list[str]:
    header = c.expressions.header(given[0])
    assert header.header_type is not None
    count = len(header.header_type.fields)
    variable = f" - f[h + {count + 1}] // 8" if header.header_type.variable else ""
    return [
        f"h = {header.source}",
        f"if f[h + {count}]: k.length -= {header.header_type.fixed_bits // 8}{variable}; f[h + {count}] = 0",
    ]


def _dropped(c: Compiler, given: Node) -> list[str]:
    place, _ = c.layout.required("standard_metadata", "egress_spec")
    group = c.layout.intrinsic("intrinsic_metadata", "mcast_grp")
    return [f"f[{place}] = {c.objects.drop_port}"] + ([] if group is None else [f"f[{group[0]}] = 0"])


def _marked_to_drop(c: Compiler, given: Node) -> list[str]:
    # The header is an argument and need not be standard_metadata itself: where the caller passes it `inout`, p4c works
    # on a copy and writes that copy back afterwards, over anything that was done to the original.
    header = c.expressions.header(given[0])
    kind = header.header_type
    assert kind is not None
    offsets = {each.name: each.offset for each in kind.fields}
    if "egress_spec" not in offsets:
        raise given[0].fail(f"mark_to_drop wants a standard_metadata_t, and {kind.name} has no egress_spec")
    lines = [f"f[{header.source} + {offsets['egress_spec']}] = {c.objects.drop_port}"]
    return lines + [f"f[{header.source} + {offsets[name]}] = 0" for name in ("mcast_grp",) if name in offsets]


def _read_register(c: Compiler, given: Node) -> list[str]:
    array, index = c.register(given[1]["value"]), c.data(given[2])
    if index.bits is not None and 1 << index.bits <= array.size:
        return c.store(given[0], Value(f"{array.symbol}[{index.source}]", bits=array.bits))
    store = c.store(given[0], Value("x", bits=array.bits))
    return [f"i = {index.source}", f"if i < {array.size}:", f" x = {array.symbol}[i]", *(f" {line}" for line in store)]


def _write_register(c: Compiler, given: Node) -> list[str]:
    array, index, value = c.register(given[0]["value"]), c.data(given[1]), c.data(given[2])
    cell = _cell(array, value)
    if index.bits is not None and 1 << index.bits <= array.size:
        return [f"{array.symbol}[{index.source}] = {cell}"]
    return [f"i = {index.source}", f"if i < {array.size}: {array.symbol}[i] = {cell}"]


def _count(c: Compiler, given: Node) -> list[str]:
    name = given[0]["value"]
    if name.text not in c.objects.counters:
        raise name.fail(f"there is no counter array {name.text!r}")
    counter = c.objects.counters[name.text]
    return [
        f"i = {c.data(given[1]).source}",
        f"if i < {counter.size}: {counter.symbol}.packets[i] += 1; {counter.symbol}.bytes[i] += k.arrived",
    ]


def _execute_meter(c: Compiler, given: Node) -> list[str]:
    name = given[0]["value"]
    meters = c.objects.meters.get(name.text)
    if meters is None or meters.table is not None:
        raise name.fail(f"there is no indirect meter array {name.text!r}")
    store = c.store(given[2], Value(f"{meters.symbol}.execute(i, k)", bits=2))
    return [f"i = {c.data(given[1]).source}", f"if i < {meters.size}:", *(f" {line}" for line in store)]


def _digest(c: Compiler, given: Node) -> list[str]:
    # The first parameter is a receiver, which v1model ignores: it has only one.
    number = given[1]
    if number["type"].text != "hexstr" or number["value"].hexadecimal not in c.objects.learn_lists:
        raise number.fail("there is no such learn list")
    return [f"k.digest = {number['value'].hexadecimal}"]


def _hash(c: Compiler, given: Node) -> list[str]:
    name = given[2]["value"]
    if name.text not in c.objects.calculations:
        raise name.fail(f"there is no calculation {name.text!r}")
    base, size = c.data(given[1]).source, c.data(given[3]).source
    return c.store(given[0], Value(f"({c.objects.calculations[name.text]}(f, k) % (({size}) or 1) + {base})"))


def _random(c: Compiler, given: Node) -> list[str]:
    low, high = c.data(given[1]).source, c.data(given[2]).source
    store = c.store(given[0], Value("(low + k.random(high - low + 1))"))
    return [f"low, high = {low}, {high}", "if low <= high:", *(f" {line}" for line in store)]


def _again(attribute: str) -> Make:
    """Compile clone, resubmit or recirculate, which store their request; their last parameter is a field list."""

    def make(c: Compiler, given: Node) -> list[str]:
        fields = given[len(given) - 1]
        if fields["type"].text != "hexstr":
            raise UnsupportedError(f"{fields.path}: a field list that is not constant is not implemented")
        number = fields["value"].hexadecimal
        if number and number not in c.objects.field_lists:
            raise fields.fail(f"there is no field list {number}")
        if attribute != "clone":
            return [f"k.{attribute} = {number}"]
        return [f"k.clone = {c.data(given[0]).source} & 0x7fff, {number}"]

    return make


def _require(c: Compiler, given: Node) -> list[str]:
    return [f"if not {c.data(given[0]).source}: raise PacketError({f'{given.path}: the assertion does not hold'!r})"]


def _log(c: Compiler, given: Node) -> list[str]:
    # For a message without values p4c omits the second parameter, or writes an empty object instead of an array.
    bare = len(given) == 1 or given[1]["value"].value == {}
    values = [] if bare else [c.data(node).source for node in given[1]["value"]]
    if len(values) > MAX_FORMATTED:
        raise given.fail(f"a log message has at most {MAX_FORMATTED} values")
    return [f"k.log({given[0]['value'].text!r}, ({''.join(f'{value}, ' for value in values)}))"]


SHORTER_FORMS = {("log_msg", 1)}
"""Primitives that may have fewer parameters than in PRIMITIVES, with that number."""
PRIMITIVES: dict[str, tuple[int, Make]] = {
    "assign": (2, _assign),
    "modify_field": (2, _assign),
    "assign_VL": (2, _assign_variable),
    "assign_header": (2, _assign_header),
    "copy_header": (2, _assign_header),
    "assign_union": (2, _assign_union),
    "assign_header_stack": (2, _assign_stack),
    "assign_union_stack": (2, _assign_union_stack),
    "add_to_field": (2, _in_place("+")),
    "subtract_from_field": (2, _in_place("-")),
    "add": (3, _operate("+")),
    "subtract": (3, _operate("-")),
    "bit_and": (3, _operate("&")),
    "bit_or": (3, _operate("|")),
    "bit_xor": (3, _operate("^")),
    "shift_left": (3, _operate("<<")),
    "shift_right": (3, _operate(">>")),
    "push": (2, _shift_stack(+1)),
    "pop": (2, _shift_stack(-1)),
    "add_header": (1, _add_header),
    "add_header_fast": (1, lambda c, given: c.become_valid(c.expressions.header(given[0]))),
    "remove_header": (1, _remove_header),
    "mark_to_drop": (1, _marked_to_drop),
    "drop": (0, _dropped),
    "no_op": (0, lambda c, given: []),
    "exit": (0, lambda c, given: ["k.exit = True"]),
    "assert": (1, _require),
    "assume": (1, _require),
    "log_msg": (2, _log),
    "register_read": (3, _read_register),
    "register_write": (3, _write_register),
    "count": (2, _count),
    "execute_meter": (3, _execute_meter),
    "generate_digest": (2, _digest),
    "modify_field_with_hash_based_offset": (4, _hash),
    "modify_field_rng_uniform": (3, _random),
    "truncate": (1, lambda c, given: [f"k.cut = min(k.cut, {c.data(given[0]).source})"]),
    "clone_ingress_pkt_to_egress": (2, _again("clone")),
    "clone_egress_pkt_to_egress": (2, _again("clone")),
    "resubmit": (1, _again("resubmit")),
    "recirculate": (1, _again("recirculate")),
}
"""By name: the number of parameters, and the function that compiles them to statements."""

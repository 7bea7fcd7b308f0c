"""Translate expressions of compiled actions to instructions of the native interpreter.

The input is the syntax tree of the source that switch/p4/expressions.py generates for Python. A form that is not
listed raises NotNative, and Python runs the program.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from fanin.switch.p4.externs import Register
from fanin.switch.p4.native_code import LIMB_BITS, STATE, Emitter, NotNative, Place, Val, limbs_of

UNSIGNED = (1 << LIMB_BITS) - 1
LARGEST_COUNT = (1 << 40) - 1
"""Upper bound of lengths and positions, in bytes."""
PLAIN = {ast.Add: "ADD", ast.Sub: "SUB", ast.Mult: "MUL", ast.BitAnd: "AND", ast.BitOr: "OR", ast.BitXor: "XOR"}
COMPARED = {
    ast.Eq: ("JUMP_EQ", False), ast.NotEq: ("JUMP_NE", False), ast.Lt: ("JUMP_LT", False), ast.LtE: ("JUMP_LE", False),
    ast.Gt: ("JUMP_LT", True), ast.GtE: ("JUMP_LE", True),
}  # fmt: skip
"""By comparison: the jump, and whether its operands are swapped."""
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
LOADS = {8: "LOAD8", 16: "LOAD16", 32: "LOAD32", 64: "LOAD64"}


class Window(NamedTuple):
    """Bits of the packet, relative to the parser's position, that are not loaded yet."""

    first: int
    bits: int


def bits_of(value: Val) -> int:
    """Most bits of a number that is not negative."""
    return value.high.bit_length()


@dataclass(slots=True)
class Values:
    """Computes the expressions of one function."""

    emitter: Emitter
    places: list[Place]
    registers: Mapping[str, tuple[int, Register]]
    """Number and array of each register array, by symbol."""
    hash_of: Callable[[str], Val]
    """Translates the calculation of that name in line."""
    meters: Mapping[str, tuple[int, bool]]
    """By symbol of a meter array: its number, and whether its tokens are bytes."""
    parameters: list[Val] = field(default_factory=list)
    names: dict[str, Val | Window] = field(default_factory=dict)
    """Values of local names."""

    # --- numbers ---

    def value(self, node: ast.expr, need: int | None = None) -> Val:
        """Translate a number; `need`: only so many of its low bits must be right (None: all)."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return self.emitter.constant(int(node.value))
        if isinstance(node, ast.Name):
            found = self._name(node.id)
            return self._loaded(found) if isinstance(found, Window) else found
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Attribute):
            return self._state(node)
        if isinstance(node, ast.BinOp):
            if (window := self.window(node)) is not None:
                return self._loaded(window)
            return self._binary(node, need)
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            return self._unary(node, need)
        if _or_constant(node):
            left = self.value(node.values[0])
            if left.low > 0:
                return left
            return self._choice(node.values[0], node.values[0], node.values[1])
        if (choice := self.choice(node)) is not None:
            return self._choice(*choice)
        if isinstance(node, ast.Call):
            return self._call(node, need)
        raise NotNative(f"the form {ast.unparse(node)[:60]!r}")

    def choice(self, node: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr] | None:
        """Condition and both values of a conditional expression; None for any other expression."""
        while isinstance(node, ast.Call) and ast.unparse(node.func) == "int":
            node = node.args[0]
        if isinstance(node, ast.IfExp):
            return node.test, node.body, node.orelse
        if _or_constant(node):
            return None
        if isinstance(node, (ast.Compare, ast.BoolOp)) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return node, ast.Constant(1), ast.Constant(0)
        return None

    def integer(self, node: ast.expr) -> int:
        """The value of a constant expression. NotNative for any other."""
        value = self.value(node)
        if not value.constant:
            raise NotNative("headers that are chosen at run time")
        return value.low

    def index(self, node: ast.expr) -> Val:
        """Translate an index of an array. NotNative if it may be negative or longer than 64 bits."""
        value = self.value(node)
        if value.low < 0 or value.limbs > 1:
            raise NotNative("an index of more than 64 bits, or with a sign")
        return value

    def _name(self, name: str) -> Val | Window:
        if name == "a":
            return Val(STATE["at"], 1, 0, LARGEST_COUNT)
        if name not in self.names:
            raise NotNative(f"the name {name!r}")
        return self.names[name]

    def _state(self, node: ast.Attribute) -> Val:
        if isinstance(node.value, ast.Name) and node.value.id == "k" and node.attr in ("length", "arrived", "cut"):
            return Val(STATE[node.attr], 1, 0, LARGEST_COUNT)
        raise NotNative(f"the form {ast.unparse(node)!r}")

    def _subscript(self, node: ast.Subscript) -> Val:
        if not isinstance(node.value, ast.Name):
            raise NotNative("headers that are chosen at run time")
        name = node.value.id
        if name == "f":
            return self.places[self.integer(node.slice)].value
        if name == "p":
            return self.parameters[self.integer(node.slice)]
        if name in self.registers:
            number, array = self.registers[name]
            index, limbs = self.index(node.slice), -(-array.bits // LIMB_BITS)
            operation = "READ_WIDE" if limbs > 1 else "READ32" if array.bits <= 32 else "READ64"
            high = (1 << array.bits) - 1
            return self.emitter.compute(operation, 0, number, index.at, 0, high, limbs)
        raise NotNative(f"the form {ast.unparse(node)[:60]!r}")

    # --- bits of the packet, in the parser ---

    def window(self, node: ast.expr) -> Window | None:
        """The bits of the packet that an expression extracts; None for any other expression."""
        if isinstance(node, ast.Name):
            found = self.names.get(node.id)
            return found if isinstance(found, Window) else None
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "int.from_bytes":
            cut = node.args[0]  # d[a + first:a + end], or d[a:a + end]
            if isinstance(cut, ast.Subscript) and isinstance(cut.slice, ast.Slice):
                first, end = (self._ahead(each) for each in (cut.slice.lower, cut.slice.upper))
                return Window(first * 8, (end - first) * 8)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.RShift, ast.BitAnd)):
            left = self.window(node.left)
            if left is None or not isinstance(node.right, ast.Constant) or not isinstance(node.right.value, int):
                return None
            number = node.right.value
            if isinstance(node.op, ast.RShift):
                return Window(left.first, left.bits - number)
            if number & (number + 1) == 0 and (bits := number.bit_length()) <= left.bits:
                return Window(left.first + left.bits - bits, bits)
        return None

    def _ahead(self, node: ast.expr | None) -> int:
        if isinstance(node, ast.Name) and node.id == "a":
            return 0
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and ast.unparse(node.left) == "a":
            return self.integer(node.right)
        raise NotNative("headers whose length a packet chooses")

    def _loaded(self, window: Window) -> Val:
        return self.load(window.first, window.bits)

    def load(self, first: int, bits: int) -> Val:
        """Load `bits` bits of the packet, from bit `first` behind the parser's position on."""
        high = (1 << bits) - 1
        if first % 8 == 0 and bits in LOADS:
            return self.emitter.compute(LOADS[bits], 0, first // 8, 0, 0, high)
        return self.emitter.compute("LOAD_BITS", bits, first, 0, 0, high, limbs_of(0, high))

    # --- operations ---

    def _binary(self, node: ast.BinOp, need: int | None) -> Val:
        operator = type(node.op)
        if operator is ast.BitAnd:
            return self._and(node, need)
        if operator in PLAIN:
            left, right = self.value(node.left, need), self.value(node.right, need)
            return self._combined(PLAIN[operator], left, right, need)
        if operator is ast.LShift:
            return self._shifted_left(self.value(node.left, need), self.integer(node.right), need)
        if operator is ast.RShift:
            return self._shifted_right(node, need)
        if operator in (ast.FloorDiv, ast.Mod):
            return self._divided(node)
        raise NotNative(f"the operator {operator.__name__}")

    def _and(self, node: ast.BinOp, need: int | None) -> Val:
        for mask, other in ((node.right, node.left), (node.left, node.right)):
            if isinstance(mask, ast.Constant) and isinstance(mask.value, int) and mask.value >= 0:
                bits = mask.value.bit_length()
                wanted = bits if need is None else min(bits, need)
                value = self.value(other, wanted)
                if mask.value & (mask.value + 1) == 0:
                    return self.emitter.trimmed(value, wanted) if wanted else self.emitter.constant(0)
                constant = self.emitter.constant(mask.value & (1 << wanted) - 1)
                return self._combined("AND", value, constant, wanted)
        left = self.value(node.left, need)
        if left.low >= 0:
            wanted = bits_of(left) if need is None else min(bits_of(left), need)
            return self._combined("AND", left, self.value(node.right, wanted or 1), need)
        return self._combined("AND", left, self.value(node.right, need), need)

    def _combined(self, operation: str, left: Val, right: Val, need: int | None) -> Val:
        """Translate a sum, difference, product, and, or, or exclusive or."""
        if left.constant and right.constant:
            return self.emitter.constant(_folded(operation, left.low, right.low))
        if operation in ("ADD", "SUB") and right.constant and right.low == 0:
            return left
        low, high = _interval(operation, left, right)
        limbs = limbs_of(low, high)
        if need is not None:
            limbs = min(limbs, -(-need // LIMB_BITS))
        if limbs_of(low, high) > limbs or (low < 0 and need is not None and need <= LIMB_BITS * limbs):
            low, high = 0, (1 << LIMB_BITS * limbs) - 1  # bits beyond the limbs are cut off
        left, right = self.emitter.widened(left, limbs), self.emitter.widened(right, limbs)
        if limbs == 1:
            return self.emitter.compute(operation, LIMB_BITS, left.at, right.at, low, high)
        if operation == "MUL":
            raise NotNative("products of more than 64 bits")
        return self.emitter.compute(f"{operation}_WIDE", limbs, left.at, right.at, low, high, limbs)

    def _shifted_left(self, value: Val, amount: int, need: int | None) -> Val:
        if value.constant:
            return self.emitter.constant(value.low << amount)
        low, high = value.low << amount, value.high << amount
        limbs = limbs_of(low, high)
        if need is not None:
            limbs = min(limbs, -(-need // LIMB_BITS))
        if limbs_of(low, high) > limbs or low < 0:
            if need is None:
                raise NotNative("a left shift of a negative number")
            low, high = 0, (1 << LIMB_BITS * limbs) - 1
        if limbs == 1 and amount < LIMB_BITS:
            return self.emitter.compute("SHL", LIMB_BITS, value.at, amount, low, high)
        if amount >= 1 << 16:
            raise NotNative("a shift by 65,536 or more")
        available = min(value.limbs, limbs)
        return self.emitter.compute("SHL_WIDE", limbs, value.at, amount | available << 16, low, high, limbs)

    def _shifted_right(self, node: ast.BinOp, need: int | None) -> Val:
        amount = self.value(node.right)
        if not amount.constant:
            left = self.value(node.left)
            if left.low < 0 or left.limbs > 1 or amount.low < 0 or amount.limbs > 1:
                raise NotNative("a right shift, by what a packet chooses, of more than 64 bits")
            return self.emitter.compute("SHR_VAR", LIMB_BITS, left.at, amount.at, 0, left.high)
        shift = amount.low
        left = self.value(node.left, None if need is None else need + shift)
        if left.constant:
            return self.emitter.constant(left.low >> shift)
        if left.low < 0:
            raise NotNative("a right shift of a number that may be negative")
        high = left.high >> shift
        if not high:
            return self.emitter.constant(0)
        if shift % LIMB_BITS == 0:
            return Val(left.at + shift // LIMB_BITS, limbs_of(0, high), 0, high)
        if left.limbs == 1:
            return self.emitter.compute("SHR", LIMB_BITS, left.at, shift, 0, high)
        limbs = limbs_of(0, high)
        if need is not None and limbs > (enough := -(-need // LIMB_BITS)):
            limbs, high = enough, (1 << LIMB_BITS * enough) - 1
        return self.emitter.compute("SHR_WIDE", limbs, left.at, shift | left.limbs << 16, 0, high, limbs)

    def _divided(self, node: ast.BinOp) -> Val:
        left, right = self.value(node.left), self.value(node.right)
        if left.low < 0 or right.low < 0:
            raise NotNative("division of a number that may be negative")
        modulo = isinstance(node.op, ast.Mod)
        if modulo and right.constant and right.low and right.low & (right.low - 1) == 0:
            bits = right.low.bit_length() - 1
            return self.emitter.trimmed(left, bits) if bits else self.emitter.constant(0)
        if left.limbs > 1 or right.limbs > 1:
            raise NotNative("division of numbers of more than 64 bits")
        high = min(left.high, max(right.high - 1, 0)) if modulo else left.high
        return self.emitter.compute("MOD" if modulo else "DIV", LIMB_BITS, left.at, right.at, 0, high)

    def _unary(self, node: ast.UnaryOp, need: int | None) -> Val:
        if isinstance(node.op, ast.USub):
            return self._combined("SUB", self.emitter.constant(0), self.value(node.operand, need), need)
        if not isinstance(node.op, ast.Invert):
            raise NotNative(f"the form {ast.unparse(node)[:60]!r}")
        value = self.value(node.operand, need)
        if value.constant:
            return self.emitter.constant(~value.low)
        low, high = ~value.high, ~value.low
        limbs = limbs_of(low, high)
        if need is not None:
            limbs = min(limbs, -(-need // LIMB_BITS))
            low, high = 0, (1 << LIMB_BITS * limbs) - 1
        value = self.emitter.widened(value, limbs)
        if limbs == 1:
            return self.emitter.compute("NOT", LIMB_BITS, value.at, 0, low, high)
        return self.emitter.compute("NOT_WIDE", limbs, value.at, 0, low, high, limbs)

    def _call(self, node: ast.Call, need: int | None) -> Val:
        name = ast.unparse(node.func)
        if name == "int":
            return self.value(node.args[0])
        if name == "len":
            return Val(STATE["packet_bytes"], 1, 0, LARGEST_COUNT)
        if name.startswith("K_"):
            return self.hash_of(name)
        if name.startswith("M_") and name.endswith(".execute"):
            number, by_bytes = self.meters[name.removesuffix(".execute")]
            return self.emitter.compute("METER_CELL", by_bytes, number, self.index(node.args[0]).at, 0, 2)
        if name in ("min", "max"):
            left, right = self.value(node.args[0]), self.value(node.args[1])
            choose = min if name == "min" else max
            low, high = choose(left.low, right.low), choose(left.high, right.high)
            limbs = max(limbs_of(min(left.low, right.low), max(left.high, right.high)), left.limbs, right.limbs)
            made, end = self.emitter.temporary(limbs), self.emitter.label()
            self.emitter.store(left._replace(fresh=False), made, limbs)
            self.jump(ast.LtE() if name == "min" else ast.GtE(), left, right, end)
            self.emitter.store(right._replace(fresh=False), made, limbs)
            self.emitter.place(end)
            return Val(made, limbs, low, high)
        if (window := self.window(node)) is not None:
            return self._loaded(window)
        if name == "shifted" and need is not None and need <= LIMB_BITS:
            left, amount = self.value(node.args[0], need), self.value(node.args[1])
            if amount.low < 0 or amount.limbs > 1:
                raise NotNative("a shift by a number that may be negative")
            return self.emitter.compute("SHL_VAR", LIMB_BITS, left.at, amount.at, 0, UNSIGNED)
        raise NotNative(f"the function {name!r}")

    def _choice(self, test: ast.expr, yes: ast.expr, no: ast.expr) -> Val:
        """Translate a conditional expression."""
        otherwise, end = self.emitter.label(), self.emitter.label()
        self.branch(test, None, otherwise)
        first = self.value(yes)
        if first.limbs > 1:
            raise NotNative("a choice between numbers of more than 64 bits")
        made = self.emitter.temporary(1)
        self.emitter.store(first, made, 1)
        self.emitter.emit("JUMP", d=end)
        self.emitter.place(otherwise)
        second = self.value(no)
        if second.limbs > 1 or (min(first.low, second.low) < 0 and max(first.high, second.high) >= 1 << LIMB_BITS - 1):
            raise NotNative("a choice between numbers of more than 64 bits")
        self.emitter.store(second, made, 1)
        self.emitter.place(end)
        return Val(made, 1, min(first.low, second.low), max(first.high, second.high))

    # --- conditions ---

    def branch(self, node: ast.expr, yes: int | None, no: int | None) -> None:
        """Jump to label `yes` or `no` by a condition; one of them is None and stands for the next instruction."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.branch(node.operand, no, yes)
        elif isinstance(node, ast.BoolOp):
            self._junction(node, yes, no)
        elif isinstance(node, ast.Compare):
            self._compare(node, yes, no)
        elif isinstance(node, ast.Constant):
            target = yes if node.value else no
            if target is not None:
                self.emitter.emit("JUMP", d=target)
        else:
            value = self.value(node)
            self._decided(ast.NotEq(), value, self.emitter.constant(0), yes, no)

    def _junction(self, node: ast.BoolOp, yes: int | None, no: int | None) -> None:
        last = self.emitter.label()
        every = isinstance(node.op, ast.And)
        for each in node.values[:-1]:
            if every:
                self.branch(each, None, last if no is None else no)
            else:
                self.branch(each, last if yes is None else yes, None)
        self.branch(node.values[-1], yes, no)
        self.emitter.place(last)

    def _compare(self, node: ast.Compare, yes: int | None, no: int | None) -> None:
        (operator,), (right_node,) = node.ops, node.comparators
        if isinstance(node.left, ast.Subscript) and isinstance(node.left.slice, ast.Slice):
            left, right = self._fields(node.left), self._fields(right_node)
        elif type(operator) not in COMPARED:
            raise NotNative("parse value sets")
        else:
            left = self.value(node.left)
            right = self.value(right_node)
        self._decided(operator, left, right, yes, no)

    def _fields(self, node: ast.expr) -> Val:
        """All fields of a header as one number, for comparisons of equality alone."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
            raise NotNative(f"the form {ast.unparse(node)[:60]!r}")
        at, limbs = self.extent(node.slice)
        return Val(at, limbs, 0, (1 << LIMB_BITS * limbs) - 1)

    def extent(self, node: ast.Slice) -> tuple[int, int]:
        """First limb and number of limbs of a slice of the fields."""
        assert node.lower is not None
        assert node.upper is not None
        first, end = self.integer(node.lower), self.integer(node.upper)
        places = self.places[first:end]
        return places[0].at, sum(place.limbs for place in places)

    def _decided(self, operator: ast.cmpop, left: Val, right: Val, yes: int | None, no: int | None) -> None:
        if yes is None:
            assert no is not None
            self.jump(OPPOSITE[type(operator)](), left, right, no)
            return
        self.jump(operator, left, right, yes)
        if no is not None:
            self.emitter.emit("JUMP", d=no)

    def jump(self, operator: ast.cmpop, left: Val, right: Val, target: int) -> None:
        """Jump to `target` if a comparison holds."""
        known = _known(operator, left, right)
        if known is not None:
            if known:
                self.emitter.emit("JUMP", d=target)
            return
        operation, swapped = COMPARED[type(operator)]
        if operation in ("JUMP_EQ", "JUMP_NE") and right.constant and right.low == 0 and left.limbs == 1:
            self.emitter.emit("JUMP_ZERO" if operation == "JUMP_EQ" else "JUMP_NONZERO", d=target, a=left.at)
            return
        signed = left.low < 0 or right.low < 0
        limbs = limbs_of(min(left.low, right.low), max(left.high, right.high))
        limbs = max(limbs, 1 if signed else max(left.limbs, right.limbs))
        if signed and limbs > 1:
            raise NotNative("comparisons of more than 64 bits with a sign")
        left, right = self.emitter.widened(left, limbs), self.emitter.widened(right, limbs)
        if swapped:
            left, right = right, left
        if signed and operation in ("JUMP_LT", "JUMP_LE"):
            operation += "_SIGNED"
        self.emitter.emit(operation + "_WIDE" * (limbs > 1), n=limbs, d=target, a=left.at, b=right.at)


def _or_constant(node: ast.expr) -> TypeGuard[ast.BoolOp]:
    """Whether the node has the form `size or 1`."""
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and isinstance(node.values[1], ast.Constant)


def _folded(operation: str, left: int, right: int) -> int:
    results: dict[str, Callable[[int, int], int]] = {
        "ADD": int.__add__, "SUB": int.__sub__, "MUL": int.__mul__,
        "AND": int.__and__, "OR": int.__or__, "XOR": int.__xor__,
    }  # fmt: skip
    return results[operation](left, right)


def _interval(operation: str, left: Val, right: Val) -> tuple[int, int]:
    """Bounds of the operation's result."""
    if operation == "ADD":
        return left.low + right.low, left.high + right.high
    if operation == "SUB":
        return left.low - right.high, left.high - right.low
    if operation == "MUL":
        corners = [one * other for one in (left.low, left.high) for other in (right.low, right.high)]
        return min(corners), max(corners)
    if operation == "AND" and (left.low >= 0 or right.low >= 0):
        return 0, min(value.high for value in (left, right) if value.low >= 0)
    bits = max(_magnitude(left), _magnitude(right))
    return (0 if left.low >= 0 and right.low >= 0 else -(1 << bits)), (1 << bits) - 1


def _magnitude(value: Val) -> int:
    return max(value.high.bit_length(), (~value.low).bit_length() if value.low < 0 else 0)


def _known(operator: ast.cmpop, left: Val, right: Val) -> bool | None:
    """Result of a comparison if it is the same for every packet; None if it depends on the packet."""
    below, above = left.high < right.low, left.low > right.high
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        if below or above:
            return isinstance(operator, ast.NotEq)
        if left.constant and right.constant:
            return isinstance(operator, ast.Eq)
        return None
    if isinstance(operator, (ast.Gt, ast.GtE)):
        left, right = right, left
    strict = isinstance(operator, (ast.Lt, ast.Gt))
    if left.high < right.low or (not strict and left.high <= right.low):
        return True
    if left.low > right.high or (strict and left.low >= right.high):
        return False
    return None

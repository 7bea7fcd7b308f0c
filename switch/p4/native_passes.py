"""Jump threading for the native interpreter, done once when a program is translated.

Rules
-----
* A jump is redirected to its final target: past further jumps, and past conditions whose outcome is known by then.
* A condition whose outcome is known is removed, or becomes a plain jump.
* Known are the outcomes of conditions passed before, and fields that hold a constant, until something that a condition
  reads is written, or the target of another jump is reached.
* Only jumps are removed, so that the effect on packets stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

Code = tuple[str, int, int, int, int]
"""Operation, n, d, a, b (native/p4/p4_code.hpp); d of a jump is a label; place -1 - i is constant i."""
MAX_ROUNDS = 8
"""Most rounds: each one may enable further shortcuts; a program that needs more keeps its remaining jumps."""
MAX_HOPS = 64
"""Most jumps and conditions past which one jump is redirected."""
LIMB = (1 << 64) - 1
OPPOSITES = {
    "JUMP_ZERO": "JUMP_NONZERO", "JUMP_EQ": "JUMP_NE", "JUMP_EQ_WIDE": "JUMP_NE_WIDE",
}  # fmt: skip
"""By condition, the one that holds exactly if it does not."""
POSITIVE = {negative: positive for positive, negative in OPPOSITES.items()}
ONE_LIMB = {
    "COPY", "ADD", "SUB", "MUL", "AND", "OR", "XOR", "NOT", "SHL", "SHR", "SHL_VAR", "SHR_VAR", "DIV", "MOD", "SEXT",
    "TRIM", "LOAD8", "LOAD16", "LOAD32", "LOAD64", "READ32", "READ64", "HASH", "METER_CELL",
}  # fmt: skip
N_LIMBS = {
    "COPY_WIDE", "ADD_WIDE", "SUB_WIDE", "AND_WIDE", "OR_WIDE", "XOR_WIDE", "NOT_WIDE", "SHL_WIDE", "SHR_WIDE",
    "EXTEND", "ZERO",
}  # fmt: skip
NO_LIMB = {
    "TRANSIT", "WRITE32", "WRITE64", "WRITE_WIDE", "COUNT_PACKET", "COUNT_BYTES", "COUNT_ENTRY", "FIND", "MISS",
    "HASH_BEGIN", "HASH_PUT", "EMIT", "EMIT_PAYLOAD", "SELECT",
}  # fmt: skip
"""Operations by the limbs of a frame that they write: one, n or none; any other may write all limbs."""

Condition = tuple[str, int, int, int]


def shortened(
    code: Sequence[Code], labels: Sequence[int], entries: Collection[int], constants: Sequence[int]
) -> tuple[list[Code], list[int]]:
    """Thread jumps; return the new code and labels. `entries`: labels that are used from outside the code."""
    passes = _Passes(list(code), list(labels), frozenset(entries), constants)
    for _ in range(MAX_ROUNDS):
        if not passes.round():
            break
    return passes.code, passes.labels


@dataclass(slots=True)
class _Known:
    """Facts that hold before an instruction."""

    outcomes: dict[Condition, bool] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    """Known limbs, by place."""

    def outcome(self, instruction: Code, number: Callable[[int], int | None]) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        condition, positive = _condition(instruction)
        found = self.outcomes.get(condition)
        if found is None:
            found = _computed(condition, self._value(condition[2], number), self._value(condition[3], number))
        return None if found is None else found is positive

    def learn(self, instruction: Code, holds: bool) -> None:
        """Note the outcome of a condition that was passed."""
        condition, positive = _condition(instruction)
        self.outcomes[condition] = holds is positive

    def write(self, instruction: Code, number: Callable[[int], int | None]) -> None:
        """Forget what is known of the limbs that an instruction writes; note a constant that it stores."""
        operation, n, d, a, _ = instruction
        if operation in NO_LIMB:
            return
        if operation in ONE_LIMB:
            limbs = 1
        elif operation in N_LIMBS:
            limbs = n
        elif operation == "LOAD_BITS":
            limbs = -(-n // 64)
        else:
            self.outcomes.clear()
            self.values.clear()
            return
        value = number(a) if operation == "COPY" and a < 0 else None
        for condition in [each for each in self.outcomes if _reads(each, d, limbs)]:
            del self.outcomes[condition]
        for place in range(d, d + limbs):
            self.values.pop(place, None)
            if operation == "ZERO":
                self.values[place] = 0
        if value is not None:
            self.values[d] = value & LIMB >> 64 - n

    def _value(self, place: int, number: Callable[[int], int | None]) -> int | None:
        return number(place) if place < 0 else self.values.get(place)


def _condition(instruction: Code) -> tuple[Condition, bool]:
    """A condition in its positive form, and whether the instruction tests that form or its opposite."""
    operation, n, _, a, b = instruction
    positive = POSITIVE.get(operation)
    return (positive or operation, n, a, b), positive is None


def _reads(condition: Condition, first: int, limbs: int) -> bool:
    operation, n, a, b = condition
    width = n if operation.endswith("_WIDE") else 1
    operands = (a,) if operation == "JUMP_ZERO" else (a, b)
    return any(place < first + limbs and first < place + width for place in operands)


def _computed(condition: Condition, left: int | None, right: int | None) -> bool | None:
    operation = condition[0]
    if left is None:
        return None
    if operation == "JUMP_ZERO":
        return left == 0
    if right is None:
        return None
    if operation == "JUMP_EQ":
        return left == right
    if operation == "JUMP_LT":
        return left < right
    if operation == "JUMP_LE":
        return left <= right
    return None


@dataclass(slots=True)
class _Passes:
    code: list[Code]
    labels: list[int]
    entries: frozenset[int]
    constants: Sequence[int]
    _at: dict[int, int] = field(default_factory=dict)
    """Labels added in this round, by place."""

    def round(self) -> bool:
        """Make one pass over the code; return whether anything has changed."""
        self._at.clear()
        before, targets = self.code, self._targets()
        made: list[Code | None] = []
        known = _Known()
        for at, instruction in enumerate(before):
            if at in targets:
                known = _Known()
            operation = instruction[0]
            if not operation.startswith("JUMP"):
                made.append(instruction)
                known.write(instruction, self._number)
                continue
            outcome = True if operation == "JUMP" else known.outcome(instruction, self._number)
            if outcome is False:
                made.append(None)
                continue
            if outcome:
                made.append(("JUMP", 0, self._led(instruction, known), 0, 0))
                known = _Known()
                continue
            on_the_way = _Known(dict(known.outcomes), known.values)
            on_the_way.learn(instruction, True)
            made.append((operation, instruction[1], self._led(instruction, on_the_way), *instruction[3:]))
            known.learn(instruction, False)
        if made == before:
            return False
        self._keep(made)
        return True

    def _targets(self) -> set[int]:
        jumped_to = {d for operation, _, d, _, _ in self.code if operation.startswith("JUMP")}
        return {self.labels[label] for label in jumped_to | self.entries}

    def _number(self, place: int) -> int | None:
        return self.constants[-1 - place] if place < 0 else None

    def _led(self, jump: Code, known: _Known) -> int:
        """The label of a jump's final target."""
        label = jump[2]
        at = self.labels[label]
        for _ in range(MAX_HOPS):
            if not 0 <= at < len(self.code) or not self.code[at][0].startswith("JUMP"):
                break
            next_one = self.code[at]
            outcome = True if next_one[0] == "JUMP" else known.outcome(next_one, self._number)
            if outcome is None:
                break
            at = self.labels[next_one[2]] if outcome else at + 1
        if at == self.labels[label]:
            return label
        if at not in self._at:
            self._at[at] = len(self.labels)
            self.labels.append(at)
        return self._at[at]

    def _keep(self, made: list[Code | None]) -> None:
        """Remove the instructions that are None, and move the labels accordingly."""
        moved, count = [], 0
        for each in made:
            moved.append(count)
            count += each is not None
        moved.append(count)
        self.code = [each for each in made if each is not None]
        self.labels = [moved[at] if at >= 0 else at for at in self.labels]

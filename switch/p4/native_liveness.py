"""Liveness of a frame's limbs where a packet begins, and where a replica does: only live limbs are set and copied.

Rules
-----
* A limb is live where some path leads to an instruction that reads it before one that writes it, or to the end of the
  code if the architecture reads it.
* In doubt a limb is live: a table may lead to each of its actions, and an action to every node that may follow an
  action of that table.
* The parts of a pipeline follow each other: the limbs live at a part's end are those live where the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fanin.switch.p4.native_passes import N_LIMBS, ONE_LIMB, Code

TWO_OPERANDS = {"ADD", "SUB", "MUL", "AND", "OR", "XOR", "SHL_VAR", "SHR_VAR", "DIV", "MOD"}
ONE_OPERAND = {"COPY", "NOT", "SHL", "SHR", "SEXT", "STOP", "SELECT"}
TWO_WIDE = {"ADD_WIDE", "SUB_WIDE", "AND_WIDE", "OR_WIDE", "XOR_WIDE"}
ONE_WIDE = {"COPY_WIDE", "NOT_WIDE"}
NOTHING = {
    "HALT", "JUMP", "FAIL", "TRANSIT", "ACTION_END", "ZERO", "LOAD8", "LOAD16", "LOAD32", "LOAD64", "LOAD_BITS", "MISS",
    "COUNT_ENTRY", "RUN", "HASH_BEGIN", "HASH", "EMIT_PAYLOAD", "METER_ENTRY",
}  # fmt: skip
ENDS = {"HALT", "STOP", "FAIL", "JUMP", "ACTION_END", "RUN"}
"""Operations after which execution does not continue with the next one."""
PARTS = ("parser_start", "verify", "ingress_start", "egress_start", "update", "deparse")
"""Names of the parts, in the order in which a packet passes them."""
FILLED_GAP = 8
"""Longest gap between live limbs that is copied as well, because that is cheaper than another copy."""
Extent = tuple[int, int]
"""First limb, and number of limbs."""


@dataclass(frozen=True, slots=True)
class TableWays:
    """Labels to which a table leads, and the limbs of its key."""

    key_limbs: int
    actions: frozenset[int]
    nexts: frozenset[int]


@dataclass(slots=True)
class _Block:
    gen: int = 0
    kill: int = 0
    following: list[int] = field(default_factory=list)
    leaves: bool = False
    """Whether a part may end after this block."""


@dataclass(slots=True)
class Liveness:
    """Liveness of one program's limbs."""

    code: Sequence[Code]
    labels: Sequence[int]
    tables: Sequence[TableWays]
    register_limbs: Sequence[int]
    blocks: dict[int, _Block] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = {}
        after_actions = self._after_actions()
        firsts = {0, *(at for at in self.labels if 0 <= at < len(self.code))}
        firsts |= {
            at + 1
            for at, (operation, *_) in enumerate(self.code[:-1])
            if operation in ENDS or operation.startswith("JUMP")
        }
        ordered = sorted(firsts)
        table = -1
        for first, end in zip(ordered, [*ordered[1:], len(self.code)], strict=True):
            block = self.blocks[first] = _Block()
            for instruction in self.code[first:end]:
                if instruction[0] in ("FIND", "MISS"):
                    table = instruction[2]
                block.gen |= self._read(instruction) & ~block.kill
                block.kill |= _written(instruction)
            operation, _, d, _, _ = self.code[end - 1]
            targets: Iterable[int] = ()
            if operation.startswith("JUMP"):
                targets = (d,)
            elif operation == "RUN":
                targets = self.tables[table].actions
            elif operation == "ACTION_END":
                targets = after_actions.get(end - 1, ())
            block.following = [self.labels[each] for each in targets]
            if operation not in ENDS:
                block.following.append(end)
            block.leaves = operation in ("HALT", "STOP", "ACTION_END")

    def _after_actions(self) -> dict[int, set[int]]:
        """Labels that may follow each action, by the place of its end, the first ACTION_END behind its beginning."""
        after: dict[int, set[int]] = {}
        ends: dict[int, int] = {}
        for ways in self.tables:
            for action in ways.actions:
                if (at := ends.get(action, -1)) < 0:
                    at = self.labels[action]
                    while self.code[at][0] != "ACTION_END":
                        at += 1
                    ends[action] = at
                after.setdefault(at, set()).update(ways.nexts)
        return after

    def at_start(self, label: int, at_end: int) -> int:
        """Mask of the limbs that are live at the start of a part, if those of `at_end` are live at its end."""
        reached, waiting = set[int](), [self.labels[label]]
        while waiting:
            at = waiting.pop()
            if at not in reached:
                reached.add(at)
                waiting += self.blocks[at].following
        live = dict.fromkeys(reached, 0)
        order, changed = sorted(reached, reverse=True), True
        while changed:
            changed = False
            for at in order:
                block = self.blocks[at]
                out = at_end if block.leaves else 0
                for each in block.following:
                    out |= live[each]
                into = block.gen | (out & ~block.kill)
                if into != live[at]:
                    live[at], changed = into, True
        return live[self.labels[label]]

    def _read(self, instruction: Code) -> int:
        operation, n, d, a, b = instruction
        extents: tuple[Extent, ...]
        if operation in NOTHING:
            return 0
        if operation in TWO_OPERANDS:
            extents = (a, 1), (b, 1)
        elif operation in ONE_OPERAND:
            extents = ((a, 1),)
        elif operation in TWO_WIDE:
            extents = (a, n), (b, n)
        elif operation in ONE_WIDE:
            extents = ((a, n),)
        elif operation in ("JUMP_ZERO", "JUMP_NONZERO"):
            extents = ((a, 1),)
        elif operation.startswith("JUMP"):
            limbs = n if operation.endswith("_WIDE") else 1
            extents = (a, limbs), (b, limbs)
        elif operation in ("SHL_WIDE", "SHR_WIDE"):
            extents = ((a, b >> 16),)
        elif operation == "EXTEND":
            extents = ((a, b & 0xFFFF),)
        elif operation == "TRIM":
            extents = ((d, 1),)
        elif operation in ("HASH_PUT", "EMIT"):
            extents = ((a, -(-n // 64)),)
        elif operation == "FIND":
            extents = ((a, self.tables[d].key_limbs),)
        elif operation in ("READ32", "READ64", "READ_WIDE", "COUNT_PACKET", "COUNT_BYTES", "METER_CELL"):
            extents = ((b, 1),)
        elif operation in ("WRITE32", "WRITE64", "WRITE_WIDE"):
            extents = (a, self.register_limbs[d]), (b, 1)
        else:
            raise AssertionError(f"{operation} is not known here")
        mask = 0
        for first, limbs in extents:
            if first >= 0:  # negative places are constants
                mask |= mask_of(first, limbs)
        return mask


def _written(instruction: Code) -> int:
    """Mask of the limbs that the instruction overwrites in every case."""
    operation, n, d, _, _ = instruction
    if operation in ONE_LIMB:
        return mask_of(d, 1)
    if operation in N_LIMBS:
        return mask_of(d, n)
    return mask_of(d, -(-n // 64)) if operation == "LOAD_BITS" else 0


def mask_of(first: int, limbs: int) -> int:
    """Mask of `limbs` limbs from `first` on."""
    return (1 << limbs) - 1 << first


def extents(mask: int, first: int, end: int) -> list[Extent]:
    """The limbs of a mask from `first` to before `end` as extents; gaps of at most FILLED_GAP limbs are filled."""
    found: list[Extent] = []
    for at in range(first, end):
        if not mask >> at & 1:
            continue
        if found and at - sum(found[-1]) <= FILLED_GAP:
            found[-1] = found[-1][0], at + 1 - found[-1][0]
        else:
            found.append((at, 1))
    return found


def what_matters(
    liveness: Liveness, starts: Mapping[str, int], always: int, first: int, end: int
) -> tuple[list[Extent], list[Extent]]:
    """Fields that must be initialized for a new packet, and fields that a replica copies from its original."""
    live = always
    found = {}
    for part in reversed(PARTS):
        live = found[part] = liveness.at_start(starts[part], live | always)
    return extents(found["parser_start"], first, end), extents(found["egress_start"] | always, first, end)

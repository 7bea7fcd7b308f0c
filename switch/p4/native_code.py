"""Instructions of the native interpreter and the frame that they work on; native/p4/p4_code.hpp defines them.

Rules
-----
* A frame is one array of 64-bit limbs: state | fields | data of an entry | temporaries | constants.
* A value takes as many limbs as the interval that it is known to lie in requires, the lowest limb first, in two's
  complement if it may be negative. So arithmetic is exact, as in Python; if only the low bits matter (`need`), the
  upper ones are not computed.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fanin.switch.p4.layout import Layout
from fanin.switch.p4.native_passes import shortened

LIMB_BITS = 64
MAX_LIMBS = 1 << 9
"""Widest value: 32,768 bits."""
MAX_FRAME_LIMBS = 1 << 18
"""Longest frame, 2 MiB: fields, temporaries and constants. native/p4/p4_machine.hpp has the same."""
MAX_COUNT = 0xFFFF
"""Largest `n` of an instruction."""
STATE = {
    "arrived": 0, "length": 1, "cut": 2, "exit": 3, "clone": 4, "clone_fields": 5, "resubmit": 6, "recirculate": 7,
    "at": 8, "packet_bytes": 9, "result": 10, "source_port": 11,
    "now_us": 12, "digest": 13,
}  # fmt: skip
"""Places in a frame of the architecture's state of a packet."""
STATE_LIMBS = 16
CLONE_ASKED = 1 << 15
INSTRUCTION = struct.Struct("=HHIII")
SCALAR = {
    "COPY", "ADD", "SUB", "MUL", "AND", "OR", "XOR", "NOT", "SHL", "SHR", "SHL_VAR", "SHR_VAR", "DIV", "MOD",
}  # fmt: skip
"""Operations on one limb whose `n` is the number of low bits to keep of the result."""
REDIRECTABLE = SCALAR | {
    "COPY_WIDE", "ADD_WIDE", "SUB_WIDE", "AND_WIDE", "OR_WIDE", "XOR_WIDE", "NOT_WIDE", "READ32", "READ64", "READ_WIDE",
    "LOAD8", "LOAD16", "LOAD32", "LOAD64", "LOAD_BITS", "HASH", "SEXT",
}  # fmt: skip
"""Operations that may write directly into a field, even into one that they read."""


FINAL = {"HALT", "STOP", "FAIL", "ACTION_END", "RUN"}
"""Operations after which execution does not continue with the next one."""


class NotNative(Exception):  # noqa: N818 (no error: the Python interpreter takes such programs)
    """Raised for a program that has a part which the native interpreter does not run."""


class Val(NamedTuple):
    """A number that instructions have computed, or a constant."""

    at: int
    """Its place in the frame; -1 - i for constant i."""
    limbs: int
    low: int
    high: int
    """With `low`, the interval that it is known to lie in, bounds included."""
    fresh: bool = False
    """Whether it is a temporary that no other value shares, so that its instruction may be redirected."""

    @property
    def constant(self) -> bool:
        """Whether its value is known."""
        return self.low == self.high


def limbs_of(low: int, high: int) -> int:
    """Number of limbs that an interval requires. NotNative beyond MAX_LIMBS."""
    bits = high.bit_length() if low >= 0 else max(high.bit_length(), (-low - 1).bit_length()) + 1
    if (limbs := max(1, -(-bits // LIMB_BITS))) > MAX_LIMBS:
        raise NotNative(f"numbers of {bits:,} bits")
    return limbs


def split(value: int, limbs: int) -> list[int]:
    """A number as limbs, in two's complement."""
    return [value >> LIMB_BITS * at & (1 << LIMB_BITS) - 1 for at in range(limbs)]


class Place(NamedTuple):
    """Place of a field in a frame, with its width."""

    at: int
    limbs: int
    bits: int
    signed: bool

    @property
    def value(self) -> Val:
        """The field's value, with the interval that its width allows."""
        if self.signed:
            return Val(self.at, self.limbs, -(1 << self.bits - 1), (1 << self.bits - 1) - 1)
        return Val(self.at, self.limbs, 0, (1 << self.bits) - 1)


def field_places(layout: Layout) -> list[Place]:
    """Return where each field of the layout (switch/p4/layout.py) lies in the native function's frame, in its order."""
    kinds: dict[int, tuple[int, bool]] = {}
    for header in layout.headers.values():
        for each in header.type.fields:
            if each.variable:
                raise NotNative("fields of variable length")
            kinds[header.base + each.offset] = each.bits, each.signed
        kinds[header.valid] = 1, False
    for stack in layout.stacks.values():
        kinds[stack.next] = 32, False
    places, at = [], STATE_LIMBS
    for number in range(len(layout.blank)):
        bits, signed = kinds[number]
        limbs = -(-bits // LIMB_BITS)
        places.append(Place(at, limbs, bits, signed))
        at += limbs
    return places


@dataclass(slots=True)
class Emitter:
    """Collects instructions, labels and constants."""

    operations: Mapping[str, int]
    """Numbers of the native module's operations."""
    temporaries_at: int
    """The first limb behind fields and parameters, where temporaries begin."""
    code: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)
    _used: int = 0
    _most: int = 0
    _copied: int = -1
    """Length of the code after a copy that the next copy may be merged with; -1 without one."""
    _last: tuple[int, int] | None = None
    """Place and limbs that the last instruction wrote; None if a jump may lead to the next one."""

    # --- places ---

    def temporary(self, limbs: int) -> int:
        """Allocate limbs for a value, until `forget`."""
        at = self.temporaries_at + self._used
        self._used += limbs
        self._most = max(self._most, self._used)
        return at

    def forget(self) -> None:
        """Free all temporaries, at the beginning of a function."""
        self._used = 0

    def constant(self, value: int, limbs: int | None = None) -> Val:
        """A constant of `limbs` limbs; None: as many as it requires."""
        count = limbs_of(value, value) if limbs is None else limbs
        if (value, count) not in self._known:
            self._known[value, count] = len(self.constants)
            self.constants += split(value, count)
        return Val(-1 - self._known[value, count], count, value, value)

    # --- instructions ---

    def emit(self, operation: str, n: int = 0, d: int = 0, a: int = 0, b: int = 0) -> None:
        """Append an instruction. For jumps, `d` is a label."""
        if n > MAX_COUNT:
            raise NotNative("headers of more than 65,535 limbs")
        self.code.append((operation, n, d, a, b))
        self._last = None

    def compute(self, operation: str, n: int, a: int, b: int, low: int, high: int, limbs: int = 1) -> Val:
        """Append an instruction whose result is a new temporary, known to lie in `low`..`high`."""
        at = self.temporary(limbs)
        self.code.append((operation, n, at, a, b))
        self._last = at, limbs
        return Val(at, limbs, low, high, fresh=True)

    def label(self) -> int:
        """Make a new label."""
        self.labels.append(-1)
        return len(self.labels) - 1

    def place(self, label: int) -> None:
        """Place the label before the next instruction."""
        self.labels[label] = len(self.code)
        self._last, self._copied = None, -1

    def fail(self, text: str) -> None:
        """Append an instruction that loses the packet, with `text` as the reason."""
        self.failures.append(text)
        self.emit("FAIL", d=len(self.failures) - 1)

    def widened(self, value: Val, limbs: int) -> Val:
        """The same number with at least `limbs` limbs."""
        if value.limbs >= limbs:
            return value
        if value.constant:
            return self.constant(value.low, limbs)
        b = value.limbs | (value.low < 0) << 16
        return self.compute("EXTEND", limbs, value.at, b, value.low, value.high, limbs)

    def trimmed(self, value: Val, bits: int) -> Val:
        """The lowest `bits` bits of a number."""
        whole = (1 << bits) - 1
        if value.low >= 0 and value.high <= whole:
            return value
        if value.constant:
            return self.constant(value.low & whole)
        limbs = -(-bits // LIMB_BITS)
        if value.limbs < limbs:
            value = self.widened(value, limbs)
        if limbs == 1:
            if value.fresh and self._last == (value.at, 1) and self.code[-1][0] in SCALAR:
                operation, n, d, a, b = self.code[-1]
                self.code[-1] = operation, min(n, bits), d, a, b
                return Val(value.at, 1, 0, whole, fresh=True)
            return self.compute("COPY", bits, value.at, 0, 0, whole)
        if bits % LIMB_BITS == 0:
            return Val(value.at, limbs, 0, whole, value.fresh and value.limbs == limbs)
        made = value.at
        if not value.fresh:
            made = self.temporary(limbs)
            self.emit("COPY_WIDE", limbs, made, value.at)
        self.emit("TRIM", bits % LIMB_BITS, made + limbs - 1)
        return Val(made, limbs, 0, whole, fresh=True)

    def store(self, value: Val, at: int, limbs: int) -> None:
        """Store a number in a place; if it was computed last, its instruction is changed to write there directly."""
        if value.fresh and self._last == (value.at, limbs) and self.code[-1][0] in REDIRECTABLE:
            operation, n, _, a, b = self.code[-1]
            self.code[-1] = operation, n, at, a, b
            self._last = None
            return
        value = self.widened(value, limbs)
        if value.fresh and self._last == (value.at, limbs) and self.code[-1][0] == "EXTEND":
            operation, n, _, a, b = self.code[-1]
            self.code[-1] = operation, n, at, a, b
            self._last = None
        else:
            self._copy(value, at, limbs)

    def _copy(self, value: Val, at: int, limbs: int) -> None:
        """Append a copy; merge it with the copy before if both source and destination are adjacent."""
        wide = "ZERO" if value.constant and not value.low else "COPY_WIDE"
        if self._copied == len(self.code) and at + limbs <= self.temporaries_at:
            operation, count, first, source, _ = self.code[-1]
            n = 1 if operation == "COPY" else count
            if operation == "ZERO" or wide == "ZERO":
                alike = operation == wide
            else:
                alike = value.at == source + n and source >= 0 and abs(first - source) >= n + limbs
            if alike and first + n == at:
                self.code[-1] = wide, n + limbs, first, source, 0
                return
        if wide == "ZERO":
            self.emit("ZERO", limbs, at)
        elif limbs == 1:
            self.emit("COPY", LIMB_BITS, at, value.at)
        else:
            self.emit("COPY_WIDE", limbs, at, value.at)
        self._copied = len(self.code)

    # --- at the end ---

    @property
    def constants_at(self) -> int:
        """The place of the first constant."""
        return self.temporaries_at + self._most

    def finished(self, entries: Collection[int]) -> tuple[bytes, list[int]]:
        """The code as bytes, with labels and constants resolved, and the place of each label; -1: unreachable.

        `entries`: labels that are used from outside the code.
        """
        self.code, self.labels = shortened(self.code, self.labels, entries, self.constants)
        placed, laid = self._laid_out(entries)

        def resolved(at: int) -> int:
            return at if at >= 0 else self.constants_at - 1 - at

        packed = bytearray()
        for operation, n, d, a, b in laid:
            target = placed[d] if operation.startswith("JUMP") else resolved(d)
            packed += INSTRUCTION.pack(self.operations[operation], n, target, resolved(a), resolved(b))
        return bytes(packed), [placed.get(at, -1) for at in self.labels]

    def _laid_out(self, entries: Collection[int]) -> tuple[dict[int, int], list[tuple[str, int, int, int, int]]]:
        """Reorder the code for few jumps: the target of a jump follows it, unless it is placed already.

        Returns the new place of each instruction by its old one, and the code, whose jumps still name old places.
        """
        placed: dict[int, int] = {}
        laid: list[tuple[str, int, int, int, int]] = []
        jumped_to = {d for operation, _, d, _, _ in self.code if operation.startswith("JUMP")}
        known = {self.labels[label] for label in jumped_to | set(entries)}
        waiting = sorted((at for at in known if 0 <= at < len(self.code)), reverse=True)
        while waiting:
            at = waiting.pop()
            while at not in placed:
                placed[at] = len(laid)
                operation, n, d, a, b = self.code[at]
                if operation == "JUMP":
                    at = self.labels[d]
                    if at in placed:
                        laid.append((operation, n, at, a, b))
                    continue
                jumps = operation.startswith("JUMP")
                laid.append((operation, n, self.labels[d] if jumps else d, a, b))
                if operation in FINAL:
                    break
                at += 1
                if at in placed:
                    laid.append(("JUMP", 0, at, 0, 0))
        return placed, laid

"""State of a program between packets: registers and counters.

Reading a document gives declarations, without memory; `made` returns an array with memory, for each program loaded from
the document.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from fanin.switch.p4.bounds import MAX_CELLS, MAX_EXTERN_BYTES, MAX_FIELD_BITS
from fanin.switch.p4.document import Node


class WideCells(Sequence[int]):
    """Cells of more than 64 bits as 64-bit limbs, the lowest first, in memory shared with the native interpreter."""

    def __init__(self, bits: int, size: int) -> None:
        self._cell_bytes = -(-bits // 64) * 8
        self._size = size
        self.memory = bytearray(self._cell_bytes * size)
        self._view = memoryview(self.memory)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self._size))]
        first = self._first(at)
        return int.from_bytes(self._view[first : first + self._cell_bytes], "little")

    def __setitem__(self, at: int, value: int) -> None:
        first = self._first(at)
        self._view[first : first + self._cell_bytes] = value.to_bytes(self._cell_bytes, "little")

    def _first(self, at: int) -> int:
        if not 0 <= at < self._size:
            raise IndexError(f"cell {at} of {self._size}")
        return at * self._cell_bytes


class ExternBudget:
    """Counts the memory of a program's arrays before it is allocated."""

    def __init__(self) -> None:
        self._left = MAX_EXTERN_BYTES

    def spend(self, node: Node, count: int) -> None:
        """Count `count` bytes for the array that `node` declares. ProgramError beyond MAX_EXTERN_BYTES."""
        self._left -= count
        if self._left < 0:
            raise node.fail(f"registers, counters and meters up to here have more than {MAX_EXTERN_BYTES:,} bytes")


@dataclass(slots=True)
class Register:
    """An array of cells of equal width."""

    name: str
    symbol: str
    """Name of `cells` in compiled code."""
    bits: int
    size: int
    cells: WideCells | MutableSequence[int] = field(default_factory=lambda: array("I"))
    """Values of the cells; empty in a declaration."""

    def made(self) -> Register:
        """A new array as declared, all zero."""
        if self.bits > 64:
            return replace(self, cells=WideCells(self.bits, self.size))
        return replace(self, cells=array("I" if self.bits <= 32 else "Q", [0]) * self.size)

    def reset(self) -> None:
        """Set all cells to zero."""
        for at in range(self.size):
            self.cells[at] = 0


@dataclass(slots=True)
class Counter:
    """An array of counters of packets and of bytes."""

    name: str
    symbol: str
    size: int
    table: str | None = None
    """The table whose entries a direct counter counts; None: an indirect counter."""
    packets: MutableSequence[int] = field(default_factory=lambda: array("q"))
    """Packets of each counter, as `bytes` has their bytes; both are empty in a declaration."""
    bytes: MutableSequence[int] = field(default_factory=lambda: array("q"))

    def made(self) -> Counter:
        """A new array as declared, all zero."""
        return replace(self, packets=array("q", [0]) * self.size, bytes=array("q", [0]) * self.size)


def read_registers(root: Node, budget: ExternBudget) -> dict[str, Register]:
    """Read `register_arrays`, by name."""
    registers: dict[str, Register] = {}
    for at, node in enumerate(root.each("register_arrays")):
        size, bits = node["size"].integer, node["bitwidth"].integer
        if not 0 < size <= MAX_CELLS or not 0 < bits <= MAX_FIELD_BITS:
            raise node.fail(
                f"{size} cells of {bits} bits: there must be 1..{MAX_CELLS:,} of 1..{MAX_FIELD_BITS:,} bits"
            )
        if (name := node["name"].text) in registers:
            raise node.fail(f"register array {name!r} is declared twice")
        budget.spend(node, size * (4 if bits <= 32 else -(-bits // 64) * 8))
        registers[name] = Register(name, f"R_{at}", bits, size)
    return registers


def read_counters(root: Node, budget: ExternBudget) -> dict[str, Counter]:
    """Read `counter_arrays`, by name. A direct counter counts in its table's entries."""
    counters: dict[str, Counter] = {}
    for at, node in enumerate(root.each("counter_arrays")):
        name, direct = node["name"].text, node.flag("is_direct")
        size = 0 if direct else node["size"].integer
        if size > MAX_CELLS:
            raise node.fail(f"{size} counters; at most {MAX_CELLS:,}")
        if name in counters:
            raise node.fail(f"counter array {name!r} is declared twice")
        budget.spend(node, 16 * size)
        counters[name] = Counter(name, f"C_{at}", size, table=node["binding"].text if direct else None)
    return counters

"""Meters: two rates, three colours (RFC 2698, colour-blind), as v1model has them.

Rules
-----
* A bucket holds up to its burst, is full when its rates are set, and gets tokens at its rate. Time is that of packets,
  in microseconds; tokens are counted from a fixed moment, so that rounding errors do not add up.
* A packet takes one token, or one per byte of its length on arrival. It is red, and takes no tokens, if the bucket of
  the peak rate lacks them; yellow if that of the committed rate does; else green. Without rates every packet is green.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

from fanin.errors import UnsupportedError
from fanin.switch.p4.bounds import MAX_CELLS
from fanin.switch.p4.document import Node
from fanin.switch.p4.externs import ExternBudget
from fanin.switch.p4.packet_state import PacketState

GREEN, YELLOW, RED = 0, 1, 2
RATES = 2
US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class MeterRates:
    """Rates in packets or bytes per second, bursts in packets or bytes; none is negative."""

    committed: int
    committed_burst: int
    peak: int
    peak_burst: int


SET, COMMITTED, COMMITTED_BURST, PEAK, PEAK_BURST, STARTED = range(6)
PEAK_TOKENS, PEAK_US, COMMITTED_TOKENS, COMMITTED_US = range(6, 10)
"""Indices into a meter's memory: whether it has rates, the rates, whether a packet has come, and for each bucket its
tokens and the time of its last packet."""
CELLS = 10


class Meter:
    """One meter, over memory that the native interpreter shares (native/p4/p4_meter.hpp)."""

    __slots__ = ("_at", "cells")

    def __init__(self, cells: array[int] | None = None, index: int = 0) -> None:
        """The meter of that index in an array's memory; without `cells`, a meter with memory of its own."""
        self.cells = array("q", bytes(8 * CELLS)) if cells is None else cells
        self._at = index * CELLS

    @property
    def rates(self) -> MeterRates | None:
        """The rates of this meter; None without rates."""
        at, cells = self._at, self.cells
        return MeterRates(*cells[at + COMMITTED : at + STARTED]) if cells[at + SET] else None

    def set(self, rates: MeterRates | None) -> None:
        """Set other rates, with full buckets; None: remove the rates."""
        at, cells = self._at, self.cells
        cells[at : at + CELLS] = array("q", bytes(8 * CELLS))
        if rates is not None:
            cells[at : at + STARTED] = array(
                "q", (1, rates.committed, rates.committed_burst, rates.peak, rates.peak_burst)
            )

    def colour(self, amount: int, now_us: int) -> int:
        """The colour of a packet of `amount` tokens that comes at `now_us`; it takes the tokens."""
        at, cells = self._at, self.cells
        if not cells[at + SET]:
            return GREEN
        if not cells[at + STARTED]:
            cells[at + STARTED] = 1
            cells[at + PEAK_TOKENS], cells[at + COMMITTED_TOKENS] = cells[at + PEAK_BURST], cells[at + COMMITTED_BURST]
            cells[at + PEAK_US] = cells[at + COMMITTED_US] = now_us
        if not self._take(PEAK, PEAK_TOKENS, amount, now_us):
            return RED
        return GREEN if self._take(COMMITTED, COMMITTED_TOKENS, amount, now_us) else YELLOW

    def _take(self, rate_at: int, tokens_at: int, amount: int, now_us: int) -> bool:
        """Refill a bucket until `now_us`; return whether it has `amount` tokens.

        In the memory, its burst follows its rate, and the time of its last packet follows its tokens.
        """
        cells, at = self.cells, self._at
        rate, burst, last_us = cells[at + rate_at], cells[at + rate_at + 1], cells[at + tokens_at + 1]
        come = now_us * rate // US_PER_S - last_us * rate // US_PER_S
        tokens = min(cells[at + tokens_at] + come, burst)
        enough = tokens >= amount
        cells[at + tokens_at], cells[at + tokens_at + 1] = tokens - amount * enough, now_us
        return enough


@dataclass(slots=True)
class MeterArray:
    """An indirect array of meters, or the declaration of a table's direct meters. `M_n` in compiled code."""

    name: str
    symbol: str
    size: int
    by_bytes: bool
    table: str | None = None
    """The table whose entries have these meters; None: an indirect array."""
    target: tuple[str, str] | None = None
    """Header and name of the field that receives a direct meter's colour."""
    cells: array[int] = field(default_factory=lambda: array("q"))
    """Memory of all meters of the array; empty in a declaration."""

    def made(self) -> MeterArray:
        """A new array as declared, of meters without rates."""
        return replace(self, cells=array("q", [0]) * (CELLS * self.size))

    def __getitem__(self, index: int) -> Meter:
        """A meter of an indirect array; the caller has checked the index."""
        return Meter(self.cells, index)

    def execute(self, index: int, k: PacketState) -> int:
        """The colour of a packet by the meter at `index`, which the caller has checked."""
        return Meter(self.cells, index).colour(k.arrived if self.by_bytes else 1, k.now_us)

    def of_entry(self, meter: Meter | None, k: PacketState) -> int:
        """The colour of a packet by the meter of the matching entry; green without a meter."""
        return GREEN if meter is None else meter.colour(k.arrived if self.by_bytes else 1, k.now_us)


def read_meters(root: Node, budget: ExternBudget) -> dict[str, MeterArray]:
    """Read `meter_arrays`, by name."""
    meters: dict[str, MeterArray] = {}
    for at, node in enumerate(root.each("meter_arrays")):
        name, kind, direct = node["name"].text, node["type"].text, node.flag("is_direct")
        if kind not in ("packets", "bytes"):
            raise node.fail(f"a meter of {kind!r}: expected packets or bytes")
        if node["rate_count"].integer != RATES:
            raise UnsupportedError(f"{node.path}: meters of {node['rate_count'].integer} rates are not implemented")
        size = 0 if direct else node["size"].integer
        if name in meters:
            raise node.fail(f"meter array {name!r} is declared twice")
        if size > MAX_CELLS:
            raise node.fail(f"{size} meters; at most {MAX_CELLS:,}")
        budget.spend(node, 8 * CELLS * size)
        target = node["result_target"].name_pair() if direct else None
        binding = node["binding"].text if direct else None
        meters[name] = MeterArray(name, f"M_{at}", size, kind == "bytes", binding, target)
    return meters

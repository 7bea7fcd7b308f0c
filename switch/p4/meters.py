"""Meters: two rates, three colours (RFC 2698, colour-blind), as v1model has them.

Rules
-----
* A bucket holds up to its burst and is full when its rates are set; per second it gets as many tokens as its rate says.
  Time is the packet's, in microseconds, and the tokens since a fixed moment are counted, so nothing is rounded twice.
* A packet takes one token, or one per byte with which it came in. It is red when the bucket of the peak rate lacks
  tokens, and takes none; yellow when that of the committed rate does; else green. A meter without rates says green.
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
"""Places in a meter's memory: whether it has rates, these, whether a packet has come, and each bucket's tokens and the
time of its last packet."""
CELLS = 10


class Meter:
    """One meter, over memory that the native interpreter shares (native/p4/p4_meter.hpp)."""

    __slots__ = ("_at", "cells")

    def __init__(self, cells: array[int] | None = None, index: int = 0) -> None:
        """The meter of that index in an array; without one, a meter with memory of its own."""
        self.cells = array("q", bytes(8 * CELLS)) if cells is None else cells
        self._at = index * CELLS

    @property
    def rates(self) -> MeterRates | None:
        """None: it has no rates."""
        at, cells = self._at, self.cells
        return MeterRates(*cells[at + COMMITTED : at + STARTED]) if cells[at + SET] else None

    def set(self, rates: MeterRates | None) -> None:
        """Other rates, and full buckets; None: no rates."""
        at, cells = self._at, self.cells
        cells[at : at + CELLS] = array("q", bytes(8 * CELLS))
        if rates is not None:
            cells[at : at + STARTED] = array(
                "q", (1, rates.committed, rates.committed_burst, rates.peak, rates.peak_burst)
            )

    def colour(self, amount: int, now_us: int) -> int:
        """A packet of `amount` tokens comes at `now_us`."""
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
        """Take tokens of a bucket, if there are as many. Its burst is behind the rate, the time behind the tokens."""
        cells, at = self.cells, self._at
        rate, burst, last_us = cells[at + rate_at], cells[at + rate_at + 1], cells[at + tokens_at + 1]
        come = now_us * rate // US_PER_S - last_us * rate // US_PER_S
        tokens = min(cells[at + tokens_at] + come, burst)
        enough = tokens >= amount
        cells[at + tokens_at], cells[at + tokens_at + 1] = tokens - amount * enough, now_us
        return enough


@dataclass(slots=True)
class MeterArray:
    """Meters by index; or those of a table's entries. `M_n` in compiled code."""

    name: str
    symbol: str
    size: int
    by_bytes: bool
    table: str | None = None
    """The table whose entries have these meters; None: an indirect array."""
    target: tuple[str, str] | None = None
    """The field that a direct meter's colour goes to."""
    cells: array[int] = field(default_factory=lambda: array("q"))
    """The memory of all of them; of a declaration empty."""

    def made(self) -> MeterArray:
        """The array that this declares, without rates."""
        return replace(self, cells=array("q", [0]) * (CELLS * self.size))

    def __getitem__(self, index: int) -> Meter:
        """A meter of an indirect array, which is there."""
        return Meter(self.cells, index)

    def execute(self, index: int, k: PacketState) -> int:
        """The colour of a packet by the meter at an index, which is there."""
        return Meter(self.cells, index).colour(k.arrived if self.by_bytes else 1, k.now_us)

    def of_entry(self, meter: Meter | None, k: PacketState) -> int:
        """The same by the meter of the entry that was found."""
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

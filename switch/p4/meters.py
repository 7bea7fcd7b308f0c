"""Meters: two rates, three colours (RFC 2698, colour-blind), as v1model has them.

Rules
-----
* A bucket holds up to its burst and is full when its rates are set; per second it gets as many tokens as its rate says.
  Time is the packet's, in microseconds, and the tokens since a fixed moment are counted, so nothing is rounded twice.
* A packet takes one token, or one per byte with which it came in. It is red when the bucket of the peak rate lacks
  tokens, and takes none; yellow when that of the committed rate does; else green. A meter without rates says green.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanin.errors import UnsupportedError
from fanin.switch.p4.bounds import MAX_CELLS
from fanin.switch.p4.document import Node
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


@dataclass(slots=True)
class _Bucket:
    rate: int
    burst: int
    tokens: int
    counted: int
    """Tokens that came since time 0, as of the last packet."""

    def take(self, amount: int, now_us: int) -> bool:
        """Take tokens, if there are as many."""
        come = now_us * self.rate // US_PER_S
        self.tokens = min(self.tokens + come - self.counted, self.burst)
        self.counted = come
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True


class Meter:
    """One meter."""

    __slots__ = ("_committed", "_peak", "rates")

    def __init__(self) -> None:
        self.rates: MeterRates | None = None
        self._peak: _Bucket | None = None
        self._committed: _Bucket | None = None

    def set(self, rates: MeterRates | None) -> None:
        """Other rates, and full buckets; None: no rates."""
        self.rates = rates
        self._peak = self._committed = None

    def colour(self, amount: int, now_us: int) -> int:
        """A packet of `amount` tokens comes at `now_us`."""
        rates = self.rates
        if rates is None:
            return GREEN
        if self._peak is None or self._committed is None:
            self._peak = _Bucket(rates.peak, rates.peak_burst, rates.peak_burst, now_us * rates.peak // US_PER_S)
            come = now_us * rates.committed // US_PER_S
            self._committed = _Bucket(rates.committed, rates.committed_burst, rates.committed_burst, come)
        if not self._peak.take(amount, now_us):
            return RED
        return GREEN if self._committed.take(amount, now_us) else YELLOW


@dataclass(slots=True)
class MeterArray:
    """Meters by index, made when they are first looked at; or those of a table's entries. `M_n` in compiled code."""

    name: str
    symbol: str
    size: int
    by_bytes: bool
    table: str | None = None
    """The table whose entries have these meters; None: an indirect array."""
    target: tuple[str, str] | None = None
    """The field that a direct meter's colour goes to."""
    cells: dict[int, Meter] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Meter:
        """A meter of an indirect array."""
        found = self.cells.get(index)
        if found is None:
            found = self.cells[index] = Meter()
        return found

    def execute(self, index: int, k: PacketState) -> int:
        """The colour of a packet by the meter at an index, which is there."""
        found = self.cells.get(index)
        return GREEN if found is None else found.colour(k.arrived if self.by_bytes else 1, k.now_us)

    def of_entry(self, meter: Meter | None, k: PacketState) -> int:
        """The same by the meter of the entry that was found."""
        return GREEN if meter is None else meter.colour(k.arrived if self.by_bytes else 1, k.now_us)


def read_meters(root: Node) -> dict[str, MeterArray]:
    """`meter_arrays`, by name."""
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
        target = node["result_target"].name_pair() if direct else None
        binding = node["binding"].text if direct else None
        meters[name] = MeterArray(name, f"M_{at}", size, kind == "bytes", binding, target)
    return meters

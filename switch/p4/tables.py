"""Match-action tables: their entries, the lookup by key, and the changes that the control plane may make.

Rules
-----
* A key is the table's fields concatenated in one integer, the first field in the highest bits. An entry matches if
  key & mask equals its value and every range holds. Exact tables are a dictionary; in all others (entry_index.py) the
  first match in order of rank wins, and the result for a key is remembered until the table changes.
* `rank` orders entries: the lowest wins. It is the priority in a compiled program, the negated P4Runtime priority or,
  for longest prefixes, the negated number of bits compared.
* A change takes effect between packets. Every refusal is a TableError with the reason as the control plane reports it.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fanin.switch.p4.actions import ActionFacts, Group, Member, TableError, TableProblem, nothing
from fanin.switch.p4.entry_index import EntryIndex
from fanin.switch.p4.meters import Meter

MAX_REMEMBERED = 4096
"""Most keys of one table whose entries are remembered; beyond that, all are forgotten."""


class MatchKind(enum.Enum):
    """Kind of comparison of a key field."""

    EXACT = "exact"
    TERNARY = "ternary"
    LPM = "lpm"
    RANGE = "range"
    VALID = "valid"


@dataclass(frozen=True, slots=True)
class KeyField:
    """One field of a table's key."""

    name: str
    kind: MatchKind
    bits: int


@dataclass(frozen=True, slots=True)
class Match:
    """Condition of an entry on one field: value and mask, or a range. Values are not negative and fit the field."""

    value: int = 0
    mask: int = -1
    """Bits that are compared; -1: all. In a longest-prefix field these are leading bits."""
    low: int | None = None
    """With `high`, the bounds of a range; value and mask are then ignored."""
    high: int | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """One entry of a table, or its action on a miss."""

    action: str
    data: tuple[int, ...]
    run: Callable[..., None]
    """The compiled action: called with fields, packet state and `data`."""
    next: Callable[..., object] | None
    """The node of the control flow that follows; None: the pipeline ends."""
    matches: tuple[Match, ...] = ()
    rank: int = 0
    order: tuple[int, int] = (0, 0)
    """Its position in the order in which entries win (entry_index.py)."""
    value: int = 0
    mask: int = 0
    ranges: tuple[tuple[int, int, int, int], ...] = ()
    """(shift, mask, low, high) for each field that is compared with a range."""
    counts: array[int] = field(default_factory=lambda: array("q", (0, 0)))
    """Packets and bytes that it matched; the native interpreter counts in the same memory."""
    constant: bool = False
    """Written in the program; the control plane cannot change it."""
    note: object = None
    """Metadata of the control plane, kept unchanged."""
    meter: Meter | None = None
    """Meter of this entry, in a table with direct meters; it may have no rates."""
    target: Member | Group | None = None
    """Member or group that runs instead of `run`, in a table with an action profile."""
    idle_us: int = 0
    """Idle timeout: time without a packet, in microseconds, after which the control plane is notified; 0: never."""
    used_us: int = 0
    """In tables whose entries age: when a packet last matched it or, before the first, when it was written, in us."""
    notified: bool = False
    """Whether the control plane was notified since the last packet."""

    @property
    def packets(self) -> int:
        """Packets that it matched, if its table counts."""
        return self.counts[0]

    @property
    def bytes(self) -> int:
        """Bytes of these packets."""
        return self.counts[1]

    def in_ranges(self, key: int) -> bool:
        """Whether a key is within all ranges."""
        for shift, mask, low, high in self.ranges:  # noqa: SIM110 (twice as fast as all() of a generator)
            if not low <= key >> shift & mask <= high:
                return False
        return True


class Watcher(Protocol):
    """Keeper of a copy of a table's entries, called on every change (switch/p4/native.py)."""

    def put(self, entry: Entry) -> None:
        """Add an entry to the copy, behind those of the same rank."""

    def take(self, entry: Entry) -> None:
        """Remove an entry from the copy."""

    def missed(self, entry: Entry) -> None:
        """Note the new action on a miss."""


@dataclass(slots=True)
class Table:
    """A table with its entries. Compiled code reads `exact`, `remembered`, `miss` and calls `find`."""

    name: str
    key: tuple[KeyField, ...]
    max_size: int
    actions: Mapping[str, ActionFacts] = field(default_factory=dict)
    counts: bool = False
    """Whether entries count packets and bytes."""
    immutable: bool = False
    """Whether its entries are constants of the program."""
    fixed_default: bool = False
    after: Callable[[str, bool], Callable[..., object] | None] = field(default=lambda action, hit: None)
    """Returns the node that follows an action, by its name and whether the key was found."""
    exact: dict[int, Entry] = field(default_factory=dict)
    ordered: EntryIndex[Entry] = field(default_factory=EntryIndex)
    remembered: dict[int, Entry] = field(default_factory=dict)
    miss: Entry = field(init=False)
    profile: str | None = None
    """The action profile that its entries refer to."""
    meters: str | None = None
    """Name of its entries' direct meters; None without."""
    ages: bool = False
    """Whether entries may have an idle timeout."""
    watcher: Watcher | None = None
    _default: tuple[str, tuple[int, ...]] = ("", ())

    @property
    def is_exact(self) -> bool:
        """Whether all key fields match exactly, so that `exact` has the entries."""
        return all(field.kind in (MatchKind.EXACT, MatchKind.VALID) for field in self.key)

    @property
    def ranked(self) -> bool:
        """Whether entries have priorities."""
        return any(field.kind in (MatchKind.TERNARY, MatchKind.RANGE) for field in self.key)

    def shifts(self) -> tuple[int, ...]:
        """By how many bits each field of the key is shifted to the left."""
        left, shifts = sum(field.bits for field in self.key), []
        for each in self.key:
            left -= each.bits
            shifts.append(left)
        return tuple(shifts)

    def find(self, key: int) -> Entry:
        """Find the entry for a key that is not remembered, and remember it; `miss` if there is none."""
        found = self.ordered.find(key) or self.miss
        if len(self.remembered) >= MAX_REMEMBERED:
            self.remembered.clear()
        self.remembered[key] = found
        return found

    # --- what the control plane does ---

    def __iter__(self) -> Iterator[Entry]:
        """All entries, in the order in which they win."""
        return iter(list(self.exact.values())) if self.is_exact else iter(self.ordered)

    def __len__(self) -> int:
        return len(self.exact) if self.is_exact else len(self.ordered)

    def insert(
        self,
        matches: tuple[Match, ...],
        priority: int,
        action: str,
        data: tuple[int, ...],
        target: Member | Group | None = None,
    ) -> Entry:
        """Add an entry; in a table with an action profile, `target` replaces action and data."""
        self._check_mutable()
        entry = self._made(matches, priority, action, data, target)
        if self._same(entry) is not None:
            raise TableError(TableProblem.EXISTS, f"table {self.name} has an entry with this match already")
        if len(self) >= self.max_size:
            raise TableError(TableProblem.FULL, f"table {self.name} is full: it has {self.max_size} entries")
        self._put(entry)
        return entry

    def modify(
        self,
        matches: tuple[Match, ...],
        priority: int,
        action: str,
        data: tuple[int, ...],
        target: Member | Group | None = None,
    ) -> Entry:
        """Give an entry another action or other data; it keeps its counts and its meter."""
        self._check_mutable()
        entry = self._made(matches, priority, action, data, target)
        old = self._existing(entry)
        self._take(old)
        entry.counts[:] = old.counts
        entry.meter = old.meter
        self._put(entry)
        return entry

    def delete(self, matches: tuple[Match, ...], priority: int) -> None:
        """Remove an entry of the table."""
        self._check_mutable()
        self._take(self._existing(self._made(matches, priority, "", ())))

    def lookup(self, matches: tuple[Match, ...], priority: int) -> Entry:
        """The entry with exactly this match and priority."""
        return self._existing(self._made(matches, priority, "", ()))

    def matching(self, matches: tuple[Match, ...]) -> list[Entry]:
        """All entries with exactly this match, whatever their priority."""
        wanted = self._made(matches, 0, "", ())
        if self.is_exact:
            return [self.exact[wanted.value]] if wanted.value in self.exact else []
        return [each for _, each in sorted(self.ordered.alike(wanted).items())]

    def clear(self) -> None:
        """Remove every entry that the control plane has made."""
        if not self.immutable:
            for entry in self:
                self._take(entry)

    def set_default(self, action: str | None, data: tuple[int, ...] = ()) -> None:
        """Set the action on a miss; None: the program's own default. TableError if the default is constant."""
        if self.fixed_default:
            raise TableError(TableProblem.IMMUTABLE, f"the default action of table {self.name} is constant")
        self._change_default(*(self._default if action is None else (action, data)))

    def initialize(self, action: str, data: tuple[int, ...], *, fixed: bool) -> None:
        """Set the program's own default action; "" for none."""
        self._default, self.fixed_default = (action, data), fixed
        self._change_default(action, data)

    def initialize_entries(self, entries: list[tuple[tuple[Match, ...], int, str, tuple[int, ...]]]) -> None:
        """Add the program's constant entries; the table accepts no others."""
        for matches, rank, action, data in entries:
            entry = self._made(matches, -rank, action, data)
            entry.constant = True
            if self._same(entry) is not None:
                raise TableError(TableProblem.EXISTS, f"table {self.name} has two entries with the same match")
            self._put(entry)
        self.immutable = True

    # --- within ---

    def _change_default(self, action: str, data: tuple[int, ...]) -> None:
        run = self._facts(action, data).run if action else nothing
        self.miss = Entry(action, data, run, self.after(action, False))
        self.remembered.clear()
        if self.watcher is not None:
            self.watcher.missed(self.miss)

    def _check_mutable(self) -> None:
        if self.immutable:
            raise TableError(TableProblem.IMMUTABLE, f"the entries of table {self.name} are constant")

    def _facts(self, action: str, data: tuple[int, ...]) -> ActionFacts:
        if action not in self.actions:
            raise TableError(TableProblem.INVALID, f"table {self.name} has no action {action!r}")
        facts = self.actions[action]
        facts.check(data)
        return facts

    def _made(
        self,
        matches: tuple[Match, ...],
        priority: int,
        action: str,
        data: tuple[int, ...],
        target: Member | Group | None = None,
    ) -> Entry:
        if len(matches) != len(self.key):
            raise TableError(
                TableProblem.INVALID, f"table {self.name} has {len(self.key)} key fields, not {len(matches)}"
            )
        value, mask, ranges, compared = 0, 0, [], 0
        for match, part, shift in zip(matches, self.key, self.shifts(), strict=True):
            whole = (1 << part.bits) - 1
            if match.low is not None and match.high is not None:
                if not 0 <= match.low <= whole or not 0 <= match.high <= whole:
                    raise TableError(
                        TableProblem.INVALID,
                        f"table {self.name}, field {part.name}: a bound of a range does not fit {part.bits} bits",
                    )
                ranges.append((shift, whole, match.low, match.high))
                continue
            value |= (match.value & match.mask & whole) << shift
            mask |= (match.mask & whole) << shift
            if part.kind is MatchKind.LPM:
                compared = (match.mask & whole).bit_count()
        rank = -priority if self.ranked else -compared
        run = self._facts(action, data).run if action else nothing
        after = self.after(action, True)
        return Entry(
            action, data, run, after, matches, rank, value=value, mask=mask, ranges=tuple(ranges), target=target
        )

    def _same(self, entry: Entry) -> Entry | None:
        if self.is_exact:
            return self.exact.get(entry.value)
        return self.ordered.alike(entry).get(entry.rank)

    def _existing(self, entry: Entry) -> Entry:
        found = self._same(entry)
        if found is None:
            raise TableError(TableProblem.NOT_FOUND, f"table {self.name} has no entry with this match")
        return found

    def _put(self, entry: Entry) -> None:
        if self.meters is not None and entry.meter is None:
            entry.meter = Meter()
        if self.is_exact:
            self.exact[entry.value] = entry
        else:
            self.ordered.add(entry)
            self.remembered.clear()
        if self.watcher is not None:
            self.watcher.put(entry)

    def _take(self, entry: Entry) -> None:
        if self.is_exact:
            del self.exact[entry.value]
        else:
            self.ordered.remove(entry)
            self.remembered.clear()
        if self.watcher is not None:
            self.watcher.take(entry)

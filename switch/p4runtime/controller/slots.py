"""Read slots of jobs from a device's registers, which p4/v1model/slot_machine.p4 writes.

Rules
-----
* A slot or ring entry whose generation is not the job's counts as empty: it may hold another job's state.
* Ring entries are read for the bases V - H + 1 to V + H - 1, since only these can be present.
* The words of a round are stored in blocks of powers of two, each in a register array of its own; only the blocks that
  the round uses are read, and only on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fanin.errors import ConfigurationError, FaninError
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary

WORD_BITS = 32
PER_SLOT = ("open_generation", "open_round", "open_count", "floor")
PER_BASE = ("arrived_generation", "arrived_tag", "arrived_bitmap")
PER_ROUND = ("round_signature", "round_contributors", "round_codes", "round_words")
WHOLE_BLOCKS = ("first64", "second64", "third64", "fourth64")
PARTIAL_BLOCKS = (32, 16, 8, 4, 2, 1)


class Registers(Protocol):
    """A reader of a device (controller/reader.py)."""

    def read(self, entities: Sequence[Any]) -> list[Any]: ...
    def cells(self, register_id: int, indices: Sequence[int]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class RingEntry:
    """One base of a slot, and the workers that have contributed it."""

    base: int
    workers: tuple[int, ...]
    """Workers whose contribution of this base was accepted."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a job."""

    number: int
    index: int
    """Index of the slot's registers on the device."""
    fresh: bool
    """Whether the job has not used the slot yet."""
    open_round: int
    """The open round V."""
    count: int
    """Contributions that the open round holds."""
    floor: int
    """Bases that every live worker has contributed."""
    ring: tuple[RingEntry, ...]
    signature: int = 0
    """Signature of the open round. It and the next three fields describe the open round and are 0 while it is empty."""
    contributors: int = 0
    codes: int = 0
    words: int = 0
    entry: int = 0
    """Index of the open round's ring entry."""
    sums: tuple[int, ...] | None = None
    """The open round's words, if they were requested."""


@dataclass(frozen=True, slots=True)
class JobOnDevice:
    """A job's index, and the parameters of its table entry by the names of p4/v1model/job.p4."""

    number: int
    facts: Mapping[str, int]


def read_jobs(device: Registers, words: Vocabulary) -> list[JobOnDevice]:
    """All jobs of a device, in ascending order of their indices."""
    found = []
    for entity in device.read([words.all_entries("jobs")]):
        if not entity.table_entry.is_default_action:
            match, _, facts = words.read_entry("jobs", entity.table_entry)
            found.append(JobOnDevice(match["job"], facts))
    return sorted(found, key=lambda job: job.number)


class SlotReader:
    """Reads slots of a device that runs p4/v1model."""

    def __init__(self, device: Registers, info: Any) -> None:
        """ConfigurationError for a program without these registers: Tofino's programs store slots in another form."""
        self._device = device
        self._ids = {each.preamble.name: each.preamble.id for each in info.registers}
        self._by_last = {name.rpartition(".")[2]: number for name, number in self._ids.items()}
        lacking = [name for name in (*PER_SLOT, *PER_BASE, *PER_ROUND) if name not in self._by_last]
        if lacking:
            raise ConfigurationError(
                f"the program on the device has no register {lacking[0]!r}: it is not fanin's for v1model. Remedy: "
                "`fanin p4 slots` reads p4/v1model only"
            )

    def read(self, job: JobOnDevice, numbers: Sequence[int], *, sums: bool = False) -> list[Slot]:
        """Read a job's slots of these numbers, as in its packets. `sums`: with the words of their open rounds."""
        facts = job.facts
        if wrong := [number for number in numbers if not 0 <= number < facts["slots"]]:
            raise ConfigurationError(
                f"slot {wrong[0]}: job {job.number} has slots 0..{facts['slots'] - 1}", "the slots"
            )
        indices = [facts["first_slot"] + number for number in numbers]
        generations, rounds, counts, floors = (self._cells(name, indices) for name in PER_SLOT)
        rings = [facts["first_entry"] + number * facts["history"] for number in numbers]
        entries = [ring + at for ring in rings for at in range(facts["history"])]
        arrived = [self._cells(name, entries) for name in PER_BASE]
        opens = [
            ring + (number if generation == facts["generation"] else 0) % facts["history"]
            for ring, number, generation in zip(rings, rounds, generations, strict=True)
        ]
        held = [self._cells(name, opens) for name in PER_ROUND]
        slots = []
        for at, number in enumerate(numbers):
            fresh = generations[at] != facts["generation"]
            count = 0 if fresh else counts[at]
            first = at * facts["history"]
            ring = [
                RingEntry(arrived[1][each], _workers(arrived[2][each]))
                for each in range(first, first + facts["history"])
                if arrived[0][each] == facts["generation"]
            ]
            signature, contributors, codes, words = (column[at] if count else 0 for column in held)
            slots.append(
                Slot(
                    number,
                    indices[at],
                    fresh,
                    0 if fresh else rounds[at],
                    count,
                    0 if fresh else floors[at],
                    tuple(sorted(ring, key=lambda entry: entry.base)),
                    signature,
                    contributors,
                    codes,
                    words,
                    opens[at],
                    self._sums(opens[at], words) if sums and count else None,
                )
            )
        return slots

    def _cells(self, name: str, indices: Sequence[int]) -> list[int]:
        return self._device.cells(self._by_last[name], indices)

    def _sums(self, entry: int, words: int) -> tuple[int, ...]:
        """The first `words` words of a round: whole blocks of 64 first, then smaller blocks for the rest."""
        blocks = [(name, 64) for name in WHOLE_BLOCKS[: words // 64]]
        blocks += [(f"sums{size}", size) for size in PARTIAL_BLOCKS if words % 64 & size]
        found: list[int] = []
        for name, size in blocks:
            number = next((each for full, each in self._ids.items() if full.endswith(f".{name}.sums")), None)
            if number is None:
                raise FaninError(
                    f"a round of {words} words, and the program has no block {name}. "
                    "Remedy: load fanin's program of this version on the device"
                )
            (value,) = self._device.cells(number, [entry])
            found += [value >> WORD_BITS * (size - 1 - at) & 0xFFFF_FFFF for at in range(size)]
        return tuple(found)


def _workers(bitmap: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(bitmap.bit_length()) if bitmap >> rank & 1)

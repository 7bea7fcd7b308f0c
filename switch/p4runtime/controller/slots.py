"""Slots of jobs on a device, out of its registers: what p4/v1model/slot_machine.p4 holds, in the words of the protocol.

Rules
-----
* A slot or ring entry whose generation is not the job's is empty: it may hold what another job left there.
* Ring entries are asked for by their bases, V - H + 1 to V + H - 1, since only these can be there.
* The words of a round lie in blocks of powers of two, each in a register array of its own; only those that the round
  uses are read, and only when they are asked for.
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
    """Contents of a slot for one base."""

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
    """Nothing has come for it yet."""
    open_round: int
    """The open round V."""
    count: int
    """Contributions that the open round holds."""
    floor: int
    """Bases that every live worker has contributed."""
    ring: tuple[RingEntry, ...]
    signature: int = 0
    """Signature of the open round, as the next three fields are; 0 while it holds nothing."""
    contributors: int = 0
    codes: int = 0
    words: int = 0
    entry: int = 0
    """The ring entry of the open round."""
    sums: tuple[int, ...] | None = None
    """The open round's words, where they were asked for."""


@dataclass(frozen=True, slots=True)
class JobOnDevice:
    """A job's facts, by the names of p4/v1model/job.p4."""

    number: int
    facts: Mapping[str, int]


def read_jobs(device: Registers, words: Vocabulary) -> list[JobOnDevice]:
    """All jobs of a device, by number."""
    found = []
    for entity in device.read([words.all_entries("jobs")]):
        if not entity.table_entry.is_default_action:
            match, _, facts = words.read_entry("jobs", entity.table_entry)
            found.append(JobOnDevice(match["job"], facts))
    return sorted(found, key=lambda job: job.number)


class SlotReader:
    """Reads slots of a device that runs p4/v1model."""

    def __init__(self, device: Registers, info: Any) -> None:
        """ConfigurationError for a program without these registers: Tofino's keeps a slot in another form."""
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
        """Slots of a job, by their numbers in its packets."""
        facts = job.facts
        if wrong := [number for number in numbers if not 0 <= number < facts["slots"]]:
            raise ConfigurationError(f"slot {wrong[0]}: job {job.number} has slots 0..{facts['slots'] - 1}")
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
        """A round's words, in order: whole blocks of 64 first, then the blocks that the rest asks for."""
        blocks = [(name, 64) for name in WHOLE_BLOCKS[: words // 64]]
        blocks += [(f"sums{size}", size) for size in PARTIAL_BLOCKS if words % 64 & size]
        found: list[int] = []
        for name, size in blocks:
            number = next((each for full, each in self._ids.items() if full.endswith(f".{name}.sums")), None)
            if number is None:
                raise FaninError(f"a round of {words} words, and the program has no block {name}")
            (value,) = self._device.cells(number, [entry])
            found += [value >> WORD_BITS * (size - 1 - at) & 0xFFFF_FFFF for at in range(size)]
        return tuple(found)


def _workers(bitmap: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(bitmap.bit_length()) if bitmap >> rank & 1)

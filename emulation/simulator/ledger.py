"""The ledger of a switch, kept from the outside: what it received and sent, and whether the two agree.

Rules of this file
------------------
* The ledger sees the packets that a switch machine takes in and sends, and the counters that say what became of a
  contribution. It never looks at registers, so native machine, twin and canary are judged alike. It does not
  reimplement the slot machine: it records everything, and compares.
* After every contribution:

  | must hold                                                                                  | else         |
  |--------------------------------------------------------------------------------------------|--------------|
  | it is refused if generation, sender or membership are wrong                                | isolation    |
  | it is accepted at most once, and refused as a duplicate only if it was accepted before     | conservation |
  | a new one with base b is accepted if b <= V <= b + S, and only then (S: the largest ever)  | staleness    |
  | a result is, to the bit, what was accepted since the round opened: words, largest codes,   | conservation |
  | contributors, bitmap                                                                       |              |
  | rounds close in order, each no earlier than quorum and bound allow ...                     | staleness    |
  | ... and no later (told by the counter where nobody is left to be told the result)          | progress     |
  | an answer is the result that was multicast, with the bits of everybody accepted by now     | agreement    |
  | a multicast goes once to everybody who is registered and has not left: whole to those      | agreement    |
  | that keep words of it, without words to those that have said that they keep none           |              |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.violations import (
    AgreementError,
    ConservationError,
    IsolationError,
    ProgressError,
    StalenessError,
)
from fanin.numerics.lanes import Words
from fanin.numerics.wide_sums import Sums, accumulated, narrowed
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import MAX_BASE, Flag, LaneField, Packet, Reason

ACCEPTED = "accepted"
DUPLICATE = "duplicate"
SILENT = "nothing counted"

NO_WORDS: Words = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed round, as its result was multicast."""

    words: Words
    codes: tuple[int, ...]
    signature: int
    contributors: int
    lanes: LaneField | None = None


@dataclass(slots=True)
class SlotLedger:
    """All contributions and results of one slot."""

    words: Sums = field(default_factory=lambda: NO_WORDS)
    """Words of the open round, or its accumulators if the job has lanes; the next six fields are about it, too."""
    lanes: LaneField | None = None
    codes: tuple[int, ...] = ()
    signature: int = 0
    contributors: int = 0
    arrivals: int = 0
    bare: int = 0
    """Mask of the workers that asked for a bare result, since they keep no words of the round."""
    others: list[int] = field(default_factory=list)
    """Addresses that still have to get the bare result of the last closed round."""
    results: list[Closed] = field(default_factory=list)
    accepted: dict[int, int] = field(default_factory=dict)
    """By base, the mask of the workers whose contribution was accepted."""
    given: dict[int, int] = field(default_factory=dict)
    """By base, the mask of the workers whose contribution was accepted and was no pass."""
    full_bases: int = 0
    """Number of bases, from 0 on without a gap, to which every live worker has contributed."""

    @property
    def open(self) -> int:
        """V, the number of the open round."""
        return len(self.results)

    def add(self, packet: Packet, holds: int, accumulator_bytes: int) -> None:
        """Enter an accepted contribution; `holds`: the contributors that it counts for, several if a leaf sent it."""
        self.arrivals += not packet.flags & Flag.LATE
        self.accepted[packet.base] = self.accepted.get(packet.base, 0) | 1 << packet.worker
        if packet.flags & Flag.BARE and packet.base == self.open:
            self.bare |= 1 << packet.worker
        if packet.flags & Flag.PASS:
            return
        self.given[packet.base] = self.given.get(packet.base, 0) | 1 << packet.worker
        words = accumulated(packet.words, packet.lanes, accumulator_bytes) if packet.lanes else packet.words
        if self.contributors == 0:
            self.words, self.codes, self.signature = words, packet.codes, packet.signature
            self.lanes = packet.lanes and packet.lanes.result
        else:
            self.words = self.words + words
            self.codes = tuple(map(max, self.codes, packet.codes))
        self.contributors += holds

    def stands(self, worker: int) -> int:
        """The base that a live worker has to contribute to next."""
        bases = (base for base in range(self.full_bases, self.open) if not self.accepted.get(base, 0) >> worker & 1)
        return next(bases, self.open)

    @property
    def sent(self) -> tuple[Words, LaneField | None]:
        """The words that the switch must send for the open round, and their lane field."""
        if self.lanes is None:
            return self.words, None
        words, shift = narrowed(self.words, self.lanes.down)
        return words, self.lanes._replace(shift=shift)

    def close(self, result: Closed | None = None) -> None:
        """Close the open round; its result is its own sum, or `result`, which a leaf has from its parent."""
        words, lanes = self.sent
        self.results.append(result or Closed(words, self.codes, self.signature, self.contributors, lanes))
        self.words, self.codes, self.signature, self.lanes = NO_WORDS, (), 0, None
        self.contributors = self.arrivals = self.bare = 0


class JobLedger:
    """The ledger of one job at one switch."""

    def __init__(self, spec: JobSpec, machine: Switch) -> None:
        self.spec = spec
        self.live = spec.full_mask
        self.quorum = spec.quorum
        self.staleness = spec.staleness
        self.slots = [SlotLedger() for _ in range(spec.slots)]
        self.sources: dict[int, int] = {}
        """By worker, the address from which it registered."""
        self._machine = machine
        self._asked: tuple[int, int] | None = None
        """Slot and worker of the question which base the worker has to contribute to, until it is answered."""
        self._counters = machine.job_counters(spec.job)

    def __str__(self) -> str:
        return f"job {self.spec.job}, generation {self.spec.generation:#x}"

    @property
    def whole(self) -> JobLedger:
        """The ledger of the whole job: this one, or the parent's for a leaf's part."""
        return self

    # --- what the controller does ---

    def evicted(self, worker: int) -> None:
        """Take an evicted worker out of the full mask."""
        self.live &= ~(1 << worker)
        self._advance_all()

    def place_opened(self, worker: int) -> None:
        """Let a new process register in an evicted worker's place."""
        self.sources.pop(worker, None)

    def quorum_is(self, quorum: int) -> None:
        """Set K from now on."""
        self.quorum = quorum

    def staleness_is(self, staleness: int) -> None:
        """Set S from now on."""
        self.staleness = staleness

    # --- what the switch takes in ---

    def registered(self, packet: Packet, source: int) -> None:
        """Note the source of a HELLO that has registered its worker."""
        members = self._machine.members(self.spec.job)[0]
        if packet.worker not in self.sources and members >> packet.worker & 1:
            self.sources[packet.worker] = source
            if not self.live >> packet.worker & 1:
                self._entered(packet.worker)

    def _entered(self, worker: int) -> None:
        """Count a newcomer as having passed all rounds before the open ones."""
        self.live |= 1 << worker
        for slot in self.slots:
            for base in range(slot.full_bases, slot.open):
                slot.accepted[base] = slot.accepted.get(base, 0) | 1 << worker
            self._advance(slot)

    def contribution(self, packet: Packet, source: int) -> None:
        """Check the machine's verdict on a contribution that it has just received."""
        if packet.run > 1:
            self._run(packet, source)
            return
        verdict = self._verdict()
        what = f"{self}: slot {packet.slot}, worker {packet.worker}, base {packet.base}"
        wrong = self._stranger(packet, source)
        if wrong:
            if verdict in (ACCEPTED, DUPLICATE, SILENT):
                raise IsolationError(f"{what}: {wrong}, and yet {verdict}")
            return
        if packet.slot >= len(self.slots):
            return
        slot = self.slots[packet.slot]
        if packet.base == MAX_BASE and packet.flags & Flag.PASS and verdict == SILENT:
            self._asked = (packet.slot, packet.worker)
            return
        known = slot.accepted.get(packet.base, 0) >> packet.worker & 1
        in_bounds = 0 <= slot.open - packet.base <= self.spec.max_staleness
        if verdict == ACCEPTED:
            if known:
                raise ConservationError(f"{what} was accepted twice")
            if not in_bounds:
                raise StalenessError(f"{what} landed in round {slot.open}; the bound is {self.spec.max_staleness}")
            holds = max(packet.contributors, 1) if self.spec.branches else 1
            slot.add(packet, holds, self.spec.accumulator_bytes)
            self._advance(slot)
        elif verdict == DUPLICATE and not known:
            raise ConservationError(f"{what} is new and was taken for a duplicate; round {slot.open} is open")
        elif verdict != DUPLICATE and not known and in_bounds:
            raise StalenessError(f"{what} is new and was refused ({verdict}); round {slot.open} is open")

    def _run(self, packet: Packet, source: int) -> None:
        """Check the verdict on a run of passes: all new ones must be accepted, and no others."""
        before, after = self._counters, self._machine.job_counters(self.spec.job)
        self._counters = after
        what = f"{self}: slot {packet.slot}, worker {packet.worker}, {packet.run} passes from base {packet.base} on"
        accepted = after["passes"] - before["passes"]
        wrong = self._stranger(packet, source)
        if wrong and (accepted or after["duplicates"] > before["duplicates"]):
            raise IsolationError(f"{what}: {wrong}, and yet {accepted} were accepted")
        if wrong or packet.slot >= len(self.slots):
            return
        new = 0
        for index in range(packet.run):
            each = packet.part(index, self.spec.slots)
            slot = self.slots[each.slot]
            if slot.open == each.base and not slot.accepted.get(each.base, 0) >> each.worker & 1:
                new += 1
                slot.add(each, 1, self.spec.accumulator_bytes)
                self._advance(slot)
        if accepted != new:
            raise ConservationError(f"{what}: {new} are new, and {accepted} were accepted")

    def _verdict(self) -> str | Reason:
        """The machine's verdict on the contribution that it has just received, read from its counters."""
        before, after = self._counters, self._machine.job_counters(self.spec.job)
        self._counters = after
        if after["contributions"] + after["passes"] > before["contributions"] + before["passes"]:
            return ACCEPTED
        if after["duplicates"] > before["duplicates"]:
            return DUPLICATE
        for reason in Reason:
            name = f"dropped_{reason.name.lower()}"
            if after.get(name, 0) > before.get(name, 0):
                return reason
        return SILENT

    def counted(self) -> None:
        """Read the counters anew, so that the next verdict does not count this packet."""
        self._counters = self._machine.job_counters(self.spec.job)

    def _stranger(self, packet: Packet, source: int) -> str:
        """Reason why the packet must have no effect; empty if it may have one."""
        if packet.generation != self.spec.generation:
            return f"it is of generation {packet.generation:#x}"
        if self.spec.checksum and not packet.flags & Flag.CHECKSUM:
            return "it has no checksum"
        if packet.worker >= self.spec.workers or not self.live >> packet.worker & 1:
            return "it is of nobody in this job"
        if self.sources.get(packet.worker) != source:
            return f"it is from address {source}, not {self.sources.get(packet.worker)}"
        return ""

    # --- what the switch puts out ---

    def result(self, packet: Packet, destinations: Sequence[int]) -> None:
        """Check a result that the switch multicasts against the accepted contributions."""
        slot, what = self.slots[packet.slot], f"{self}: slot {packet.slot}, result {packet.base}"
        if self._second_half(slot, packet, destinations, what):
            return
        if packet.base != slot.open:
            raise AgreementError(f"{what} was multicast while round {slot.open} is open")
        if not self._due(slot):
            raise StalenessError(
                f"{what} closed with {slot.arrivals} arrivals (quorum {self.quorum}) and {slot.full_bases} full bases "
                f"(bound {self.staleness}): too early"
            )
        words, lanes = slot.sent
        has_words = len(words) > 0
        if packet.flags & Flag.BARE:
            words, lanes = NO_WORDS, None
        facts = (slot.contributors, slot.codes, slot.accepted.get(slot.open, 0), lanes)
        told = (packet.contributors, packet.codes, packet.bitmap, packet.lanes)
        if told != facts or not np.array_equal(packet.words, words):
            raise ConservationError(
                f"{what} is not what was accepted: contributors, codes, bitmap, lanes {facts} and words "
                f"{words[:4].tolist()}..., but it has {told} and {packet.words[:4].tolist()}..."
            )
        self._check_audience(slot, packet, destinations, what, self._audience(), has_words=has_words)
        slot.close()

    def _check_audience(
        self,
        slot: SlotLedger,
        packet: Packet,
        destinations: Sequence[int],
        what: str,
        audience: Sequence[int],
        *,
        has_words: bool,
    ) -> None:
        """Check that the first multicast of a round went to exactly those addresses of the audience that it is for."""
        bare = {self.sources[worker] for worker in self.sources if has_words and slot.bare >> worker & 1}
        keepers = [each for each in audience if each not in bare]
        others = [each for each in audience if each in bare]
        wanted = others if packet.flags & Flag.BARE else keepers
        if sorted(destinations) != wanted or (packet.flags & Flag.BARE and keepers):
            raise AgreementError(f"{what} went to {sorted(destinations)}; it is for {keepers}, and bare for {others}")
        slot.others = [] if packet.flags & Flag.BARE else others

    def _second_half(self, slot: SlotLedger, packet: Packet, destinations: Sequence[int], what: str) -> bool:
        """Whether the packet is the bare result of the last closed round, which then is checked."""
        if packet.base != slot.open - 1 or not slot.others or not packet.flags & Flag.BARE:
            return False
        result = slot.results[-1]
        facts = (result.contributors, result.codes, slot.accepted.get(packet.base, 0), None, 0)
        told = (packet.contributors, packet.codes, packet.bitmap, packet.lanes, len(packet.words))
        if told != facts or sorted(destinations) != slot.others:
            raise AgreementError(f"{what}, bare, has {told} for {sorted(destinations)}, not {facts} for {slot.others}")
        slot.others = []
        return True

    def answer(self, packet: Packet, destination: int) -> None:
        """Check an answer that the switch sends to a single worker."""
        slot, what = self.slots[packet.slot], f"{self}: slot {packet.slot}, answer {packet.base} to {destination}"
        if self._asked is not None and self._asked == (packet.slot, packet.worker) and packet.flags & Flag.BARE:
            self._asked = None
            if packet.base != slot.stands(packet.worker) or packet.bitmap:
                raise AgreementError(f"{what}: it stands at {slot.stands(packet.worker)}")
            return
        if packet.base >= slot.open:
            raise AgreementError(f"{what}: round {slot.open} is open, so there is no such result")
        if self.sources.get(packet.worker) != destination:
            raise IsolationError(f"{what} is for worker {packet.worker} at {self.sources.get(packet.worker)}")
        if packet.bitmap != slot.accepted.get(packet.base, 0):
            raise AgreementError(f"{what} has bitmap {packet.bitmap:#x}, not {slot.accepted.get(packet.base, 0):#x}")
        if packet.flags & Flag.BARE:
            if len(packet.words) or packet.lanes:
                raise AgreementError(f"{what} is bare and has {len(packet.words)} words")
            return
        result = slot.results[packet.base]
        facts = (result.contributors, result.codes, result.lanes)
        told = (packet.contributors, packet.codes, packet.lanes)
        if told != facts or not np.array_equal(packet.words, result.words):
            raise AgreementError(
                f"{what} has contributors, codes, lanes {told} and words "
                f"{packet.words[:4].tolist()}..., but {facts} and {result.words[:4].tolist()}... were multicast"
            )

    def settle(self) -> None:
        """Check after a step that no due round is still open, and that the machine counts the rounds that were seen."""
        for index, slot in enumerate(self.slots):
            self._settle_slot(index, slot)
        closed = sum(slot.open for slot in self.slots)
        if self._counters["rounds"] != closed:
            raise ConservationError(f"{self}: the switch counts {self._counters['rounds']} rounds, and {closed} closed")

    def _settle_slot(self, index: int, slot: SlotLedger) -> None:
        if slot.others:
            raise AgreementError(f"{self}: slot {index}, round {slot.open - 1}: {slot.others} were told nothing")
        if not slot.arrivals or not self._due(slot):
            return
        if self._audience():
            raise ProgressError(
                f"{self}: slot {index}, round {slot.open} holds {slot.arrivals} arrivals with quorum {self.quorum} "
                f"and {slot.full_bases} full bases, and was not closed"
            )
        slot.close()  # nobody is left to get the result, so only the counter shows that it closed

    def _audience(self) -> list[int]:
        """Addresses of all workers that are registered and have not left, in ascending order."""
        registered, _, left = self._machine.members(self.spec.job)
        return sorted(self.sources[worker] for worker in self.sources if (registered & ~left) >> worker & 1)

    def _due(self, slot: SlotLedger) -> bool:
        arrivals_to_close = min(self.quorum, self.live.bit_count())
        return slot.arrivals >= arrivals_to_close and slot.open - self.staleness < slot.full_bases

    def _advance(self, slot: SlotLedger) -> None:
        while (mask := slot.accepted.get(slot.full_bases)) is not None and mask & self.live == self.live:
            slot.full_bases += 1

    def _advance_all(self) -> None:
        for slot in self.slots:
            self._advance(slot)

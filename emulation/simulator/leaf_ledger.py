"""The ledger of a leaf switch, whose rounds close at its parent: the parent's ledger says what every result must be.

Rules of this file
------------------
The rules of fanin.emulation.simulator.ledger on contributions, answers and audiences hold at a leaf, too. In addition:

  | must hold                                                                                  | else         |
  |--------------------------------------------------------------------------------------------|--------------|
  | what goes up is, to the bit, exactly what was accepted since the round opened              | conservation |
  | it goes up when all of the leaf's workers have contributed, and not before                 | staleness    |
  | the leaf's first rounds, before window and pace can hold any back, go up at once           | progress     |
  | it asks for a bare result where all of the leaf's workers do, and only there               | conservation |
  | a result that is multicast is the parent's, of a round that this leaf has contributed to   | agreement    |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fanin.emulation.simulator.ledger import NO_WORDS, JobLedger, SlotLedger
from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.violations import AgreementError, ConservationError, ProgressError, StalenessError
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Packet


class LeafLedger(JobLedger):
    """The ledger of one leaf's part of a job."""

    def __init__(self, spec: JobSpec, machine: Switch, parent: JobLedger) -> None:
        super().__init__(spec, machine)
        self.parent = parent
        self._ascended = [-1] * spec.slots
        """By slot, the newest round whose sum the leaf has sent up; -1: none yet."""
        self._told: list[list[int]] = [[] for _ in range(spec.slots)]
        """By slot, the audience of the newest closed round when its result came from the parent. A leaf in trains sends
        it later (leaf_trains.py), when a worker may have left."""

    @property
    def whole(self) -> JobLedger:
        """The ledger of the whole job: the parent's."""
        return self.parent

    def ascended(self, packet: Packet) -> None:
        """Check a contribution that the leaf sends to its parent, for the first time or again."""
        slot, what = self.slots[packet.slot], f"{self}: slot {packet.slot}, round {packet.base} on its way up"
        if packet.base != slot.open or not self._due(slot):
            raise StalenessError(f"{what}: round {slot.open} is open and holds {slot.arrivals} arrivals")
        again = self._ascended[packet.slot] == packet.base
        if again and not (packet.contributors or packet.flags & Flag.PASS) and slot.contributors == 0:
            if packet.words.any() or any(packet.codes):
                raise ConservationError(f"{what} asks for the result of a pass, and does not say nothing")
            return
        words, lanes = slot.sent
        flags = {Flag.PASS: slot.contributors == 0, Flag.BARE: slot.bare & self.live == self.live}
        held = (slot.contributors, slot.codes, list(flags.values()), lanes)
        facts = (packet.contributors, packet.codes, [bool(packet.flags & flag) for flag in flags], packet.lanes)
        if facts != held or not np.array_equal(packet.words, words):
            raise ConservationError(
                f"{what} has contributors, codes, [pass, bare], lanes {facts}, words {packet.words[:4].tolist()}..., "
                f"but {held} and {words[:4].tolist()}... were accepted"
            )
        self._ascended[packet.slot] = packet.base

    def descended(self, packet: Packet) -> None:
        """Note a packet from the parent. Without a worker to get the result, only the counter shows a closed round."""
        before = self._counters["rounds"]
        self.counted()
        if self._counters["rounds"] == before or packet.kind not in (Kind.RESULT, Kind.ANSWER):
            return
        self._told[packet.slot] = self._audience()
        if not self._told[packet.slot]:
            self._close(self.slots[packet.slot], packet, f"{self}: slot {packet.slot}, result {packet.base}")

    def result(self, packet: Packet, destinations: Sequence[int]) -> None:
        """Check a result that the leaf multicasts against the parent's."""
        slot, what = self.slots[packet.slot], f"{self}: slot {packet.slot}, result {packet.base}"
        if self._second_half(slot, packet, destinations, what):
            return
        descended = self.parent.slots[packet.slot].results[packet.base : packet.base + 1]
        # then the parent has sent no words, or words that no worker here keeps
        all_bare = slot.bare & self.live == self.live
        has_words = bool(descended) and len(descended[0].words) > 0 and (len(packet.words) > 0 or not all_bare)
        has_words = has_words or bool(packet.flags & Flag.BARE)
        self._check_audience(slot, packet, destinations, what, self._told[packet.slot], has_words=has_words)
        if packet.bitmap != slot.accepted.get(slot.open, 0):
            raise ConservationError(
                f"{what} has bitmap {packet.bitmap:#x}, not {slot.accepted.get(slot.open, 0):#x}: what was accepted"
            )
        self._close(slot, packet, what)

    def _close(self, slot: SlotLedger, packet: Packet, what: str) -> None:
        if packet.base != slot.open or self._ascended[packet.slot] != slot.open:
            raise AgreementError(f"{what} closed a round while round {slot.open} is open, or before that went up")
        told = self.parent.slots[packet.slot].results
        if packet.base >= len(told):
            raise AgreementError(f"{what}: its parent has closed {len(told)} rounds, so there is no such result")
        held = right = told[packet.base]
        all_bare = slot.bare & self.live == self.live
        if packet.flags & Flag.BARE or (all_bare and not len(packet.words)):
            right = dataclasses.replace(right, words=NO_WORDS, lanes=None)
        facts = (packet.contributors, packet.codes, packet.signature, packet.lanes)
        if facts != (right.contributors, right.codes, right.signature, right.lanes) or not np.array_equal(
            packet.words, right.words
        ):
            raise AgreementError(
                f"{what} is not the parent's: {facts}, {packet.words[:4].tolist()}... instead of "
                f"{right.contributors, right.codes, right.signature}, {right.words[:4].tolist()}..."
            )
        # Where all that keep words of the round have left, nobody is told the words that the leaf has for an answer.
        slot.close(right if all_bare else held)

    def _settle_slot(self, index: int, slot: SlotLedger) -> None:
        if slot.others:
            raise AgreementError(f"{self}: slot {index}, round {slot.open - 1}: {slot.others} were told nothing")
        waits = slot.arrivals and self._due(slot) and self._ascended[index] != slot.open
        # only the first: later ones may wait for their turn (switch/machine/ascents.py)
        if waits and max(self._ascended) < 0:
            raise ProgressError(f"{self}: slot {index}, round {slot.open} is complete and did not go up")

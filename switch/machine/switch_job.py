"""One job at a switch: its slots, who its workers are and when they were last heard of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fanin.numerics.lanes import WORD_BITS
from fanin.protocol.job import HEARTBEATS_TO_SILENCE, JobSpec, Uplink
from fanin.protocol.packet_tag import MemberKeys, PacketKeys
from fanin.switch.machine.ascents import Ascents
from fanin.switch.machine.member_tally import MemberTally, SlotTimes
from fanin.switch.machine.receipts import Arrivals
from fanin.switch.machine.slot_machine import Membership, Slot
from fanin.switch.machine.suspicion import silent_at, stands
from fanin.switch.machine.tally import Tally
from fanin.switch.machine.uplink import UplinkPresence


class SwitchJob:
    """State of one job. Slots come into being when they are first used; a fresh one equals one that was not."""

    slot_type: type[Slot] = Slot
    """Another one in the simulator's canaries, whose slots have planted defects."""

    def __init__(self, spec: JobSpec, uplink: Uplink | None = None) -> None:
        self.spec = spec
        self.uplink = None if uplink is None else UplinkPresence(uplink, spec)
        """At a leaf: its registration at the parent; None elsewhere."""
        self.ascents = Ascents(spec.slots, spec.packet_bytes)
        """Likewise: what goes up to the parent."""
        self.parities = np.zeros(-(-spec.slots // WORD_BITS), np.uint32)
        """Bit s % 32 of word s // 32: whether slot s has closed an odd number of rounds. Receipts carry it."""
        self.tally = Tally()
        self.last_arrivals = [0] * spec.workers
        """By worker: rounds that it was the last to contribute to, and so closed."""
        self.membership = Membership(
            live=spec.full_mask,
            quorum=spec.quorum,
            staleness=spec.staleness,
            max_staleness=spec.max_staleness,
            history=spec.history,
            accumulator_bytes=spec.accumulator_bytes,
            has_parent=uplink is not None,
        )
        self.members = [MemberTally() for _ in range(spec.workers)]
        self.slots: dict[int, Slot] = {}
        self.times: dict[int, SlotTimes] = {}
        """By slot, of those that were used."""
        self.tokens = list(spec.tokens)
        """Token that a HELLO or BYE of each worker must carry; a new process in a place has a new one."""
        self.keys = PacketKeys(spec.data_key, spec.tokens, spec.tag)
        self.parent_keys = MemberKeys(uplink.data_key, uplink.token, uplink.tag) if uplink is not None else None
        self.hellos = [0] * spec.workers
        """In a job with keyed tags, by worker: the least sequence number that its next HELLO may have."""
        self.parent_welcomes = 0
        """The same of the parent's WELCOMEs."""
        self.expected = 0
        """Bit mask of evicted workers whose place is open for a new process; it is live from its HELLO on."""
        self.changes = 0
        """Changes of membership so far, in a job that survives losses."""
        self.sources: list[int | None] = [None] * spec.workers
        """The address that each worker registered, or None."""
        self.heard: list[float] = [0.0] * spec.workers
        """When something last came from that address, in seconds; later by what the switch itself was stopped since."""
        self.suspected: list[float | None] = [None] * spec.workers
        """When something else than silence spoke for a worker's death, if it did."""
        self._excused = [float("-inf")] * spec.workers
        """Value of `heard` after the last stop of the switch: only a worker that has spoken since gets heartbeats' time
        again.
        """
        self.arrivals = [Arrivals() for _ in range(spec.workers)]
        """By worker, which of its transmissions have come."""
        self.marked = 0
        """Bit mask of the workers of whom contributions met congestion, which they have not been told of."""
        self.takes_runs = 0
        """Bit mask of the workers that take bare results as runs."""
        self.lost = 0
        self.left = 0

    def slot(self, index: int) -> Slot:
        """The slot with that index, which must be below spec.slots."""
        if index not in self.slots:  # a slot that has seen nothing is all zero, so it is made when it is needed
            self.slots[index] = self.slot_type(self.membership)
            self.times[index] = SlotTimes()
        return self.slots[index]

    @property
    def tagged(self) -> bool:
        """Whether its packets carry keyed tags."""
        return bool(self.spec.data_key)

    def expect(self, worker: int, token: int) -> None:
        """Open an evicted worker's place to a new process, which says that token."""
        self.sources[worker] = None
        self.tokens[worker] = token
        self.keys.renew(worker, token)
        self.hellos[worker] = 0
        self.expected |= 1 << worker

    def evicted(self, worker: int) -> bool:
        """Whether the controller has taken this worker out, and nobody else may come in its place."""
        return not (self.membership.live | self.expected) >> worker & 1

    def enter(self, worker: int) -> None:
        """A new process has an evicted worker's place: rounds wait for it from here on, and for no base before."""
        for slot in self.slots.values():  # R-SLOT-14: slots that saw nothing yet are at base 0 in any case
            slot.enter(worker)
        self.membership.live |= 1 << worker
        self.expected &= ~(1 << worker)
        self.suspected[worker] = None
        self.changes += 1

    @property
    def registered(self) -> int:
        """Bit mask of the workers that have an address and are not evicted."""
        mask = sum(1 << w for w, source in enumerate(self.sources) if source is not None)
        return mask & self.membership.live

    @property
    def audience(self) -> tuple[int, ...]:
        """Addresses that multicasts go to, by rank: everybody registered who has not left."""
        mask = self.registered & ~self.left
        return tuple(source for w, source in enumerate(self.sources) if source is not None and mask >> w & 1)

    def audience_but(self, bare: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The audience in two: the workers that are not in the bit mask `bare`, and those that are."""
        heard = [w for w in range(self.spec.workers) if (self.registered & ~self.left) >> w & 1]
        parts: tuple[list[int], list[int]] = [], []
        for worker in heard:
            source = self.sources[worker]
            assert source is not None
            parts[bare >> worker & 1].append(source)
        return tuple(parts[0]), tuple(parts[1])

    def runs(self, bare: int) -> bool:
        """Whether all that are sent bare results, being in the bit mask `bare`, take runs of them."""
        return not bare & self.registered & ~self.left & ~self.takes_runs

    def watched(self) -> Iterator[tuple[int, float]]:
        """Workers whose silence would be news, each with the time at which they count as lost."""
        mask = self.registered & ~self.lost & ~self.left
        for worker in range(self.spec.workers):
            if mask >> worker & 1:  # whoever never came, is lost or has left is not missed
                yield worker, silent_at(self.heard[worker], self.suspected[worker], self.spec.liveness_timeout_s)

    def was_stopped(self, seconds: float, now: float) -> None:
        """The switch itself was stopped for so long: nobody's silence counts meanwhile.

        Workers may have been stopped with it, or before it, so that each has time for a few heartbeats first.
        """
        fresh = now - self.spec.liveness_timeout_s + HEARTBEATS_TO_SILENCE * self.spec.heartbeat_s
        for worker, _ in self.watched():
            heard = self.heard[worker] + seconds
            # R-MEMBER-8: once, or a switch that is stopped again and again would never miss who is gone.
            if self.heard[worker] != self._excused[worker]:
                heard = max(heard, fresh)
            suspected = self.suspected[worker]
            if stands(self.heard[worker], suspected):
                assert suspected is not None
                # It goes on standing: the time that the worker has to speak up is the switch's own.
                self.suspected[worker] = max(suspected + seconds, heard)
            self.heard[worker] = self._excused[worker] = heard
        if self.uplink is not None:  # nor could the parent be heard meanwhile
            self.uplink.was_stopped(seconds)

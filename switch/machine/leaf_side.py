"""The leaf's side of the protocol with its parent: packets up, and packets down. Part of the switch machine.

Rules
-----
The rounds of a job that was admitted with an uplink close at the parent (switch/machine/slot_machine.py), where the
leaf is a worker (switch/machine/uplink.py). Packets from the parent's address, for the uplink's job, pass these rows:

    kinds                check                                               reason
    -------------------  --------------------------------------------------  -------------
    all                  carries a checksum if the job asks for it           CHECKSUM
    all                  generation is the uplink's                          GENERATION
    all                  worker is the leaf's branch, or 0xFF                WORKER_RANGE
    all                  the keyed tag holds, if the uplink has a data key   TAG
    all                  RESULT, ANSWER, RECEIPT, WELCOME, NOTICE or BYE     KIND
    RESULT, ANSWER       slot < slots                                        SLOT_RANGE
    RESULT, ANSWER       shape fits the job; of WELCOME, length              LENGTH
    WELCOME              if the uplink has one: newer than the last one      ANCIENT
    NOTICE(VERSION)      connecting, and the job has no checksum: or else    VERSION
                         it was a damaged packet that it answers
    RESULT, ANSWER       of a closed round, or of the open one if complete   FUTURE

Packets to the parent are not sent as ECN-capable, since the parent may be a P4 pipeline, which echoes no marks; marks
on packets from the parent count. The rules are R-LEAF-1 to R-LEAF-5 in docs/slot-machine.md, and R-LEAF-6 on, which
ascents.py implements, in docs/protocol.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fanin.numerics.lanes import WORD_BITS
from fanin.protocol.ecn import Marked
from fanin.protocol.job import Uplink
from fanin.protocol.wire import RECEIPT_REPEATED, SWITCH_WORKER, Flag, Kind, Packet, Reason, datagram_bytes
from fanin.switch.machine.slot_machine import Round
from fanin.switch.machine.switch_job import SwitchJob
from fanin.switch.machine.tally import Tally
from fanin.switch.machine.uplink import UplinkPresence

FROM_PARENT = (Kind.RESULT, Kind.ANSWER, Kind.RECEIPT, Kind.WELCOME, Kind.NOTICE, Kind.BYE)


class LeafSide:
    """The jobs of one machine that are parts of jobs at a parent."""

    def __init__(
        self,
        send: Callable[[Tally, bytes, tuple[int, ...]], object],
        tell: Callable[[SwitchJob, Reason, int, Sequence[int]], None],
        multicast: Callable[[SwitchJob, int, int, Round], None],
    ) -> None:
        """Functions of the switch machine: queue a datagram, send workers a NOTICE, multicast a result."""
        self._send, self._tell, self._multicast = send, tell, multicast
        self._jobs: dict[tuple[int, int, int], SwitchJob] = {}
        """Jobs by the parent's address, the index there and the generation: a restarted parent uses its indices again,
        while parts of its earlier jobs may still linger here."""

    def add(self, job: SwitchJob, uplink: Uplink) -> None:
        """Register a job with its uplink."""
        self._jobs[uplink.parent, uplink.job, uplink.generation] = job

    def remove(self, uplink: Uplink) -> None:
        """Forget the job's uplink."""
        del self._jobs[uplink.parent, uplink.job, uplink.generation]

    def find(self, source: int, packet: Packet) -> SwitchJob | None:
        """The job that a packet from `source` concerns; if none has its generation, one of its index, which refuses it.

        None if no job has an uplink to `source` under that index: the packet is not from a parent.
        """
        exact = self._jobs.get((source, packet.job, packet.generation))
        if exact is not None or not self._jobs:  # most switches are no leaves
            return exact
        alike = [key for key in self._jobs if key[:2] == (source, packet.job)]
        return self._jobs[min(alike)] if alike else None

    def speak(self, now: float) -> None:
        """Send HELLO and BYE to parents when they are due, and the complete rounds whose turn it is."""
        for _, job in sorted(self._jobs.items()):
            assert job.uplink is not None
            for packet in job.uplink.packets_due(now, *self._waits_for(job)):
                self._send_up(job, job.uplink.uplink, packet)
                # A HELLO that tests a packet length is not timed.
                if packet.kind is Kind.HELLO and packet.slot == job.uplink.heartbeat:
                    job.ascents.hello_sent(packet.slot, now)
            while (ascent := job.ascents.take(now)) is not None:  # R-LEAF-7
                self._ascend(job, *ascent)

    @staticmethod
    def _waits_for(job: SwitchJob) -> tuple[int, int]:
        """Return the item of the oldest round that lacks the parent's result, and its packets' size; or -1 and 0."""
        oldest = job.ascents.oldest
        if oldest is None:  # nothing waits, so that the path need not be tested
            return -1, 0
        number, slot = oldest
        _, sums = job.slot(slot).partial
        asked_in_full = sums.contributors == 0 and not job.slot(slot).all_bare
        size_bytes = job.spec.packet_bytes if asked_in_full else datagram_bytes(len(sums.codes), len(sums.words))
        return number * job.spec.slots + slot, size_bytes

    def _ascend(self, job: SwitchJob, slot: int, order: int, long: bool) -> None:
        """Contribute a complete round to the parent's, for the first time or again; `long`: request the full result."""
        assert job.uplink is not None
        base, sums = job.slot(slot).partial
        passes = sums.contributors == 0
        # R-WORKER-7, for a leaf: a round of passes is shorter than its result, so it is sent as zeros of that length.
        if long and passes and not job.slot(slot).all_bare:
            asking = Packet(
                kind=Kind.CONTRIBUTION,
                slot=slot,
                base=base,
                bitmap=order,
                codes=(0,) * job.spec.codes_per_packet,
                words=np.zeros(job.spec.words_per_packet, np.uint32),
            )
            self._send_up(job, job.uplink.uplink, asking)
            return
        packet = Packet(
            kind=Kind.CONTRIBUTION,
            flags=(Flag.PASS if passes else Flag(0)) | (Flag.BARE if job.slot(slot).all_bare else Flag(0)),
            slot=slot,
            base=base,
            signature=job.slot(slot).signature,
            bitmap=order,
            contributors=sums.contributors,
            codes=sums.codes,
            words=sums.words,
            lanes=sums.lanes,
        )
        self._send_up(job, job.uplink.uplink, packet)

    def _send_up(self, job: SwitchJob, uplink: Uplink, packet: Packet) -> None:
        whole = dataclasses.replace(
            packet,
            job=uplink.job,
            worker=uplink.worker,
            generation=uplink.generation,
            flags=packet.flags | (Flag.CHECKSUM if job.spec.checksum else Flag(0)),
        )
        assert job.parent_keys is not None
        self._send(job.tally, job.parent_keys.finish(whole.to_bytes()), (uplink.parent,))

    def receive(self, job: SwitchJob, packet: Packet, data: bytes, now: float) -> None:
        """Check a packet, parsed from `data`, of a job's parent by the table of this file, and act on it."""
        tally, presence = job.tally, job.uplink
        assert presence is not None
        tally.packets_in += 1
        tally.bytes_in += len(data)
        reason = self._parent_objection(job, presence, packet, data)
        if reason is not None:
            tally.dropped[reason] += 1
            return
        if not presence.uplink.data_key or packet.kind is Kind.WELCOME:  # R-MEMBER-3: others may be replays
            presence.heard(now)
        if packet.kind in (Kind.RESULT, Kind.ANSWER):
            self._descend(job, packet, presence, now, marked=isinstance(data, Marked))
            return
        if packet.kind is Kind.RECEIPT:
            self._receipt(job, packet, now)
            return
        if packet.kind is Kind.WELCOME:
            job.parent_welcomes = packet.slot + 1
            job.ascents.welcome(packet.slot, now)
        self.tell(job, presence.receive(packet, now))

    def _parent_objection(self, job: SwitchJob, presence: UplinkPresence, packet: Packet, data: bytes) -> Reason | None:
        spec, uplink = job.spec, presence.uplink
        # The job's checksum is required, since damage may also clear the flag.
        if spec.checksum and not packet.flags & Flag.CHECKSUM:
            return Reason.CHECKSUM
        if packet.generation != uplink.generation:  # for an earlier job, or from the parent before its restart
            return Reason.GENERATION
        if packet.worker not in (uplink.worker, SWITCH_WORKER):  # for another leaf behind the same address
            return Reason.WORKER_RANGE
        assert job.parent_keys is not None
        if not job.parent_keys.holds(data):  # before anything is believed
            return Reason.TAG
        if packet.kind not in FROM_PARENT:
            return Reason.KIND
        if packet.kind in (Kind.RESULT, Kind.ANSWER):
            if packet.slot >= spec.slots:
                return Reason.SLOT_RANGE
            fits = len(packet.codes) in (0, spec.codes_per_packet) and len(packet.words) <= spec.words_per_packet
            fits &= packet.run == 1  # a leaf never asks for runs
            return None if fits else Reason.LENGTH
        if packet.kind is Kind.RECEIPT:  # its numbers need no check: those of no transmission have no effect
            return None
        objection = presence.objection(packet, len(data))
        if objection is not None:
            return objection
        ancient = uplink.data_key and packet.kind is Kind.WELCOME and packet.slot < job.parent_welcomes
        return Reason.ANCIENT if ancient else None

    def _descend(self, job: SwitchJob, packet: Packet, presence: UplinkPresence, now: float, *, marked: bool) -> None:
        """Handle the parent's result of a round, or its answer to a contribution that was sent again."""
        slot = job.slot(packet.slot)
        # R-WORKER-7, for a leaf: a bare answer only acknowledges, unless no worker here keeps words.
        if packet.kind is Kind.ANSWER and Flag.BARE in packet.flags:
            asked = slot.complete and packet.base == slot.open
            # Workers that keep no words need the codes alone.
            if not (asked and slot.all_bare and len(packet.codes) == len(slot.partial[1].codes)):
                if asked:
                    job.ascents.acknowledged(packet.slot)
                return
        result = Round(packet.words, packet.codes, packet.signature, packet.contributors, 0, packet.lanes)
        closed = slot.descend(packet.base, result)
        if closed is not None:  # R-LEAF-3
            presence.heard(now)
            job.times[packet.slot].closed_s = now
            job.ascents.came(packet.slot, now, answered=packet.kind is Kind.ANSWER, marked=marked)
            self._multicast(job, packet.slot, *closed)
        elif packet.base < slot.open:  # R-LEAF-4
            job.tally.duplicates += 1
        else:  # R-LEAF-5
            job.tally.dropped[Reason.FUTURE] += 1

    def _receipt(self, job: SwitchJob, packet: Packet, now: float) -> None:
        """Handle a receipt: which transmissions have arrived and, by a bit per slot, which rounds have closed."""
        spurious = bool(packet.contributors & RECEIPT_REPEATED)
        job.ascents.receipt(packet.slot, packet.signature, packet.bitmap, now, spurious=spurious)
        if len(packet.words) == len(job.parities):  # R-RECEIPT-8: a P4 parent gives none
            bits = packet.words.tolist()
            odd = [bool(bits[slot // WORD_BITS] >> slot % WORD_BITS & 1) for slot in range(job.spec.slots)]
            job.ascents.settle(packet.signature, odd.__getitem__, now)

    def tell(self, job: SwitchJob, news: Reason | None) -> None:
        """Send the job's workers a NOTICE of `news`, if it is not None."""
        if news is not None:
            self._tell(job, news, SWITCH_WORKER, job.audience)

"""One job at a switch: its slots, its workers, and when they were last heard."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fanin.numerics.lanes import WORD_BITS
from fanin.protocol.job import HEARTBEATS_TO_SILENCE, JobSpec, Uplink
from fanin.protocol.packet_tag import MemberKeys, PacketKeys
from fanin.switch.machine.ascents import Ascents
from fanin.switch.machine.member_tally import MemberTally, SlotTimes
from fanin.switch.machine.receipts import Arrivals
from fanin.switch.machine.slot_machine import Slot, SlotConfig
from fanin.switch.machine.suspicion import silent_at, stands
from fanin.switch.machine.tally import Tally
from fanin.switch.machine.uplink import UplinkPresence


class SwitchJob:
    """State of one job. A slot is created when it is first used."""

    slot_type: type[Slot] = Slot
    """Class of the slots; the simulator's canaries override it by one with planted defects."""

    def __init__(self, spec: JobSpec, uplink: Uplink | None = None) -> None:
        self.spec = spec
        self.uplink = None if uplink is None else UplinkPresence(uplink, spec)
        """At a leaf: its registration at the parent; None elsewhere."""
        self.ascents = Ascents(spec.slots, spec.packet_bytes)
        """At a leaf: transmissions to the parent; unused elsewhere."""
        self.parities = np.zeros(-(-spec.slots // WORD_BITS), np.uint32)
        """Bit s % 32 of word s // 32: whether slot s has closed an odd number of rounds. Receipts carry it."""
        self.tally = Tally()
        self.last_arrivals = [0] * spec.workers
        """By worker: number of rounds that closed with its contribution."""
        self.config = SlotConfig(
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
        """Times of each used slot."""
        self.tokens = list(spec.tokens)
        """By worker, the token that its HELLO and BYE must carry; a newcomer in its place gets a new one."""
        self.keys = PacketKeys(spec.data_key, spec.tokens, spec.tag)
        self.parent_keys = MemberKeys(uplink.data_key, uplink.token, uplink.tag) if uplink is not None else None
        self.hellos = [0] * spec.workers
        """In a job with keyed tags, by worker: the least sequence number that its next HELLO may have."""
        self.parent_welcomes = 0
        """With a data key of the uplink: the least sequence number that the parent's next WELCOME may have."""
        self.expected = 0
        """Bit mask of evicted workers whose place is open for a new process; it is live from its HELLO on."""
        self.changes = 0
        """Changes of membership so far, in a job that survives losses."""
        self.sources: list[int | None] = [None] * spec.workers
        """The address that each worker registered, or None."""
        self.heard: list[float] = [0.0] * spec.workers
        """By worker, when a packet last came from it, in seconds; moved later by stops of the switch itself."""
        self.suspected: list[float | None] = [None] * spec.workers
        """By worker, when it was last suspected of having died, in seconds; None without a suspicion."""
        self._excused = [float("-inf")] * spec.workers
        """Values of `heard` after the last stop of the switch: at the next, only workers heard since then get extra
        time.
        """
        self.arrivals = [Arrivals() for _ in range(spec.workers)]
        """By worker, which of its transmissions have arrived."""
        self.marked = 0
        """Bit mask of the workers whose contributions met congestion, and whom no receipt has told so yet."""
        self.takes_runs = 0
        """Bit mask of the workers that take bare results as runs."""
        self.lost = 0
        self.left = 0

    def slot(self, index: int) -> Slot:
        """The slot with that index, which must be below spec.slots."""
        if index not in self.slots:  # an unused slot is all zero, so it is created on demand
            self.slots[index] = self.slot_type(self.config)
            self.times[index] = SlotTimes()
        return self.slots[index]

    @property
    def tagged(self) -> bool:
        """Whether its packets carry keyed tags."""
        return bool(self.spec.data_key)

    def expect(self, worker: int, token: int) -> None:
        """Open an evicted worker's place to a new process, which registers with `token`."""
        self.sources[worker] = None
        self.tokens[worker] = token
        self.keys.renew(worker, token)
        self.hellos[worker] = 0
        self.expected |= 1 << worker

    def evicted(self, worker: int) -> bool:
        """Whether the controller has taken this worker out, and its place is not open to a newcomer."""
        return not (self.config.live | self.expected) >> worker & 1

    def enter(self, worker: int) -> None:
        """Let a new process into an evicted worker's place: rounds wait for it from now on, but for no earlier base."""
        for slot in self.slots.values():  # R-SLOT-14: unused slots are at base 0 in any case
            slot.enter(worker)
        self.config.live |= 1 << worker
        self.expected &= ~(1 << worker)
        self.suspected[worker] = None
        self.changes += 1

    @property
    def registered(self) -> int:
        """Bit mask of the workers that have an address and are not evicted."""
        mask = sum(1 << w for w, source in enumerate(self.sources) if source is not None)
        return mask & self.config.live

    @property
    def audience(self) -> tuple[int, ...]:
        """Addresses for multicasts, by worker: all registered workers that have not left."""
        mask = self.registered & ~self.left
        return tuple(source for w, source in enumerate(self.sources) if source is not None and mask >> w & 1)

    def audience_but(self, bare: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The audience in two parts: addresses of workers outside the bit mask `bare`, and of those in it."""
        heard = [w for w in range(self.spec.workers) if (self.registered & ~self.left) >> w & 1]
        parts: tuple[list[int], list[int]] = [], []
        for worker in heard:
            source = self.sources[worker]
            assert source is not None
            parts[bare >> worker & 1].append(source)
        return tuple(parts[0]), tuple(parts[1])

    def runs(self, bare: int) -> bool:
        """Whether all present workers in the bit mask `bare` accept bare results in runs."""
        return not bare & self.registered & ~self.left & ~self.takes_runs

    def watched(self) -> Iterator[tuple[int, float]]:
        """Present workers, each with the time at which it counts as lost unless it is heard before."""
        mask = self.registered & ~self.lost & ~self.left
        for worker in range(self.spec.workers):
            if mask >> worker & 1:
                yield worker, silent_at(self.heard[worker], self.suspected[worker], self.spec.liveness_timeout_s)

    def was_stopped(self, seconds: float, now: float) -> None:
        """Move deadlines by the time for which the switch itself was stopped, since it could hear nobody meanwhile.

        Workers may have been stopped as well, so that each gets time for at least HEARTBEATS_TO_SILENCE heartbeats.
        """
        fresh = now - self.spec.liveness_timeout_s + HEARTBEATS_TO_SILENCE * self.spec.heartbeat_s
        for worker, _ in self.watched():
            heard = self.heard[worker] + seconds
            # R-MEMBER-8: extra time only once, or a switch that is stopped again and again would never lose a worker.
            if self.heard[worker] != self._excused[worker]:
                heard = max(heard, fresh)
            suspected = self.suspected[worker]
            if stands(self.heard[worker], suspected):
                assert suspected is not None
                # The suspicion stays, but the worker's time to give a sign of life excludes the stop.
                self.suspected[worker] = max(suspected + seconds, heard)
            self.heard[worker] = self._excused[worker] = heard
        if self.uplink is not None:
            self.uplink.was_stopped(seconds)

"""Jobs on a programmable switch: what the software switch does with HELLO, BYE and silence, done from outside.

Rules
-----
* The pipeline keeps the slots and counts; here is what it cannot do: registration by token, heartbeats, departures, and
  the entries that say all of it to the pipeline. The checks and answers are those of switch/switch_machine.py.
* What each job has on the device is placed_job.py, what was counted job_counters.py.
* A worker that registers is written to the device before it is welcomed, so its first contribution finds it there.
* What changes a closing condition (an eviction, another K or S) is followed by a poke of each slot.
* A job of a leaf contributes its rounds to its parent by itself; being present there is upward.py.
* No clock, no socket, no thread: time and the link are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanin import wire
from fanin.errors import AdmissionError, ConfigurationError
from fanin.events import SwitchEvent, WorkerJoined, WorkerLeft, WorkerSilent
from fanin.job import JobSpec, ParentRoute
from fanin.switch.frames import Endpoint, Frame, read_frame
from fanin.switch.p4runtime.job_counters import read_counters, reset_counters
from fanin.switch.p4runtime.links import Link, RefusedError
from fanin.switch.p4runtime.placed_job import (
    PlacedJob,
    Worker,
    group_updates,
    job_entry,
    parent_entry,
    uplink_entries,
    worker_entries,
)
from fanin.switch.p4runtime.upward import LeafUplink, Upward
from fanin.switch.p4runtime.vocabulary import DELETE, INSERT, MODIFY, Vocabulary
from fanin.wire import SWITCH_WORKER, Flag, Kind, Packet, Reason, WireError

BLOCK_BITS = 2048
"""Register cells of this width hold 64 words each (p4/v1model/types.p4)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What workers see of the switch: where they send to."""

    endpoints: tuple[Endpoint, ...]
    """One per flow. Jobs here are not spread: each flow would be a job of its own."""
    upward: Upward = Upward()
    """Which way a parent switch is, where there is one."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the program has room for, as its P4Info says."""

    jobs: int
    slots: int
    entries: int
    words_per_packet: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Capacity:
        """Read from the sizes of tables and registers."""
        registers = vocabulary.registers
        blocks = vocabulary.register_bits.count(BLOCK_BITS)
        return cls(
            jobs=vocabulary.size("jobs") - 1,
            slots=registers["open_round"].size,
            entries=registers["arrived_tag"].size,
            words_per_packet=blocks * (BLOCK_BITS // 32),
        )


class JobControl:
    """All jobs of one device. Not thread safe."""

    def __init__(self, link: Link, vocabulary: Vocabulary, placement: Placement, capacity: Capacity) -> None:
        self._link = link
        self._words = vocabulary
        self._placement = placement
        self.capacity = capacity
        parameters = vocabulary.parameters("jobs", "job")
        self._deep = "history" in parameters
        """Whether a job's entry says how deep its rings are, or S alone does."""
        self._rooted = "branches" in parameters
        """Whether the program adds up how many contributions each of its own holds: a tree's root must."""
        self._seals = "checksum" in parameters
        """Whether the program verifies and computes our checksums."""
        self.jobs: dict[int, PlacedJob] = {}
        self._rows = 1
        """Rows of counters that jobs have had, row 0 included, where what belongs to no job is counted."""
        self._events: deque[SwitchEvent] = deque()

    # --- what the controller asks ---

    def admit(self, spec: JobSpec, parent: ParentRoute | None = None) -> None:
        """Put a job on the device; with `parent` its rounds close there, and this is a leaf.

        AdmissionError when it does not fit, ConfigurationError when it never can.
        """
        if spec.checksum and not self._seals:
            raise ConfigurationError("this program computes no checksums over payloads: FANIN_CHECKSUM=0")
        if spec.survives_loss:
            raise ConfigurationError("jobs that survive the loss of workers need the software switch")
        if spec.largest_staleness != spec.staleness and not self._deep:
            raise ConfigurationError(
                f"max_staleness = {spec.largest_staleness}; this program's rings are as deep as staleness = "
                f"{spec.staleness} needs, for good"
            )
        if (spec.branches and not self._rooted) or (parent is not None and not self._words.has_table("uplinks")):
            raise ConfigurationError("this program takes no part in trees of switches")
        if spec.words_per_packet > self.capacity.words_per_packet:
            raise ConfigurationError(
                f"words_per_packet = {spec.words_per_packet}; the program parses {self.capacity.words_per_packet}"
            )
        if spec.job in self.jobs:
            raise AdmissionError(f"job index {spec.job} is taken at this switch; the controller must choose another")
        placed = self.jobs.values()
        row = next(row for row in range(1, len(self.jobs) + 2) if all(job.row != row for job in placed))
        slot = _first_fit([(job.first_slot, job.spec.slots) for job in placed], spec.slots, self.capacity.slots)
        need = spec.slots * spec.history
        entry = _first_fit([(job.first_entry, job.entries) for job in placed], need, self.capacity.entries)
        if row > self.capacity.jobs or slot is None or entry is None:
            raise AdmissionError(
                f"job {spec.job} needs {spec.slots} slots and {need} ring entries; the switch has room for "
                f"{self.capacity.jobs} jobs, {self.capacity.slots} slots and {self.capacity.entries} entries, and "
                f"{len(self.jobs)} jobs hold some of it: ask for fewer slots or end another job"
            )
        job = PlacedJob(
            spec, row, slot, entry, spec.full_mask, spec.quorum, spec.staleness,
            [None] * spec.workers, [0.0] * spec.workers,
        )  # fmt: skip
        if parent is not None:
            job.uplink = LeafUplink(spec, parent, self._placement.upward)
            self._displace(job.uplink)
        updates = reset_counters(self._words, row)
        try:
            self._link.write([*updates, job_entry(self._words, INSERT, job), *uplink_entries(self._words, INSERT, job)])
        except RefusedError as error:
            raise AdmissionError(f"the switch refused job {spec.job}: {error}") from None
        self._keep(job)

    def take_over(self, jobs: Iterable[PlacedJob]) -> None:
        """Go on with jobs that are on the device already."""
        for job in jobs:
            self._keep(job)

    def _keep(self, job: PlacedJob) -> None:
        self.jobs[job.spec.job] = job
        self._rows = max(self._rows, job.row + 1)

    def remove(self, job: int) -> None:
        """Take a job off the device. KeyError for one that is not there."""
        placed = self.jobs.pop(job)
        updates = [job_entry(self._words, DELETE, placed), *uplink_entries(self._words, DELETE, placed)]
        for rank, worker in enumerate(placed.workers):
            if worker is not None and placed.live >> rank & 1:
                updates += worker_entries(self._words, DELETE, placed, rank, worker)
        updates += [self._words.group(DELETE, number) for number in sorted(placed.groups)]
        self._link.write(updates)

    def evict(self, job: int, worker: int) -> None:
        """Take a worker out of the full mask; rounds that waited for it alone close."""
        placed = self.jobs[job]
        if not 0 <= worker < placed.spec.workers:
            raise KeyError(worker)
        if not placed.live >> worker & 1:
            return
        gone = placed.workers[worker]
        placed.live &= ~(1 << worker)
        placed.lost &= placed.live
        placed.left &= placed.live
        updates = [job_entry(self._words, MODIFY, placed), *group_updates(self._words, placed)]
        if gone is not None:
            updates += worker_entries(self._words, DELETE, placed, worker, gone)
        self._link.write(updates)
        if gone is not None:
            self._tell(placed, Reason.EVICTED, worker, [gone])
        self._poke(placed)

    def set_quorum(self, job: int, quorum: int) -> None:
        """Change K."""
        placed = self.jobs[job]
        if not 1 <= quorum <= placed.spec.workers:
            raise ValueError(f"quorum = {quorum}; must be in 1..{placed.spec.workers} (workers)")
        placed.quorum = quorum
        self._link.write([job_entry(self._words, MODIFY, placed)])
        self._poke(placed)

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Nobody comes into a place here: `admit` takes no job that survives losses. ValueError, always."""
        raise ValueError(f"worker {worker} of job {job} has not been evicted, or nobody may come in its place")

    def set_staleness(self, job: int, staleness: int) -> None:
        """Change S, up to what the rings are deep enough for."""
        placed = self.jobs[job]
        if not 0 <= staleness <= placed.spec.largest_staleness:
            raise ValueError(f"staleness = {staleness}; must be in 0..{placed.spec.largest_staleness} (max_staleness)")
        if staleness != placed.staleness and not self._deep:
            raise ConfigurationError("this program's rings are as deep as staleness says: it cannot change")
        placed.staleness = staleness
        self._link.write([job_entry(self._words, MODIFY, placed)])
        self._poke(placed)

    def next_event(self) -> SwitchEvent | None:
        """The oldest event that was not fetched yet, or None."""
        return self._events.popleft() if self._events else None

    # --- packets from the device ---

    def receive(self, packet: Any, now: float) -> None:
        """A PacketIn: HELLO or BYE of a worker, or what a parent says to its leaf; anything else is let go."""
        data, metadata = self._words.packet_in(packet)
        frame = read_frame(data)
        if frame is None:
            return
        try:
            message = wire.parse(frame.payload)
        except WireError:
            return
        if (leaf := self._leaf_of(frame.source, message)) is not None:
            self._from_parent(leaf, message, len(frame.payload), now)
            self.speak(now)
            return
        job = self.jobs.get(message.job)
        if job is None or message.kind not in (Kind.HELLO, Kind.BYE):
            return
        worker = Worker(frame.source, metadata["ingress_port"])
        reason = self._objection(job, message, len(frame.payload), worker)
        if reason is not None:
            job.refused[reason] += 1
            if reason in (Reason.TOKEN, Reason.EVICTED, Reason.STRANGER):
                words = np.array([job.lost, job.left], np.uint32)
                notice = _reply(message, Kind.NOTICE, contributors=reason, words=words)
                self._send(job, worker, frame.answered(notice.to_bytes()))
            return
        rank = message.worker
        if message.kind is Kind.HELLO and job.workers[rank] is None:
            self._register(job, rank, worker)
        job.heard[rank] = now
        if message.kind is Kind.HELLO:
            words = np.zeros(len(message.words), np.uint32)
            words[:2] = job.lost, job.left
            news = job.uplink.news or 0 if job.uplink is not None else 0
            welcome = _reply(message, Kind.WELCOME, bitmap=job.registered, contributors=news, words=words)
            self._send(job, worker, frame.answered(welcome.to_bytes()))
            if job.uplink is not None and job.registered == job.spec.full_mask:
                job.uplink.presence.start(now)
        else:
            self._send(job, worker, frame.answered(frame.payload))
            self._part(job, rank)
            if job.uplink is not None and job.left | job.lost == job.spec.full_mask:
                job.uplink.presence.leave(now)
        self.speak(now)

    def _objection(self, job: PlacedJob, packet: Packet, length: int, worker: Worker) -> Reason | None:
        """The rows of switch/switch_machine.py that the pipeline leaves to the controller."""
        rank = packet.worker
        if job.spec.checksum and not packet.flags & Flag.CHECKSUM:
            return Reason.CHECKSUM
        if packet.generation != job.spec.generation or rank >= job.spec.workers:
            return Reason.GENERATION
        if packet.codes or len(packet.words) < 2 or length > job.spec.packet_bytes:
            return Reason.LENGTH
        known = job.workers[rank] == worker
        token = int(packet.words[0]) << 32 | int(packet.words[1])
        if token != job.spec.tokens[rank] and not (job.adopted and known):
            return Reason.TOKEN
        if not job.live >> rank & 1:
            return Reason.EVICTED
        return Reason.STRANGER if job.workers[rank] is not None and not known else None

    def _register(self, job: PlacedJob, rank: int, worker: Worker) -> None:
        job.workers[rank] = worker
        self._link.write([*worker_entries(self._words, INSERT, job, rank, worker), *group_updates(self._words, job)])
        self._events.append(WorkerJoined(job.spec.job, rank))

    def _part(self, job: PlacedJob, rank: int) -> None:
        if job.left >> rank & 1:
            return
        job.left |= 1 << rank
        self._link.write([job_entry(self._words, MODIFY, job), *group_updates(self._words, job)])
        self._events.append(WorkerLeft(job.spec.job, rank))
        self._tell(job, Reason.WORKER_LEFT, SWITCH_WORKER, [worker for _, worker in job.audience])

    # --- a leaf and its parent ---

    def _leaf_of(self, source: Endpoint, message: Packet) -> PlacedJob | None:
        """The job here that a packet from `source` concerns."""
        about = source, message.job, message.generation
        leaves = (job for job in self.jobs.values() if job.uplink is not None and job.uplink.concerns(*about))
        return next(leaves, None)

    def _displace(self, uplink: LeafUplink) -> None:
        """A parent that was restarted uses an index again: its results are for the new job, not one that lingers."""
        for job in self.jobs.values():
            if job.uplink is not None and job.hears_parent and job.uplink.source() == uplink.source():
                self._link.write(parent_entry(self._words, DELETE, job))
                job.hears_parent = False

    def _from_parent(self, job: PlacedJob, message: Packet, length: int, now: float) -> None:
        assert job.uplink is not None
        objection, news = job.uplink.receive(message, length, now)
        if objection is not None:
            job.refused[objection] += 1
        self._tell_of_parent(job, news)

    def _tell_of_parent(self, job: PlacedJob, news: Reason | None) -> None:
        if news is not None:
            self._tell(job, news, SWITCH_WORKER, [worker for _, worker in job.audience])

    def speak(self, now: float) -> None:
        """Say HELLO or BYE to parents, where it is time to."""
        for job in self.jobs.values():
            if job.uplink is not None:
                for packet in job.uplink.packets_due(now):
                    frame = Frame(self._placement.endpoints[0], job.uplink.end, packet.to_bytes())
                    job.sent += 1
                    self._link.send(self._words.packet_out(frame.to_bytes(), egress_port=job.uplink.port))

    # --- time ---

    def next_timer(self) -> float | None:
        """When the next worker would count as lost, or a parent is to be spoken to; None when there is neither."""
        times = [at for job in self.jobs.values() for _, at in job.watched()]
        uplinks = (job.uplink for job in self.jobs.values() if job.uplink is not None)
        times += [at for uplink in uplinks if (at := uplink.presence.next_timer()) is not None]
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """Find the workers that have been silent for too long."""
        for job in self.jobs.values():
            silent = [rank for rank, at in job.watched() if at <= now]
            for rank in silent:
                job.lost |= 1 << rank
                self._events.append(WorkerSilent(job.spec.job, rank, now - job.heard[rank]))
            if silent:
                self._link.write([job_entry(self._words, MODIFY, job)])
                self._tell(job, Reason.WORKER_LOST, SWITCH_WORKER, [worker for _, worker in job.audience])
            if job.uplink is not None:
                if silent:
                    job.uplink.presence.leave(now)
                self._tell_of_parent(job, job.uplink.handle_timer(now))
        self.speak(now)

    # --- counts ---

    def counters(self, row: int | None = None) -> dict[str, int]:
        """What the pipeline has counted for one job, or, for None, in all; names as the software switch has them."""
        rows = range(self._rows) if row is None else (row,)
        jobs = [job for job in self.jobs.values() if row in (None, job.row)]
        return read_counters(self._link, self._words, rows, jobs)

    # --- entries ---

    def serve(self) -> None:
        """Tell the pipeline which addresses are the switch's own; what is there already stays."""
        for end in self._placement.endpoints:
            write_once(
                self._link, self._words.entry(INSERT, "services", {"address": end.address, "port": end.port}, "ours")
            )

    # --- packets to workers ---

    def _send(self, job: PlacedJob, worker: Worker, frame: Frame) -> None:
        job.sent += 1
        self._link.send(self._words.packet_out(frame.to_bytes(), egress_port=worker.port))

    def _tell(self, job: PlacedJob, reason: Reason, rank: int, audience: list[Worker]) -> None:
        """NOTICE on the switch's own account."""
        notice = Packet(
            kind=Kind.NOTICE,
            job=job.spec.job,
            worker=rank,
            flags=Flag.CHECKSUM if job.spec.checksum else Flag(0),
            generation=job.spec.generation,
            contributors=reason,
            words=np.array([job.lost, job.left], np.uint32),
        )
        for worker in audience:
            self._send(job, worker, Frame(self._placement.endpoints[0], worker.end, notice.to_bytes()))

    def _poke(self, job: PlacedJob) -> None:
        """Have every slot ask again whether its round can close; a poke moves its floor by one base at most."""
        end = self._placement.endpoints[0]
        for slot in range(job.spec.slots):
            poke = Packet(kind=Kind.CONTRIBUTION, job=job.spec.job, generation=job.spec.generation, slot=slot)
            message = self._words.packet_out(Frame(end, end, poke.to_bytes()).to_bytes(), poke=1)
            for _ in range(job.spec.history):
                self._link.send(message)


def write_once(link: Link, update: Any) -> None:
    """Write an entry that may be there already."""
    try:
        link.write([update])
    except RefusedError as error:
        if error.code.name != "ALREADY_EXISTS":
            raise


def _first_fit(held: list[tuple[int, int]], size: int, total: int) -> int | None:
    """Where a range of that size fits between those that are held; None if nowhere."""
    start = 0
    for begin, length in sorted(held):
        if start + size <= begin:
            break
        start = begin + length
    return start if start + size <= total else None


def _reply(packet: Packet, kind: Kind, **changes: Any) -> Packet:
    """A packet to the sender of `packet`: same job, worker, generation, slot and base; a checksum if that had one."""
    return Packet(
        kind=kind,
        job=packet.job,
        worker=packet.worker,
        flags=packet.flags & Flag.CHECKSUM,
        generation=packet.generation,
        slot=packet.slot,
        base=packet.base,
        **changes,
    )

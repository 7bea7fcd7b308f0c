"""Jobs on a programmable switch: the controller handles HELLO, BYE and silence, which a software switch does itself.

Rules
-----
* The pipeline keeps the slots and counters. The controller does what the pipeline cannot: registration by token,
  heartbeats, departures, and the table entries for all of these. Checks and replies are those of
  switch/machine/switch_machine.py.
* capacity.py has a program's capacity, allocation.py allocates it to jobs, placed_job.py has the state of a placed job.
* registration.py handles HELLO and BYE, controller_channel.py sends packets, job_counters.py reads counters.
* After a change of a closing condition (an eviction, another K or S) every slot is poked, if the program knows pokes.
* A leaf's pipeline contributes rounds to the parent by itself; leaf_uplink.py keeps the leaf registered there.
* No clock, no socket, no thread: time and the link are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fanin.errors import AdmissionError, ConfigurationError
from fanin.formats.frames import Endpoint, read_frame
from fanin.protocol import wire
from fanin.protocol.events import SwitchEvent, WorkerSilent
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.protocol.own_stops import OwnStops
from fanin.protocol.wire import Kind, Packet, Reason, WireError
from fanin.switch.machine.suspicion import stands
from fanin.switch.p4runtime.controller.allocation import place
from fanin.switch.p4runtime.controller.capacity import Capacity
from fanin.switch.p4runtime.controller.controller_channel import ControllerChannel
from fanin.switch.p4runtime.controller.job_counters import read_counters, reset_counters
from fanin.switch.p4runtime.controller.leaf_uplink import LeafUplink, ParentPort
from fanin.switch.p4runtime.controller.links import Link, RefusedError, write_once
from fanin.switch.p4runtime.controller.placed_job import (
    PlacedJob,
    group_updates,
    job_entry,
    uplink_entries,
    worker_entries,
)
from fanin.switch.p4runtime.controller.registration import Registration
from fanin.switch.p4runtime.controller.vocabulary import DELETE, INSERT, MODIFY, Vocabulary


@dataclass(frozen=True, slots=True)
class Placement:
    """The switch's addresses for workers, and its port towards a parent."""

    endpoints: tuple[Endpoint, ...]
    """Addresses for workers, one per flow. A device has one flow: each further one would be a job of its own."""
    parent_port: ParentPort = ParentPort()
    """Port towards a parent switch, if there is one."""


class JobControl:
    """All jobs of one device. Not thread safe."""

    def __init__(self, link: Link, vocabulary: Vocabulary, placement: Placement) -> None:
        """Read the program's capacity. ProgramError if it is not one of our programs."""
        self._link = link
        self._words = vocabulary
        self._placement = placement
        self.capacity = Capacity.of(vocabulary)
        self.jobs: dict[int, PlacedJob] = {}
        self._rows = 1
        """Number of rows of counters used so far, with row 0, which counts packets that belong to no job."""
        self._ended: dict[str, int] = {}
        """Counts of ended jobs whose rows were reset; they are added to totals, which only grow."""
        self._events: deque[SwitchEvent] = deque()
        self._stops = OwnStops()
        self._channel = ControllerChannel(link, vocabulary, placement.endpoints[0])
        self._registration = Registration(link, vocabulary, self._channel, self._events)

    # --- what the controller asks ---

    def admit(self, spec: JobSpec, parent: ParentRoute | None = None) -> None:
        """Put a job on the device; with `parent`, as a leaf's part, whose rounds close at the parent.

        AdmissionError if it does not fit now, ConfigurationError if it never can.
        """
        self.capacity.check(spec, at_leaf=parent is not None)
        job = place(spec, self.jobs.values(), self.capacity)
        if parent is not None:
            job.uplink = LeafUplink(spec, parent, self._placement.parent_port)
        if job.row < self._rows:
            self._add_to_ended(read_counters(self._link, self._words, (job.row,), ()))
        updates = reset_counters(self._words, job.row)
        try:
            self._link.write([*updates, job_entry(self._words, INSERT, job), *uplink_entries(self._words, INSERT, job)])
        except RefusedError as error:
            raise AdmissionError(f"the switch refused job {spec.job}: {error}") from None
        if self.capacity.cleans and self.capacity.depth is not None:
            job.unclean = {(slot, entry) for slot in range(spec.slots) for entry in range(self.capacity.depth)}
            self._channel.clean(job)
        self._keep(job)

    def take_over(self, jobs: Iterable[PlacedJob]) -> None:
        """Keep jobs that are on the device already."""
        for job in jobs:
            self._keep(job)

    def _keep(self, job: PlacedJob) -> None:
        self.jobs[job.spec.job] = job
        self._rows = max(self._rows, job.row + 1)
        self._look_at_own_watch()

    def _look_at_own_watch(self) -> None:
        self._stops.watch_every(min((job.spec.heartbeat_s for job in self.jobs.values()), default=None))

    def _turn(self, now: float) -> None:
        stopped_s = self._stops.turn(now)
        if stopped_s:
            for job in self.jobs.values():
                job.was_stopped(stopped_s, now)

    def remove(self, job: int) -> None:
        """Take a job off the device. KeyError for an unknown job."""
        placed = self.jobs.pop(job)
        self._add_to_ended(read_counters(self._link, self._words, (), (placed,)))
        self._look_at_own_watch()
        updates = [job_entry(self._words, DELETE, placed), *uplink_entries(self._words, DELETE, placed)]
        for rank, worker in enumerate(placed.workers):
            if worker is not None and placed.live >> rank & 1:
                updates += worker_entries(self._words, DELETE, placed, rank, worker)
        updates += [self._words.group(DELETE, number) for number in sorted(placed.groups)]
        self._link.write(updates)

    def suspect(self, job: int, worker: int, now: float) -> None:
        """Suspect a worker of having died: unless it says HELLO from now on, it is lost sooner."""
        placed = self.jobs[job]
        if not 0 <= worker < placed.spec.workers:
            raise KeyError(worker)
        if not stands(placed.heard[worker], placed.suspected.get(worker)):
            placed.suspected[worker] = now

    def suspect_parent(self, job: int, now: float) -> None:
        """Suspect a leaf's parent of having died: unless it is heard from now on, the branch is lost sooner."""
        if (uplink := self.jobs[job].uplink) is not None:
            uplink.presence.suspect(now)

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
            self._channel.tell(placed, Reason.EVICTED, worker, [gone])
        self._poke(placed)

    def set_quorum(self, job: int, quorum: int) -> None:
        """Change the quorum K of a job."""
        placed = self.jobs[job]
        if not 1 <= quorum <= placed.spec.workers:
            raise ValueError(f"quorum = {quorum}; must be in 1..{placed.spec.workers} (workers)")
        placed.quorum = quorum
        self._link.write([job_entry(self._words, MODIFY, placed)])
        self._poke(placed)

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """ValueError, always: `admit` refuses jobs that survive losses, so no place can be taken."""
        raise ValueError(f"worker {worker} of job {job} has not been evicted, or nobody may come in its place")

    def set_staleness(self, job: int, staleness: int) -> None:
        """Change the staleness S of a job, up to its max_staleness."""
        placed = self.jobs[job]
        if not 0 <= staleness <= placed.spec.max_staleness:
            raise ValueError(f"staleness = {staleness}; must be in 0..{placed.spec.max_staleness} (max_staleness)")
        if staleness != placed.staleness and self.capacity.depth is not None:
            raise ConfigurationError("this program's rings are as deep as staleness says: it cannot change")
        placed.staleness = staleness
        self._link.write([job_entry(self._words, MODIFY, placed)])
        self._poke(placed)

    def _poke(self, job: PlacedJob) -> None:
        if self.capacity.pokes:
            self._channel.poke(job)

    def next_event(self) -> SwitchEvent | None:
        """Take the oldest event that was not fetched yet; None without one."""
        return self._events.popleft() if self._events else None

    # --- packets from the device ---

    def receive(self, packet: Any, now: float) -> None:
        """Handle a PacketIn: HELLO or BYE of a worker, a message of a leaf's parent, or a returned cleaning packet."""
        self._turn(now)
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
        elif (job := self.jobs.get(message.job)) is None:
            return
        elif message.kind in (Kind.HELLO, Kind.BYE):
            self._registration.receive(job, message, frame, metadata["ingress_port"], now)
        elif frame.source == self._channel.end and message.generation == job.spec.generation:
            job.unclean.discard((message.slot, message.base))
        self.speak(now)

    # --- a leaf and its parent ---

    def _leaf_of(self, source: Endpoint, message: Packet) -> PlacedJob | None:
        """The leaf's job that a packet from its parent, at `source`, concerns; None without one."""
        about = source, message.job, message.generation
        leaves = (job for job in self.jobs.values() if job.uplink is not None and job.uplink.concerns(*about))
        return next(leaves, None)

    def _from_parent(self, job: PlacedJob, message: Packet, length: int, now: float) -> None:
        assert job.uplink is not None
        objection, news = job.uplink.receive(message, length, now)
        if objection is not None:
            job.refused[objection] += 1
        self._tell_of_parent(job, news)

    def _tell_of_parent(self, job: PlacedJob, news: Reason | None) -> None:
        if news is not None:
            self._channel.tell_all(job, news)

    def speak(self, now: float) -> None:
        """Send HELLO and BYE to parents when they are due."""
        self._turn(now)
        for job in self.jobs.values():
            if job.uplink is not None:
                for packet in job.uplink.packets_due(now):
                    self._channel.say_up(job, job.uplink.end, job.uplink.port, packet)

    # --- time ---

    def next_timer(self) -> float | None:
        """Time at which the next worker counts as lost, or a message to a parent is due; None without either."""
        times = [at for job in self.jobs.values() for _, at in job.watched()]
        if times and self._stops.due_at is not None:
            times.append(self._stops.due_at)
        uplinks = (job.uplink for job in self.jobs.values() if job.uplink is not None)
        times += [at for uplink in uplinks if (at := uplink.presence.next_timer()) is not None]
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """Report workers that have been silent for too long, and run the timers of uplinks."""
        self._turn(now)
        for job in self.jobs.values():
            silent = [rank for rank, at in job.watched() if at <= now]
            for rank in silent:
                job.lost |= 1 << rank
                self._events.append(WorkerSilent(job.spec.job, rank, now - job.heard[rank]))
            if silent:
                self._link.write([job_entry(self._words, MODIFY, job)])
                self._channel.tell_all(job, Reason.WORKER_LOST)
            if job.uplink is not None:
                if silent:
                    job.uplink.presence.leave(now)
                self._tell_of_parent(job, job.uplink.handle_timer(now))
        self.speak(now)

    # --- counts ---

    def counters(self, row: int | None = None) -> dict[str, int]:
        """Counters of one row, or for None of all jobs ever, by the names of the software switch."""
        rows = range(self._rows) if row is None else (row,)
        jobs = [job for job in self.jobs.values() if row in (None, job.row)]
        counts = read_counters(self._link, self._words, rows, jobs)
        if row is None:
            for name, count in self._ended.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def _add_to_ended(self, counts: dict[str, int]) -> None:
        for name, count in counts.items():
            self._ended[name] = self._ended.get(name, 0) + count

    # --- entries ---

    def serve(self) -> None:
        """Write the entries that tell the pipeline the switch's own addresses; existing entries stay."""
        for end in self._placement.endpoints:
            write_once(
                self._link, self._words.entry(INSERT, "services", {"address": end.address, "port": end.port}, "ours")
            )

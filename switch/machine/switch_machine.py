"""The switch machine, readable: packets in, packets out, no socket, no clock.

It is the readable twin of native/machine/switch_machine.cpp.

Rules
-----
A datagram passes the checks of this table from top to bottom; the first check that fails drops it. `notice` means that
the source is told why with a NOTICE. A switch sends nothing else to an unknown source, apart from the ECHO of a probe,
and a NOTICE is at most 8 bytes longer than the datagram. All other refused datagrams are counted and ignored.

    kinds                check                                               reason         notice
    -------------------  --------------------------------------------------  -------------  ------------------------
    all                  fanin.protocol.wire.parse                           its own        VERSION from a worker
    PROBE                (sent back as ECHO; nothing more to check)
    all                  kind is CONTRIBUTION, HELLO or BYE                  KIND
    all                  a job with this index is admitted                   UNKNOWN_JOB    yes
    all                  carries a checksum if the job asks for it           CHECKSUM
    all                  generation is the job's                             GENERATION     yes
    all                  worker < N                                          WORKER_RANGE
    all                  the keyed tag holds, if the job has a data key      TAG
    HELLO, BYE           no codes, two words or more, <= packet_bytes        LENGTH
    HELLO, BYE           token (words 0, 1) is the worker's                  TOKEN          yes
    all                  worker is not evicted                               EVICTED        yes
    HELLO, BYE           the worker has no other address                     STRANGER       yes
    CONTRIBUTION         the source is the worker's address                  STRANGER       yes
    HELLO                in a job with keyed tags: newer than the last one   ANCIENT
    CONTRIBUTION         shape fits the job: codes 0 or all, words that fit  LENGTH
                         the packet; a pass has neither. With lanes: the
                         job has accumulators, the result fits, and only
                         of a branch they have a shift. A branch says no
                         more contributors than a tree may have workers
    CONTRIBUTION         slot < slots                                        SLOT_RANGE
    CONTRIBUTION         (a pass of base MAX_BASE asks where its worker
                         stands: answered by a bare ANSWER of that base)
    CONTRIBUTION         fanin.switch.machine.slot_machine                   FUTURE, ANCIENT
                                                                             MISMATCH       MISMATCH only

In a job with keyed tags (fanin/protocol/packet_tag.py) what is sent is tagged, too, but for NOTICE(GENERATION), whose
receiver has another key. STRANGER is told to nobody there: somebody who repeats a HELLO would be given a NOTICE that
ends its worker. A tag holds for ever, so that only HELLO, BYE and contributions that count are signs of life, and no
HELLO is one twice. Nobody is answered with more bytes than came in, a NOTICE's 8 aside.

Effects: HELLO registers the source, BYE marks the worker left, a contribution goes to its slot (R-SLOT,
slot_machine.py) and may bring a receipt (R-RECEIPT). Silence, suspicion and newcomers are R-MEMBER; all of them in
docs/protocol.md. A job with an uplink is one at a leaf: what comes from the parent is for leaf_side.py.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from fanin.errors import AdmissionError
from fanin.numerics.lanes import WORD_BITS
from fanin.protocol import wire
from fanin.protocol.ecn import Capable, Marked
from fanin.protocol.events import BranchNarrowed, SwitchEvent, WorkerJoined, WorkerLeft, WorkerSilent
from fanin.protocol.job import MAX_TREE_WORKERS, SWITCH_QUEUE_BYTES, SWITCH_QUEUE_DATAGRAMS, JobSpec, Uplink
from fanin.protocol.own_stops import OwnStops
from fanin.protocol.timers import measures
from fanin.protocol.wire import (
    HELLO_RUNS,
    MAX_BASE,
    RECEIPT_MARKED,
    RECEIPT_REPEATED,
    SWITCH_WORKER,
    TOLD_BY_NOTICE,
    Flag,
    Kind,
    Packet,
    Reason,
    WireError,
)
from fanin.switch.machine.leaf_side import LeafSide
from fanin.switch.machine.member_tally import NEVER_S
from fanin.switch.machine.slot_machine import Answer, Contribution, ContributionHeader, Round, Verdict
from fanin.switch.machine.suspicion import stands
from fanin.switch.machine.switch_job import SwitchJob
from fanin.switch.machine.tally import Tally

FROM_WORKERS = (Kind.CONTRIBUTION, Kind.HELLO, Kind.BYE)
REFUSALS = {Verdict.FUTURE: Reason.FUTURE, Verdict.ANCIENT: Reason.ANCIENT, Verdict.MISMATCH: Reason.MISMATCH}


class SwitchMachine:
    """Jobs, registration, packets, liveness and counters around the slots. Not thread safe."""

    job_type: type[SwitchJob] = SwitchJob
    """Class of the jobs; the simulator's canaries override it by one whose slots have planted defects."""

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes` bounds the memory of all pools together (JobSpec.pool_bytes each)."""
        self._memory_bytes = memory_bytes
        self._jobs: dict[int, SwitchJob] = {}
        self._leaf = LeafSide(self._put, self._tell, self._multicast)
        self._past = Tally()  # counts of packets for no job, and of removed jobs
        self._queue: list[tuple[bytes, tuple[int, ...]]] = []
        self._queue_bytes = 0
        self._run: tuple[int, Packet] | None = None
        """Position in the queue of the latest bare result, or run of bare results, and its packet."""
        self._events: deque[SwitchEvent] = deque()
        self._stops = OwnStops()

    # --- what the controller asks ---

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None:
        """Admit a part of a job whose rounds close at the parent. AdmissionError as for `admit`."""
        self.admit(spec)
        self._jobs[spec.job] = job = self.job_type(spec, uplink)
        self._leaf.add(job, uplink)

    def admit(self, spec: JobSpec) -> None:
        """Admit a job. AdmissionError if its index is taken or its pool does not fit into the free memory."""
        if spec.job in self._jobs:  # packets name a job by its index alone
            raise AdmissionError(f"job index {spec.job} is taken at this switch; the controller must choose another")
        free = self._memory_bytes - sum(job.spec.pool_bytes for job in self._jobs.values())
        if spec.pool_bytes > free:
            raise AdmissionError(
                f"job {spec.job} needs {spec.pool_bytes} bytes of switch memory and {free} of {self._memory_bytes} are "
                "free; ask for fewer slots, end another job or give the switch more memory"
            )
        self._jobs[spec.job] = self.job_type(spec)
        self._watch_own_stops()

    def remove(self, job: int) -> None:
        """Forget a job and free its memory. This and all methods below raise KeyError for an unknown job."""
        gone = self._jobs.pop(job)
        self._run = None
        self._past.add(gone.tally)
        if gone.uplink is not None:
            self._leaf.remove(gone.uplink.uplink)
        self._watch_own_stops()

    def _watch_own_stops(self) -> None:
        self._stops.watch_every(min((job.spec.heartbeat_s for job in self._jobs.values()), default=None))

    def evict(self, job: int, worker: int, now: float) -> None:
        """Take a worker out of the full mask; rounds that waited for it alone close. Evicting again does nothing."""
        state = self._jobs[job]
        if not 0 <= worker < state.spec.workers:
            raise KeyError(worker)
        state.expected &= ~(1 << worker)  # R-MEMBER-13: a newcomer that has not come yet may no longer enter either
        if state.evicted(worker):
            return
        source = state.sources[worker]
        news = Reason.WORKER_LEFT if state.left >> worker & 1 else Reason.WORKER_LOST
        state.config.live &= ~(1 << worker)
        state.lost &= state.config.live
        state.left &= state.config.live
        if source is not None:  # a worker that never registered has no address
            self._tell(state, Reason.EVICTED, worker, (source,))
        if state.spec.survives_loss:  # R-MEMBER-12
            state.changes += 1
            self._tell(state, news, SWITCH_WORKER, state.audience)
        self._poke(state)

    def suspect(self, job: int, worker: int, now: float) -> None:
        """Suspect a worker of having died: it is lost after SUSPICION_TIMEOUT_S unless a packet of it comes.

        The caller reads `next_timer` again. An earlier suspicion that still stands keeps its time.
        """
        state = self._jobs[job]
        if not 0 <= worker < state.spec.workers:
            raise KeyError(worker)
        if not stands(state.heard[worker], state.suspected[worker]):  # R-MEMBER-7: a second one must not delay the loss
            state.suspected[worker] = now

    def suspect_parent(self, job: int, now: float) -> None:
        """Suspect the parent of a leaf's part of having died: the branch is lost unless the parent is heard soon."""
        if (uplink := self._jobs[job].uplink) is not None:
            uplink.suspect(now)

    def overdue(self, now: float) -> list[int]:
        """Addresses of the workers that `handle_timer` would count as lost now, so that the driver can object.

        A driver that knows one to be alive calls `sign_of_life`.
        """
        return [
            source
            for _, job in sorted(self._jobs.items())
            for worker, at in job.watched()
            if at <= now and (source := job.sources[worker]) is not None
        ]

    def sign_of_life(self, source: int, now: float) -> None:
        """Count the workers at that address as heard now, although no packet came from them."""
        for job in self._jobs.values():
            for worker, _ in job.watched():
                if job.sources[worker] == source:
                    job.heard[worker] = now

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Open an evicted worker's place to a new process, which registers with `token`. ValueError for a live one."""
        state = self._jobs[job]
        if not 0 <= worker < state.spec.workers:
            raise KeyError(worker)
        # R-MEMBER-13: a live worker's place is not free.
        if not state.spec.survives_loss or not state.evicted(worker):
            raise ValueError(f"worker {worker} of job {job} has not been evicted, or nobody may come in its place")
        state.expect(worker, token)

    def set_quorum(self, job: int, quorum: int, now: float) -> None:
        """Change K; rounds that have enough arrivals now, and that the staleness bound allows to close, close."""
        state = self._jobs[job]
        if not 1 <= quorum <= state.spec.workers:  # with K = 0, empty rounds would close without end
            raise ValueError(f"quorum = {quorum}; must be in 1..{state.spec.workers} (workers)")
        state.config.quorum = quorum
        self._poke(state)

    def set_staleness(self, job: int, staleness: int, now: float) -> None:
        """Change S, up to the job's S_max; rounds that only the old bound kept open close."""
        state = self._jobs[job]
        if not 0 <= staleness <= state.spec.max_staleness:  # rings and lanes were sized for S_max
            raise ValueError(
                f"staleness = {staleness}; must be in 0..{state.spec.max_staleness} (the job's max_staleness)"
            )
        state.config.staleness = staleness
        self._poke(state)

    def jobs(self) -> list[int]:
        """Indices of the jobs that are admitted, in ascending order."""
        return sorted(self._jobs)

    def members(self, job: int) -> tuple[int, int, int]:
        """Bit masks of the registered, lost and left workers; evicted workers are in none."""
        state = self._jobs[job]
        return state.registered, state.lost, state.left

    def counters(self) -> dict[str, int]:
        """Counters since the machine was created, removed jobs included."""
        total = Tally()
        for tally in (self._past, *(job.tally for job in self._jobs.values())):
            total.add(tally)
        return total.as_dict()

    def job_counters(self, job: int) -> dict[str, int]:
        """Counters of one job: of packets that pass the row UNKNOWN_JOB of the table."""
        found = self._jobs[job]
        last = {f"last_arrivals_{worker}": count for worker, count in enumerate(found.last_arrivals)}
        return found.tally.as_dict() | last

    def member_counters(self, job: int) -> list[dict[str, int]]:
        """Counters of each worker of one job."""
        found = self._jobs[job]
        return [member.as_dict(came) for member, came in zip(found.members, found.arrivals, strict=True)]

    # --- the five verbs ---

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Handle a datagram with any bytes from any source; malformed ones are counted and never raise."""
        self._turn(now)
        try:
            packet = wire.parse(data)
        except WireError as error:
            _count_in(self._past, data)
            self._past.dropped[error.reason] += 1
            # Other malformed datagrams get no reply.
            if error.reason is Reason.VERSION and _read(data, wire.OFFSET_KIND, 1) in (*FROM_WORKERS, Kind.PROBE):
                self._refuse_version(data, source)
            return
        if (part := self._leaf.find(source, packet)) is not None:  # from the parent, whose indices are its own
            self._leaf.receive(part, packet, data, now)
            return
        job = self._jobs.get(packet.job) if packet.kind in FROM_WORKERS else None
        tally = self._past if job is None else job.tally
        _count_in(tally, data)
        if packet.kind is Kind.PROBE:  # the ECHO belongs to no job and is as long as the PROBE
            self._send(tally, dataclasses.replace(packet, kind=Kind.ECHO).to_bytes(), (source,))
        elif packet.kind not in FROM_WORKERS:
            tally.dropped[Reason.KIND] += 1
        elif job is None:
            self._refuse(self._past, None, Reason.UNKNOWN_JOB, packet, source)
        else:
            self._receive(job, packet, data, source, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        """Take all datagrams that wait to be sent, in order, as (bytes, address)."""
        self._turn(now)
        self._leaf.speak(now)
        queue, self._queue, self._queue_bytes, self._run = self._queue, [], 0, None
        return [(data, destination) for data, destinations in queue for destination in destinations]

    def next_timer(self) -> float | None:
        """Time at which `handle_timer` is due: when the next worker counts as lost, and often enough to notice stops
        of this process. None: nobody to watch."""
        times = [at for job in self._jobs.values() for _, at in job.watched()]
        if times and self._stops.due_at is not None:  # R-MEMBER-8: late turns reveal a stop
            times.append(self._stops.due_at)
        for job in self._jobs.values():
            if job.uplink is not None:
                times += [at for at in (job.uplink.next_timer(), job.ascents.next_timer()) if at is not None]
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """Report workers that have been silent for too long, and run the timers of uplinks."""
        self._turn(now)
        for _, job in sorted(self._jobs.items()):
            silent = [worker for worker, at in job.watched() if at <= now]
            for worker in silent:  # R-MEMBER-6: lost; only the controller evicts
                job.lost |= 1 << worker
                self._events.append(WorkerSilent(job.spec.job, worker, now - job.heard[worker]))
            if silent:  # one NOTICE for all of them
                self._tell(job, Reason.WORKER_LOST, SWITCH_WORKER, job.audience)
            if job.uplink is not None:
                if silent:  # the leaf can complete no more rounds, so that the parent must not wait for it
                    job.uplink.leave(now)
                news = job.uplink.handle_timer(now)
                if news is not None and job.uplink.narrowed is not None:
                    self._events.append(BranchNarrowed(job.spec.job, *job.uplink.narrowed))
                self._leaf.tell(job, news)

    def next_event(self) -> SwitchEvent | None:
        """Take the oldest event that was not fetched yet; None without one."""
        return self._events.popleft() if self._events else None

    def _turn(self, now: float) -> None:
        stopped_s = self._stops.turn(now)
        if stopped_s:  # R-MEMBER-8
            for job in self._jobs.values():
                job.was_stopped(stopped_s, now)

    # --- packets of a job ---

    def _receive(self, job: SwitchJob, packet: Packet, data: bytes, source: int, now: float) -> None:
        reason = self._objection(job, packet, data, source)
        if reason is not None:
            self._refuse(job.tally, job, reason, packet, source)
            return
        worker = packet.worker
        joined = packet.kind is Kind.HELLO and job.sources[worker] is None
        enters = joined and bool(job.expected >> worker & 1)
        if joined:  # R-MEMBER-2: from here on another address is a stranger
            job.sources[worker] = source
            job.arrivals[worker].restart()
            job.marked &= ~(1 << worker)
            self._events.append(WorkerJoined(job.spec.job, worker))
        if enters:  # R-MEMBER-13: live from its HELLO on
            job.enter(worker)
            self._tell(job, Reason.WORKER_JOINED, SWITCH_WORKER, job.audience)
        # A tagged contribution is a sign of life only where it counts (_contribute): anybody can replay an old one.
        if not job.tagged or packet.kind is not Kind.CONTRIBUTION:
            job.heard[worker] = now
        if packet.kind is Kind.HELLO:  # R-MEMBER-3
            job.hellos[worker] = packet.slot + 1  # a replay of this HELLO is ANCIENT from here on
            # Runs need a synchronous job: all contribute to every round, in order, so that the bitmaps of its results
            # are equal and no pass has to be answered at once.
            runs = job.spec.synchronous and bool(packet.bitmap & HELLO_RUNS)
            job.takes_runs = job.takes_runs & ~(1 << worker) | runs << worker
            self._welcome(job, packet, source)
            # A leaf joins its parent's job when all of its own workers are registered.
            if job.uplink is not None and job.registered == job.spec.full_mask:
                job.uplink.start(now)
        elif packet.kind is Kind.BYE:  # R-MEMBER-4
            self._part(job, worker, data, source)
            if job.uplink is not None and job.left | job.lost == job.spec.full_mask:  # and leaves when all are gone
                job.uplink.leave(now)
        else:
            job.marked |= isinstance(data, Marked) << worker
            job.members[worker].marks += isinstance(data, Marked)
            job.members[worker].bytes_in += len(data)
            self._contribute(job, packet, source, now)

    def _objection(self, job: SwitchJob, packet: Packet, data: bytes, source: int) -> Reason | None:
        """The rows of the table from CHECKSUM to STRANGER."""
        spec, worker = job.spec, packet.worker
        # The job's checksum is required, since damage may also clear the flag.
        if spec.checksum and not packet.flags & Flag.CHECKSUM:
            return Reason.CHECKSUM
        if packet.generation != spec.generation:  # for an earlier job with this index
            return Reason.GENERATION
        if worker >= spec.workers:  # checked before the number indexes any list
            return Reason.WORKER_RANGE
        if not job.keys.holds(data, worker):  # before anything is believed
            return Reason.TAG
        if packet.kind is not Kind.CONTRIBUTION:
            if packet.codes or len(packet.words) < 2 or len(data) > spec.packet_bytes:
                return Reason.LENGTH
            if int(packet.words[0]) << 32 | int(packet.words[1]) != job.tokens[worker]:
                return Reason.TOKEN
        if job.evicted(worker):  # R-MEMBER-13: until a new process has its place
            return Reason.EVICTED
        # R-MEMBER-2: the token alone is not enough, since anybody may have read it.
        strange = job.sources[worker] != source
        if strange and (packet.kind is Kind.CONTRIBUTION or job.sources[worker] is not None):
            return Reason.STRANGER
        # R-MEMBER-3: a tag is valid for ever, so that an old HELLO may be replayed.
        if job.tagged and packet.kind is Kind.HELLO and packet.slot < job.hellos[worker]:
            return Reason.ANCIENT
        return None

    def _welcome(self, job: SwitchJob, hello: Packet, source: int) -> None:
        words = np.zeros(len(hello.words), np.uint32)
        words[:2] = job.lost, job.left
        news = (job.uplink.news if job.uplink is not None else None) or 0
        welcome = hello.reply(
            Kind.WELCOME, signature=job.changes, bitmap=job.registered, contributors=news, words=words
        )
        if job.takes_runs >> hello.worker & 1:  # other workers may not know that flag
            welcome = dataclasses.replace(welcome, flags=welcome.flags | Flag.RUN)
        self._send(job.tally, job.keys.finish(welcome.to_bytes()), (source,))

    def _part(self, job: SwitchJob, worker: int, bye: bytes, source: int) -> None:
        self._send(job.tally, job.keys.finish(bytes(bye)), (source,))
        if not job.left >> worker & 1:  # R-MEMBER-4: a repeated BYE is echoed, and no event
            job.left |= 1 << worker & job.config.live
            self._events.append(WorkerLeft(job.spec.job, worker))
            # A newcomer that gives up before it has entered is not live, so that nobody need be told.
            if job.left >> worker & 1:
                self._tell(job, Reason.WORKER_LEFT, SWITCH_WORKER, job.audience)

    def _contribute(self, job: SwitchJob, packet: Packet, source: int, now: float) -> None:
        spec, tally = job.spec, job.tally
        passes = Flag.PASS in packet.flags
        fits = len(packet.codes) in (0, spec.codes_per_packet) and len(packet.words) <= spec.words_per_packet
        late = Flag.LATE in packet.flags
        if packet.lanes is not None:  # only leaves send shifted lanes
            fits &= spec.accumulators and (spec.branches or not packet.lanes.shift)
            fits &= packet.lanes.result_words(len(packet.words)) <= spec.words_per_packet
        fits &= packet.run == 1 or spec.synchronous
        fits &= not spec.branches or packet.contributors <= MAX_TREE_WORKERS
        if not fits or (passes and (packet.codes or len(packet.words))) or (late and not passes):
            tally.dropped[Reason.LENGTH] += 1
            return
        if packet.slot >= spec.slots:  # no such registers
            tally.dropped[Reason.SLOT_RANGE] += 1
            return
        if passes and packet.base == MAX_BASE:  # R-MEMBER-14
            self._tell_where(job, packet, source)
            return
        holds = max(packet.contributors, 1) if spec.branches else 1
        given = None if passes else Contribution(packet.words, packet.codes, packet.signature, holds, packet.lanes)
        header = ContributionHeader(late, Flag.BARE in packet.flags, packet.signature)
        # A run of passes gets at most one reply, since it is as long as one pass. A worker that lacks a result asks
        # with a single pass.
        owed: tuple[Packet, bool] | None = None
        member = job.members[packet.worker]
        for index in range(packet.run):
            each = packet.part(index, spec.slots) if packet.run > 1 else packet
            outcome = job.slot(each.slot).contribute(each.worker, each.base, given, header)
            repeated = outcome.verdict is Verdict.DUPLICATE
            if outcome.verdict is Verdict.ACCEPTED:
                tally.contributions += not passes
                tally.passes += passes
                job.heard[each.worker] = now
                member.contributions += 1
                if outcome.answer is None:  # late contributions get an answer, and no round waited for them
                    completes = outcome.closed is not None or outcome.ascends
                    member.accepted(job.times[each.slot], now, completes=completes)
            elif repeated:
                tally.duplicates += 1
                lost_down = outcome.answer is not None and packet.run == 1
                member.asked_again += lost_down
                member.repeated += not lost_down
            else:
                self._refuse(tally, job, REFUSALS[outcome.verdict], each, source)
                if outcome.verdict is Verdict.MISMATCH:  # the rest of the run has the same signature
                    return
                continue
            member.spoke(now)
            # R-LEAF-2: a worker's repetition may send the leaf's round again, since the leaf has no timer.
            if outcome.ascends and not repeated:
                job.ascents.complete(each.slot, each.base)
            ascends = outcome.ascends and (not repeated or job.ascents.asked(each.slot, now))
            if each.bitmap:  # R-RECEIPT-9
                arrivals = job.arrivals[each.worker]
                uncovers = arrivals.take(each.bitmap)
                # R-RECEIPT-2, R-RECEIPT-3, R-RECEIPT-4 and R-RECEIPT-6, in this order.
                due = (uncovers or arrivals.incomplete or repeated or measures(each.bitmap)) and not ascends
                # R-RECEIPT-7: an answer acknowledges as well, and so will the parent's result. R-RECEIPT-5: neither
                # reports marks, and a worker that is always the last one at its leaf would never be told of them.
                if outcome.answer is None and (due or job.marked >> each.worker & 1):
                    owed = each, repeated
            if owed is not None and index + 1 == packet.run:  # before the result, so as not to queue behind it
                self._receipt(job, *owed, source)
            if outcome.closed is not None:
                job.last_arrivals[each.worker] += 1
                job.times[each.slot].closed_s = now
                self._multicast(job, each.slot, *outcome.closed)
            if outcome.answer is not None and packet.run == 1:  # R-SLOT-3, R-SLOT-12
                self._answer(job, each, outcome.answer, source)

    def _poke(self, job: SwitchJob) -> None:
        for index, slot in sorted(job.slots.items()):
            closed = slot.poke()
            if closed is not None:
                job.times[index].arrived_s = NEVER_S
                self._multicast(job, index, *closed)
            if slot.complete:  # R-LEAF-1: an eviction may complete a leaf's round
                job.ascents.complete(index, slot.open)

    # --- what is sent ---

    def _multicast(self, job: SwitchJob, slot: int, number: int, result: Round) -> None:
        job.tally.rounds += 1
        job.parities[slot // WORD_BITS] ^= np.uint32(1 << slot % WORD_BITS)
        whole = _result(job.spec, Kind.RESULT, SWITCH_WORKER, slot, number, result)
        # R-SLOT-16: the whole result goes to workers that keep words, a bare one to the others.
        keepers, others = job.audience_but(result.bare if len(whole.words) else 0)
        self._send(job.tally, job.keys.finish(whole.to_bytes()), keepers)
        if others:
            bare = _bare(_result(job.spec, Kind.RESULT, SWITCH_WORKER, slot, number, result.without_words()))
            if job.runs(result.bare):  # all receivers get the same datagram, so that all must accept runs
                self._send_in_run(job, bare, others)
            else:
                self._send(job.tally, job.keys.finish(bare.to_bytes()), others)

    def _send_in_run(self, job: SwitchJob, bare: Packet, others: tuple[int, ...]) -> None:
        """Queue a bare result; if it continues the latest bare one still queued for these workers, as a run with it."""
        if self._run is not None:
            place, before = self._run
            data, destinations = self._queue[place]
            longer = before.followed_by(bare, job.spec.slots) if destinations == others else None
            if longer is not None:  # the datagram in the queue becomes one item longer
                run = job.keys.finish(longer.to_bytes())
                self._queue[place], self._run = (Capable(run), others), (place, longer)
                self._queue_bytes += len(run) - len(data)
                job.tally.bytes_out += (len(run) - len(data)) * len(others)
                return
        if self._send(job.tally, job.keys.finish(bare.to_bytes()), others):
            self._run = len(self._queue) - 1, bare

    def _answer(self, job: SwitchJob, packet: Packet, answer: Answer, source: int) -> None:
        job.tally.answers += 1
        full = _result(job.spec, Kind.ANSWER, packet.worker, packet.slot, answer.base, answer.result)
        full = dataclasses.replace(full, bitmap=answer.bitmap)
        if Flag.BARE in packet.flags and len(full.words):  # R-SLOT-16: the asker keeps no words
            full = _bare(dataclasses.replace(full, words=wire.no_words(), lanes=None))
        asked_bytes = wire.datagram_bytes(len(packet.codes), len(packet.words))
        if wire.datagram_bytes(len(full.codes), len(full.words)) > asked_bytes:  # else forged sources could amplify
            bare = _bare(dataclasses.replace(packet.reply(Kind.ANSWER, bitmap=answer.bitmap), flags=full.flags))
            self._send(job.tally, job.keys.finish(bare.to_bytes()), (source,))
            return
        self._send(job.tally, job.keys.finish(full.to_bytes()), (source,))

    def _receipt(self, job: SwitchJob, packet: Packet, repeated: bool, source: int) -> None:
        """Send the worker a receipt of its transmissions, in reply to this one."""
        job.tally.receipts += 1
        arrivals = job.arrivals[packet.worker]
        asked_bytes = wire.datagram_bytes(len(packet.codes), len(packet.words))
        # R-RECEIPT-8: with staleness, one bit cannot tell which round is the worker's.
        tells = job.spec.max_staleness == 0 and wire.datagram_bytes(0, len(job.parities)) <= asked_bytes
        receipt = packet.reply(
            Kind.RECEIPT,
            signature=arrivals.highest,
            bitmap=arrivals.received,
            contributors=repeated * RECEIPT_REPEATED + (job.marked >> packet.worker & 1) * RECEIPT_MARKED,
            words=job.parities.copy() if tells else np.zeros(0, np.uint32),
        )
        above_us = job.ascents.round_trip_us  # R-LEAF-9
        receipt = dataclasses.replace(receipt, slot=packet.bitmap, base=above_us)
        job.marked &= ~(1 << packet.worker)
        self._send(job.tally, job.keys.finish(receipt.to_bytes()), (source,))

    def _tell_where(self, job: SwitchJob, packet: Packet, source: int) -> None:
        """Send the base that the worker has to contribute next, as a bare answer that acknowledges nothing."""
        job.tally.answers += 1
        base = job.slot(packet.slot).stands(packet.worker)
        answer = dataclasses.replace(packet.reply(Kind.ANSWER), base=base, flags=Flag.BARE | _flags(job.spec))
        self._send(job.tally, job.keys.finish(answer.to_bytes()), (source,))

    def _refuse(self, tally: Tally, job: SwitchJob | None, reason: Reason, packet: Packet, source: int) -> None:
        """Count a drop, and send the source a NOTICE where the table says so."""
        tally.dropped[reason] += 1
        # Tagged NOTICEs go to registered addresses only: somebody who replays a worker's HELLO would otherwise be given
        # a NOTICE with which to end that worker.
        proved = job is not None and job.tagged and reason is not Reason.GENERATION
        if reason in TOLD_BY_NOTICE and not (proved and reason is Reason.STRANGER):
            words = np.array([job.lost, job.left] if job else [0, 0], np.uint32)
            notice = packet.reply(Kind.NOTICE, contributors=reason, words=words).to_bytes()
            tally.notices += 1
            self._send(tally, job.keys.finish(notice) if job is not None and proved else notice, (source,))

    def _refuse_version(self, data: bytes, source: int) -> None:
        """Send a NOTICE to a source of another version: in our format, with the numbers of its header."""
        packet = Packet(
            kind=Kind.NOTICE,
            job=_read(data, wire.OFFSET_JOB, 2),
            worker=_read(data, wire.OFFSET_WORKER, 1),
            flags=Flag(_read(data, wire.OFFSET_FLAGS, 1) & Flag.CHECKSUM),
            generation=_read(data, wire.OFFSET_GENERATION, 4),
            slot=_read(data, wire.OFFSET_SLOT, 4),
            base=_read(data, wire.OFFSET_BASE, 4),
            contributors=Reason.VERSION,
            words=np.zeros(2, np.uint32),
        )
        self._past.notices += 1
        self._send(self._past, packet.to_bytes(), (source,))

    def _tell(self, job: SwitchJob, reason: Reason, worker: int, audience: Sequence[int]) -> None:
        """Send workers a NOTICE that answers no packet."""
        notice = Packet(
            kind=Kind.NOTICE,
            job=job.spec.job,
            worker=worker,
            flags=_flags(job.spec),
            generation=job.spec.generation,
            signature=job.changes,
            bitmap=job.registered if job.spec.survives_loss else 0,
            contributors=reason,
            words=np.array([job.lost, job.left], np.uint32),
        )
        job.tally.notices += len(audience)
        self._send(job.tally, job.keys.finish(notice.to_bytes()), tuple(audience))

    def _send(self, tally: Tally, data: bytes, destinations: tuple[int, ...]) -> bool:
        """Queue an ECN-capable datagram to workers, which react to marks; return whether it was queued."""
        return self._put(tally, Capable(data), destinations)

    def _put(self, tally: Tally, data: bytes, destinations: tuple[int, ...]) -> bool:
        """Queue a datagram for each destination; return False, and count it as unsent, if the queue is full."""
        if not destinations:
            return False
        # The queue is bounded, so that memory does not grow if the driver does not send.
        if len(self._queue) >= SWITCH_QUEUE_DATAGRAMS or self._queue_bytes + len(data) > SWITCH_QUEUE_BYTES:
            tally.unsent += len(destinations)
            return False
        tally.packets_out += len(destinations)
        tally.bytes_out += len(data) * len(destinations)
        self._queue.append((data, destinations))
        self._queue_bytes += len(data)
        return True


def _count_in(tally: Tally, data: bytes) -> None:
    tally.packets_in += 1
    tally.bytes_in += len(data)


def _read(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "big")


def _flags(spec: JobSpec) -> Flag:
    return Flag.CHECKSUM if spec.checksum else Flag(0)


def _bare(packet: Packet) -> Packet:
    return dataclasses.replace(packet, flags=packet.flags | Flag.BARE)


def _result(spec: JobSpec, kind: Kind, worker: int, slot: int, number: int, result: Round) -> Packet:
    return Packet(
        kind=kind,
        job=spec.job,
        worker=worker,
        flags=_flags(spec),
        generation=spec.generation,
        slot=slot,
        base=number,
        signature=result.signature,
        bitmap=result.bitmap,
        contributors=result.contributors,
        codes=result.codes,
        words=result.words,
        lanes=result.lanes,
    )

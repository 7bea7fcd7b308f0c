"""The worker's end of the protocol: no socket, no clock, no thread.

It is the readable twin of native/machine/worker_machine.cpp.

Five verbs, with the time passed in as seconds of one monotonic clock. Call `datagrams_to_send` once to start and after
every other verb; hand over what has arrived before `handle_timer`; take events until there are none.

The rules are R-WORKER in docs/protocol.md. This file is packets and wiring; each part is one concept: presence.py (am I
a member, is the switch there: R-MEMBER), item_stream.py (which item may go), fanin/protocol/loss_recovery.py (which one
must go again: R-RECOVERY), fanin/protocol/congestion.py (whether there is room: R-CONGESTION), result_rows.py (what a
result brings: R-RESULT), operation.py (numbers and memory), scale_forecast.py (which scale is likely), catch_up.py (how
a `newcomer` gets in step: `Stands` says from which base on its reductions can begin, and `begin` that they do).

HELLO and its WELCOME measure the path, items the path and the peers; the retransmission timer learns from both.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import reduce
from operator import or_

import numpy as np

from fanin.host.machine.catch_up import CatchUp, Step
from fanin.host.machine.item_stream import ItemStream
from fanin.host.machine.operation import Operation
from fanin.host.machine.presence import Presence
from fanin.host.machine.result_rows import Deed, Fact, deed_for
from fanin.host.machine.scale_forecast import AGE_WORDS, NO_FORECAST, ScaleForecast
from fanin.numerics.fixed_point import Codes
from fanin.numerics.lanes import WORD_BITS, Words
from fanin.numerics.reduction import Reduction
from fanin.protocol.congestion import Congestion
from fanin.protocol.ecn import Capable, Marked
from fanin.protocol.events import ReductionDone, RoundHeard, Spoiled, Stands, WorkerEvent
from fanin.protocol.job import LEFT_MIN_TIMEOUTS, JobSpec
from fanin.protocol.keepalive import Phase
from fanin.protocol.loss_recovery import LossRecovery
from fanin.protocol.packet_tag import MemberKeys
from fanin.protocol.path_watch import PathWatch
from fanin.protocol.timers import measures
from fanin.protocol.wire import (
    HEADER_BYTES,
    HELLO_RUNS,
    ORDER_MASK,
    RECEIPT_MARKED,
    RECEIPT_REPEATED,
    SWITCH_WORKER,
    WORD_BYTES,
    Flag,
    Kind,
    Packet,
    Reason,
    WireError,
    datagram_bytes,
    parse,
)

NO_FLAGS = Flag(0)

SYNCHRONOUS_HISTORY = 2
"""H of a job without staleness."""
COUNTERS = (
    "packets_out", "packets_in", "bytes_out", "bytes_in", "retransmissions", "gaps", "timeouts", "results",
    "duplicates", "unacknowledged", "forecasts", "forecasts_missed", "receipts", "losses", "spurious", "paced", "marks",
    "path_questions",
)  # fmt: skip


class WorkerMachine:
    """One worker, one flow, one job. `switch` is the address that packets go to and must come from."""

    def __init__(
        self,
        spec: JobSpec,
        worker: int,
        *,
        switch: int,
        token: int,
        flow: int = 0,
        flow_count: int = 1,
        connect_timeout_s: float = 5.0,
        newcomer: bool = False,
    ) -> None:
        assert 0 <= worker < spec.workers, f"worker {worker} of {spec.workers}"
        assert 0 <= flow < flow_count, f"flow {flow} of {flow_count}"
        self._spec = spec
        self._worker = worker
        self._switch = switch
        self._keys = MemberKeys(spec.data_key, token, spec.tag)
        self._welcomes = 0
        """In a job with keyed tags: the least sequence number that the next WELCOME may have."""
        self._token = np.array([token >> 32, token & 0xFFFFFFFF], np.uint32)
        self._flow, self._flow_count = flow, flow_count
        self._events: deque[WorkerEvent] = deque()
        self._presence = Presence(spec, connect_timeout_s, self._events)
        self._path = PathWatch(spec.liveness_timeout_s)
        self._stream = ItemStream(spec.slots, spec.window_items)
        self._catch_up = CatchUp(spec.slots) if newcomer else None
        self._recovery = LossRecovery()
        self._congestion = Congestion(spec.slots, spec.packet_bytes)
        self._scales = ScaleForecast()
        self._accepted: set[int] = set()
        """Slots whose current contribution a bare ANSWER acknowledged."""
        self._closed = [0] * spec.slots
        """By slot: one past the newest round that is known to be over without this worker's contribution."""
        self._heard = 0
        """One past the newest round that RoundHeard told of."""
        self._moved_at = 0.0
        """When a result was last stored, or the first contribution sent after a pause."""
        self._place = spec.place(worker)
        """Place of this worker among all workers of the job."""
        self._tickets = 0
        self._runs = False
        """Whether the switch takes passes as runs."""
        self._has_receipts = False
        """Whether the switch gives receipts, which say whether contributions met congestion."""
        self._begun = False
        self._outstanding = 0
        self._counters: Counter[str] = Counter()

    # --- what the engine asks ---

    def submit(self, reduction: Reduction) -> int:
        """Take in a reduction and return its ticket (1, 2, ...). Its memory is the machine's until it is done or fails.

        Raises ConfigurationError for what would be computed wrongly, OverflowError when a slot has used up its bases,
        RuntimeError when the machine has failed or is leaving.
        """
        if not self._presence.joined:  # nothing would ever be written to its memory
            raise RuntimeError("this worker has failed or left: it takes no more reductions")
        if self._catch_up is not None and not self._begun:  # its first base is not known yet
            raise RuntimeError("this worker came into a running job: reductions begin after `begin`")
        operation = Operation(
            self._tickets + 1,
            reduction,
            self._spec,
            self._flow,
            self._flow_count,
            self._stream.end_item,
            self._place,
        )
        self._stream.append(operation)
        self._tickets += 1
        self._outstanding += 1
        if not operation.chunks:  # more flows than packets: this flow has no part in it, and no result will end it
            self._done(operation)
        return operation.ticket

    def leave(self, now: float) -> None:
        """Leave the job, giving up what is outstanding: BYE goes out until it is echoed or LEAVE_TIMEOUT_S pass."""
        self._presence.leave(now)

    def begin(self, base: int) -> None:
        """Reductions of a newcomer begin with `base`, which is no earlier than `Stands` said; it passes up to there."""
        assert self._catch_up is not None
        self._begun = True
        self._stream.begin(base)
        for slot in self._catch_up.begin(base):  # R-MEMBER-15: these stand there already
            self._stream.release(slot)
        self._end_catch_up()

    def outstanding(self) -> int:
        """Reductions that are submitted and not done."""
        return self._outstanding

    @property
    def _order(self) -> int:
        """Order number of the next contribution; 0 within one machine, where rings and sockets overtake each other."""
        return self._recovery.next_order & ORDER_MASK if self._congestion.shares else 0

    @property
    def ready(self) -> bool:
        """Whether the switch has welcomed this worker."""
        return self._presence.phase is Phase.MEMBER

    @property
    def failed(self) -> bool:
        """Whether WorkersGone, SwitchSilent or PacketRefused was reported: nothing is sent or written any more."""
        return self._presence.phase is Phase.FAILED

    def counters(self) -> dict[str, int]:
        """Totals since the start; srtt_us is the smoothed round trip in microseconds."""
        counts = {name: self._counters[name] for name in COUNTERS}
        counts["cuts"] = self._congestion.cuts
        counts["window"] = int(self._congestion.window)
        counts["path_suspected"] = int(self._path.suspects)
        counts["srtt_us"] = int(self._recovery.timer.smoothed_s * 1e6)
        for reason in Reason:
            counts[f"dropped_{reason.name.lower()}"] = self._counters[f"dropped_{reason.name.lower()}"]
        return counts

    # --- the five verbs ---

    def receive_datagram(self, data: bytes | bytearray | memoryview, source: int, now: float) -> None:
        """Handle a datagram with any bytes from any source; malformed ones are counted and never raise."""
        self._counters["packets_in"] += 1
        self._counters["bytes_in"] += len(data)
        self._counters["marks"] += isinstance(data, Marked)
        self._count_drop(self._receive(data, source, now))

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        """Take the datagrams to send now, each with its destination, which is always the switch."""
        datagrams: list[bytes] = []
        run: Packet | None = None  # the last datagram, if it is a pass that was not sent before, or several
        if self._presence.hello_due(now):
            questions = self._path_questions(now)
            datagrams.append(self._hello())
            self._presence.hello_sent(now)
            for size_bytes in questions:  # R-MEMBER-10: that they stay unanswered does not count as silence
                datagrams.append(self._hello(size_bytes))
                self._presence.probe_sent()
        if self._presence.bye_due(now):  # R-MEMBER-4
            datagrams.append(self._datagram(Kind.BYE, words=self._token))
            self._presence.bye_sent(now)
        # R-MEMBER-15, before contributions: a newcomer's slots take none until they are in step.
        while self._catching_up() and (slot := self._catch_up.take()) is not None:  # type: ignore[union-attr]
            base = self._catch_up.base_to_pass(slot)  # type: ignore[union-attr]
            passed = self._datagram(Kind.CONTRIBUTION, flags=Flag.PASS, slot=slot, base=base, bitmap=self._order)
            datagrams.append(passed)
            if not self._recovery.sent(slot, now):
                self._counters["retransmissions"] += 1
        while self._presence.phase is Phase.MEMBER and self._sendable():  # R-MEMBER-1: HELLO alone before WELCOME
            round_trip_s = self._congestion.paced_round_trip(self._recovery.timer.smoothed_s)
            slot = self._stream.next()
            assert slot is not None
            # R-CONGESTION-13: repetitions are not paced, as peers wait for them, and they replace packets that have
            # left the path. Nor are passes: they are tiny, and their results come at the pace of other workers.
            item = self._stream.current(slot)
            first = not self._recovery.was_sent(slot)
            paced = not (first and self._stream.operation(item).passes(item))
            if first and paced and not self._congestion.may_send(round_trip_s, now):  # R-CONGESTION-12
                self._counters["paced"] += 1
                break
            self._stream.take()
            contribution = self._contribution(item)
            # R-WORKER-9: what is missing goes again by itself, so that a loss costs one packet.
            longer = run.followed_by(contribution, self._spec.slots) if run and first and self._runs else None
            if longer:  # R-WORKER-9: the datagram before it becomes one item longer
                datagrams.pop()
            run = longer or (contribution if first and Flag.PASS in contribution.flags else None)
            datagram = self._keys.finish((longer or contribution).to_bytes())
            datagrams.append(Capable(datagram) if self._has_receipts else datagram)
            if paced:  # R-CONGESTION-13: repetitions count towards the pace, too
                self._congestion.sent(round_trip_s, now)
            if self._recovery.idle:  # waiting begins here: the pause before it counts against no departed peer
                self._moved_at = now
            if not self._recovery.sent(item % self._spec.slots, now):
                self._counters["retransmissions"] += 1
        self._congestion.limited = self._stream.next() is not None
        self._counters["packets_out"] += len(datagrams)
        self._counters["bytes_out"] += sum(map(len, datagrams))
        return [(datagram, self._switch) for datagram in datagrams]

    def next_timer(self) -> float | None:
        """Time at which `handle_timer` is due, and `datagrams_to_send` after it; None if nothing waits."""
        deadlines = [self._presence.next_timer()]
        if self._presence.phase is Phase.MEMBER:
            deadlines.append(self._recovery.deadline())
            if self._sendable():  # and the pace did not allow it
                deadlines.append(self._congestion.held_until)
            if self._waits_for_departed():  # R-MEMBER-5
                deadlines.append(self._presence.left_deadline(self._moved_at))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Send again what is due, and notice silence; a call before `next_timer` does nothing."""
        deadline = self._recovery.deadline()
        if self._presence.phase is Phase.MEMBER and deadline is not None and now >= deadline:
            for slot in self._recovery.take_due(now):  # R-RECOVERY-6
                self._counters["gaps"] += 1
                self._send_again(slot)
            expired = self._recovery.expire(now, self._stream.oldest_item % self._spec.slots)
            if expired is not None:  # R-RECOVERY-12
                slot, arrived = expired
                self._counters["timeouts"] += 1
                self._congestion.expired(arrived, self._recovery.next_order)
                self._send_again(slot)
        self._presence.handle_timer(now)
        # R-MEMBER-11: if nothing at all is answered, the switch is silent, and the length of packets is not the cause.
        if self._presence.phase is Phase.MEMBER and self._path.too_narrow(now) and self._presence.answered:
            self._presence.path_narrowed(self._path.needed_bytes, self._path.passes_bytes)
        if self._waits_for_departed():
            self._presence.peers_hold_up(self._moved_at, now)

    def next_event(self) -> WorkerEvent | None:
        """Take the oldest event that was not fetched yet; None without one."""
        return self._events.popleft() if self._events else None

    # --- packets in; each returns the reason for which the packet is dropped ---

    def _count_drop(self, reason: Reason | None) -> None:
        if reason is not None:
            self._counters[f"dropped_{reason.name.lower()}"] += 1

    def _receive(self, data: bytes | bytearray | memoryview, source: int, now: float) -> Reason | None:
        if source != self._switch:  # R-WORKER-4, from here on
            return Reason.STRANGER
        try:
            packet = parse(data)
        except WireError as error:
            if error.reason is Reason.VERSION:
                self._presence.other_version()
            return error.reason
        # The job's checksum is required, not only checked where present: damage may also clear the flag.
        if self._spec.checksum and not packet.flags & Flag.CHECKSUM:
            return Reason.CHECKSUM
        if packet.job != self._spec.job:  # another job of the same switch, from the same address
            return Reason.UNKNOWN_JOB
        if packet.generation != self._spec.generation:  # a packet of an earlier job that had the same index
            return Reason.GENERATION
        if packet.worker not in (self._worker, SWITCH_WORKER):  # another worker behind the same address
            return Reason.WORKER_RANGE
        if not self._keys.holds(data):  # before anything is believed
            return Reason.TAG
        match packet.kind:
            case Kind.RESULT | Kind.ANSWER:
                self._hear_switch(now)
                if packet.slot >= self._spec.slots:
                    return Reason.SLOT_RANGE
                for index in range(packet.run):
                    if self._presence.phase is not Phase.MEMBER:  # the one before may have ended this worker
                        break
                    part = packet.part(index, self._spec.slots) if packet.run > 1 else packet
                    self._count_drop(self._result(part, now, marked=isinstance(data, Marked)))
                return None
            case Kind.RECEIPT:
                self._hear_switch(now)
                if self._presence.phase is Phase.MEMBER:  # before that nothing was sent that could have arrived
                    self._receipt(packet, now, marked=isinstance(data, Marked))
                return None
            case Kind.WELCOME:
                return self._welcome(packet, len(data), now)
            case Kind.NOTICE:
                return self._notice(packet, now)
            case Kind.BYE:
                self._presence.departed()
                return None
            case _:
                return Reason.KIND

    def _hear_switch(self, now: float) -> None:
        """Count a sign of life of the switch, but not with keyed tags: these hold for ever, so it may be a replay."""
        if not self._spec.data_key:  # R-MEMBER-3
            self._presence.heard(now)

    def _welcome(self, packet: Packet, size_bytes: int, now: float) -> Reason | None:
        connecting = self._presence.phase is Phase.CONNECTING
        # R-MEMBER-1: connecting, only a WELCOME of full length counts: a shorter one does not show that the path
        # carries results.
        if len(packet.words) < 2 or (connecting and size_bytes != self._spec.packet_bytes):
            return Reason.LENGTH
        if self._spec.data_key:
            # R-MEMBER-3: a replay, or overtaken by a later WELCOME; its tag holds all the same.
            if packet.slot < self._welcomes:
                return Reason.ANCIENT
            self._welcomes = packet.slot + 1
        self._runs = Flag.RUN in packet.flags
        self._path.welcome(size_bytes)
        self._presence.heard(now)
        round_trip_s = self._presence.welcome(packet.slot, int(packet.words[0]), int(packet.words[1]), now)
        self._presence.members_are(packet.signature, packet.bitmap, self._stream.oldest_item // self._spec.slots)
        # Every WELCOME repeats what a NOTICE may have lost.
        if packet.contributors in (Reason.BRANCH_LOST, Reason.BRANCH_LEFT):
            self._presence.branch(Reason(packet.contributors), now)
        if round_trip_s is not None:  # else it answers an earlier HELLO, and nobody knows how long that took
            self._recovery.timer.sample(round_trip_s, idle=True)
            self._path_round_trip(round_trip_s, now)
        return None

    def _notice(self, packet: Packet, now: float) -> Reason | None:
        try:
            reason = Reason(packet.contributors)
        except ValueError:
            return Reason.KIND
        if reason is Reason.VERSION:  # the rest of its header may mean something else
            self._presence.other_version()
            return Reason.VERSION
        if reason is Reason.BRANCH_LEFT:
            self._hear_switch(now)
            self._presence.branch(reason, now)
        elif reason not in (Reason.WORKER_LOST, Reason.WORKER_LEFT, Reason.WORKER_JOINED):
            self._presence.refused(reason)
        elif len(packet.words) < 2:
            return Reason.LENGTH
        else:
            self._hear_switch(now)
            self._presence.peers_gone(int(packet.words[0]), int(packet.words[1]), now)
            self._presence.members_are(packet.signature, packet.bitmap, self._stream.oldest_item // self._spec.slots)
        return None

    def _path_round_trip(self, round_trip_s: float, now: float) -> None:
        self._congestion.path_round_trip(round_trip_s, now)
        self._recovery.timer.path_round_trip(round_trip_s)

    def _receipt(self, packet: Packet, now: float, *, marked: bool) -> None:
        """Take in a receipt: which transmissions have arrived, and whether the one that it answers was spurious."""
        repeated = bool(packet.contributors & RECEIPT_REPEATED)
        by_rota = not repeated and measures(packet.slot)
        lost, round_trip_s = self._recovery.receipt(
            packet.slot, packet.signature, packet.bitmap, now, measures=by_rota, spurious=repeated
        )
        self._congestion.heard()
        if round_trip_s is not None:
            round_trip_s += packet.base * 1e-6  # the round trip of the path above a leaf
            # R-CONGESTION-12: the pace does not follow round trips that are measured by rota.
            if by_rota:
                self._recovery.timer.path_round_trip(round_trip_s)
            else:
                self._path_round_trip(round_trip_s, now)
        self._counters["receipts"] += 1
        echoed = bool(packet.contributors & RECEIPT_MARKED)
        self._counters["marks"] += echoed
        self._has_receipts = True
        if echoed or marked:  # R-CONGESTION-10
            self._congestion.marked(self._recovery.sent_as(packet.signature), self._recovery.next_order)
        if repeated:  # R-RECOVERY-6
            self._counters["spurious"] += 1
            self._recovery.repetition_was(needed=False)
        self._counters["losses"] += len(lost)
        for slot in lost:  # R-RECOVERY-1
            self._congestion.lost(self._recovery.order(slot), self._recovery.next_order)
            self._send_again(slot)
        closed = self._closed_rounds(packet.words)
        if closed is not None:  # R-RECOVERY-2
            for slot in self._recovery.settle(packet.signature, closed, now):
                self._counters["gaps"] += 1
                self._send_again(slot)

    def _closed_rounds(self, parities: Words) -> Callable[[int], bool] | None:
        """Return a test, by slot, of whether an item's round had closed when the receipt was sent; None: not told."""
        # R-RECEIPT-8: without staleness an item's round is the open one or the one before that: a bit tells which.
        told = len(parities) == -(-self._spec.slots // WORD_BITS) and self._spec.history == SYNCHRONOUS_HISTORY
        if not told or self._catch_up is not None:  # a newcomer's slots stand at other bases
            return None
        bits = parities.tolist()
        return lambda slot: bool((bits[slot // WORD_BITS] >> slot % WORD_BITS ^ self._stream.base(slot)) & 1)

    def _result(self, packet: Packet, now: float, *, marked: bool) -> Reason | None:
        """Handle a RESULT or an ANSWER: gather its facts, and do what the row for them says (result_rows.py)."""
        slot = packet.slot
        if self._catch_up is not None and self._catch_up.holds(slot):
            self._catch(self._catch_up, packet, now)
            return None
        answered = packet.kind is Kind.ANSWER
        match deed_for(self._facts(packet)):
            case Deed.DUPLICATE:  # R-RESULT-1
                self._counters["duplicates"] += 1
                self._counters["spurious"] += answered
            case Deed.HEAR:  # R-RESULT-2
                if not answered:
                    self._hear(slot, packet.base)
                return Reason.FUTURE
            case Deed.MISMATCH:  # R-RESULT-3
                return Reason.MISMATCH
            case Deed.FAIL_UNOWNED:  # R-RESULT-4
                self._presence.refused(Reason.MISMATCH)
                return Reason.MISMATCH
            case Deed.NOTHING_NEW:  # R-RESULT-5, R-RESULT-6
                self._counters["duplicates"] += 1
            case Deed.ASK:  # R-RESULT-7
                self._accepted.add(slot)
                self._recovery.withdraw(slot)
                self._stream.send_again(slot)
            case Deed.LEAVE:  # R-RESULT-8
                self._counters["unacknowledged"] += 1
                self._closed[slot] = max(self._closed[slot], packet.base + 1)  # later ones may have come before it
            case Deed.LENGTH:  # R-RESULT-9
                return Reason.LENGTH
            case Deed.FAIL_INCOMPLETE:  # R-RESULT-10
                self._presence.missing(self._spec.full_mask & ~packet.bitmap)
                return Reason.EVICTED
            case Deed.STORE:  # R-RESULT-11
                self._take(packet, now, answered=answered, marked=marked)
        return None

    def _facts(self, packet: Packet) -> Fact:
        """Facts of a result or an answer for a slot that is in step."""
        slot = packet.slot
        if packet.base != self._stream.base(slot):  # of another base no other fact is known
            return Fact.EARLIER if packet.base < self._stream.base(slot) else Fact.AHEAD
        if not self._recovery.was_sent(slot):
            return Fact.AHEAD
        item = self._stream.current(slot)
        operation = self._stream.operation(item)
        shape = len(packet.codes), len(packet.words)
        words = operation.result_word_count(item) + AGE_WORDS * self._stream.forecasts(item)
        lanes = packet.lanes and packet.lanes._replace(shift=0)
        bare = packet.kind is Kind.ANSWER and Flag.BARE in packet.flags
        facts = {
            Fact.OTHER: packet.signature != operation.signature,
            # The switch adds nothing of a pass: a round of passes alone has neither words nor a signature.
            Fact.PASSES_ALONE: packet.contributors == 0 and shape == (0, 0) and not operation.code_count and not bare,
            Fact.OWNED: operation.owned,
            Fact.ACKNOWLEDGED: packet.bitmap >> self._worker & 1,
            Fact.BARE: bare,
            Fact.ENOUGH: shape == (operation.code_count, 0)
            and not operation.keeps(item, self._stream.agreed_codes(item)),
            Fact.ACCEPTED: slot in self._accepted,
            Fact.MULTICAST: packet.kind is Kind.RESULT,
            Fact.FITS: shape == (operation.code_count, words) and lanes == (operation.lanes and operation.lanes.result),
            Fact.INCOMPLETE: self._spec.full_mask & ~packet.bitmap,
        }
        return reduce(or_, (fact for fact, holds in facts.items() if holds), Fact(0))

    def _take(self, packet: Packet, now: float, *, answered: bool, marked: bool) -> None:
        """Take in a result: what it shows of the path, then its words, unless a forecast was wrong."""
        slot, item = packet.slot, self._stream.current(packet.slot)
        operation, forecasts = self._stream.operation(item), self._stream.forecasts(item)
        if marked:  # R-CONGESTION-10
            self._congestion.marked(self._recovery.order(slot), self._recovery.next_order)
        # R-CONGESTION-7: without staleness, which has late contributions answered, an ANSWER means a lost RESULT.
        if answered and self._spec.history == SYNCHRONOUS_HISTORY:
            self._counters["losses"] += 1
            self._recovery.repetition_was(needed=True)
            self._congestion.lost(self._recovery.order_before(slot), self._recovery.next_order)
        self._count_result(slot, now, answered=answered)
        # R-WORKER-3: the round is over all the same: the words, quantized again with the agreed codes, go into the next
        # one.
        if forecasts and not self._forecast_held(operation, packet):
            self._stream.repeat(item, np.array(packet.codes, np.uint16))
        else:
            self._store(operation, item, packet, by_forecast=forecasts)

    def _catch(self, catch_up: CatchUp, packet: Packet, now: float) -> None:
        """Take in a result, or an answer, for a slot that is not in step yet."""
        slot = packet.slot
        knew = catch_up.first_base is not None
        step = Step.IGNORED
        if self._recovery.was_sent(slot):  # otherwise it is a result for others, or answers a predecessor in this place
            step = catch_up.receive(packet, bool(packet.bitmap >> self._worker & 1))
        if step is Step.IGNORED:
            self._counters["duplicates"] += 1
        else:
            self._finished(slot, now, answered=packet.kind is Kind.ANSWER)
            if not catch_up.holds(slot):
                self._stream.release(slot)
        if not knew and catch_up.first_base is not None:  # R-MEMBER-14: now every slot is known
            self._events.append(Stands(catch_up.first_base))
        self._end_catch_up()

    def _catching_up(self) -> bool:
        return self._catch_up is not None and self._presence.phase is Phase.MEMBER

    def _end_catch_up(self) -> None:
        if self._catch_up is not None and self._catch_up.done:
            self._catch_up = None

    def _send_again(self, slot: int) -> None:
        if self._catch_up is not None and self._catch_up.holds(slot):
            self._catch_up.again(slot)
        else:
            self._stream.send_again(slot)

    def _hear(self, slot: int, base: int) -> None:
        """Note a round that has closed before anything was sent for it; report RoundHeard in jobs with staleness."""
        self._closed[slot] = max(self._closed[slot], base + 1)
        if self._spec.history == SYNCHRONOUS_HISTORY:  # no round closes without this worker there
            return
        slots = self._spec.slots  # R-WORKER-5: a pass is late in every slot, or it would close empty rounds
        heard = min(max(over, self._stream.current(index) // slots) for index, over in enumerate(self._closed))
        if heard > self._heard:  # told once, and of the newest
            self._heard = heard
            self._events.append(RoundHeard(heard - 1))

    def _count_result(self, slot: int, now: float, *, answered: bool) -> None:
        """Count a result: the round of the slot's current item is over for this worker."""
        self._accepted.discard(slot)
        self._presence.heard(now)
        self._counters["results"] += 1
        self._moved_at = now
        self._finished(slot, now, answered=answered)

    def _finished(self, slot: int, now: float, *, answered: bool) -> None:
        """Report a slot's result to recovery and congestion. `answered`: it was an ANSWER, to this worker alone."""
        order = self._recovery.order(slot)  # before `finished`, which forgets it
        round_trip_s = self._recovery.finished(slot, now, answered=answered)
        if round_trip_s is not None:
            self._congestion.round_trip(round_trip_s, now)
        self._congestion.result(order, self._recovery.next_order, self._recovery.overdue)

    def _sendable(self) -> bool:
        """Whether there is an item to send, and the window has room for it; repetitions need no room."""
        slot = self._stream.next()
        if slot is None:
            return False
        # R-CONGESTION-3: the oldest needs no room, since workers with windows full of different items would deadlock.
        oldest = self._stream.current(slot) == self._stream.oldest_item
        if oldest or self._recovery.was_sent(slot):
            return True
        return self._congestion.has_room(self._recovery.in_flight, self._recovery.waiting)

    def _forecast_held(self, operation: Operation, packet: Packet) -> bool:
        """Whether the words of this result are what words with the agreed codes would have come to."""
        agreed = np.array(packet.codes, np.uint16)
        self._scales.learn(operation.shape, operation.ticket, agreed)
        assert operation.forecast is not None
        held = operation.forecast.holds(agreed, packet.words[-AGE_WORDS:], packet.contributors)
        self._counters["forecasts" if held else "forecasts_missed"] += 1
        return held

    def _store(self, operation: Operation, item: int, packet: Packet, *, by_forecast: bool) -> None:
        """Store a result and let the slot go on. `by_forecast`: the result's codes are those of its own words."""
        brought = np.array(packet.codes, np.uint16)
        words_chunk = operation.words_chunk(item)
        if words_chunk is not None:  # an item with codes only brings no words
            operation.note_arrivals(words_chunk, packet.bitmap)
            count = operation.result_word_count(item)
            # No words: a round of passes alone, whose sum is zero.
            words = packet.words[:count] if len(packet.words) else np.zeros(count, np.uint32)
            agreed = brought if by_forecast else self._stream.agreed_codes(item)
            kept = words if operation.keeps(item, agreed) else None
            shift = packet.lanes.shift if packet.lanes else 0
            for spoiler in operation.store(words_chunk, agreed, kept, packet.contributors, shift):
                self._events.append(Spoiled(operation.ticket, *spoiler))
        done = self._stream.finish(item, brought)
        if done is not None:
            self._done(done)

    def _done(self, operation: Operation) -> None:
        self._outstanding -= 1
        self._events.append(ReductionDone(operation.ticket))

    def _waits_for_departed(self) -> bool:
        """Whether reductions have waited for so many retransmissions that a departed peer may be why."""
        return self._stream.unfinished and self._recovery.timeouts_in_a_row >= LEFT_MIN_TIMEOUTS

    # --- packets out ---

    def _packet(self, kind: Kind, *, flags: Flag = NO_FLAGS, **fields: object) -> Packet:
        flags |= Flag.CHECKSUM if self._spec.checksum else NO_FLAGS
        header = {"job": self._spec.job, "worker": self._worker, "generation": self._spec.generation, "flags": flags}
        return Packet(kind=kind, **header, **fields)  # type: ignore[arg-type]

    def _datagram(self, kind: Kind, *, flags: Flag = NO_FLAGS, **fields: object) -> bytes:
        return self._keys.finish(self._packet(kind, flags=flags, **fields).to_bytes())

    def _path_questions(self, now: float) -> list[int]:
        """Lengths of the HELLOs to send behind a heartbeat, to find out whether packets as long as needed pass."""
        # R-MEMBER-10
        if self._presence.phase is not Phase.MEMBER or not self._presence.answered:
            return []
        item = self._stream.oldest_item if self._stream.unfinished and self._catch_up is None else -1
        questions = self._path.beat(item, self._longest_packet_bytes(item), now)
        self._counters["path_questions"] += len(questions)
        return questions

    def _longest_packet_bytes(self, item: int) -> int:
        """Length of the longer of the item's contribution and its result; 0 for no item."""
        if item < 0:
            return 0
        operation = self._stream.operation(item)
        words = max(operation.word_count(item), operation.result_word_count(item))
        words += AGE_WORDS * self._stream.forecasts(item)
        return datagram_bytes(operation.code_count, words)

    def _hello(self, size_bytes: int = 0) -> bytes:
        """A HELLO of `size_bytes`; by default as short as it may be, or while connecting as long as any packet."""
        words = self._token
        if self._presence.phase is Phase.CONNECTING:  # R-MEMBER-1: as long as a result, to try the path both ways
            size_bytes = self._spec.packet_bytes
        if size_bytes:  # padded, since the switch answers in the same length
            words = np.pad(words, (0, (size_bytes - HEADER_BYTES) // WORD_BYTES - len(words)))
        sequence = self._presence.hello_sequence
        return self._datagram(Kind.HELLO, slot=sequence, bitmap=HELLO_RUNS, words=words)

    def _contribution(self, item: int) -> Packet:
        operation = self._stream.operation(item)
        if self._stream.forecasts(item):
            codes, words = self._by_forecast(operation)
        else:
            codes, words = self._in_turn(operation, item)
        slot = item % self._spec.slots
        base = self._stream.base(slot)
        keeps = operation.keeps(item, self._stream.agreed_codes(item))
        passes, lanes = operation.passes(item), operation.lanes
        flags = NO_FLAGS if keeps else Flag.BARE  # R-WORKER-8
        longer = operation.result_word_count(item) > len(words)
        if keeps and (passes or longer) and slot in self._accepted:  # R-WORKER-7
            words, lanes = np.zeros(operation.result_word_count(item), np.uint32), None
        elif passes:  # R-WORKER-5
            flags |= Flag.PASS | Flag.LATE if self._closed[slot] > base else Flag.PASS
            lanes = None
        # R-WORKER-6: in a stale job a pass may come from another reduction than the others' contributions, so it has no
        # signature.
        signature = 0 if flags & Flag.PASS and not self._spec.synchronous else operation.signature
        return self._packet(
            Kind.CONTRIBUTION,
            slot=slot, base=base, signature=signature, bitmap=self._order,
            codes=tuple(codes.tolist()), words=words, lanes=lanes, flags=flags,
        )  # fmt: skip

    def _in_turn(self, operation: Operation, item: int) -> tuple[Codes, Words]:
        """The codes of one chunk and the words of an earlier one, whose codes are agreed on."""
        codes_chunk, words_chunk = operation.codes_chunk(item), operation.words_chunk(item)
        codes, words = np.zeros(operation.code_count, np.uint16), np.empty(0, np.uint32)
        if codes_chunk is not None:
            codes = operation.own_codes(codes_chunk)
        if words_chunk is not None and not operation.passes(item):
            words = operation.quantized(words_chunk, self._stream.agreed_codes(item))
        return codes, words

    def _by_forecast(self, operation: Operation) -> tuple[Codes, Words]:
        """The codes of the only chunk, its words with the forecast's codes, and the forecast's age."""
        # R-WORKER-3, taken once: repetitions must carry the same bits, whatever was learned since.
        if operation.forecast is None:
            operation.forecast = self._scales.of(operation.shape, operation.ticket)
        forecast = operation.forecast
        words = np.zeros(operation.word_count(operation.first_item), np.uint32)
        if forecast is not NO_FORECAST:  # the first of a shape sends zeros, which count as a miss
            words = operation.quantized(0, forecast.codes)
        return operation.own_codes(0), np.append(words, forecast.age_words())

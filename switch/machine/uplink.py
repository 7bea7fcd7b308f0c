"""A leaf's membership in its parent's job: registration, heartbeats, and departure.

Its native twin is native/machine/uplink.hpp.

A software leaf (leaf_side.py) and the controller of a leaf's pipeline (switch/p4runtime/controller/leaf_uplink.py)
both use it.

Rules
-----
A leaf is one worker of the job at its parent. Its contributions need no timer of their own
(switch/machine/switch_machine.py); its membership does, as a worker's does:

| phase      | what happens                                       | becomes    | its own workers hear |
|------------|----------------------------------------------------|------------|----------------------|
| waiting    | all of the leaf's workers are registered           | connecting |                      |
| connecting | WELCOME as long as a full packet                   | member     |                      |
| member     | the parent is silent for the liveness timeout, or  | failed     | BRANCH_LOST          |
|            | is suspected and silent for a heartbeat interval   |            |                      |
|            | and SUSPICION_TIMEOUT_S more, and                  |            |                      |
|            | HEARTBEATS_TO_SILENCE HELLOs went unanswered       |            |                      |
| member     | long packets alone are lost for the liveness       | failed     | BRANCH_LOST          |
|            | timeout, see fanin/protocol/path_watch.py          |            |                      |
| both       | a branch is lost (WELCOME, NOTICE), or the parent  | failed     | BRANCH_LOST          |
|            | refuses the leaf                                   |            |                      |
| both       | a branch has left (WELCOME, NOTICE)                |            | BRANCH_LEFT, once    |
| both       | a worker of the leaf is lost, or all have left     | leaving    |                      |
| leaving    | the parent echoes BYE or refuses the leaf, or      | left       |                      |
|            | LEAVE_TIMEOUT_S pass                               |            |                      |

* Silence counts while the leaf itself was running (fanin/protocol/own_stops.py).
* While connecting, HELLO is as long as the longest packet. The parent's silence ends nothing in this phase: the
  workers' own timeouts do. The other rules are in fanin/protocol/keepalive.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fanin.protocol import wire
from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.keepalive import Keepalive, Phase
from fanin.protocol.path_watch import PathWatch
from fanin.protocol.wire import Flag, Kind, Packet, Reason


class UplinkPresence(Keepalive):
    """Phase and timers of one leaf in one job."""

    def __init__(self, uplink: Uplink, spec: JobSpec) -> None:
        super().__init__(spec, Phase.WAITING, math.inf)
        self.uplink = uplink
        self.news: Reason | None = None
        """BRANCH_LEFT or BRANCH_LOST, once there is a reason to tell the workers."""
        self.heartbeat = 0
        """Sequence number of the last HELLO that was a heartbeat and did not test a packet length."""
        self.narrowed: tuple[int, int] | None = None
        """Packet lengths in bytes that are needed and that pass, once the path is known to be too narrow; else None."""
        self._spec = spec
        self._path = PathWatch(spec.liveness_timeout_s)

    def start(self, now: float) -> None:
        """Begin to connect: all of the leaf's workers are registered."""
        if self.phase is Phase.WAITING:
            self.phase = Phase.CONNECTING
            super().start(now)

    def packets_due(self, now: float, item: int = -1, needed_bytes: int = 0) -> Iterator[Packet]:
        """Yield HELLO and BYE packets that are due, without tags.

        `item`: the oldest item that waits for the parent's result, in packets of `needed_bytes`; -1: none, or unknown.
        """
        shortest = wire.datagram_bytes(0, 2)
        if self.hello_due(now):  # R-MEMBER-3
            asks = self.phase is Phase.MEMBER and self.answered
            questions = self._path.beat(item, needed_bytes, now) if asks else []
            length = self._spec.packet_bytes if self.phase is Phase.CONNECTING else shortest
            self.heartbeat = self.hello_sequence
            yield self._packet(Kind.HELLO, self._token(length), self.hello_sequence)
            self.hello_sent(now)
            for length in questions:  # R-MEMBER-10
                yield self._packet(Kind.HELLO, self._token(length), self.hello_sequence)
                self.probe_sent()
        if self.bye_due(now):  # R-MEMBER-4
            yield self._packet(Kind.BYE, self._token(shortest), 0)
            self.bye_sent(now)

    def _token(self, size_bytes: int) -> npt.NDArray[np.uint32]:
        """The words of a packet of `size_bytes`: the token, then zeros."""
        words = np.zeros((size_bytes - wire.HEADER_BYTES) // wire.WORD_BYTES, np.uint32)
        words[:2] = self.uplink.token >> 32, self.uplink.token & 0xFFFFFFFF
        return words

    def objection(self, packet: Packet, length: int) -> Reason | None:
        """The reason to drop a WELCOME, NOTICE or BYE of `length` bytes, by rows LENGTH and VERSION of leaf_side.py."""
        connecting = self.phase is Phase.CONNECTING
        narrow = packet.kind is Kind.WELCOME and connecting and length != self._spec.packet_bytes
        if len(packet.words) < 2 or narrow:  # R-MEMBER-1: a short WELCOME does not show that long packets pass
            return Reason.LENGTH
        other_version = packet.kind is Kind.NOTICE and packet.contributors == Reason.VERSION
        return Reason.VERSION if other_version and (self._spec.checksum or not connecting) else None

    def receive(self, packet: Packet, now: float) -> Reason | None:
        """Handle an accepted WELCOME, NOTICE or BYE; return the notice to the leaf's workers, if any."""
        if packet.kind is Kind.BYE:
            self._departed()
            return None
        if packet.kind is Kind.WELCOME:
            self._path.welcome(wire.datagram_bytes(0, len(packet.words)))
            self._welcomed(now)
        elif packet.contributors == Reason.MISMATCH:  # the workers fail; the leaf stays a member
            return Reason.MISMATCH
        elif packet.contributors not in (Reason.WORKER_LOST, Reason.WORKER_LEFT):
            return self._once(self._refused())
        return self._once(self._branches_gone(int(packet.words[0]), int(packet.words[1])))

    def handle_timer(self, now: float) -> Reason | None:
        """Handle timeouts; return the notice to the leaf's workers, if any."""
        if self._left_unconfirmed(now):
            self.phase = Phase.LEFT
        elif self._silent_s(now) is not None:  # R-MEMBER-9
            self.phase = Phase.FAILED
            return self._once(Reason.BRANCH_LOST)
        elif self.phase is Phase.MEMBER and self._path.too_narrow(now) and self.answered:  # R-MEMBER-11
            self.phase = Phase.FAILED
            self.narrowed = self._path.needed_bytes, self._path.passes_bytes
            return self._once(Reason.BRANCH_LOST)
        return None

    def was_stopped(self, seconds: float) -> None:
        """Move deadlines by the time for which the leaf's own process was stopped and could not hear the parent."""
        self._heard_at += seconds
        if self._suspected_at is not None:
            self._suspected_at += seconds
        self._leave_by += seconds

    def _branches_gone(self, lost: int, left: int) -> Reason | None:
        if not self.joined:  # news while the leaf leaves has no effect
            return None
        if lost:  # R-LEAF-10: no branch can do without the others, as trees are synchronous
            return self._refused()
        return Reason.BRANCH_LEFT if left else None

    def _refused(self) -> Reason | None:
        if self.phase in (Phase.LEAVING, Phase.LEFT, Phase.FAILED):  # the echo of BYE was lost
            self.phase = Phase.LEFT
            return None
        self.phase = Phase.FAILED
        return Reason.BRANCH_LOST

    def _departed(self) -> None:
        if self.phase is Phase.LEAVING:
            self.phase = Phase.LEFT

    def _once(self, news: Reason | None) -> Reason | None:
        # R-LEAF-10: once by NOTICE, and then in every WELCOME, so that a lost NOTICE costs one heartbeat.
        if news is None or self.news in (news, Reason.BRANCH_LOST):
            return None
        self.news = news
        return news

    def _packet(self, kind: Kind, words: npt.NDArray[np.uint32], slot: int) -> Packet:
        return Packet(
            kind=kind,
            job=self.uplink.job,
            worker=self.uplink.worker,
            flags=Flag.CHECKSUM if self._spec.checksum else Flag(0),
            generation=self.uplink.generation,
            slot=slot,
            words=words,
        )

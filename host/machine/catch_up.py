"""The way a worker that joins a running job gets in step with the others, slot by slot.

The rules are R-MEMBER-14 and R-MEMBER-15 in docs/protocol.md. A slot is in
one of these states; any other packet is dropped and counted.

| state    | what happens                                           | becomes                                       |
|----------|--------------------------------------------------------|-----------------------------------------------|
| asking   | bare ANSWER without this worker's bit                  | standing at that base                         |
| standing | `begin`                                                | passing, or done when it stands there already |
| passing  | RESULT or ANSWER (which may be bare) of its base, and  | passing for the next base, or done            |
|          | this worker's pass is in it (own bit)                  |                                               |
| done     | (the slot belongs to item_stream.py from here on)      |                                               |
"""

from __future__ import annotations

import enum
from collections import deque

from fanin.protocol.wire import MAX_BASE, Flag, Kind, Packet

ASKING_AT_ONCE = 64
"""Slots that ask for their base at the same time."""


class Step(enum.Enum):
    """Effect of a packet on its slot."""

    IGNORED = enum.auto()
    MOVED = enum.auto()
    """The slot's last packet is answered."""


class CatchUp:
    """The slots of one flow that are not in step yet."""

    def __init__(self, slots: int) -> None:
        self._base: dict[int, int | None] = dict.fromkeys(range(slots))
        """By slot that is not done: where it stands, None while it asks."""
        self._unasked = deque(range(slots))
        self._unknown = slots
        self.first_base: int | None = None
        """The earliest base that `begin` takes; None until every slot knows where it stands."""
        self._begin: int | None = None
        self._queue: deque[int] = deque()
        self._queued: set[int] = set()
        for _ in range(ASKING_AT_ONCE):  # R-MEMBER-14: the answers must fit into a socket's buffer
            self._ask_one_more()

    def holds(self, slot: int) -> bool:
        """Whether the slot is not done yet."""
        return slot in self._base

    @property
    def done(self) -> bool:
        """Whether every slot is done."""
        return not self._base

    def begin(self, base: int) -> list[int]:
        """Let every slot pass the bases before `base`, at which it is done. Returns the slots that are done at once."""
        assert self._begin is None
        assert self.first_base is not None
        assert base >= self.first_base
        self._begin = base
        done = [slot for slot in self._base if self._arrive(slot)]
        for slot in done:
            del self._base[slot]
        return done

    def take(self) -> int | None:
        """The next slot to send for, or None."""
        while self._queue:
            slot = self._queue.popleft()
            self._queued.discard(slot)
            if slot in self._base:  # it may have been done while its repetition waited here
                return slot
        return None

    def again(self, slot: int) -> None:
        """Queue what the slot sent last once more."""
        if slot not in self._queued:  # a repetition while it waits adds nothing
            self._queued.add(slot)
            self._queue.append(slot)

    def base_to_pass(self, slot: int) -> int:
        """The base of the pass to send for a slot."""
        base = self._base[slot]
        return MAX_BASE if base is None else base

    def receive(self, packet: Packet, own: bool) -> Step:
        """Take in a RESULT or ANSWER for a slot that is not done; `own`: this worker's bit is set."""
        slot, base = packet.slot, self._base[packet.slot]
        bare = packet.kind is Kind.ANSWER and Flag.BARE in packet.flags
        if base is None:
            # R-MEMBER-14: a result is for the other workers, and an answer with this worker's bit for a predecessor in
            # this place.
            if not bare or own:
                return Step.IGNORED
            self._base[slot] = packet.base
            self._unknown -= 1
            if self._unknown == 0:  # R-MEMBER-15: the slot with the highest base decides, since none can go back
                self.first_base = max(stands for stands in self._base.values() if stands is not None)
            self._ask_one_more()
            return Step.MOVED
        # R-MEMBER-15: without the bit the round has closed without this pass, which is not accepted yet: its ANSWER
        # will say so.
        if packet.base != base or self._begin is None or not own:
            return Step.IGNORED
        self._base[slot] = base + 1
        if self._arrive(slot):
            del self._base[slot]
        return Step.MOVED

    def _arrive(self, slot: int) -> bool:
        """Whether the slot stands where the reductions begin; if not, its next pass is queued."""
        if self._base[slot] == self._begin:  # R-MEMBER-15: the same in every slot
            return True
        self.again(slot)
        return False

    def _ask_one_more(self) -> None:
        if self._unasked:
            self.again(self._unasked.popleft())

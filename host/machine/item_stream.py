"""The assignment of items of operations to slots, and the moment when each may be sent.

The rules are R-WORKER-1 to R-WORKER-3 in docs/protocol.md.

* The operations of a flow, in the order in which they were submitted, make one stream of items
  (host/machine/operation.py): item g is base g div P of slot g mod P.
* A slot has one item at a time, its `current` one, and goes on to item number + P when that one is finished: its
  result has come, and this worker's contribution is known to be in a round.
* A current item is in one of three states:

  | state  | meaning                       | becomes                                                      |
  |--------|-------------------------------|--------------------------------------------------------------|
  | idle   | not submitted, or it may not  | queued, when the item exists, is less than `window` items     |
  |        | be sent yet                   | ahead of the oldest unfinished one, and has its agreed codes  |
  | queued | to be sent                    | sent,   when `take` hands it out, the lowest number first     |
  | sent   | sent; the result may come     | again, by `send_again`; the next item, idle, by `finish`      |
  | again  | to be sent again              | sent,   when `take` hands it out, before what is queued; the  |
  |        |                               | next item, idle, by `finish`                                  |

* Agreed codes arrive with the result of the item that carried a chunk's codes, and are kept, under the number of the
  item that carries its words, until that one is finished. The window bounds how many there are.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque

import numpy as np

from fanin.host.machine.operation import Operation
from fanin.numerics.fixed_point import Codes
from fanin.protocol.wire import MAX_BASE

_NO_CODES: Codes = np.empty(0, np.uint16)


class SlotState(enum.Enum):
    """State of a slot's current item: see the table of this file."""

    IDLE = enum.auto()
    QUEUED = enum.auto()
    SENT = enum.auto()
    AGAIN = enum.auto()


class ItemStream:
    """The items of one flow."""

    def __init__(self, slots: int, window: int) -> None:
        """`window`: JobSpec.window_items, how far an item may be ahead of the oldest unfinished one."""
        self.slots = slots
        self.window = window
        self.end_item = 0
        """One past the last item that was submitted."""
        self.oldest_item = 0
        """The oldest unfinished item; everything before it is finished."""
        self._operations: deque[Operation] = deque()
        self._current = list(range(slots))
        self._state = [SlotState.IDLE] * slots
        self._queue: list[int] = []
        """Heap of items: all workers send the lowest first, so that they send the same ones, however small a window."""
        self._again: deque[int] = deque()
        self._is_in_queue = [False] * slots
        self._is_in_again = [False] * slots
        self._repeats = [0] * slots
        """By slot: number of items that took a second round, since their forecast was wrong."""
        self._agreed: dict[int, Codes] = {}
        self._held: set[int] = set()
        """Slots of a newcomer that are not in step yet (host/machine/catch_up.py): none of their items is sent."""

    def begin(self, base: int) -> None:
        """Start with `base` instead of 0; every slot is held until `release`."""
        assert not self._operations
        self.end_item = self.oldest_item = base * self.slots
        self._current = [self.end_item + slot for slot in range(self.slots)]
        self._held = set(range(self.slots))

    def release(self, slot: int) -> None:
        """The slot is in step with the others: its items may be sent."""
        self._held.discard(slot)
        self._offer(self._current[slot])

    def append(self, operation: Operation) -> None:
        """Take in an operation, whose first item is `end_item`; OverflowError when the bases of this job run out."""
        assert operation.first_item == self.end_item
        repeats = max(self._repeats) + len(self._operations) + 1
        # A base is 32 bits on the wire, and one is reserved.
        if (self.end_item + operation.items) // self.slots + repeats > MAX_BASE:
            raise OverflowError(f"a slot counts {MAX_BASE} rounds, and this job has used them up: join a new one")
        if not operation.chunks:  # it has no item here; one in `_operations` would never be finished
            return
        self._operations.append(operation)
        self.end_item += operation.items
        for item in range(operation.first_item, min(self.end_item, operation.first_item + self.slots)):
            self._offer(item)

    @property
    def unfinished(self) -> bool:
        """Whether any submitted item is not finished."""
        return self.oldest_item < self.end_item

    def current(self, slot: int) -> int:
        """The slot's current item, submitted or not."""
        return self._current[slot]

    def base(self, slot: int) -> int:
        """The base, in its slot, of the slot's current item."""
        return self._current[slot] // self.slots + self._repeats[slot]

    def operation(self, item: int) -> Operation:
        """The operation of an unfinished item."""
        return next(o for o in self._operations if o.first_item <= item < o.first_item + o.items)

    def agreed_codes(self, item: int) -> Codes:
        """The codes for the words that the item carries; none for integers."""
        return self._agreed.get(item, _NO_CODES)

    def forecasts(self, item: int) -> bool:
        """Whether the item goes out by forecast: its words are sent before its codes are agreed on."""
        return self.operation(item).forecasts and item not in self._agreed

    def repeat(self, item: int, agreed: Codes) -> None:
        """The forecast was wrong: the item goes out again, into the slot's next round, with these codes."""
        slot = item % self.slots
        self._agreed[item] = agreed
        # R-WORKER-3: all workers see the same result, so they agree that the slot's bases are one ahead from here on.
        self._repeats[slot] += 1
        self._enqueue(slot)

    def next(self) -> int | None:
        """Return the slot whose item is to be sent next, repetitions first, and leave it queued; None: no item."""
        # Both queues are cleaned up only here: a result may come while its slot is queued, and removing it from the
        # middle would cost more than skipping it when it is first.
        while self._again:
            if self._state[self._again[0]] is SlotState.AGAIN:  # else its result came while it waited here
                return self._again[0]
            self._is_in_again[self._again.popleft()] = False
        while self._queue:
            slot = self._queue[0] % self.slots
            if self._state[slot] is SlotState.QUEUED:  # likewise
                return slot
            self._pop()
        return None

    def _pop(self) -> None:
        self._is_in_queue[heapq.heappop(self._queue) % self.slots] = False

    def take(self) -> int | None:
        """Return the next item to send, and count it as sent; None when there is none."""
        slot = self.next()
        if slot is None:
            return None
        if self._state[slot] is SlotState.AGAIN:
            self._is_in_again[self._again.popleft()] = False
        else:
            self._pop()
        self._state[slot] = SlotState.SENT
        return self._current[slot]

    def send_again(self, slot: int) -> None:
        """Queue the slot's current item, which was sent before, once more."""
        assert self._state[slot] in (SlotState.SENT, SlotState.AGAIN)
        self._state[slot] = SlotState.AGAIN
        if not self._is_in_again[slot]:  # it may be there from before, when a result came while it waited
            self._is_in_again[slot] = True
            self._again.append(slot)

    def finish(self, item: int, brought: Codes) -> Operation | None:
        """The item's result, which brought these codes, is stored. Returns its operation if that is now done."""
        slot, operation = item % self.slots, self.operation(item)
        assert self._current[slot] == item
        self._current[slot] = item + self.slots
        self._state[slot] = SlotState.IDLE
        self._agreed.pop(item, None)
        if operation.codes_chunk(item) is not None:  # R-WORKER-2: from here on the words may go
            self._agreed[item + operation.lead] = brought
            self._offer(item + operation.lead)
        self._offer(item + self.slots)
        self._advance()
        if operation.words_chunk(item) is None:  # the chunk is half done
            return None
        operation.unfinished_chunks -= 1
        # Operations finish out of order where slots do; `operation` still has to find the items of those before.
        while self._operations and self._operations[0].unfinished_chunks == 0:
            self._operations.popleft()
        return operation if operation.unfinished_chunks == 0 else None

    def _advance(self) -> None:
        """Move the window up to the oldest unfinished item, and offer what comes into it."""
        limit = self.oldest_item + self.window
        while self._current[self.oldest_item % self.slots] > self.oldest_item:  # slots finish out of order
            self.oldest_item += 1
        for item in range(limit, min(self.oldest_item + self.window, self.end_item)):
            self._offer(item)

    def _offer(self, item: int) -> None:
        """Queue an item if it may be sent."""
        slot = item % self.slots
        # R-WORKER-1: a slot has one item at a time.
        if self._current[slot] != item or self._state[slot] is not SlotState.IDLE or slot in self._held:
            return
        # R-WORKER-1: nor may a slot run away from the oldest unfinished item, whose codes are kept that long.
        if item >= self.end_item or item >= self.oldest_item + self.window:
            return
        operation = self.operation(item)
        if operation.lead and operation.words_chunk(item) is not None and item not in self._agreed:
            return  # R-WORKER-2: its codes travel in an earlier item, whose `finish` offers this one
        self._enqueue(slot)

    def _enqueue(self, slot: int) -> None:
        self._state[slot] = SlotState.QUEUED
        if not self._is_in_queue[slot]:  # the heap has room for each slot once
            self._is_in_queue[slot] = True
            heapq.heappush(self._queue, self._current[slot])

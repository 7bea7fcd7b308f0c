"""Pinned slots through which pieces pass between a device and an engine, and the two flags that order them.

Rules
-----
* Pieces of a ring are numbered 1, 2, ... for as long as the ring lives. Piece n lies in slot n mod slots.
* `gone` counts pieces that the device has written to their slots, `come` those whose sums the engine has written there.
  Only the device sets `gone`, only the host sets `come`, both in order.
* A slot is written again once the device has read the sum in it (`emptied`): before that, an engine may send again what
  is in it.
* A failure lets `come` jump ahead of all pieces, so that nothing waits for it ever after.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.host.torch.device.device import Event, Flag, Memory

FLAG_VALUES = 1 << 32
"""Flags are 32-bit words."""
JUMP = 1 << 30
"""How far `come` jumps at a failure: beyond every piece that can be under way, and less than half of FLAG_VALUES."""


@dataclass(slots=True, eq=False)
class Slot:
    """Place of one piece in the ring."""

    number: int
    """The piece's number, as the flags have it."""
    memory: Memory
    """The bytes of the slot, in pinned memory."""
    address: int
    """Address of these bytes, for an engine."""
    index: int
    free_after: Event | None
    """When the device has read what was here before; None for the first use."""


class Ring:
    """The slots of one group on one device. One thread at a time calls `take` and `emptied`."""

    def __init__(self, memory: Memory, address: int, slots: int, slot_bytes: int, gone: Flag, come: Flag) -> None:
        """`memory`: slots * slot_bytes bytes of pinned memory at `address`. Both flags are 0."""
        self.slots, self.slot_bytes = slots, slot_bytes
        self.gone, self.come = gone, come
        self._memory, self._address = memory, address
        self._taken = 0
        self._emptied: list[Event | None] = [None] * slots

    def take(self) -> Slot:
        """Take the slot of the next piece."""
        index = self._taken % self.slots
        self._taken += 1
        first = index * self.slot_bytes
        return Slot(
            number=self._taken % FLAG_VALUES,
            memory=self._memory[first : first + self.slot_bytes],
            address=self._address + first,
            index=index,
            free_after=self._emptied[index],
        )

    def emptied(self, slot: Slot, event: Event) -> None:
        """Note the event by which the device has read the sum in the slot."""
        self._emptied[slot.index] = event

    @property
    def beyond(self) -> int:
        """Value that `come` jumps to at a failure."""
        return (self._taken + JUMP) % FLAG_VALUES

    def before(self, pieces: int) -> int | None:
        """The number of the piece so many before the next one; None if there was none."""
        number = self._taken + 1 - pieces
        return number % FLAG_VALUES if number > 0 else None

"""Queues one reduction on a device: everything at once, when it is called. Afterwards only flags move.

    user's stream   record ------------------------------------------------------------- (wait: done)
    leaving         begin | codes kernel, codes out, wait, agreed codes in, quantize | [slot free] piece n out, gone = n
    courier         codes: exact maximum, come | piece n submitted once gone >= n; its sum is in the slot: come = n
    arriving        begin | wait come >= n, piece n in, decode ... | finish | record done

Rules
-----
* Tickets are taken in the order of the calls, codes and words by a session of their own each: in one, the codes of the
  next bucket would wait behind the words of this one.
* What flags order is ordered by events as well where that is possible (a slot's reuse), so that a device that orders
  its queues differently than it was told still finds no cycle.
* No stream is given a wait before the courier has what ends it: the first launch of a kernel loads it, and may wait for
  all streams.
* At most MAX_QUEUED pieces of a channel wait on the device: beyond, a call waits. A stream's queue is bounded (1,024
  commands on CUDA), and a thread that waits for room in it may hold a lock that others need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol

from fanin.host.torch.device.courier import Parcel
from fanin.host.torch.device.device import Action, Device, Event, Flag, Memory, Stream
from fanin.host.torch.device.ring import Ring, Slot

BATCH = 4
"""Pieces that are queued to leave before the courier gets them: one that wakes up meanwhile holds the program up."""
MAX_QUEUED = 64
"""Pieces of a channel on the device's queues: with up to seven commands each, those of two groups fit into CUDA's."""


@dataclass(slots=True, kw_only=True)
class Piece:
    """Part of a reduction that passes through one slot."""

    out: Memory | None
    """Bytes that leave the device; None: nothing."""
    out_first: int = 0
    """Offset of these bytes in the slot."""
    back: Memory | None
    """Memory on the device that the sum is copied to; None: nowhere."""
    back_first: int = 0
    """Offset of the sum in the slot."""
    place: Callable[[int], Callable[[], int]]
    """From the address of the slot: the action that submits the reduction there, and returns its ticket."""
    inspect: Callable[[int, int], None] | None = None
    """Called by the courier with the ticket and the address of the slot, when the sum is there."""
    decode: Action | None = None
    """Launched behind the copy back, and behind a look at the status."""


class Carrier(Protocol):
    """Carrier of parcels: CourierThreads, or a test's in virtual time."""

    def put(self, parcel: Parcel) -> None:
        """Append a parcel. Calls come in program order."""


class Flags(Protocol):
    """The host's way of waiting for flags."""

    def wait(self, flag: Flag, value: int, timeout_s: float) -> bool:
        """Wait until the flag reaches the value; False if it has not within `timeout_s`."""


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a group has failed, as the device may know it."""

    flag: Flag
    """0, or 1 after a failure."""
    word: Memory
    """The flag's four bytes, in pinned memory."""
    seen: Memory
    """Four bytes of the device's, which hold what it has read last."""


class Channel:
    """Passes pieces through one ring and one session: out on one stream, back on another or the same."""

    def __init__(
        self,
        device: Device,
        flags: Flags,
        ring: Ring,
        carrier: Carrier,
        land: Callable[[int, float], None],
        leaving: Stream,
        arriving: Stream,
        status: Status,
    ) -> None:
        """`land` returns when a ticket is done, and raises after so many seconds."""
        self._status = status
        self.ring = ring
        self._device, self._flags, self._carrier, self._land = device, flags, carrier, land
        self._leaving, self._arriving = leaving, arriving
        self._at_once = min(BATCH, ring.slots)

    def exchange(
        self, pieces: Iterable[Piece], timeout_s: float, over: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """Queue all pieces. `over` is told when the last one's sum has come, or that it will not."""
        coming = iter(pieces)
        batch = list(islice(coming, self._at_once))
        while batch:
            following = list(islice(coming, self._at_once))
            self._pass(batch, timeout_s, None if following else over)
            batch = following

    def release(self) -> None:
        """Release every stream that waits for a sum, now or later."""
        self._device.raise_flag(self.ring.come, self.ring.beyond)

    def _pass(self, batch: list[Piece], timeout_s: float, over: Callable[[BaseException | None], None] | None) -> None:
        self._wait_for_room(len(batch), timeout_s)
        slots = [self._depart(piece) for piece in batch]
        for piece, slot in zip(batch, slots, strict=True):
            # A parcel refers to nothing of the device's: a courier must not drop the last reference (courier.py).
            self._carrier.put(
                Parcel(
                    start=piece.place(slot.address),
                    land=partial(land_within, self._land, timeout_s, piece.inspect, slot.address),
                    written=partial(self._flags.wait, self.ring.gone, slot.number),
                    come=partial(self._device.raise_flag, self.ring.come, slot.number),
                    over=over if slot is slots[-1] else None,
                )
            )
        for piece, slot in zip(batch, slots, strict=True):
            self._arrive(piece, slot)

    def _depart(self, piece: Piece) -> Slot:
        device = self._device
        slot = self.ring.take()
        if slot.free_after is not None and self._leaving is not self._arriving:
            device.wait_event(self._leaving, slot.free_after)
        if piece.out is not None:
            device.copy(self._leaving, slot.memory[piece.out_first : piece.out_first + len(piece.out)], piece.out)
        device.write_value(self._leaving, self.ring.gone, slot.number)
        return slot

    def _arrive(self, piece: Piece, slot: Slot) -> None:
        device, stream = self._device, self._arriving
        device.wait_value(stream, self.ring.come, slot.number)
        if piece.back is not None:
            device.copy(stream, piece.back, slot.memory[piece.back_first : piece.back_first + len(piece.back)])
        self.ring.emptied(slot, device.record(stream))
        if piece.decode is not None:
            device.copy(stream, self._status.seen, self._status.word)
            device.launch(stream, piece.decode)

    def _wait_for_room(self, pieces: int, timeout_s: float) -> None:
        number = self.ring.before(MAX_QUEUED + 1 - pieces)
        if number is not None:
            self._flags.wait(self.ring.come, number, timeout_s)  # a timeout is ignored: the courier's error says more


def land_within(
    land: Callable[[int, float], None], timeout_s: float, inspect: Callable[[int, int], None] | None, address: int,
    ticket: int,
) -> None:  # fmt: skip
    """Wait for a ticket, as a parcel does: without a closure, which could hold more than it needs."""
    land(ticket, timeout_s)
    if inspect is not None:
        inspect(ticket, address)


@dataclass(slots=True, kw_only=True)
class Coding:
    """The first stage of a reduction on the device: the ranks agree on scale codes, under which words are made."""

    measure: Action
    """Launch the kernels that compute this rank's codes."""
    pieces: Iterable[Piece]
    encode: Action
    """Launch the kernels that compute words under the agreed codes."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One reduction, cut into pieces."""

    pieces: Iterable[Piece]
    timeout_s: float
    coding: Coding | None = None
    finish: list[Action] = field(default_factory=list)
    """Launched in this order behind the last piece, and behind a look at the status."""
    over: Callable[[BaseException | None], None] | None = None
    """Called when the host's part is over, with the error that has ended it, or None."""


class Pipeline:
    """The channels and streams of one group on one device. One thread at a time calls `exchange`."""

    def __init__(
        self, device: Device, leaving: Stream, arriving: Stream, words: Channel, codes: Channel | None, status: Status
    ) -> None:
        self._device, self._leaving, self._arriving = device, leaving, arriving
        self._words, self._codes, self._status = words, codes, status

    def exchange(self, stream: Stream, asked: Exchange) -> Event:
        """Queue a reduction behind what `stream` has been given so far; returns the event behind its result."""
        device = self._device
        begin = device.record(stream)
        device.wait_event(self._leaving, begin)
        device.wait_event(self._arriving, begin)
        if asked.coding is not None:
            assert self._codes is not None
            device.launch(self._leaving, asked.coding.measure)
            self._codes.exchange(asked.coding.pieces, asked.timeout_s)
            device.wait_event(self._arriving, device.record(self._leaving))
            device.launch(self._leaving, asked.coding.encode)
        self._words.exchange(asked.pieces, asked.timeout_s, asked.over)
        if asked.finish:
            device.copy(self._arriving, self._status.seen, self._status.word)
        for action in asked.finish:
            device.launch(self._arriving, action)
        return device.record(self._arriving)

    def release(self) -> None:
        """Mark all that is under way as failed, and let go of every stream."""
        self._device.raise_flag(self._status.flag, 1)
        self._words.release()
        if self._codes is not None:
            self._codes.release()

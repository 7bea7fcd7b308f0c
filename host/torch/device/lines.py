"""One device's streams and rings of pinned memory, with the pipeline over them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from fanin.errors import FaninError
from fanin.host.torch.device import flags
from fanin.host.torch.device.courier import CourierThreads
from fanin.host.torch.device.cuda import FLAG_BYTES
from fanin.host.torch.device.device import Stream
from fanin.host.torch.device.pipeline import Channel, Pipeline, Status
from fanin.host.torch.device.ring import Ring
from fanin.host.torch.handles.host_tensor import as_bytes
from fanin.numerics.lanes import WORD_BITS

log = logging.getLogger("fanin")

SLOT_BYTES = 1 << 20
"""Bytes of a slot, the most that a piece has. The same on every rank, since it decides how tensors are cut."""
SLOTS, MIN_SLOTS = 8, 2
"""Slots of a group's ring, and the fewest that do where pinned memory is scarce."""
LEASED_SLOTS = 4
"""Slots of a ring of new_group's groups, of which a program may have dozens."""
CODE_SLOT_BYTES, CODE_SLOTS = 64 << 10, 4
WORD_BYTES = WORD_BITS // 8
FLAGS, HEAD_BYTES = 5, 4096
"""Number of flags in pinned memory, and length of the page before the slots in which they lie."""

Carried = tuple[CourierThreads, Callable[[int, float], None]]
"""Threads that carry a channel's pieces, and a function that waits so many seconds for a ticket."""


class Line:
    """One device's streams, rings and pipeline."""

    def __init__(
        self,
        device: Any,
        words: Carried,
        codes: Carried | None,
        slots: int,
    ) -> None:
        self.device = device
        self.leaving, self.arriving = device.stream("leaving"), device.stream("arriving")
        self._memory, self.slots = pinned(device, slots, CODE_SLOTS if codes else 0)
        base = self._memory.data_ptr()
        word_gone, word_come, code_gone, code_come, flag = (base + FLAG_BYTES * place for place in range(FLAGS))
        seen = device.allocate(self.arriving, WORD_BYTES)
        self.failed = seen.view(torch.int32)
        """Shape (1,), int32, on the device: not 0 where the group had failed when the device last read its status."""
        device.launch(self.arriving, lambda: self.failed.zero_())
        at = flag - base
        status = Status(flag, self._memory[at : at + WORD_BYTES], seen)
        waits = flags.AddressFlags()

        def channel(
            first: int, slots: int, slot_bytes: int, gone: int, come: int, carried: Carried, back: Stream
        ) -> Channel:
            memory = self._memory[first : first + slots * slot_bytes]
            ring = Ring(memory, base + first, slots, slot_bytes, gone, come)
            return Channel(device, waits, ring, *carried, self.leaving, back, status)

        word_channel = channel(HEAD_BYTES, self.slots, SLOT_BYTES, word_gone, word_come, words, self.arriving)
        code_channel = None
        if codes is not None:
            first = HEAD_BYTES + self.slots * SLOT_BYTES
            code_channel = channel(first, CODE_SLOTS, CODE_SLOT_BYTES, code_gone, code_come, codes, self.leaving)
        self.pipeline = Pipeline(device, self.leaving, self.arriving, word_channel, code_channel, status)

    def close(self) -> None:
        """Release pinned memory once the streams no longer use it, and end the device's threads."""
        for stream in (self.leaving, self.arriving):
            self.device.retire(stream, self._memory, as_bytes(self.failed))
        self.device.close()


def pinned(device: Any, slots: int, code_slots: int) -> tuple[torch.Tensor, int]:
    """Pinned memory for flags and slots, and how many slots there was memory for; FaninError if not for MIN_SLOTS."""
    wanted = slots
    while True:
        count_bytes = HEAD_BYTES + slots * SLOT_BYTES + code_slots * CODE_SLOT_BYTES
        try:
            return device.pinned(count_bytes), slots
        except RuntimeError as error:
            if slots // 2 < MIN_SLOTS:
                raise FaninError(
                    f"no {count_bytes >> 20} MiB of pinned memory for a group's ring of {wanted} slots: {error}. "
                    "Remedy: fewer groups with CUDA tensors, or more memory that may be locked (ulimit -l)"
                ) from error
            slots //= 2
            log.warning("pinned memory is scarce: %d slots of %d KiB in a group's ring", slots, SLOT_BYTES >> 10)

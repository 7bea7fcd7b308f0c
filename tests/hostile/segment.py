"""A job's shared memory as another process of the same user sees it: everything in it may be read and written.

The layout is that of native/io/shared_memory.cpp: a page for all, a page per worker, an uplink per worker, the
downlink,
the images of results.
"""

from __future__ import annotations

import mmap
import os
import struct
from types import TracebackType

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4096
WORKERS_AT, RING_PAGES_AT, IMAGE_PAGES_AT = 8, 12, 16
SWITCH_SLEEPS_AT, DOWNLINK_WRITTEN_AT = 64, 128
ATTACHED_AT, UPLINK_WRITTEN_AT, UPLINK_READ_AT, DOWNLINK_READ_AT = 8, 128, 192, 256
"""In a worker's page."""
LINE_BYTES = 64
"""Records fill whole lines; each begins with its datagram's length and the mask of its readers, 32 bits each."""
ELSEWHERE = 1 << 31
"""In a length: what follows is where among the images the datagram lies (64 bits), and its first bytes."""


class Segment:
    """The memory at a path that a server has told."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self.descriptor, 0)
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.workers = self.number(WORKERS_AT, "I")
        self.ring_bytes = self.number(RING_PAGES_AT, "I") * PAGE_BYTES

    def number(self, at: int, kind: str = "Q") -> int:
        """A number in the memory."""
        return int(struct.unpack_from(kind, self._map, at)[0])

    def put(self, at: int, value: int, kind: str = "Q") -> None:
        """Write a number into the segment."""
        struct.pack_into(kind, self._map, at, value)

    def of_worker(self, worker: int, at: int) -> int:
        """Offset of a field of a worker's page."""
        return PAGE_BYTES * (worker + 1) + at

    def uplink(self, worker: int) -> npt.NDArray[np.uint8]:
        """A worker's ring; behind that of the last worker there is the downlink."""
        start = PAGE_BYTES * (self.workers + 1) + worker * self.ring_bytes
        return self.memory[start : start + self.ring_bytes]

    def images(self) -> npt.NDArray[np.uint8]:
        """The memory in which the switch adds up."""
        return self.memory[PAGE_BYTES * (self.workers + 1) + (self.workers + 1) * self.ring_bytes :]

    def close(self) -> None:
        """Let go of it; it is unmapped with the last array that shows some of it."""
        del self.memory, self._map
        os.close(self.descriptor)

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""What the jobs of one switch share, whatever kind they are: its memory, job indices, generations and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fanin.job import JobSpec
from fanin.switch.data_plane import Limits
from fanin.switch.job_shape import JobShape
from fanin.switch.job_table import JobTable

MAX_INDEX = 0xFFFF


class Resources:
    """Hands them out to the jobs of `tables`."""

    def __init__(self, limits: Limits, tables: Sequence[JobTable[Any]], random_bits: Callable[[int], int]) -> None:
        """`random_bits(n)` draws generations and tokens."""
        self.limits = limits
        self._tables = tables
        self._random_bits = random_bits
        self._last_index = -1

    @property
    def free_bytes(self) -> int:
        """Of the memory, what no job holds."""
        return self.limits.memory_bytes - sum(table.memory_bytes for table in self._tables)

    def draw_token(self) -> int:
        """64 bits that nobody can guess."""
        return self._random_bits(64)

    def new_spec(self, shape: JobShape, workers: int) -> JobSpec:
        """A synchronous job with an identity of its own. ConfigurationError for a shape that no job can have."""
        return JobSpec(
            job=self._take_index(),
            generation=self._random_bits(32),
            workers=workers,
            quorum=workers,
            slots=shape.slots,
            words_per_packet=shape.words_per_packet,
            codes_per_packet=shape.codes_per_packet,
            tokens=tuple(self.draw_token() for _ in range(workers)),
            checksum=shape.checksum,
            liveness_timeout_s=self.limits.liveness_timeout_s,
        )

    def pass_over(self, index: int) -> None:
        """Jobs to come get later indices than this one, as long as there are any."""
        self._last_index = max(self._last_index, index)

    def _take_index(self) -> int:
        """The index longest unused: packets of a job that has just ended must not meet a new one."""
        while True:  # ends: there are more indices than jobs that fit into any memory
            self._last_index = (self._last_index + 1) & MAX_INDEX
            if not any(self._last_index in table.placed for table in self._tables):
                return self._last_index

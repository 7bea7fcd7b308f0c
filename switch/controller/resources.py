"""Resources that the jobs of one switch share: its memory, job indices, generations and tokens.

Quotas: requests alone must not use up resources that others need. Each quota is per source address, since nothing else
is known of a sender that brings a new key; the ranks of one machine share theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from fanin.protocol.control import Refusal, Refused
from fanin.protocol.job import JobSpec, Shape, facts_of
from fanin.protocol.seal import data_key
from fanin.protocol.tag_algorithm import SIPHASH
from fanin.switch.controller.admission import no_memory, refuse
from fanin.switch.controller.data_plane import Limits
from fanin.switch.controller.job_shape import JobShape
from fanin.switch.controller.job_table import JobTable
from fanin.switch.controller.jobs import Tagging

MAX_INDEX = 0xFFFF
UNLIMITED_BYTES = 1 << 40
"""Memory limit of a switch whose device itself refuses jobs for which it has no room; reported as 0."""
RINGS_SHARE, ACCUMULATORS_SHARE = 0.5, 0.75
"""Shares of the memory, and of an address's quota: once jobs hold more, new ones get no rings and accumulators."""
MAX_JOBS = 4096
"""Most jobs at one time, including those that still wait for ranks."""
MAX_JOBS_PER_SOURCE = 512
"""Most jobs at one time that were opened from one address."""
MAX_FORMING_PER_SOURCE = 128
"""Most jobs opened from one address that still wait for ranks, so that the data plane does not have them yet."""
MAX_WAITING_PER_SOURCE = 4096
"""Ranks that wait in the forming jobs of one address: each holds a Join of up to 4 KB."""
assert MAX_FORMING_PER_SOURCE <= MAX_JOBS_PER_SOURCE <= MAX_JOBS


class Resources:
    """Gives memory, indices, generations and tokens to the jobs of `table`."""

    def __init__(self, limits: Limits, table: JobTable, random_bits: Callable[[int], int]) -> None:
        """`random_bits(n)` draws generations and tokens."""
        self.limits = limits
        self._table = table
        self._random_bits = random_bits
        self._last_index = -1

    @property
    def free_bytes(self) -> int:
        """Memory that no job holds."""
        return self.limits.memory_bytes - self._table.memory_bytes

    def judge_new_job(self, source: str) -> Refused | None:
        """The objection to a further job from that address; None without one."""
        forming, placed = self._table.forming, self._table.placed.values()
        if len(forming) + len(placed) >= MAX_JOBS:
            return refuse(Refusal.TOO_MANY_JOBS, f"{MAX_JOBS} jobs are on this switch", "use another switch")
        waiting = sum(job.source == source for job in forming)
        own = waiting + sum(job.source == source for job in placed)
        if waiting < MAX_FORMING_PER_SOURCE and own < MAX_JOBS_PER_SOURCE:
            return None
        return refuse(
            Refusal.QUOTA,
            f"{own} jobs, {waiting} of them forming, were opened from {source or 'this address'}; a switch takes "
            f"{MAX_JOBS_PER_SOURCE} and {MAX_FORMING_PER_SOURCE} from one",
            "let those jobs start or end first",
        )

    def judge_new_rank(self, source: str) -> Refused | None:
        """The objection to a further rank that waits in jobs opened from that address; None without one."""
        waiting = sum(len(job.members) for job in self._table.forming if job.source == source)
        if waiting < MAX_WAITING_PER_SOURCE:
            return None
        return refuse(
            Refusal.QUOTA,
            f"{waiting} ranks wait in jobs opened from {source or 'this address'}; a switch takes no more from one",
            "let those jobs start or end first",
        )

    def judge_memory(self, needed_bytes: int, source: str, slots: int) -> Refused | None:
        """The objection to a job from that address with so much memory; None without one."""
        jobs = self._table.placed.values()
        if needed_bytes > (free_bytes := self.free_bytes):
            return no_memory(needed_bytes, free_bytes, slots, len(jobs))
        share = int(self.limits.memory_bytes * self.limits.source_share)
        held = sum(job.memory_bytes for job in jobs if job.source == source)
        if held + needed_bytes <= share:
            return None
        return refuse(
            Refusal.QUOTA,
            f"{needed_bytes:,} bytes of switch memory needed; jobs opened from {source or 'this address'} hold "
            f"{held:,} of at most {share:,}",
            f"start the switch with more --memory or a larger --source-share, set FANIN_SLOTS below {slots} or "
            "FANIN_FLOWS lower, or let idle groups give theirs back sooner (FANIN_IDLE_RETURN_S)",
        )

    def may_have_rings(self, source: str) -> bool:
        """Whether a job opened from that address may have rings beside its slots."""
        return self._holds_at_most(RINGS_SHARE, source)

    def may_have_accumulators(self, source: str) -> bool:
        """Whether a job opened from that address may have accumulators that its ranks do not require."""
        return self._holds_at_most(ACCUMULATORS_SHARE, source)

    def _holds_at_most(self, part: float, source: str) -> bool:
        """True if jobs from that address hold at most `part` of its share, and all jobs at most `part` of the memory.
        The rest is reserved for slots.
        """
        jobs = self._table.placed.values()
        held = sum(job.memory_bytes for job in jobs if job.source == source)
        share = self.limits.memory_bytes * self.limits.source_share
        return held <= share * part and self._table.memory_bytes <= self.limits.memory_bytes * part

    def draw_token(self) -> int:
        """A worker's token, 64 random bits."""
        return self._random_bits(64)

    def new_spec(self, shape: JobShape, workers: int, tagging: Tagging | None = None) -> JobSpec:
        """Specification of a synchronous job with an index, generation and tokens of its own.

        Tagged packets need no checksum. ConfigurationError for a shape that no job can have.
        """
        index, generation = self._take_index(), self._random_bits(32)
        key, algorithm = b"", SIPHASH
        if tagging is not None:
            algorithm = tagging.algorithm
            key = data_key(tagging.control_key, index, generation, algorithm)
        return JobSpec(
            job=index,
            generation=generation,
            workers=workers,
            quorum=workers,
            tokens=tuple(self.draw_token() for _ in range(workers)),
            data_key=key,
            tag=algorithm,
            liveness_timeout_s=self.limits.liveness_timeout_s,
            **facts_of(shape, Shape) | {"checksum": shape.checksum and not key},
        )

    def pass_over(self, index: int) -> None:
        """Give new jobs indices above this one, until they wrap around."""
        self._last_index = max(self._last_index, index)

    def _take_index(self) -> int:
        """The index longest unused: packets of a job that has just ended must not meet a new one."""
        while True:  # ends: there are more indices than jobs that fit into any memory
            self._last_index = (self._last_index + 1) & MAX_INDEX
            if self._last_index not in self._table.placed:
                return self._last_index

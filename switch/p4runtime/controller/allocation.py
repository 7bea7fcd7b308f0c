"""Allocation of a device's slots, ring entries and counters to jobs: first fit, in ranges that do not overlap."""

from __future__ import annotations

from collections.abc import Collection

from fanin.errors import AdmissionError
from fanin.protocol.job import JobSpec
from fanin.switch.p4runtime.controller.capacity import Capacity
from fanin.switch.p4runtime.controller.placed_job import PlacedJob


def place(spec: JobSpec, placed: Collection[PlacedJob], capacity: Capacity) -> PlacedJob:
    """Place a job beside the placed ones. AdmissionError if there is no room."""
    if any(job.spec.job == spec.job for job in placed):
        raise AdmissionError(f"job index {spec.job} is taken at this switch; the controller must choose another")
    row = next(row for row in range(1, len(placed) + 2) if all(job.row != row for job in placed))
    slot = _first_fit([(job.first_slot, job.spec.slots) for job in placed], spec.slots, capacity.slots)
    need = spec.slots * spec.history
    if capacity.depth is None:
        entry = _first_fit([(job.first_entry, job.entries) for job in placed], need, capacity.entries)
    else:  # all rings have the same depth, so that the slot's index determines its ring
        entry = None if slot is None else slot * capacity.depth
    if row > capacity.jobs or slot is None or entry is None:
        raise AdmissionError(
            f"job {spec.job} needs {spec.slots} slots and {need} ring entries; the switch has room for "
            f"{capacity.jobs} jobs, {capacity.slots} slots and {capacity.entries} entries, and "
            f"{len(placed)} jobs hold some of it: ask for fewer slots or end another job"
        )
    return PlacedJob(
        spec, row, slot, entry, spec.full_mask, spec.quorum, spec.staleness, [None] * spec.workers, [0.0] * spec.workers
    )


def _first_fit(held: list[tuple[int, int]], size: int, total: int) -> int | None:
    """Begin of the first free range of `size` below `total`; None without one. `held`: begin and length of each."""
    start = 0
    for begin, length in sorted(held):
        if start + size <= begin:
            break
        start = begin + length
    return start if start + size <= total else None

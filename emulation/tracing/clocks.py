"""Aligns the clocks of ranks on several machines by the sums that they took part in. Pure.

Rules
-----
* Processes with the same boot id share one clock, unless a sum would have been done before a rank began it (as in a
  container with a time namespace): then they count as having two.
* A sum's result goes to all ranks at once, so a rank's clock differs from the reference's by about the difference of
  the times at which both had it; the median over all common sums is used. If one clock runs faster, this difference
  grows: with enough sums, a line through the medians of the first and the last third is used.
* A sum that waits for every rank is done nowhere before every rank has begun it. So each sum bounds the difference from
  both sides, and a median beyond the bounds is moved to the nearer one. Contradictory bounds, as in jobs with a quorum,
  are not used.
* `error_s` is half the distance of the bounds, or half the interquartile range of the differences, whichever is less.
* Ranks without a common sum are aligned by their calendar time, with an unknown error.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

MIN_SUMS_FOR_DRIFT = 60
"""Fewest common sums with which a difference in speed is estimated."""

Way = Literal["reference", "same clock", "sums", "calendar", "nothing"]
Sum = tuple[str, int]
"""Identity of a sum on all ranks: the job's name and the ticket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Times of one rank, on its own clock."""

    clock: str
    """The machine's boot id; empty if it is not known."""
    started_s: float
    unix_s: float | None
    """Calendar time at `started_s`; None if it is not known."""
    sums: Mapping[Sum, tuple[float, float]]
    """Times at which each sum was submitted and done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Conversion of a rank's clock to the reference's."""

    way: Way
    offset_s: float = 0.0
    """The rank's clock minus the reference's, at `at_s`."""
    at_s: float = 0.0
    """Time on the rank's clock at which `offset_s` holds."""
    drift: float = 0.0
    """Seconds by which the difference grows in one second of the rank's clock."""
    error_s: float | None = 0.0
    """Approximate error of the conversion; None if it is not known."""
    sums: int = 0
    """Number of common sums that were used."""

    def to_reference(self, time_s: float) -> float:
        """Convert a time of the rank's clock to the reference's."""
        return time_s - self.offset_s - self.drift * (time_s - self.at_s)


def align(ranks: Mapping[int, RankTimes]) -> dict[int, Alignment]:
    """By rank, the alignment to the clock of the lowest rank."""
    first = min(ranks)
    reference = ranks[first]
    found = {first: Alignment(way="reference")}
    for rank, times in ranks.items():
        if rank != first:
            found[rank] = _aligned(reference, times)
    return found


def _aligned(reference: RankTimes, rank: RankTimes) -> Alignment:
    common = sorted(reference.sums.keys() & rank.sums.keys(), key=lambda each: rank.sums[each][1])
    bounds = _bounds(reference, rank, common)
    if reference.clock and reference.clock == rank.clock and (bounds is None or bounds[0] <= 0.0 <= bounds[1]):
        return Alignment(way="same clock", sums=len(common))
    if common:
        return _by_sums(reference, rank, common, bounds)
    if reference.unix_s is None or rank.unix_s is None:
        return Alignment(way="nothing", offset_s=rank.started_s - reference.started_s, error_s=None)
    own_s, other_s = rank.started_s - rank.unix_s, reference.started_s - reference.unix_s
    return Alignment(way="calendar", offset_s=own_s - other_s, error_s=None)


def _bounds(reference: RankTimes, rank: RankTimes, common: list[Sum]) -> tuple[float, float] | None:
    """Least and largest difference of the clocks for which no sum is done before both began it; None without any."""
    if not common:
        return None
    least = max(rank.sums[each][0] - reference.sums[each][1] for each in common)
    most = min(rank.sums[each][1] - reference.sums[each][0] for each in common)
    return (least, most) if least <= most else None


def _by_sums(reference: RankTimes, rank: RankTimes, common: list[Sum], bounds: tuple[float, float] | None) -> Alignment:
    times = [rank.sums[each][1] for each in common]
    differences = [rank.sums[each][1] - reference.sums[each][1] for each in common]
    at_s, drift = statistics.median(times), 0.0
    if len(common) >= MIN_SUMS_FOR_DRIFT:
        third = len(common) // 3
        run_s = statistics.median(times[-third:]) - statistics.median(times[:third])
        grown_s = statistics.median(differences[-third:]) - statistics.median(differences[:third])
        drift = grown_s / run_s if run_s > 0 else 0.0
        # A clock that runs faster narrows the bounds of a long run until they contradict each other.
        bounds = _bounds_at(reference, rank, common, at_s, drift)
    left = [each - drift * (time_s - at_s) for each, time_s in zip(differences, times, strict=True)]
    offset_s = statistics.median(left)
    error_s = _middle_half(left) / 2
    if bounds is not None:
        offset_s = min(max(offset_s, bounds[0]), bounds[1])
        error_s = min(error_s, (bounds[1] - bounds[0]) / 2)
    return Alignment(way="sums", offset_s=offset_s, at_s=at_s, drift=drift, error_s=error_s, sums=len(common))


def _bounds_at(
    reference: RankTimes, rank: RankTimes, common: list[Sum], at_s: float, drift: float
) -> tuple[float, float] | None:
    sums = {
        each: (begun_s - drift * (begun_s - at_s), done_s - drift * (done_s - at_s))
        for each, (begun_s, done_s) in rank.sums.items()
    }
    return _bounds(reference, replace(rank, sums=sums), common)


def _middle_half(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[(3 * len(ordered)) // 4 if len(ordered) > 1 else 0] - ordered[len(ordered) // 4]

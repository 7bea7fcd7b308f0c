"""Rates of jobs and ranks, from two snapshots of a switch's statistics. Pure.

A snapshot is what a switch answers to `Ask` (fanin.protocol.control.Stats). Counters are those of
fanin/switch/machine/tally.py and member_tally.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fanin.protocol.control import JobReport, MemberReport, Spending, Stats

TURNAROUND = "turnaround_"
"""Prefix of the counters of a rank's turnarounds; the rest is the bucket's bound in microseconds."""
TURNAROUND_QUANTILE = 0.25
"""Part of a rank's turnarounds that are shorter than `RankRates.turnaround_s`. Low, since a turnaround with a pause of
the program in it is longer than those of the path."""
MIN_TURNAROUNDS = 8
"""Number of turnarounds below which they tell nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Shares of a rank's time in 0..1, which add up to 1, by its own account."""

    compute: float
    """Share in which no sum was under way."""
    quantize: float
    send: float
    wait: float
    """Share in which a sum was under way, and no thread of the engine was busy with it."""
    decode: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRates:
    """One rank between two snapshots. Shares are in 0..1."""

    rank: int
    process: str
    """Host and process id of the rank, `host:pid`."""
    state: str
    """State of the rank, one of those of MemberReport."""
    counted: bool
    """Whether the switch counts by rank; everything below is 0 otherwise."""
    waited_s: float = 0.0
    """Time for which rounds lacked this rank's contribution alone."""
    waited_share: float = 0.0
    """Share of the time between the snapshots that `waited_s` is."""
    last_share: float = 0.0
    """Share of the closed rounds that this rank was the last to contribute to."""
    lost_up: int = 0
    lost_up_share: float = 0.0
    """Share of the rank's transmissions that were lost on the way to the switch."""
    lost_down: int = 0
    lost_down_share: float = 0.0
    """Share of the results that the rank asked for again."""
    marks_share: float = 0.0
    """Share of the contributions that came which met congestion."""
    turnaround_s: float | None = None
    """Time from a result to the next contribution to the slot while it sends without a pause, rounded up to a power of
    two of microseconds; None: there were too few."""
    bytes_in_per_s: float = 0.0
    shares: TimeShares | None = None
    """How the rank has spent the time between its last accounts; None: it has given none since."""

    @property
    def host(self) -> str:
        """Name of the machine."""
        return self.process.rpartition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRates:
    """One job between two snapshots."""

    name: str
    key: str
    """Fingerprint of the key that its ranks speak with, which tells it from jobs of other owners."""
    index: int | None
    generation: int | None
    seconds: float
    """Time between the snapshots; without an earlier one, since the job was opened."""
    rounds: int
    rounds_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    ranks: tuple[RankRates, ...]


def rates(before: Stats | None, after: Stats) -> tuple[JobRates, ...]:
    """Rates of every job in `after`: since `before`, or since its beginning for None, a new job, a restarted switch."""
    restarted = before is None or before.uptime_s > after.uptime_s
    earlier = {} if restarted or before is None else {_key(job): job for job in before.jobs}
    elapsed_s = after.uptime_s - (before.uptime_s if before is not None and not restarted else 0.0)
    return tuple(_job(earlier.get(_key(job)), job, elapsed_s) for job in after.jobs)


def _key(job: JobReport) -> tuple[int | None, int | None]:
    return job.index, job.generation


def _job(before: JobReport | None, after: JobReport, elapsed_s: float) -> JobRates:
    seconds = max(elapsed_s if before is not None else after.age_s, 1e-6)
    counts = grown(before.counters if before is not None else {}, after.counters)
    rounds = counts.get("rounds", 0)
    earlier = {} if before is None else {member.rank: member for member in before.members}
    return JobRates(
        name=after.name,
        key=after.key,
        index=after.index,
        generation=after.generation,
        seconds=seconds,
        rounds=rounds,
        rounds_per_s=rounds / seconds,
        bytes_in_per_s=counts.get("bytes_in", 0) / seconds,
        bytes_out_per_s=counts.get("bytes_out", 0) / seconds,
        ranks=tuple(_rank(earlier.get(each.rank), each, seconds, rounds) for each in after.members),
    )


def _rank(before: MemberReport | None, after: MemberReport, seconds: float, rounds: int) -> RankRates:
    counts = grown(before.counters if before is not None else {}, after.counters)
    sent, waited_s = counts.get("transmissions", 0), counts.get("waited_us", 0) * 1e-6
    lost_up, lost_down = counts.get("lost_up", 0), counts.get("asked_again", 0)
    return RankRates(
        rank=after.rank,
        process=after.process,
        state=after.state,
        counted=bool(after.counters),
        waited_s=waited_s,
        waited_share=min(waited_s / seconds, 1.0),
        last_share=_share(counts.get("last", 0), rounds),
        lost_up=lost_up,
        lost_up_share=_share(lost_up, sent),
        lost_down=lost_down,
        lost_down_share=_share(lost_down, rounds),
        marks_share=_share(counts.get("marks", 0), sent - lost_up),
        turnaround_s=_turnaround_s(counts),
        bytes_in_per_s=counts.get("bytes_in", 0) / seconds,
        shares=time_shares(None if before is None else before.spending, after.spending),
    )


def time_shares(before: Spending | None, after: Spending | None) -> TimeShares | None:
    """Shares of the time between two accounts of a rank; without an earlier one, or where it began anew, of all of it.

    Processor time beyond the time for which sums were under way, of several threads at once, is cut in proportion.
    """
    if after is None or after == before:
        return None
    if before is None or before.age_us > after.age_us:
        before = Spending(age_us=0, communicating_us=0, quantizing_us=0, sending_us=0, decoding_us=0)
    whole_us = after.age_us - before.age_us
    if whole_us <= 0:
        return None
    under_way = min(max(after.communicating_us - before.communicating_us, 0) / whole_us, 1.0)
    names = ("quantizing_us", "sending_us", "decoding_us")
    spent = [max(getattr(after, name) - getattr(before, name), 0) / whole_us for name in names]
    scale = min(1.0, under_way / sum(spent)) if sum(spent) > 0 else 0.0
    quantize, send, decode = (share * scale for share in spent)
    wait = max(under_way - quantize - send - decode, 0.0)
    return TimeShares(compute=1.0 - under_way, quantize=quantize, send=send, wait=wait, decode=decode)


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return by how much each counter has grown; one that has shrunk is counted from 0."""
    return {
        name: count - before.get(name, 0) if count >= before.get(name, 0) else count for name, count in after.items()
    }


def _share(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0


def _turnaround_s(counts: Mapping[str, int]) -> float | None:
    buckets = sorted((int(name[len(TURNAROUND) :]), count) for name, count in counts.items() if TURNAROUND in name)
    below, wanted = 0, TURNAROUND_QUANTILE * sum(count for _, count in buckets)
    if sum(count for _, count in buckets) < MIN_TURNAROUNDS:
        return None
    for bound_us, count in buckets:
        below += count
        if below >= wanted:
            return bound_us * 1e-6
    return None

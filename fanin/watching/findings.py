"""Findings on a running job: which rank or switch holds it up, and why. Pure, over snapshots of statistics.

RULES has every kind of finding about a rank, with its condition and its words. Where several rules hold for a rank, it
gets the finding of the first, since loss and queues are why a rank is waited for. docs/watching.md has the table in
words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fanin.protocol.control import Stats
from fanin.watching.rates import JobRates, RankRates, rates

WAITED_SHARE = 0.08
"""A rank that is waited for less than this share of the time holds nobody up."""
TIMES_AS_LONG = 3.0
"""A straggler is waited for at least so many times as long as any other rank."""
LOST_UP_SHARE = 0.003
"""Loss on the way to the switch is counted exactly, so that little of it is no accident."""
LOST_DOWN_SHARE = 0.008
"""Results are also asked for again where they are late, as when all wait for one rank's loss: up to 0.4 % in the
simulator (tests/simulator/test_planted_faults.py)."""
TIMES_AS_LOSSY = 3.0
"""A rank's path is lossy if it loses so many times what any other does; loss everywhere is no rank's finding."""
MIN_LOST = 8
"""Fewer lost packets between two snapshots are chance."""
QUEUED_TIMES = 4.0
"""A queue is clogged, or a shard slow, where turnarounds are so many times as long as the others'. The counters tell
powers of two apart: a true factor of 4 may show as 2, one of 8 shows as 4 at least."""
CONGESTIVE_LOSS_SHARE = 0.01
"""A queue that overflows loses less than this, since senders yield to it; a path that loses more makes turnarounds long
by itself, for senders yield to that, too."""
MARKS_SHARE = 0.05
"""Share of a rank's packets from which on marks show that its path is congested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Cause that holds a job up."""

    kind: str
    """A kind of RULES, or SLOW_SHARD."""
    job: str
    rank: int | None
    """None: it is a switch."""
    switch: int
    """Position of the switch among those that were asked."""
    share: float
    """Weight of the finding: the share of the time that the rank was waited for, or 1 for a switch."""
    text: str
    """In words, with figures."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of finding about a rank."""

    kind: str
    holds: Callable[[RankRates, Sequence[RankRates]], bool]
    """The condition: takes a rank, and the other ranks of the job that the switch counts, at least one."""
    words: Callable[[RankRates, Sequence[RankRates]], str]
    everywhere: bool = False
    """Whether most of the job's switches must show it: a rank's own switch may not, and at a single switch some rank is
    always last."""


def _queued(rank: RankRates, others: Sequence[RankRates]) -> bool:
    lost_share = max(rank.lost_up_share, rank.lost_down_share)
    if rank.waited_share < WAITED_SHARE or lost_share >= CONGESTIVE_LOSS_SHARE:
        return False
    if rank.marks_share >= max(MARKS_SHARE, TIMES_AS_LOSSY * max(each.marks_share for each in others)):
        return True
    elsewhere = _elsewhere(rank, others)
    known = [each.turnaround_s for each in elsewhere if each.turnaround_s is not None]
    # A switch on one rank's machine answers that rank sooner than all others: two other machines at least.
    if rank.turnaround_s is None or len({each.host for each in elsewhere}) < 2 or len(known) < 2:
        return False
    return rank.turnaround_s >= QUEUED_TIMES * max(known)


def _elsewhere(rank: RankRates, others: Sequence[RankRates]) -> list[RankRates]:
    """Ranks of other machines. In namespaces or containers that share a name, every rank is a machine."""
    elsewhere = [each for each in others if each.host != rank.host]
    if elsewhere:
        return elsewhere
    return [_alone(each) for each in others]


def _alone(rank: RankRates) -> RankRates:
    return replace(rank, process=f"rank {rank.rank}:")


def _lossy_up(rank: RankRates, others: Sequence[RankRates]) -> bool:
    worst = max(each.lost_up_share for each in others)
    return rank.lost_up >= MIN_LOST and rank.lost_up_share >= max(LOST_UP_SHARE, TIMES_AS_LOSSY * worst)


def _lossy_down(rank: RankRates, others: Sequence[RankRates]) -> bool:
    worst = max(each.lost_down_share for each in others)
    return rank.lost_down >= MIN_LOST and rank.lost_down_share >= max(LOST_DOWN_SHARE, TIMES_AS_LOSSY * worst)


def _straggles(rank: RankRates, others: Sequence[RankRates]) -> bool:
    longest = max(each.waited_share for each in others)
    return rank.waited_share >= max(WAITED_SHARE, TIMES_AS_LONG * longest)


def _queued_in_words(rank: RankRates, others: Sequence[RankRates]) -> str:
    known = [each.turnaround_s for each in others if each.turnaround_s is not None]
    times = ""
    if rank.turnaround_s is not None and known:
        times = (
            f": {rank.turnaround_s * 1e3:.3g} ms from a result to its next packet, {max(known) * 1e3:.3g} ms at others"
        )
    marked = f", {rank.marks_share:.1%} of its packets are marked" if rank.marks_share >= MARKS_SHARE else ""
    return f"a queue on the path of rank {rank.rank} is clogged, or its link is slow{times}{marked}"


RULES = (
    Rule("clogged queue", _queued, _queued_in_words, everywhere=True),
    Rule(
        "lossy uplink",
        _lossy_up,
        lambda rank, others: (
            f"the path from rank {rank.rank} to the switch loses {rank.lost_up_share:.2%} of its packets "
            f"({rank.lost_up:,})"
        ),
    ),
    Rule(
        "lossy downlink",
        _lossy_down,
        lambda rank, others: (
            f"the path from the switch to rank {rank.rank} loses {rank.lost_down_share:.2%} of the results "
            f"({rank.lost_down:,})"
        ),
    ),
    Rule(
        "straggler",
        _straggles,
        lambda rank, others: (
            f"rank {rank.rank} begins its sums later than the others, which wait for it {rank.waited_share:.0%} of the "
            "time"
        ),
        everywhere=True,
    ),
)
"""Rules in the order in which they are tried for a rank."""
SLOW_SHARD = "slow shard"
KINDS = (*(rule.kind for rule in RULES), SLOW_SHARD)


def findings(before: Sequence[Stats | None], after: Sequence[Stats]) -> tuple[Finding, ...]:
    """Findings on every job at some switches, the weightiest first; both sequences are in the order of the switches.

    Of a job over several switches, a rank has one finding, from the switch where it weighs most.
    """
    jobs: dict[tuple[str, str], dict[int, JobRates]] = {}
    for switch, (first, last) in enumerate(zip(before, after, strict=True)):
        for job in rates(first, last):
            jobs.setdefault((job.name, job.key), {})[switch] = job
    found = [each for (name, _), there in jobs.items() for each in _of_job(name, there)]
    return tuple(sorted(found, key=lambda each: -each.share))


def _of_job(name: str, there: dict[int, JobRates]) -> list[Finding]:
    slow = _slow_shards(name, there)
    # Ranks look slow at a slow shard, because of the shard.
    sound = {switch: job for switch, job in there.items() if all(each.switch != switch for each in slow)}
    found = []
    for rank in sorted({rank.rank for job in sound.values() for rank in job.ranks if rank.counted}):
        for rule in RULES:
            shown = [each for switch, job in sound.items() if (each := _shown(rule, rank, name, switch, job))]
            if shown and (not rule.everywhere or 2 * len(shown) > len(sound)):
                found.append(max(shown, key=lambda each: each.share))
                break
    return slow + found


def _shown(rule: Rule, number: int, name: str, switch: int, job: JobRates) -> Finding | None:
    """The finding of that kind on a rank at one switch, if there is one."""
    rank = next((each for each in job.ranks if each.rank == number and each.counted), None)
    others = [each for each in job.ranks if each.rank != number and each.counted]
    if rank is None or not others or not rule.holds(rank, others):
        return None
    text, share = rule.words(rank, others), rank.waited_share
    return Finding(kind=rule.kind, job=name, rank=number, switch=switch, share=share, text=text)


def _slow_shards(name: str, there: dict[int, JobRates]) -> list[Finding]:
    """Switches of a job over several at which turnarounds are much longer than at all others: the median rank's, or
    one rank's, for which the others wait at no other switch. The queue of a slow shard may have cut that rank's window
    alone; then most ranks only wait for its contributions, and send theirs at once.
    """
    known = {switch: turnarounds for switch, job in there.items() if (turnarounds := _turnarounds(job))}
    medians = {switch: each[len(each) // 2] for switch, each in known.items()}
    longest = {switch: each[-1] for switch, each in known.items()}
    waited = {switch: sum(rank.waited_share for rank in there[switch].ranks) for switch in known}
    found = []
    for switch in known:
        is_late = waited[switch] >= WAITED_SHARE and _stands_out(waited, switch, TIMES_AS_LONG)
        of_one = is_late and _stands_out(longest, switch, QUEUED_TIMES)
        shown, whose = (longest, "the slowest rank") if of_one else (medians, "most ranks")
        if of_one or _stands_out(medians, switch, QUEUED_TIMES):
            elsewhere = max(each for other, each in shown.items() if other != switch)
            text = (
                f"switch {switch} is slow: {shown[switch] * 1e3:.3g} ms from a result to the next packet of {whose}, "
                f"{elsewhere * 1e3:.3g} ms at the other switches"
            )
            found.append(Finding(kind=SLOW_SHARD, job=name, rank=None, switch=switch, share=1.0, text=text))
    return found


def _turnarounds(job: JobRates) -> list[float]:
    """The turnarounds of all ranks that have one, in seconds, the shortest first."""
    return sorted(each.turnaround_s for each in job.ranks if each.turnaround_s is not None)


def _stands_out(values: Mapping[int, float], switch: int, times: float) -> bool:
    """Whether the value at a switch is so many times that at every other one, of which there is one at least."""
    others = [each for other, each in values.items() if other != switch]
    return bool(others) and values[switch] >= times * max(others)

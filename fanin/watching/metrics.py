"""Metrics for Prometheus: one table of names, units and meanings, for switches and for ranks.

Names follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/): the unit last, in base units
(seconds, bytes), `_total` at the end of what only grows. docs/watching.md shows METRICS; a test compares the two.
Samples are made from what `fanin stats` reads too: statistics of a switch, and counters of a rank's engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from fanin.protocol.control import JobReport, MemberReport, Stats
from fanin.watching.rates import TURNAROUND

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

Kind = Literal["counter", "gauge", "histogram"]
US = 1e-6
DROPPED = "dropped_"
"""Prefix of the names of drop counters; the rest is the reason."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as the table describes it."""

    name: str
    """Exported name; a histogram's is followed by `_bucket`."""
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


class Sample(NamedTuple):
    """A value of a metric; of a histogram, (upper bound, number of values below it) for each bucket."""

    name: str
    labels: tuple[str, ...]
    value: float | tuple[tuple[float, int], ...]


class Source(NamedTuple):
    """A counter that a metric is made of."""

    counter: str
    metric: str
    meaning: str
    scale: float = 1.0
    kind: Kind = "counter"


DATA = (
    Source("packets_in", "packets_received_total", "datagrams that came"),
    Source("packets_out", "packets_sent_total", "datagrams sent; a multicast counts once per worker"),
    Source("bytes_in", "received_bytes_total", "bytes of datagrams that came"),
    Source("bytes_out", "sent_bytes_total", "bytes of datagrams sent"),
    Source("contributions", "contributions_total", "contributions added to a round"),
    Source("passes", "passes_total", "passes accepted"),
    Source("duplicates", "duplicates_total", "contributions that were there already"),
    Source("answers", "answers_total", "results sent again to one worker"),
    Source("rounds", "rounds_total", "rounds closed"),
    Source("unsent", "unsent_datagrams_total", "datagrams lost in the switch's own queue"),
)
"""Metrics from counters of fanin/switch/machine/tally.py: of a switch's data ports (`fanin_switch_...`) and of a job
(`fanin_job_...`)."""
RANK = (
    Source("waited_us", "waited_seconds_total", "time for which rounds lacked this rank's contribution alone", US),
    Source("last", "last_arrivals_total", "rounds that this rank was the last to contribute to"),
    Source("contributions", "contributions_total", "contributions and passes accepted"),
    Source("bytes_in", "received_bytes_total", "bytes of datagrams that came from this rank"),
    Source("transmissions", "transmissions_total", "datagrams that this rank sent, by its own numbers"),
    Source("lost_up", "lost_transmissions_total", "those of them that never came: losses on the way to the switch"),
    Source("asked_again", "lost_results_total", "results that this rank asked for again: losses on the way back"),
    Source("repeated", "repeated_contributions_total", "contributions sent again though nothing was lost"),
    Source("marks", "marked_packets_total", "datagrams of this rank that met congestion"),
)
"""Metrics from counters of fanin/switch/machine/member_tally.py."""
WORKER = (
    Source("packets_out", "sent_packets_total", "datagrams sent"),
    Source("packets_in", "received_packets_total", "datagrams that came"),
    Source("bytes_out", "sent_bytes_total", "bytes of datagrams sent"),
    Source("bytes_in", "received_bytes_total", "bytes of datagrams that came"),
    Source("retransmissions", "retransmissions_total", "contributions sent again"),
    Source("losses", "losses_total", "contributions and results known to have been lost"),
    Source("timeouts", "timeouts_total", "retransmission timers that expired"),
    Source("spurious", "spurious_retransmissions_total", "contributions sent again that had arrived"),
    Source("duplicates", "duplicates_total", "results that were there already"),
    Source("results", "results_total", "results taken in"),
    Source("marks", "marked_packets_total", "marks of congestion, both ways"),
    Source("cuts", "window_cuts_total", "cuts of the congestion window"),
    Source("paced", "paced_total", "times that the pace held something back"),
    Source("window", "window_packets", "congestion window now", kind="gauge"),
    Source("srtt_us", "round_trip_seconds", "smoothed round trip to the switch, the longest of a flow", US, "gauge"),
    Source("packing_us", "packing_seconds_total", "processor time spent quantizing", US),
    Source("socket_send_us", "sending_seconds_total", "processor time spent in sending system calls", US),
    Source("decoding_us", "decoding_seconds_total", "processor time spent on results that came", US),
    Source("communicating_us", "communicating_seconds_total", "time for which a sum was under way", US),
    Source("path_suspected", "path_suspected", "1 while long packets are lost and short ones pass", kind="gauge"),
)
"""Metrics from counters of a rank's engine (Session.counters)."""
JOB = "job_name"
"""Label of a job: `job` is Prometheus' own, and would be renamed."""
BY_SCHEME, BY_JOB, BY_RANK, BY_SESSION = ("scheme",), (JOB,), (JOB, "rank"), (JOB, "rank", "switch")
TURNAROUNDS = "fanin_rank_turnaround_seconds"


def _of(prefix: str, sources: Iterable[Source], labels: tuple[str, ...], of: str) -> tuple[Metric, ...]:
    return tuple(Metric(prefix + each.metric, each.kind, labels, f"{each.meaning}{of}") for each in sources)


METRICS: tuple[Metric, ...] = (
    Metric("fanin_switch_info", "gauge", ("software", "engine"), "1; the labels say what runs"),
    Metric("fanin_switch_uptime_seconds", "gauge", (), "time since the switch started"),
    Metric("fanin_switch_memory_bytes", "gauge", (), "aggregation memory in all; 0: the device decides"),
    Metric("fanin_switch_memory_used_bytes", "gauge", (), "the part of it that jobs hold"),
    Metric("fanin_switch_jobs", "gauge", (), "jobs that some worker takes part in or waits for"),
    Metric("fanin_switch_refusals_total", "counter", ("code",), "requests refused (docs/errors.md has the codes)"),
    *_of("fanin_switch_", DATA, BY_SCHEME, ", at all data ports of a scheme"),
    Metric("fanin_switch_dropped_packets_total", "counter", ("scheme", "reason"), "datagrams dropped"),
    Metric("fanin_job_ranks", "gauge", (JOB, "state"), "ranks of a job by state"),
    Metric("fanin_job_window_packets", "gauge", BY_JOB, "slots of a job: packets that a rank may have under way"),
    *_of("fanin_job_", DATA, BY_JOB, ", of a job"),
    Metric("fanin_job_dropped_packets_total", "counter", (JOB, "reason"), "datagrams of a job dropped"),
    *_of("fanin_rank_", RANK, BY_RANK, ""),
    Metric(TURNAROUNDS, "histogram", BY_RANK, "time from a result to this rank's next packet of that slot"),
    *_of("fanin_worker_", WORKER, BY_SESSION, ""),
)
"""Everything that is exported: `fanin_worker_...` by ranks, and all others by switches."""


def of_switch(stats: Stats) -> Iterator[Sample]:
    """Samples from a switch's statistics."""
    yield Sample("fanin_switch_info", (stats.software, stats.engine), 1)
    yield Sample("fanin_switch_uptime_seconds", (), stats.uptime_s)
    yield Sample("fanin_switch_memory_bytes", (), stats.memory_bytes)
    yield Sample("fanin_switch_memory_used_bytes", (), stats.memory_used_bytes)
    yield Sample("fanin_switch_jobs", (), stats.job_count)
    for code, count in stats.refused.items():
        yield Sample("fanin_switch_refusals_total", (code,), count)
    for data in stats.data:
        yield from _counted("fanin_switch_", DATA, data.counters, (data.scheme,))
    for job in stats.jobs:
        yield from _of_job(job)


def _of_job(job: JobReport) -> Iterator[Sample]:
    states = [member.state for member in job.members]
    for state in sorted(set(states)):
        yield Sample("fanin_job_ranks", (job.name, state), states.count(state))
    yield Sample("fanin_job_window_packets", (job.name,), job.slots)
    yield from _counted("fanin_job_", DATA, job.counters, (job.name,))
    for member in job.members:
        yield from _of_rank(job.name, member)


def _of_rank(job: str, member: MemberReport) -> Iterator[Sample]:
    labels = (job, str(member.rank))
    yield from _counted("fanin_rank_", RANK, member.counters, labels)
    found = sorted(
        (int(name[len(TURNAROUND) :]) * US, count) for name, count in member.counters.items() if TURNAROUND in name
    )
    if found:
        below = 0
        yield Sample(TURNAROUNDS, labels, tuple((bound_s, below := below + count) for bound_s, count in found))


def of_rank(job: str, rank: int, switch: str, counters: Mapping[str, float]) -> Iterator[Sample]:
    """Samples from the counters of a rank's session at a switch."""
    yield from _counted("fanin_worker_", WORKER, counters, (job, str(rank), switch))


def _counted(
    prefix: str, sources: Iterable[Source], counters: Mapping[str, float], labels: tuple[str, ...]
) -> Iterator[Sample]:
    for each in sources:
        if each.counter in counters:
            yield Sample(prefix + each.metric, labels, counters[each.counter] * each.scale)
    dropped = f"{prefix}dropped_packets_total"
    if prefix in ("fanin_switch_", "fanin_job_"):
        for name, count in counters.items():
            if name.startswith(DROPPED):
                yield Sample(dropped, (*labels, name.removeprefix(DROPPED)), count)


def families(samples: Iterable[Sample]) -> Iterator[Family]:
    """Samples as prometheus-client exports them, each under its metric. Jobs of two owners with one name are added up,
    since labels do not tell them apart."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    found: dict[str, dict[tuple[str, ...], float | tuple[tuple[float, int], ...]]] = {}
    for name, labels, value in samples:
        there = found.setdefault(name, {})
        before = there.get(labels)
        there[labels] = before + value if isinstance(before, int | float) and isinstance(value, int | float) else value
    for metric in METRICS:
        if metric.name not in found:
            continue
        if metric.kind == "histogram":
            family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, buckets in found[metric.name].items():
                assert isinstance(buckets, tuple)
                last = buckets[-1][1]
                family.add_metric(
                    labels, [*((f"{bound_s:g}", count) for bound_s, count in buckets), ("+Inf", last)], None
                )
        else:
            family = kinds[metric.kind](metric.name, metric.meaning, labels=metric.labels)
            for labels, value in found[metric.name].items():
                family.add_metric(labels, value)
        yield family

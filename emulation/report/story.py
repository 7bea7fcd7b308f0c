"""The story of a run: up to three sentences at the top of its page, computed from its record.

They say how the run ended, how fast it was, and what slowed it down. A sentence whose figures were not measured is left
out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from fanin.emulation.report.drawing import bytes_label, time_label
from fanin.emulation.report.learning import final_accuracies
from fanin.emulation.report.losses import retransmissions
from fanin.emulation.report.steady import all_step_times_s, mean_shares, steady_spans, waited_s
from fanin.records.record import Row, RunRecord

MAX_SENTENCES = 3
CLEAR = 1.05
"""Least ratio of times at which one is called faster than the other."""
MIN_WAITED_SHARE = 0.05
"""Least share of all ranks' time, spent waiting for one rank, at which that rank is said to hold the run up."""
MIN_LEAD = 2.0
"""Least ratio of the time waited for a rank to that for any other, at which that rank is named."""


def story(record: RunRecord) -> list[str]:
    """The sentences on a run, the most important first, at most MAX_SENTENCES."""
    sentences = [*_outcome(record), *_against_rivals(record), *_steps(record), *_culprit(record), *_learning(record)]
    return [*sentences, *_losses(record)][:MAX_SENTENCES]


def _outcome(record: RunRecord) -> Iterator[str]:
    if record.outcome != "finished":
        why = f": {record.error.splitlines()[0]}" if record.error else ""
        yield f"The run {'failed' if record.outcome == 'failed' else 'was not finished'}{why.rstrip('.')}."


def _against_rivals(record: RunRecord) -> Iterator[str]:
    rows = [row for row in record.rows if row.backend == "fanin" and row.ratio_to_gloo is not None]
    if not rows:
        return
    best, worst = (pick(rows, key=lambda row: row.ratio_to_gloo or 0.0) for pick in (max, min))
    assert best.ratio_to_gloo is not None
    assert worst.ratio_to_gloo is not None
    said = f"{_what(best)} {time_label(best.median_s)}, {_faster(best.ratio_to_gloo)} gloo"
    if best is not worst:
        said += f" at best; at worst {_what(worst, short=True)} {_faster(worst.ratio_to_gloo)} it"
    bound = sum(row.processor_bound for row in rows)
    yield said + "."
    if bound:
        yield (
            f"In {bound} of {len(rows)} measurements this machine's processors, and not the links, set fanin's time."
        )
    elif best.ideal_s is not None:
        share = best.ideal_s / best.median_s
        yield f"The links alone need {time_label(best.ideal_s)} for it: fanin used {share:.0%} of their rate."


def _what(row: Row, *, short: bool = False) -> str:
    what = "a whole training step" if row.measures == "step" else f"an all-reduce of {bytes_label(row.bytes)}"
    what += f" over {row.workers} workers with {row.lanes}-bit lanes"
    return f"{what} was" if short else f"{what[0].upper()}{what[1:]} took fanin"


def _faster(ratio: float) -> str:
    if ratio >= CLEAR:
        return f"{ratio:.3g} times as fast as"
    return f"{1 / ratio:.3g} times as slow as" if ratio <= 1 / CLEAR else "about as fast as"


def _steps(record: RunRecord) -> Iterator[str]:
    times, shares = all_step_times_s(record.workers), mean_shares(record.workers)
    if not shares:
        return
    parts = (
        f"{shares['compute']:.0%} of the time went into computing, {shares['wait']:.0%} into waiting for sums, and "
        f"{shares['quantize'] + shares['send']:.0%} into quantizing and sending"
    )
    if times:
        slow = statistics.quantiles(times, n=10)[-1] if len(times) > 1 else times[0]
        yield f"A step took {time_label(statistics.median(times))} (one in ten {time_label(slow)} or more); {parts}."
    else:
        yield f"{parts}."


def _culprit(record: RunRecord) -> Iterator[str]:
    waits = waited_s(record.workers)
    spent_s = sum(span.end_s - span.start_s for worker in record.workers for span in steady_spans(worker))
    if not waits or spent_s <= 0:
        return
    ranked = sorted(waits, key=lambda rank: -waits[rank])
    worst, others_s = ranked[0], max((waits[rank] for rank in ranked[1:]), default=0.0)
    share = waits[worst] / spent_s
    if share >= MIN_WAITED_SHARE and waits[worst] >= MIN_LEAD * others_s:
        waited = time_label(waits[worst])
        yield f"Rank {worst} held the others up: they waited {waited} for it in all, {share:.0%} of all ranks' time."
    elif share < MIN_WAITED_SHARE:
        yield "No rank held the others up."
    else:
        yield "Ranks waited for each other in turn; none was the last much more often than others."


def _learning(record: RunRecord) -> Iterator[str]:
    accuracies = final_accuracies(record)
    if not accuracies:
        return
    said = [f"{accuracy:.1%}" + (f" with {label}" if label else "") for label, accuracy in accuracies.items()]
    yield f"Accuracy at the end: {', '.join(said[:4])}."


def _losses(record: RunRecord) -> Iterator[str]:
    resent = retransmissions(record)
    if resent is None:
        return
    sent = sum(worker.counters.get("packets_out", 0.0) for worker in record.workers)
    share = f", {resent / sent:.2%} of all" if sent and resent else ""
    yield "No packet had to be sent again." if not resent else f"{resent:,.0f} packets were sent again{share}."

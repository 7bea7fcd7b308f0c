"""The record of a real job, which `fanin report` draws, from the files that its ranks wrote (FANIN_TIMELINE)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fanin.emulation.network import timelines
from fanin.emulation.network.hidden_exchange import hidden_in_words
from fanin.emulation.tracing.clocks import Alignment, Sum, align
from fanin.emulation.tracing.rank_files import RankFile, alignment_in_words, gaps_in_words, read_files
from fanin.records.record import MAX_SPANS, VERSION, RunRecord, Span, WorkerRecord

UNFINISHED = "its file has no end: it was killed, or still runs"
MIN_LATE_S = 1e-4
"""Least time by which a rank must be the last to begin a sum to count as waited for, unless clocks err by more."""


def record_of_files(paths: Sequence[Path], command: str) -> RunRecord:
    """The record of a job from its ranks' files. ConfigurationError as in `read_files`."""
    files = read_files(paths)
    alignments = align({file.rank: file.times for file in files})
    origin_s = min(alignments[file.rank].to_reference(float(file.starts[0]["time"])) for file in files)
    late = _late_ranks(files, alignments)
    workers = tuple(_worker(file, alignments[file.rank], origin_s, late) for file in files)
    unfinished = [worker.rank for worker in workers if worker.outcome != "finished"]
    steps = max(sum(line["kind"] == "step" for line in file.lines) for file in files)
    end_s = max(alignments[file.rank].to_reference(_last_moment(file)) for file in files)
    return RunRecord(
        version=VERSION,
        kind="job",
        title=f"{len(files)} ranks, {steps:,} steps",
        command=command,
        started=_started(files[0]),
        duration_s=end_s - origin_s,
        outcome="interrupted" if unfinished else "finished",
        error=f"rank {unfinished[0]}: {UNFINISHED}" if unfinished else "",
        settings={"job": files[-1].job} if files[-1].job else {},
        workers=workers,
        notes=tuple(_notes(files, alignments)),
    )


def _started(file: RankFile) -> str:
    unix_s = file.starts[0].get("unix_s")
    return "" if unix_s is None else datetime.fromtimestamp(float(unix_s), timezone.utc).isoformat(timespec="seconds")


def _notes(files: Sequence[RankFile], alignments: dict[int, Alignment]) -> list[str]:
    notes = gaps_in_words(files)
    for rank, alignment in alignments.items():
        if alignment.way not in ("reference", "same clock"):
            notes.append(f"clock of rank {rank}: {alignment_in_words(alignment)}")
    return notes + hidden_in_words([each for file in files for each in file.exchanges()])


def _last_moment(file: RankFile) -> float:
    moments = [line.get("done", line.get("landed", line.get("time"))) for line in file.lines]
    return max(float(each) for each in moments if each is not None)


def _worker(file: RankFile, alignment: Alignment, origin_s: float, late: dict[Sum, tuple[int, float]]) -> WorkerRecord:
    spans: list[Span] = []
    for job, lines in file.lives():
        sums = _sums_by_end(job, lines)
        for span in timelines.spans(lines, 0.0, ()):
            blamed = _blamed(span, sums, late) if span.activity == "wait" else ()
            start_s, end_s = (alignment.to_reference(each) - origin_s for each in (span.start_s, span.end_s))
            spans.append(replace(span, start_s=start_s, end_s=end_s, waited_for=blamed))
    ended = file.lines[-1]["kind"] == "end"  # the end of its last life; an earlier life may have ended well
    return WorkerRecord(
        rank=file.rank,
        place=str(file.starts[-1].get("host", "")),
        outcome="finished" if ended else UNFINISHED,
        spans=tuple(spans[:MAX_SPANS]),
        counters={name: float(value) for name, value in timelines.counters_in(file.lines).items()},
    )


def _sums_by_end(job: str, lines: Sequence[dict[str, Any]]) -> list[tuple[float, Sum]]:
    reductions = [line for line in lines if line["kind"] == "reduction"]
    return sorted(
        (float(line["done"]), (job, int(line.get("ticket", index)))) for index, line in enumerate(reductions, 1)
    )


def _blamed(span: Span, sums: list[tuple[float, Sum]], late: dict[Sum, tuple[int, float]]) -> tuple[int, ...]:
    """The ranks that were last to begin the sums which ended during a wait, the latest in total first."""
    total: dict[int, float] = defaultdict(float)
    for done_s, each in sums:
        if span.start_s < done_s <= span.end_s and each in late:
            rank, late_s = late[each]
            total[rank] += late_s
    return tuple(sorted(total, key=lambda rank: -total[rank])[: timelines.MAX_WAITED_FOR])


def _late_ranks(files: Sequence[RankFile], alignments: dict[int, Alignment]) -> dict[Sum, tuple[int, float]]:
    """By sum of all ranks: the rank that began it last, and by how much; left out if within the clocks' error."""
    begun: dict[Sum, list[tuple[float, int]]] = defaultdict(list)
    for file in files:
        for each, (submitted_s, _) in file.sums().items():
            begun[each].append((alignments[file.rank].to_reference(submitted_s), file.rank))
    error_s = max((alignment.error_s or 0.0) for alignment in alignments.values())
    found = {}
    for each, times in begun.items():
        if len(times) == len(files) > 1:
            *_, (before_s, _), (last_s, rank) = sorted(times)
            if last_s - before_s > max(MIN_LATE_S, error_s):
                found[each] = (rank, last_s - before_s)
    return found

"""The trace of a real job, from the files that its ranks wrote (FANIN_TIMELINE; host/torch/collectives/timeline.py).

A rank is a process with up to four kinds of tracks: steps; computing; sums, each divided into quantizing, sending,
waiting and decoding; and meetings of local steps, each with what training has spent on it.

The engine counts processor time, not moments: a sum's parts have the right lengths, if they fit into it, and stand in
the order in which a sum begins them. `arguments` hold the unscaled figures, which add up to the counters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanin.emulation.network import timelines
from fanin.emulation.network.hidden_exchange import Exchanged, exchanges_of, hidden_in_words
from fanin.emulation.tracing.clocks import Alignment, RankTimes, Sum, align
from fanin.emulation.tracing.trace_events import Lanes, Trace
from fanin.errors import ConfigurationError

REMEDY = "Remedy: name what FANIN_TIMELINE had the ranks write"
STEPS, COMPUTING, SUMS = 1, 2, 3
"""Numbers of tracks; overlapping sums have SUMS, SUMS + 1, ..., and meetings the numbers after these."""
STRETCHES = (("quantize", "packing_s"), ("send", "sending_s"), ("wait", None), ("decode", "decoding_s"))
"""Parts of a sum in the order in which it begins them, with their fields; waiting is the remaining time."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """The time line of one rank. `lines`: its legal lines, in order; `unread`: the number of other lines."""

    path: Path
    rank: int
    lines: tuple[dict[str, Any], ...]
    unread: int = 0

    @property
    def starts(self) -> list[dict[str, Any]]:
        """The start line of each life: a launcher that restarts the rank appends to the same file."""
        return [line for line in self.lines if line["kind"] == "start"]

    @property
    def job(self) -> str:
        """Name of the rank's last job; empty in files of earlier versions."""
        return str(self.starts[-1].get("job", ""))

    def lives(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """The lines of each life, with a name that is the same on all ranks: the job's, or the life's number."""
        life: list[dict[str, Any]] = []
        names = [str(line.get("job") or f"life {number}") for number, line in enumerate(self.starts)]
        number = -1
        for line in self.lines:
            if line["kind"] == "start":
                if life:
                    yield names[number], life
                life, number = [], number + 1
            life.append(line)
        if life:
            yield names[number], life

    def sums(self) -> dict[Sum, tuple[float, float]]:
        """Times at which each sum was submitted and done, on the rank's clock."""
        return {
            (job, int(line.get("ticket", index))): (float(line["submitted"]), float(line["done"]))
            for job, lines in self.lives()
            for index, line in enumerate((each for each in lines if each["kind"] == "reduction"), 1)
        }

    def exchanges(self) -> list[Exchanged]:
        """The meetings of all lives that have landed."""
        return [each for _, lines in self.lives() for each in exchanges_of(lines)]

    @property
    def times(self) -> RankTimes:
        """The rank's times for the alignment of its clock."""
        last = self.starts[-1]
        unix_s = last.get("unix_s")
        return RankTimes(
            clock=str(last.get("clock", "")),
            started_s=float(last["time"]),
            unix_s=None if unix_s is None else float(unix_s),
            sums=self.sums(),
        )


def read_files(paths: Sequence[Path]) -> list[RankFile]:
    """Read the files of a job's ranks; returns them in order of ranks.

    Raises ConfigurationError if a file is not one of FANIN_TIMELINE or holds several ranks, if two files are of one
    rank, or if files are of different jobs.
    """
    found = sorted((_read(path) for path in paths), key=lambda file: file.rank)
    for first, second in itertools.pairwise(found):
        if first.rank == second.rank:
            raise ConfigurationError(
                f"{first.path} and {second.path} are both of rank {first.rank}. Remedy: name the files of one job, "
                "with %r in FANIN_TIMELINE where ranks share a folder"
            )
        if first.job and second.job and first.job != second.job:
            raise ConfigurationError(
                f"{first.path} is of job {first.job!r}, and {second.path} of {second.job!r}. Remedy: name the files of "
                "one job"
            )
    return found


def _read(path: Path) -> RankFile:
    try:
        written = path.read_bytes().count(b"\n")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}. {REMEDY}") from None
    lines = timelines.legal(timelines.read_lines(path))
    begun = [at for at, line in enumerate(lines) if line["kind"] == "start" and "rank" in line]
    if not begun:
        raise ConfigurationError(f"{path} has no line of a rank's start: FANIN_TIMELINE did not write it. {REMEDY}")
    ranks = sorted({int(lines[at]["rank"]) for at in begun})
    if len(ranks) > 1:
        raise ConfigurationError(
            f"{path} holds lines of ranks {', '.join(map(str, ranks))}, which cannot be told apart. Remedy: %r in "
            "FANIN_TIMELINE, which becomes the rank"
        )
    return RankFile(path, ranks[0], tuple(lines[begun[0] :]), written - len(lines))


def gaps_in_words(ranks: Sequence[RankFile]) -> list[str]:
    """Lines for people on what the files of a job lack, or hold beyond one run."""
    there = {file.rank for file in ranks}
    size = int(ranks[0].starts[-1].get("size", len(ranks)))
    missing = [rank for rank in range(size) if rank not in there]
    found = [f"no file of rank {', '.join(map(str, missing))}"] if missing else []
    for file in ranks:
        if file.unread:
            found.append(f"rank {file.rank}: lines of its file that are spoiled, and left out: {file.unread:,}")
        runs = sum(start.get("restart", 0) == 0 for start in file.starts)
        if runs > 1:
            found.append(f"rank {file.rank}: its file holds {runs:,} runs, one after the other")
    return found


def trace_of_files(paths: Sequence[Path]) -> Trace:
    """The trace of a job from its ranks' files. ConfigurationError as in `read_files`."""
    ranks = read_files(paths)
    alignments = align({file.rank: file.times for file in ranks})
    origin_s = min(alignments[file.rank].to_reference(float(file.starts[0]["time"])) for file in ranks)
    facts = {"source": "FANIN_TIMELINE", "job": ranks[-1].job, "clocks": _in_words(alignments)}
    meetings = [file.exchanges() for file in ranks]
    hidden = hidden_in_words([each for of_rank in meetings for each in of_rank])
    trace = Trace({**facts, "notes": [*gaps_in_words(ranks), *hidden]})
    for file, of_rank in zip(ranks, meetings, strict=True):
        _add_rank(trace, file, of_rank, alignments[file.rank], origin_s)
    return trace


def _in_words(alignments: dict[int, Alignment]) -> dict[str, str]:
    return {f"rank {rank}": alignment_in_words(each) for rank, each in alignments.items()}


def alignment_in_words(alignment: Alignment) -> str:
    """One line for people on how a rank's clock was aligned."""
    if alignment.way == "reference":
        return "the reference"
    if alignment.way == "same clock":
        return "the reference's machine: one clock"
    if alignment.way == "sums":
        error_s = alignment.error_s or 0.0
        return f"{alignment.offset_s:+.6f} s, aligned by {alignment.sums:,} sums to about {error_s * 1e6:,.0f} us" + (
            f", drift {alignment.drift * 1e6:+.2f} ppm" if alignment.drift else ""
        )
    if alignment.way == "calendar":
        return f"{alignment.offset_s:+.6f} s by the calendars of the machines: no sum in common"
    return "not aligned: no sum in common, and no calendar's time"


def _add_rank(
    trace: Trace, file: RankFile, meetings: Sequence[Exchanged], alignment: Alignment, origin_s: float
) -> None:
    pid = file.rank + 1
    host = str(file.starts[-1].get("host", ""))
    trace.process(pid, f"rank {file.rank}" + (f" on {host}" if host else ""))
    trace.track(pid, STEPS, "steps")
    trace.track(pid, COMPUTING, "computing")
    lanes, meeting_lanes = Lanes(), Lanes()

    def at(time_s: float) -> float:
        return alignment.to_reference(time_s) - origin_s

    for _, lines in file.lives():
        _add_steps(trace, pid, lines, at)
        _add_computing(trace, pid, lines, at)
        reductions = sorted((line for line in lines if line["kind"] == "reduction"), key=lambda line: line["submitted"])
        for line in reductions:
            lane = lanes.take(line["submitted"], line["done"])
            _add_sum(trace, pid, SUMS + lane, line, at)
    first = SUMS + len(lanes)
    for each in meetings:
        _add_meeting(trace, pid, first + meeting_lanes.take(each.launched_s, each.landed_s), each, at)
    for what, begin, count in (("sums", SUMS, len(lanes)), ("meetings", first, len(meeting_lanes))):
        for lane in range(count):
            trace.track(pid, begin + lane, what if lane == 0 else f"{what} {lane + 1}")


def _add_steps(trace: Trace, pid: int, lines: Iterable[dict[str, Any]], at: Any) -> None:
    before: float | None = None
    for line in lines:
        if line["kind"] == "start":
            before = at(line["time"])
        elif line["kind"] == "step" and before is not None:
            trace.slice(pid, STEPS, f"step {line['step']}", before, at(line["time"]), "step", step=line["step"])
            before = at(line["time"])


def _add_computing(trace: Trace, pid: int, lines: Sequence[dict[str, Any]], at: Any) -> None:
    for span in timelines.spans(lines, 0.0, ()):
        if span.activity == "compute":
            trace.slice(pid, COMPUTING, "compute", at(span.start_s), at(span.end_s), "compute", steps_done=span.step)


def _add_sum(trace: Trace, pid: int, tid: int, line: dict[str, Any], at: Any) -> None:
    start_s, end_s = at(line["submitted"]), at(line["done"])
    figures = {name: line[name] for name in ("bytes", "ticket", "packing_s", "sending_s", "decoding_s") if name in line}
    trace.slice(pid, tid, f"sum of {line['bytes']:,} bytes", start_s, end_s, "sum", steps_done=line["step"], **figures)
    whole_s = end_s - start_s
    spent = {name: float(line.get(counted, 0.0)) for name, counted in STRETCHES if counted is not None}
    busy_s = sum(spent.values())
    scale = min(1.0, whole_s / busy_s) if busy_s > 0 else 0.0
    spent = {name: seconds * scale for name, seconds in spent.items()}
    spent["wait"] = max(whole_s - sum(spent.values()), 0.0)
    for name, _ in STRETCHES:
        if spent[name] > 0:
            trace.slice(pid, tid, name, start_s, min(start_s + spent[name], end_s), name)
            start_s += spent[name]


def _add_meeting(trace: Trace, pid: int, tid: int, each: Exchanged, at: Any) -> None:
    start_s, end_s = at(each.launched_s), at(each.landed_s)
    trace.slice(
        pid, tid, f"meeting {each.number}", start_s, end_s, "meeting",
        fragment=each.fragment, exchange_s=each.exchange_s, exposed_s=each.exposed_s,
    )  # fmt: skip
    trace.slice(pid, tid, "training hands its delta in", start_s, at(each.submitted_s), "hands in")
    trace.slice(pid, tid, "training waits for the mean", at(each.awaited_s), end_s, "waits")

"""Observations of a run while it goes on, and the record that they become, however it ends."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import fanin
from fanin.emulation.network import timelines
from fanin.emulation.network.fault_runner import END_OF
from fanin.emulation.network.launch import End, Line
from fanin.emulation.network.scenario import Scenario
from fanin.emulation.network.traffic import link_record
from fanin.emulation.progress import progress_of, unkept
from fanin.records.machine import machine
from fanin.records.record import (
    VERSION,
    Event,
    LinkSample,
    Progress,
    RunRecord,
    SwitchRecord,
    SwitchSample,
    WorkerRecord,
)

MAX_TICKS = 20_000
"""Most samples that are kept of each link: an hour and a half."""
MAX_PROGRESS = 20_000
MAX_NOTES = 100

Outcome = Literal["finished", "failed", "interrupted"]


class Observations:
    """Everything observed of one run."""

    def __init__(self, scenario: Scenario, command: Sequence[str]) -> None:
        self._scenario, self._command = scenario, command
        self._started = datetime.now(timezone.utc)
        self._origin_s = time.monotonic()
        self.begun = False
        """Whether the workers have started, so that there is something to record."""
        self.links: dict[str, list[LinkSample]] = defaultdict(list)
        self._progress: list[Progress] = []
        self._events: list[Event] = []
        self._notes: list[str] = []
        self._ends: dict[int, str] = {}
        """Outcome of each worker that has ended, in order of their ends."""
        self._interrupted = False
        self._error = ""
        self._timelines: dict[int, list[dict[str, Any]]] = {}
        self._samples: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Start the run's clock, as the workers start."""
        self.begun = True
        self._origin_s = time.monotonic()

    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._origin_s

    # --- while it runs ---

    def printed(self, line: Line) -> tuple[Progress, dict[str, str]] | None:
        """Keep a worker's progress; returns it with the figures that no record can hold, or None for any other line."""
        if line.record is None:
            return None
        strange = unkept(line.record)
        for name, value in strange.items():
            self.note(f"worker {line.rank} printed {name} {value}: plots leave it out")
        progress = progress_of(line.record, time_s=self.now_s(), rank=line.rank)
        if progress is None:
            if not strange:
                return None
            progress = Progress(time_s=self.now_s(), rank=line.rank)
        elif len(self._progress) < MAX_PROGRESS:
            self._progress.append(progress)
        return progress, strange

    def sampled(self, samples: Mapping[str, LinkSample]) -> None:
        """Keep the links' counters, up to MAX_TICKS samples each."""
        for name, sample in samples.items():
            if len(self.links[name]) < MAX_TICKS:
                self.links[name].append(sample)

    def happened(self, event: Event) -> None:
        """Keep a fault that was injected."""
        self._events.append(event)

    def ended(self, end: End) -> None:
        """Keep the outcome of a worker that has ended."""
        self._ends[end.rank] = end.outcome
        if end.outcome != "finished":
            self._events.append(Event(time_s=self.now_s(), kind="end", text=f"worker {end.rank}: {end.outcome}"))

    def note(self, text: str) -> None:
        """Keep a note for readers of the record; repeated ones are kept once."""
        if text not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    @property
    def first_failure(self) -> int | None:
        """Rank of the first worker that failed, or None."""
        return next((rank for rank, outcome in self._ends.items() if outcome != "finished"), None)

    # --- when it is over ---

    def interrupted(self) -> None:
        """Record that the user stopped the run."""
        self._interrupted = True

    def broke(self, error: BaseException) -> None:
        """Record that the emulator itself failed with `error`."""
        self._error = f"{type(error).__name__}: {error}"

    def read_files(self, folder: Path, logs: Path) -> None:
        """Read the files of the workers, which must have ended, and of the switch's sampler."""
        for rank in range(self._scenario.workers):
            self._timelines[rank] = timelines.legal(timelines.read_lines(folder / f"timeline-{rank}.jsonl"))
        self._samples = timelines.legal_samples(timelines.read_lines(folder / "switch.jsonl"))
        for each in self._scenario.schedule.scheduled:
            if not each.by_worker or each.index is None or each.at_step is None:
                continue
            lines = self._timelines[each.index]
            at_s = timelines.died_at(lines, each.at_step)
            if at_s is not None:
                self._events.append(Event(time_s=at_s - self._origin_s, kind="fault", text=each.text))
            else:
                done = sum(line["kind"] == "step" for line in lines)
                self.never_fired(each.text, f"worker {each.index} took {done} optimizer step{'s' * (done != 1)}")
        self._note_faults_that_met_nothing()
        for place in {folder, logs}:
            if _is_full(place):
                self.note(f"the disk of {place} is full: logs and time lines may end early")

    def _note_faults_that_met_nothing(self) -> None:
        """Note each link fault that ended before the first sum or began after the last one."""
        lines = [line for each in self._timelines.values() for line in each if line["kind"] == "reduction"]
        if not lines:
            return  # the program used no fanin group, or made no sum; the workers' outcomes show it
        first_s = min(line["submitted"] for line in lines) - self._origin_s
        last_s = max(line["done"] for line in lines) - self._origin_s
        times_s = {event.text: event.time_s for event in self._events if event.kind == "fault"}
        for each in self._scenario.schedule.scheduled:
            if each.target != "link" or each.text not in times_s:
                continue
            if times_s.get(END_OF + each.text, last_s) < first_s:
                why = "it was over before the first sum; @step:40 counts from the training's beginning"
            elif times_s[each.text] > last_s:
                why = "it began after the last sum"
            else:
                continue
            self.note(f"fault that met nothing: {each.text} ({why})")

    def never_fired(self, fault: str, why: str = "the run was over first") -> None:
        """Note that a requested fault was not injected, with the reason."""
        self.note(f"fault that never fired: {fault} ({why})")

    def record(self) -> RunRecord:
        """The record of the whole run."""
        scenario = self._scenario
        outcomes = self._outcomes()
        outcome: Outcome = "finished"
        if self._error or self.first_failure is not None:
            outcome = "failed"
        elif self._interrupted:
            outcome = "interrupted"
        arrivals = [
            timelines.Arrivals(sample["time"], {int(rank): count for rank, count in sample["last_arrivals"].items()})
            for sample in self._samples
        ]
        error = self._error
        if not error and self.first_failure is not None:
            error = f"worker {self.first_failure}: {outcomes[self.first_failure]}"
        return RunRecord(
            version=VERSION,
            kind="emulate",
            title=scenario.name or f"{scenario.workers} workers, {scenario.rate}",
            command=shlex.join(self._command),
            started=self._started.isoformat(timespec="seconds"),
            duration_s=self.now_s(),
            outcome=outcome,
            error=error,
            software=fanin.__version__,
            kernel=platform.release(),
            machine=machine(),
            settings=scenario.settings(),
            workers=tuple(self._worker(rank, outcomes[rank], arrivals) for rank in range(scenario.workers)),
            links=tuple(link_record(scenario.topology, name, samples) for name, samples in self.links.items()),
            switches=(self._switch(arrivals),),
            progress=tuple(self._progress),
            events=tuple(sorted(self._events, key=lambda event: event.time_s)),
            notes=tuple(self._notes),
        )

    def _outcomes(self) -> list[str]:
        """Outcome of each rank. A rank that was stopped gets the reason, since the failure was not its own."""
        first = self.first_failure
        if first is not None:
            others = f"stopped because of worker {first}, which had failed"
        elif self._error:
            others = "stopped because of an error of the emulator"
        else:
            others = "interrupted" if self._interrupted else "not started"
        return [self._ends.get(rank, others) for rank in range(self._scenario.workers)]

    def _worker(self, rank: int, outcome: str, arrivals: Sequence[timelines.Arrivals]) -> WorkerRecord:
        lines = self._timelines.get(rank, [])
        return WorkerRecord(
            rank=rank,
            place=f"namespace w{self._scenario.topology.host_of(rank)}",
            outcome=outcome,
            slowdown=self._scenario.slowdowns.get(rank, 1.0),
            spans=timelines.spans(lines, self._origin_s, arrivals),
            counters={name: float(value) for name, value in timelines.counters_in(lines).items()},
        )

    def _switch(self, arrivals: Sequence[timelines.Arrivals]) -> SwitchRecord:
        highest: dict[int, int] = {}  # the maximum, because a job that ends takes its counters with it
        for seen in arrivals:
            for rank, count in seen.last.items():
                highest[rank] = max(highest.get(rank, 0), count)
        return SwitchRecord(
            name="root",
            target=self._scenario.target,
            samples=tuple(
                SwitchSample(
                    time_s=sample["time"] - self._origin_s,
                    counters={name: float(value) for name, value in sample["counters"].items()},
                )
                for sample in self._samples[:MAX_TICKS]
            ),
            last_arrivals={str(rank): count for rank, count in highest.items()},
        )


def _is_full(folder: Path) -> bool:
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False

"""Makes a record and a page of a job of containers, in a folder that outlives the containers.

All containers of a job are on one machine and share its CLOCK_MONOTONIC, so workers' time lines fit together. The
switches are those that workers named when they joined; each is asked for its counters every SAMPLE_INTERVAL_S. A
switch numbers the ranks that use it in ascending order; `_by_rank` translates its numbers into ranks.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import fanin
from fanin.addresses import HOSTS, RANK0
from fanin.emulation import report
from fanin.emulation.containers.roster import Member, State
from fanin.emulation.network import timelines
from fanin.emulation.progress import progress_of, unkept
from fanin.errors import ConfigurationError, FaninError
from fanin.faults import FaultSchedule
from fanin.modules import running
from fanin.records.machine import machine
from fanin.records.record import (
    VERSION,
    Event,
    LinkRecord,
    LinkSample,
    Progress,
    RunRecord,
    SwitchRecord,
    SwitchSample,
    WorkerRecord,
)

RECORD_FILE, PAGE_FILE = "fanin-record.json", "fanin-report.html"
SAMPLE_INTERVAL_S = 0.5
MAX_PROGRESS = 20_000
MAX_NOTES = 100
IP_UDP_ETHERNET_BYTES = 14 + 20 + 8
"""Bytes of headers per packet that a switch does not count."""
ENVIRONMENT = "FANIN_"
UNINTERESTING = ("FANIN_JOB", "FANIN_TIMELINE")


@dataclass(slots=True)
class _Joined:
    """A member's command and settings from its `join` message, and the time line that it sent at its end."""

    command: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    timeline: list[dict[str, Any]] = field(default_factory=list)


class Recorder:
    """Collects what members report, and makes the record. A context manager: its sampler processes end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = datetime.now(timezone.utc)
        self._origin_s = time.monotonic()
        self._joined: dict[str, _Joined] = defaultdict(_Joined)
        self._progress: list[Progress] = []
        self._events: list[Event] = []
        self._notes: list[str] = []
        self._stack = contextlib.ExitStack()
        self._samples: dict[str, Path] = {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def joined(self, member: Member, message: Mapping[str, Any]) -> None:
        """Keep the command and the settings from a member's `join` message."""
        settings = message.get("settings", {})
        self._joined[member.address] = _Joined(str(message.get("command", "")), dict(settings))

    def begin(self, members: Sequence[Member]) -> None:
        """Start the record's clock, and start watching the switches."""
        self._started, self._origin_s = datetime.now(timezone.utc), time.monotonic()
        scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        for number, url in enumerate(dict.fromkeys(self._switch_of(member) for member in members)):
            if _names_one_switch(url):
                self._samples[url] = scratch / f"switch-{number}.jsonl"
                self._watch(url, self._samples[url])

    def reported(self, member: Member, record: Mapping[str, Any]) -> None:
        """Keep the progress in a JSON object that a member's program printed."""
        for name, value in unkept(record).items():
            self._note(f"rank {member.rank} printed {name} {value}: plots leave it out")
        progress = progress_of(record, time_s=self._now_s(), rank=member.rank)
        if progress is not None and len(self._progress) < MAX_PROGRESS:
            self._progress.append(progress)

    def timeline(self, member: Member, lines: Iterable[dict[str, Any]]) -> None:
        """Keep a part of the time line that a member's process group wrote."""
        self._joined[member.address].timeline += timelines.legal(lines)

    def happened(self, text: str) -> None:
        """Keep the event that a member failed or was lost."""
        self._events.append(Event(time_s=self._now_s(), kind="end", text=text))

    def write(
        self, members: Sequence[Member], outcome: Literal["finished", "failed", "interrupted"], error: str
    ) -> list[str]:
        """Write the record, then its page; returns lines for people. Never raises: the job's status must not change."""
        duration_s = self._now_s()
        record = self._record(members, outcome, error, duration_s)
        path = self._folder / RECORD_FILE
        try:
            record.write(path)
        except FaninError as failure:
            return [f"no report: {failure}. Remedy: a folder that user {os.getuid()} may write to (docs/compose.md)"]
        try:
            report.write_report(record, self._folder / PAGE_FILE)
        except FaninError as failure:
            return [f"record: {path}", f"no report: {failure}"]
        return [f"record: {path}", f"report: {self._folder / PAGE_FILE}"]

    def _record(
        self,
        members: Sequence[Member],
        outcome: Literal["finished", "failed", "interrupted"],
        error: str,
        duration_s: float,
    ) -> RunRecord:
        samples = {url: timelines.legal_samples(timelines.read_lines(path)) for url, path in self._samples.items()}
        fired = [event for member in members for event in self._faults_at_steps(member)]
        first = self._joined[members[0].address] if members else _Joined()
        return RunRecord(
            version=VERSION,
            kind="compose",
            title=f"{len(members)} containers",
            command=first.command,
            started=self._started.isoformat(timespec="seconds"),
            duration_s=duration_s,
            outcome=outcome,
            error=error,
            software=fanin.__version__,
            kernel=platform.release(),
            machine=machine(),
            settings={"workers": len(members)}
            | {name.removeprefix(ENVIRONMENT).lower(): value for name, value in sorted(first.settings.items())},
            workers=tuple(self._worker(member, members, samples) for member in members),
            links=tuple(self._link(url, lines) for url, lines in samples.items() if url.startswith("udp://")),
            switches=tuple(self._switch(url, lines, members) for url, lines in samples.items()),
            progress=tuple(self._progress),
            events=tuple(sorted([*self._events, *fired], key=lambda event: event.time_s)),
            notes=("All containers are on one machine and compete for its cores; no link limits them.", *self._notes),
        )

    def _faults_at_steps(self, member: Member) -> Iterator[Event]:
        """Yield the worker faults in a member's settings that its time line shows, and note those that it does not."""
        joined = self._joined[member.address]
        try:
            faults = FaultSchedule.parse(joined.settings.get("FANIN_FAULTS", "")).scheduled
        except ConfigurationError:
            return  # its program has refused these faults, too
        for each in faults:
            if each.by_worker and each.index == member.rank and each.at_step is not None:
                at_s = timelines.died_at(joined.timeline, each.at_step)
                if at_s is not None:
                    yield Event(time_s=at_s - self._origin_s, kind="fault", text=each.text)
                elif member.state is State.ENDED:  # a lost member has sent no time line
                    self._note(f"fault that never fired: {each.text} (rank {member.rank} ended without it)")

    def _note(self, text: str) -> None:
        if text not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    def _worker(
        self, member: Member, members: Sequence[Member], samples: Mapping[str, list[dict[str, Any]]]
    ) -> WorkerRecord:
        lines, url = self._joined[member.address].timeline, self._switch_of(member)
        arrivals = [
            timelines.Arrivals(sample["time"], self._by_rank(sample, url, members)) for sample in samples.get(url, [])
        ]
        return WorkerRecord(
            rank=member.rank,
            place=f"container {member.name}",
            outcome=member.cause.partition("\n")[0] or "finished",
            spans=timelines.spans(lines, self._origin_s, arrivals),
            counters={name: float(value) for name, value in timelines.counters_in(lines).items()},
        )

    def _switch(self, url: str, lines: list[dict[str, Any]], members: Sequence[Member]) -> SwitchRecord:
        last: dict[int, int] = {}
        for sample in lines:  # the highest count, because a job that ends takes its counters with it
            for rank, count in self._by_rank(sample, url, members).items():
                last[rank] = max(last.get(rank, 0), count)
        names = sorted({name for sample in lines for name in sample["counters"]})
        counts = {name: grown([sample["counters"].get(name, 0) for sample in lines]) for name in names}
        return SwitchRecord(
            name=url,
            target="container",
            samples=tuple(
                SwitchSample(
                    time_s=sample["time"] - self._origin_s, counters={name: float(counts[name][at]) for name in names}
                )
                for at, sample in enumerate(lines)
            ),
            last_arrivals={str(rank): count for rank, count in last.items()},
        )

    def _link(self, url: str, lines: list[dict[str, Any]]) -> LinkRecord:
        """The switch's own link: bytes that all its workers sent (up) and received (down), headers included."""
        up, down = (
            grown(
                [
                    sample["counters"].get(f"bytes_{way}", 0)
                    + IP_UDP_ETHERNET_BYTES * sample["counters"].get(f"packets_{way}", 0)
                    for sample in lines
                ]
            )
            for way in ("in", "out")
        )
        return LinkRecord(
            name=f"all of {url.removeprefix('udp://')}",
            rate_bit_s=None,
            samples=tuple(
                LinkSample(time_s=sample["time"] - self._origin_s, up_bytes=up[at], down_bytes=down[at])
                for at, sample in enumerate(lines)
            ),
        )

    def _by_rank(self, sample: Mapping[str, Any], url: str, members: Sequence[Member]) -> dict[int, int]:
        there = [member.rank for member in members if self._switch_of(member) == url]
        return {there[int(index)]: count for index, count in sample["last_arrivals"].items() if int(index) < len(there)}

    def _switch_of(self, member: Member) -> str:
        return self._joined[member.address].settings.get("FANIN_SWITCH", "")

    def _watch(self, url: str, path: Path) -> None:
        command = running("fanin.emulation.network.stats_sampler", url, str(SAMPLE_INTERVAL_S))
        with path.open("wb") as file:
            sampler = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL, start_new_session=True
            )

        def stop() -> None:
            sampler.kill()
            sampler.wait()

        self._stack.callback(stop)

    def _now_s(self) -> float:
        return time.monotonic() - self._origin_s


def _names_one_switch(text: str) -> bool:
    """Whether FANIN_SWITCH is one address: otherwise ranks start switches themselves, or use several."""
    return bool(text) and text not in (RANK0, HOSTS) and "," not in text


def grown(counts: Sequence[int]) -> list[int]:
    """Growth of a counter since its first sample, per sample; a smaller value shows that the switch restarted at 0."""
    total, before, found = 0, counts[0] if counts else 0, []
    for count in counts:
        total, before = total + (count - before if count >= before else count), count
        found.append(total)
    return found


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that a member sends to the job: FANIN_* variables that are not empty, without keys."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT) and value and name not in UNINTERESTING and "KEY" not in name
    }

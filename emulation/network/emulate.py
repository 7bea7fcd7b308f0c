"""`fanin emulate`: a user's training command on an emulated cluster, watched while it runs, recorded afterwards."""

from __future__ import annotations

import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table

import fanin
from fanin.emulation.network import timelines
from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.happenings import Happenings
from fanin.emulation.network.launch import Line, Workers
from fanin.emulation.network.machine import machine
from fanin.emulation.network.scenario import Scenario
from fanin.emulation.network.slowness import Slowness
from fanin.emulation.network.switches import Switches, fabric_for
from fanin.emulation.network.traffic import Meters, link_record
from fanin.emulation.progress import FIGURES, progress_of
from fanin.emulation.record import (
    VERSION,
    Event,
    LinkSample,
    Progress,
    RunRecord,
    SwitchRecord,
    SwitchSample,
    WorkerRecord,
)

TICK_S = 0.25
"""Between two samples of links and switch."""
MAX_TICKS = 20_000
"""Samples that are kept: an hour and a half."""
MAX_PROGRESS = 20_000


@dataclass(slots=True)
class _Watched:
    """What is known of a run so far."""

    origin_s: float
    progress: list[Progress] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    samples: dict[str, list[LinkSample]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)

    def now_s(self) -> float:
        return time.monotonic() - self.origin_s


def emulate(
    scenario: Scenario, command: Sequence[str], *, record_file: Path | None, logs: Path | None, console: Console
) -> RunRecord:
    """Build the cluster, run the command in it, clean up; print progress and a summary, write the record.

    Raises UnsupportedError without root, ConfigurationError for what the scenario cannot be, FaninError where the
    cluster cannot be built. A command that fails is not an error of this: see the record's outcome.
    """
    started = datetime.now(timezone.utc)
    watched = _Watched(time.monotonic())
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fanin-emulate-")))
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        outcome, outcomes, samples = _run(scenario, command, folder, logs or folder, watched, console)
        record = _record(scenario, command, folder, watched, started, outcome, outcomes, samples)
    if record_file is not None:
        record.write(record_file)
    console.print(summary(record))
    return record


Outcome = Literal["finished", "failed", "interrupted"]


def _run(
    scenario: Scenario, command: Sequence[str], folder: Path, logs: Path, watched: _Watched, console: Console
) -> tuple[Outcome, list[str], list[dict[str, Any]]]:
    topology = scenario.topology
    timeline = str(folder / "timeline-%r.jsonl")
    environment = {
        "FANIN_FAULTS": scenario.schedule.for_workers(scenario.faults_text),
        "FANIN_FALLBACK": scenario.fallback,
        "FANIN_LANES": str(scenario.lanes),
        "FANIN_TIMELINE": timeline,
    }
    with ExitStack() as stack:
        fabric = stack.enter_context(fabric_for(topology, scenario.target))
        switches = stack.enter_context(Switches(fabric, scenario.target, logs))
        slow = {fabric.worker_namespace(rank): factor for rank, factor in scenario.slowdowns.items()}
        meters = Meters(fabric)
        stack.callback(meters.close)
        statistics = folder / "switch.jsonl"
        sampler = _sample_switch(fabric, switches.root.url, statistics)
        stack.callback(sampler.wait)
        stack.callback(sampler.kill)
        workers = stack.enter_context(Workers(fabric, command, environment, logs, restarts=scenario.restarts))
        stack.enter_context(Slowness(slow))
        watched.origin_s = time.monotonic()
        first = Path(timeline.replace("%r", "0"))
        happenings = Happenings(scenario.schedule, fabric, switches, workers, first, watched.events.append)
        console.print(f"fanin emulate: {topology.workers} workers, run {fabric.name}; {_describe(scenario)}")
        outcome: Outcome = "finished"
        outcomes: list[str] = []
        with Live(console=console, auto_refresh=False, transient=True) as live:
            try:
                for line in workers.lines(TICK_S):
                    if line is not None:
                        _take_line(line, watched, live.console)
                    happenings.look(watched.now_s())
                    if line is None:
                        _sample(meters, watched)
                        live.update(_progress_table(watched, topology.workers), refresh=True)
                outcomes = workers.outcomes()
            except KeyboardInterrupt:
                outcome = "interrupted"
                outcomes = ["interrupted"] * topology.workers
        watched.notes += [
            f"did not come to happen, since the run was over first: {text}" for text in happenings.missed()
        ]
        _sample(meters, watched)
        if any(each != "finished" for each in outcomes) and outcome != "interrupted":
            outcome = "failed"
        for rank, each in enumerate(outcomes):
            if each != "finished":
                watched.events.append(Event(time_s=watched.now_s(), kind="end", text=f"worker {rank}: {each}"))
        samples = timelines.read_lines(statistics)
    return outcome, outcomes, samples


def _sample_switch(fabric: Fabric, url: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        command = [sys.executable, "-m", "fanin.emulation.network.stats_sampler", url, str(TICK_S)]
        return subprocess.Popen(
            in_namespace(fabric.switch_namespace(), command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _sample(meters: Meters, watched: _Watched) -> None:
    for name, sample in meters.sample(watched.now_s()).items():
        if len(watched.samples[name]) < MAX_TICKS:
            watched.samples[name].append(sample)


def _take_line(line: Line, watched: _Watched, console: Console) -> None:
    """Show what a worker printed; keep what it says of its progress."""
    record = line.record
    if record is None:
        if line.text.strip():
            console.print(f"[dim]worker {line.rank}:[/] ", end="")
            console.print(line.text, markup=False, highlight=False)
        return
    progress = progress_of(record, time_s=watched.now_s(), rank=line.rank)
    if progress is None or len(watched.progress) >= MAX_PROGRESS:
        return
    watched.progress.append(progress)
    shown = ", ".join(f"{name} {record[name]:.4g}" for name in FIGURES if getattr(progress, name) is not None)
    console.print(f"{progress.time_s:6.1f} s  worker {line.rank}: {shown}", highlight=False)


def _progress_table(watched: _Watched, workers: int) -> Table:
    """What is seen while it runs."""
    table = Table("link", title=f"{watched.now_s():.0f} s", title_justify="left")
    for heading in ("up", "down", "sent", "dropped"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, samples in watched.samples.items():
        last = samples[-1]
        before = samples[-2] if len(samples) > 1 else LinkSample(time_s=0.0, up_bytes=0, down_bytes=0)
        span_s = max(last.time_s - before.time_s, 1e-9)
        up, down = ((last.up_bytes - before.up_bytes) / span_s, (last.down_bytes - before.down_bytes) / span_s)
        table.add_row(
            name, f"{up * 8e-6:.0f} Mbit/s", f"{down * 8e-6:.0f} Mbit/s", decimal(last.up_bytes), f"{last.dropped:,}"
        )
    return table


def _describe(scenario: Scenario) -> str:
    parts = [f"links {scenario.rate}, delay {scenario.delay}, loss {scenario.loss}, MTU {scenario.mtu}"]
    parts += [f"{scenario.racks} racks"] if scenario.racks > 1 else []
    parts += [f"worker {rank} {factor:g}x slower" for rank, factor in scenario.slowdowns.items()]
    return "; ".join([*parts, f"switch {scenario.target}", *scenario.faults])


def _record(
    scenario: Scenario,
    command: Sequence[str],
    folder: Path,
    watched: _Watched,
    started: datetime,
    outcome: Outcome,
    outcomes: list[str],
    samples: list[dict[str, Any]],
) -> RunRecord:
    topology = scenario.topology
    arrivals = [
        timelines.Arrivals(sample["time"], {int(rank): count for rank, count in sample["last_arrivals"].items()})
        for sample in samples
    ]
    workers = []
    for rank in range(topology.workers):
        lines = timelines.read_lines(folder / f"timeline-{rank}.jsonl")
        workers.append(
            WorkerRecord(
                rank=rank,
                place=f"namespace w{rank}",
                outcome=outcomes[rank] if outcomes else "not started",
                slowdown=scenario.slowdowns.get(rank, 1.0),
                spans=timelines.spans(lines, watched.origin_s, arrivals),
                counters={name: float(value) for name, value in timelines.counters_in(lines).items()},
            )
        )
    switch = SwitchRecord(
        name="root",
        target=scenario.target,
        samples=tuple(
            SwitchSample(
                time_s=sample["time"] - watched.origin_s,
                counters={name: float(value) for name, value in sample["counters"].items()},
            )
            for sample in samples[:MAX_TICKS]
        ),
        last_arrivals={str(rank): count for rank, count in _largest(arrivals).items()},
    )
    error = next((each for each in outcomes if each != "finished"), "") if outcome == "failed" else ""
    return RunRecord(
        version=VERSION,
        kind="emulate",
        title=scenario.name or f"{topology.workers} workers, {scenario.rate}",
        command=shlex.join(command),
        started=started.isoformat(timespec="seconds"),
        duration_s=watched.now_s(),
        outcome=outcome,
        error=error,
        software=fanin.__version__,
        kernel=platform.release(),
        machine=machine(),
        settings=scenario.settings(),
        workers=tuple(workers),
        links=tuple(link_record(topology, name, samples) for name, samples in watched.samples.items()),
        switches=(switch,),
        progress=tuple(watched.progress),
        events=tuple(watched.events),
        notes=tuple(watched.notes),
    )


def _largest(arrivals: Sequence[timelines.Arrivals]) -> dict[int, int]:
    """The highest counts seen: a job that is over takes its counters with it."""
    highest: dict[int, int] = {}
    for sample in arrivals:
        for rank, count in sample.last.items():
            highest[rank] = max(highest.get(rank, 0), count)
    return highest


def summary(record: RunRecord) -> Table:
    """The last word: how the run went, a line per worker."""
    colour = {"finished": "green", "failed": "red", "interrupted": "yellow"}[record.outcome]
    table = Table(
        "worker", title=f"[{colour}]{record.outcome}[/] after {record.duration_s:.1f} s", title_justify="left"
    )
    for heading in ("computed", "quantized", "sent", "waited", "most for", "link up", "resent"):
        table.add_column(heading, justify="right", no_wrap=True)
    links = {link.name: link.samples[-1].up_bytes for link in record.links if link.samples}
    for worker in record.workers:
        spent: dict[str, float] = defaultdict(float)
        blamed: dict[int, float] = defaultdict(float)
        for span in worker.spans:
            spent[span.activity] += span.end_s - span.start_s
            for rank in span.waited_for[:1]:
                blamed[rank] += span.end_s - span.start_s
        most = max(blamed, key=lambda rank: blamed[rank]) if blamed else None
        table.add_row(
            str(worker.rank),
            *(f"{spent[activity]:.2f} s" for activity in ("compute", "quantize", "send", "wait")),
            "" if most is None else f"worker {most}",
            decimal(links.get(f"worker {worker.rank}", 0)),
            f"{worker.counters.get('retransmissions', 0):,.0f}",
        )
    ends = [event.text for event in record.events if event.kind == "end"]
    table.caption = "\n".join([*ends, *record.notes]) or None
    return table


class _terminated_as_interrupted:  # noqa: N801 (used as a function)
    """SIGTERM and SIGHUP end a run as Ctrl-C does, so that it is cleaned up in order."""

    def __enter__(self) -> None:
        def interrupt(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._previous[number] = signal.signal(number, interrupt)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

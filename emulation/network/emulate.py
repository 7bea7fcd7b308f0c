"""`fanin emulate`: runs a user's training command on an emulated cluster, shows it live, and records it.

However a run ends, its record holds all observations until then, and is written before the summary is shown.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.cross_traffic import CrossTraffic
from fanin.emulation.network.display import description, links_now, summary
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.fault_runner import FaultRunner
from fanin.emulation.network.launch import End, Line, Workers, require_program
from fanin.emulation.network.observations import Observations
from fanin.emulation.network.scenario import Scenario
from fanin.emulation.network.slowness import Slowness
from fanin.emulation.network.switch_process import SwitchProcess
from fanin.emulation.network.switches import Switches, fabric_for
from fanin.emulation.network.traffic import Meters
from fanin.emulation.progress import FIGURES
from fanin.errors import ConfigurationError
from fanin.modules import running
from fanin.records.record import RunRecord

TICK_S = 0.25
"""Time between two samples of the links and the switch."""


def emulate(
    scenario: Scenario, command: Sequence[str], *, record_file: Path | None, logs: Path | None, console: Console
) -> RunRecord:
    """Build the cluster, run the command in it, clean up; print progress and a summary, write the record.

    Raises ConfigurationError without root and for an impossible scenario, FaninError if the cluster
    cannot be built or breaks; if it breaks, the record is still written. A failing command raises nothing: the record's
    outcome says so.
    """
    require_program(command)
    if logs is not None:
        make_log_folder(logs)
    seen = Observations(scenario, command)
    failure: Exception | None = None
    with _one_interruption():
        try:
            with fabric_for(scenario.topology, scenario.target) as fabric:
                try:
                    _run(scenario, command, fabric, logs or fabric.folder, seen, console)
                finally:  # before `fabric` removes its folder
                    seen.read_files(fabric.folder, logs or fabric.folder)
        except KeyboardInterrupt:
            if not seen.begun:
                raise
            seen.interrupted()
        except Exception as error:
            if not seen.begun:
                raise
            seen.broke(error)
            failure = error
        record = seen.record()
        if record_file is not None:
            record.write(record_file)
        console.print(summary(record))
    if failure is not None:
        raise failure
    return record


def make_log_folder(folder: Path) -> None:
    """Make the folder for logs; ConfigurationError, before the run begins, if it cannot be made or written to."""
    probe = folder / ".fanin-can-write"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(4096))
    except OSError as error:
        raise ConfigurationError(
            f"--logs {folder}: {error.strerror}. Remedy: name a folder that can be written to, on a disk with space"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # the folder could not be made either, which the error above says
            probe.unlink()


def _run(
    scenario: Scenario, command: Sequence[str], fabric: Fabric, logs: Path, seen: Observations, console: Console
) -> None:
    timeline = str(fabric.folder / "timeline-%r.jsonl")
    environment = {
        "FANIN_FAULTS": scenario.schedule.for_workers(scenario.faults_text),
        "FANIN_FALLBACK": scenario.fallback,
        "FANIN_LANES": str(scenario.lanes),
        "FANIN_TIMELINE": timeline,
    }
    with ExitStack() as stack:
        switches = stack.enter_context(Switches(fabric, scenario.target, logs))
        meters = Meters(fabric)
        stack.callback(meters.close)
        if switches.all:
            sampler = _sample_switch(switches.root, fabric.folder / "switch.jsonl")
            stack.callback(sampler.wait)
            stack.callback(sampler.kill)
        else:
            seen.note("who was waited for is not known: ranks started the switches themselves")
        if scenario.tcp_flows:
            traffic = stack.enter_context(CrossTraffic(fabric, scenario.tcp_flows))
            stack.callback(lambda: seen.note(traffic.in_words()))
        workers = stack.enter_context(Workers(fabric, command, environment, logs, restarts=scenario.restarts))
        stack.enter_context(Slowness(scenario.slowdowns, fabric.worker_processes))
        seen.begin()
        first = Path(timeline.replace("%r", "0"))
        faults = FaultRunner(scenario.schedule, fabric, switches, workers, first, seen.happened)
        console.print(
            f"fanin emulate: {scenario.workers} workers, run {fabric.name}; {description(scenario)}",
            markup=False,
            highlight=False,
        )
        with Live(console=console, auto_refresh=False, transient=True) as live:
            try:
                for item in workers.lines(TICK_S):
                    if isinstance(item, Line):
                        _show_line(item, seen, live.console)
                    elif isinstance(item, End):
                        _show_end(item, seen, scenario.workers, live.console)
                    faults.run_due(seen.now_s())
                    if item is None:
                        seen.sampled(meters.sample(seen.now_s()))
                        live.update(links_now(seen.now_s(), seen.links), refresh=True)
            finally:
                for text in faults.missed():
                    seen.never_fired(text)
                seen.sampled(meters.sample(seen.now_s()))


def _sample_switch(switch: SwitchProcess, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        command = running("fanin.emulation.network.stats_sampler", switch.url, str(TICK_S))
        return subprocess.Popen(
            in_namespace(switch.namespace, command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _show_line(line: Line, seen: Observations, console: Console) -> None:
    """Print a worker's line, or its figures if the line is a JSON object."""
    if line.record is None:
        if line.text.strip():
            # One call without wrapping, because a worker that prints much waits for this process to read.
            console.print(Text.assemble((f"worker {line.rank}: ", "dim"), line.text), soft_wrap=True)
        return
    found = seen.printed(line)
    if found is None:
        return
    progress, strange = found
    shown = ", ".join(
        f"{name} {strange[name]}" if name in strange else f"{name} {getattr(progress, name):.4g}"
        for name in FIGURES
        if name in strange or getattr(progress, name) is not None
    )
    console.print(f"{progress.time_s:6.1f} s  worker {line.rank}: {shown}", highlight=False)


def _show_end(end: End, seen: Observations, workers: int, console: Console) -> None:
    """Print at once that a worker failed, because the others may wait long, or for ever."""
    is_first = seen.first_failure is None
    seen.ended(end)
    if end.outcome == "finished":
        return
    text = f"{seen.now_s():6.1f} s  worker {end.rank} {end.outcome}"
    if is_first and workers > 1:
        text += "\n          the others go on until they end; Ctrl-C stops them"
    console.print(text, markup=False, highlight=False)


class _one_interruption:  # noqa: N801 (used as a function)
    """From entry to exit, the first of Ctrl-C, SIGTERM and SIGHUP raises KeyboardInterrupt, and later ones are ignored.

    Cleaning up has time limits of its own, and writes the record that the user has waited for.
    """

    def __enter__(self) -> None:
        self._heard = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            if not self._heard:
                self._heard = True
                raise KeyboardInterrupt

        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._previous[number] = signal.signal(number, interrupt)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

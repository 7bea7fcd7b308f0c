"""`fanin demo`: one training job twice, over fanin and over gloo, with the same seeds, side by side."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from fanin import files
from fanin.bounds import SEED
from fanin.emulation.figures import FigureTable
from fanin.emulation.fork_server import ForkServer
from fanin.emulation.network import timelines
from fanin.emulation.processes import LocalJob
from fanin.emulation.progress import progress_of
from fanin.emulation.report import publish
from fanin.errors import ConfigurationError, FaninError
from fanin.faults import FaultSchedule
from fanin.protocol.wire import MAX_WORKERS
from fanin.records import record as records
from fanin.records.recording import Beginning, finished
from fanin.settings import Bounds, OneOf, check_bounds

BASELINE = "gloo"
IMPORTS = ("fanin.examples.train", "fanin.host.torch.backend", "torch._dynamo", "sklearn.datasets")
"""The ranks' module, and modules that it imports late: for the backend, the optimizer and the digits."""
MAX_EPOCHS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the demo."""

    task: str = "digits"
    """Task to train: digits or text."""
    backend: Annotated[str, OneOf("fanin", BASELINE)] = "fanin"
    """Backend of torch.distributed: fanin or gloo."""
    workers: Annotated[int, Bounds(1, MAX_WORKERS)] = 4
    """Worker processes on this machine."""
    lanes: int = 32
    """Bits per lane: 32, 16, 8 or 4; for fanin alone."""
    epochs: Annotated[int | None, Bounds(1, MAX_EPOCHS)] = None
    """Passes over the data. Default: 12 of digits, 2 of text."""
    seed: Annotated[int, SEED] = 0
    """Seed of the weights and of the order of the samples."""
    faults: str = ""
    """Injected at fanin's workers, in the grammar of fanin/faults.py; gloo knows none."""

    def __post_init__(self) -> None:
        check_bounds(self)
        FaultSchedule.parse(self.faults).check_workers(self.workers)
        if self.faults and self.backend == BASELINE:
            raise ConfigurationError(
                f"--fault with --backend {BASELINE}, which knows none. Remedy: leave out one of them"
            )

    @property
    def label(self) -> str:
        """Name of the run in tables."""
        return f"{self.backend}, {self.lanes}-bit lanes" if self.backend == "fanin" else self.backend


@dataclass(slots=True)
class Run:
    """Reports of one training run."""

    plan: Plan
    epochs: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last report of every rank."""
    progress: list[records.Progress] = field(default_factory=list)
    workers: list[records.WorkerRecord] = field(default_factory=list)
    """The workers with their time lines, which only fanin writes."""

    @property
    def last(self) -> dict[str, Any]:
        """The report of the last epoch."""
        return self.epochs[-1]

    @property
    def replicas_identical(self) -> bool:
        """Whether all ranks ended with the same parameters, to the bit."""
        return len(self.ends) == self.plan.workers and len({end["replica"] for end in self.ends.values()}) == 1

    @property
    def wire_bytes_per_worker(self) -> int:
        """Payload bytes that a worker sent and received, mean over the workers."""
        total: int = sum(end["wire_bytes_sent"] + end["wire_bytes_received"] for end in self.ends.values())
        return total // self.plan.workers

    def as_json(self) -> dict[str, Any]:
        """The run's figures by name, for the JSON file."""
        return {
            "backend": self.plan.backend,
            "epochs": self.epochs,
            "replicas": [self.ends[rank]["replica"] for rank in sorted(self.ends)],
            "replicas_identical": self.replicas_identical,
            "wire_bytes_per_worker": self.wire_bytes_per_worker,
            "gradient_bytes_per_step": self.ends[0]["gradient_bytes"],
        }


def demonstrate(
    plan: Plan,
    *,
    baseline: bool,
    json_file: Path | None,
    record_file: Path | None,
    html: Path | None,
    console: Console,
    command: str,
) -> list[Run]:
    """Train, then train again over gloo if `baseline`; print progress and a table, and write the files.

    FaninError if replicas differ, which would be a defect of ours and must not look like a success.
    """
    beginning = Beginning()
    with ForkServer(*IMPORTS) as server:
        runs = [run_training(plan, console, server)]
        if baseline:
            runs.append(run_training(dataclasses.replace(plan, backend=BASELINE, faults=""), console, server))
    console.print()
    console.print(comparison(runs))
    if json_file:
        files.write(json_file, json.dumps(summary(runs), indent=2) + "\n", "the figures")
    for run in runs:
        if not run.replicas_identical:
            raise FaninError(f"{run.plan.label}: the replicas differ. Remedy: please report this with the JSON file")
    record = record_of(runs, command, beginning)
    if record_file:
        record.write(record_file)
    publish(record, html, console)
    return runs


def run_training(plan: Plan, console: Console, server: ForkServer | None) -> Run:
    """Train once to the end, with a progress bar and a line on the console per epoch."""
    arguments = ["--task", plan.task, "--backend", plan.backend, "--seed", str(plan.seed), "--progress"]
    if plan.epochs is not None:
        arguments += ["--epochs", str(plan.epochs)]
    run = Run(plan)
    console.print(f"[bold]{escape(plan.label)}[/]: {plan.task} on {plan.workers} workers", highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="fanin-demo-") as folder,
        Progress(*columns, console=console, transient=True, refresh_per_second=4) as bar,
    ):
        timeline = Path(folder, "timeline-%r.jsonl")
        environment = {"FANIN_LANES": str(plan.lanes), "FANIN_FAULTS": plan.faults, "FANIN_TIMELINE": str(timeline)}
        task = bar.add_task("starting workers", total=None)
        origin_s: float | None = None  # set at the first report: starting processes takes longer than a short run
        with LocalJob(IMPORTS[0], arguments, plan.workers, environment, server=server) as job:
            for rank, said in job.reports():
                origin_s = time.monotonic() if origin_s is None else origin_s
                take(run, rank, said, time.monotonic() - origin_s)
                if said["event"] == "progress":
                    bar.update(task, description="training", completed=said["done"], total=said["of"])
                elif said["event"] == "epoch":
                    console.print(progress_line(said), highlight=False)
        if plan.backend != BASELINE and origin_s is not None:
            run.workers = [worker_of(rank, timeline, origin_s) for rank in range(plan.workers)]
    return run


def take(run: Run, rank: int, said: dict[str, Any], time_s: float) -> None:
    """Keep a worker's report in `run`, with its time since training began."""
    if said["event"] == "epoch":
        run.epochs.append(said)
        progress = progress_of(said, time_s=time_s, rank=rank, label=run.plan.label)
        run.progress += [progress] if progress is not None else []
    elif said["event"] == "end":
        run.ends[rank] = said


def worker_of(rank: int, timeline: Path, origin_s: float) -> records.WorkerRecord:
    """A worker's activities since training began, from the time line of its process group."""
    lines = timelines.legal(timelines.read_lines(Path(str(timeline).replace("%r", str(rank)))))
    return records.WorkerRecord(
        rank=rank,
        place="process",
        outcome="finished",
        spans=tuple(span for span in timelines.spans(lines, origin_s, []) if span.start_s >= 0),
        counters={name: float(value) for name, value in timelines.counters_in(lines).items()},
    )


def record_of(runs: list[Run], command: str, beginning: Beginning) -> records.RunRecord:
    """The runs as a record: times since the start of each run, side by side."""
    plan = runs[0].plan
    bars: dict[str, tuple[str, Callable[[Run], float]]] = {
        "Time of a step": ("Median over all steps of rank 0.", lambda run: run.last["step_s"]),
        "Communication in a step": (
            "From a step's first all-reduce to the end of its last, mean, by DistributedDataParallel's own clock.",
            lambda run: run.last["communication_s"],
        ),
    }
    return finished(
        beginning,
        kind="demo",
        title=f"Training {plan.task} on {plan.workers} workers",
        command=command,
        settings=dataclasses.asdict(plan) | {"epochs": len(runs[0].epochs), "faults": plan.faults or None},
        quantities=[
            records.Quantity(plot=title, name=run.plan.label, unit="s", value=value(run), caption=caption)
            for title, (caption, value) in bars.items()
            for run in runs
        ],
        progress=[progress for run in runs for progress in run.progress],
        workers=runs[0].workers,
        notes=[
            "All processes are on one machine and compete for its cores; no link limits them.",
            f"The workers' time lines are those of {plan.label}; times count from the first step of each run.",
        ],
    )


def progress_line(record: dict[str, Any]) -> str:
    """An epoch's report as a line of at most 80 columns."""
    return (
        f"  epoch {record['epoch']:2}  loss {record['loss']:.4f}  accuracy {record['accuracy']:6.1%}"
        f"  step {record['step_s'] * 1e3:.0f} ms, comm. {record['communication_s'] * 1e3:.0f} ms"
        f"  wire {decimal(record['wire_bytes'])}"
    )


def comparison(runs: list[Run]) -> FigureTable:
    """The final table, with one row per run."""
    plan = runs[0].plan
    columns: dict[str, Callable[[Run], str | Text]] = {
        "accuracy": lambda run: f"{run.last['accuracy']:.2%}",
        "perplexity": lambda run: f"{perplexity(run):.2f}",
        "step": lambda run: f"{run.last['step_s'] * 1e3:.1f} ms",
        "comm.": lambda run: f"{run.last['communication_s'] * 1e3:.1f} ms",
        "wire": lambda run: decimal(run.wire_bytes_per_worker),
        "replicas": lambda run: "identical" if run.replicas_identical else Text("DIFFERENT", "red"),
    }
    if plan.task != "text":
        del columns["perplexity"]
    title = f"{plan.task}: {plan.workers} workers, {len(runs[0].epochs)} epochs, seed {plan.seed}"
    table = FigureTable(title, ("", *columns))
    for run in runs:
        table.add(run.plan.label, *(value(run) for value in columns.values()))
    table.caption = (
        "accuracy: on the test set. step: median. comm.: all-reduces, mean per step.\n"
        "wire: bytes that a worker sent and received, as fanin or the kernel counts.\n"
        "replicas: SHA-256 of the parameters of every rank."
    )
    if plan.faults and len(runs) > 1:
        table.caption += f"\nfaults ({plan.faults}): fanin's workers alone had them; gloo ran on clean links."
    return table


def perplexity(run: Run) -> float:
    """Perplexity on the test set: the exponential of the mean cross entropy."""
    return math.exp(run.last["test_loss"])


def summary(runs: list[Run]) -> dict[str, Any]:
    """The content of the JSON file; without a baseline it has no `baseline_*`."""
    first, *rest = runs
    values: dict[str, Any] = {
        **dataclasses.asdict(first.plan),
        "epochs": len(first.epochs),
        "accuracy": first.last["accuracy"],
        "perplexity": perplexity(first),
        "step_s": first.last["step_s"],
        "communication_s": first.last["communication_s"],
        "replicas_identical": first.replicas_identical,
        "wire_bytes_per_worker": first.wire_bytes_per_worker,
    }
    for run in rest:
        values |= {
            "baseline": run.plan.backend,
            "baseline_accuracy": run.last["accuracy"],
            "baseline_perplexity": perplexity(run),
            "baseline_step_s": run.last["step_s"],
            "baseline_communication_s": run.last["communication_s"],
            "baseline_wire_bytes_per_worker": run.wire_bytes_per_worker,
        }
    return {**values, "runs": [run.as_json() for run in runs]}

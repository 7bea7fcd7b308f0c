"""`fanin demo`: one training job twice, over fanin and over gloo, with the same seeds, side by side."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fanin.emulation.processes import LocalJob
from fanin.errors import ConfigurationError, FaninError

BASELINE = "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to train and how."""

    task: str
    backend: str
    workers: int
    lanes: int
    """Bits per lane; only fanin knows lanes."""
    epochs: int | None
    """None: what the task is made for."""
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 32:
            raise ConfigurationError(f"workers = {self.workers}; must be in 1..32")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigurationError(f"epochs = {self.epochs}; must be at least 1")
        for module in ("torch", "sklearn"):
            if importlib.util.find_spec(module) is None:
                raise ConfigurationError(f"the demo needs {module}: pip install 'fanin[demo]'")

    @property
    def label(self) -> str:
        """How tables name the run."""
        return f"{self.backend}, {self.lanes}-bit lanes" if self.backend == "fanin" else self.backend


@dataclass(slots=True)
class Run:
    """What one training run reported."""

    plan: Plan
    epochs: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By rank."""

    @property
    def last(self) -> dict[str, Any]:
        """The report of the last epoch."""
        return self.epochs[-1]

    @property
    def replicas_identical(self) -> bool:
        """Whether every rank ended with the same parameters, to the bit."""
        return len(self.ends) == self.plan.workers and len({end["replica"] for end in self.ends.values()}) == 1

    @property
    def wire_bytes_per_worker(self) -> int:
        """Payload bytes that a worker sent and received, mean over the workers."""
        total: int = sum(end["wire_bytes_sent"] + end["wire_bytes_received"] for end in self.ends.values())
        return total // self.plan.workers

    def as_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {
            "backend": self.plan.backend,
            "epochs": self.epochs,
            "replicas": [self.ends[rank]["replica"] for rank in sorted(self.ends)],
            "replicas_identical": self.replicas_identical,
            "wire_bytes_per_worker": self.wire_bytes_per_worker,
            "gradient_bytes_per_step": self.ends[0]["gradient_bytes"],
        }


def demonstrate(plan: Plan, *, baseline: bool, json_file: Path | None, console: Console) -> list[Run]:
    """Train, then train again over gloo if `baseline`; print progress and a table, write `json_file` if given.

    FaninError where replicas differ: that would be a defect of ours, and must not look like a success.
    """
    runs = [run_training(plan, console)]
    if baseline:
        runs.append(run_training(dataclasses.replace(plan, backend=BASELINE), console))
    console.print(comparison(runs))
    if json_file:
        json_file.write_text(json.dumps(summary(runs), indent=2) + "\n", encoding="utf-8")
    for run in runs:
        if not run.replicas_identical:
            raise FaninError(f"{run.plan.label}: the replicas differ; please report this with the JSON file")
    return runs


def run_training(plan: Plan, console: Console) -> Run:
    """One run to its end, a line on the console for each epoch."""
    arguments = ["--task", plan.task, "--backend", plan.backend, "--seed", str(plan.seed)]
    if plan.epochs is not None:
        arguments += ["--epochs", str(plan.epochs)]
    run = Run(plan)
    started = time.monotonic()
    console.print(f"[bold]{plan.label}[/]: {plan.task} on {plan.workers} workers")
    job = LocalJob("fanin.examples.train", arguments, plan.workers, {"FANIN_LANES": str(plan.lanes)})
    with console.status("starting workers") as status, job:
        for rank, record in job.reports():
            if record["event"] == "epoch":
                run.epochs.append(record)
                console.print(progress_line(record), highlight=False)
                status.update(f"training, {time.monotonic() - started:.0f} s")
            else:
                run.ends[rank] = record
    return run


def progress_line(record: dict[str, Any]) -> str:
    """What a user sees of one epoch, within 80 columns."""
    return (
        f"  epoch {record['epoch']:2}  loss {record['loss']:.4f}  accuracy {record['accuracy']:6.1%}"
        f"  step {record['step_s'] * 1e3:.0f} ms, comm. {record['communication_s'] * 1e3:.0f} ms"
        f"  wire {decimal(record['wire_bytes'])}"
    )


def comparison(runs: list[Run]) -> Table:
    """The last word of the demo: one row per run, within 80 columns."""
    plan = runs[0].plan
    columns: dict[str, Callable[[Run], str]] = {
        "accuracy": lambda run: f"{run.last['accuracy']:.2%}",
        "perplexity": lambda run: f"{perplexity(run):.2f}",
        "step": lambda run: f"{run.last['step_s'] * 1e3:.1f} ms",
        "comm.": lambda run: f"{run.last['communication_s'] * 1e3:.1f} ms",
        "wire": lambda run: decimal(run.wire_bytes_per_worker),
        "replicas": lambda run: "identical" if run.replicas_identical else "[red]DIFFERENT[/]",
    }
    if plan.task != "text":
        del columns["perplexity"]
    table = Table("", title=f"{plan.task}: {plan.workers} workers, {len(runs[0].epochs)} epochs, seed {plan.seed}")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(run.plan.label, *(value(run) for value in columns.values()))
    table.caption = (
        "accuracy: on the test set. step: median. comm.: all-reduces, mean per step.\n"
        "wire: bytes that a worker sent and received, as fanin or the kernel counts.\n"
        "replicas: SHA-256 of the parameters of every rank."
    )
    return table


def perplexity(run: Run) -> float:
    """Of the predictions on the test set: the exponential of their mean cross entropy."""
    return math.exp(run.last["test_loss"])


def summary(runs: list[Run]) -> dict[str, Any]:
    """The JSON file. `baseline_*` are absent without a baseline."""
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

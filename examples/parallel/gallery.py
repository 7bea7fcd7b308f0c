"""`fanin gallery`: runs examples, each in a new world, and shows verdicts, figures and bytes by carrier."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from fanin import files
from fanin.emulation.figures import FigureTable
from fanin.emulation.fork_server import ForkServer
from fanin.emulation.processes import LocalJob, WorkerFailedError
from fanin.errors import FaninError
from fanin.examples.parallel.catalogue import CATALOGUE, Example

PATHS = ("switch", "shards", "gloo")
OK, SKIPPED = "ok", "skipped"
IMPORTS = (
    "fanin.host.torch.backend", "torch._dynamo", "torch.distributed.pipelining", "torch.distributed.tensor.parallel",
    "scipy.optimize", "sklearn.datasets",
)  # fmt: skip
"""Modules that several examples import, and that take long to import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of a run: the examples, and how they are run."""

    examples: tuple[Example, ...]
    workers: int | None = None
    """Number of workers; None: each example's default."""
    hosts: int = 1
    """Number of hosts that the ranks claim to be on; from 2 on, shards make the sums."""
    quick: bool = False


@dataclass(slots=True)
class Outcome:
    """Outcome of one example's run."""

    name: str
    workers: int
    verdict: str = OK
    """`ok`, `skipped`, or how the check failed."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Rank 0's figures, by name."""
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    """Bytes of tensors that all ranks together handed to each carrier."""
    seconds: float = 0.0
    """Seconds from the start of the processes to their end."""


def listing() -> FigureTable:
    """Table of all examples, with the workers that each takes."""
    table = FigureTable("", ("example", "workers", "systems", "built"), left=("systems", "built"))
    for each in CATALOGUE.values():
        table.add(each.name, " ".join(map(str, each.workers)), each.systems, each.text)
    table.caption = (
        "fanin gallery --only NAME runs one, fanin gallery --all every one; the first number of workers is its own."
    )
    return table


def run(plan: Plan, console: Console, json_file: Path | None) -> list[Outcome]:
    """Run the examples one after another; raises FaninError at the end if a check has failed.

    If the run is interrupted, the table and the file of the examples before are still written.
    """
    outcomes: list[Outcome] = []
    try:
        with ForkServer(*IMPORTS) as server:
            for example in plan.examples:
                with console.status(f"{example.name} on {plan.workers or example.workers[0]} workers"):
                    outcomes.append(outcome_of(example, plan, server))
    finally:  # an interruption keeps the outcomes of examples that have ended
        if outcomes:
            console.print(table_of(outcomes))
            if json_file:
                files.write(json_file, json.dumps([asdict(each) for each in outcomes], indent=2) + "\n", "the figures")
    failed = [each for each in outcomes if each.verdict not in (OK, SKIPPED)]
    if failed:
        raise FaninError(
            "; ".join(f"{each.name}: {each.verdict}" for each in failed) + ". Remedy: see the output above"
        )
    return outcomes


def outcome_of(example: Example, plan: Plan, server: ForkServer | None = None) -> Outcome:
    """Run one example to its end, with ranks as forks of `server`, if given."""
    workers = plan.workers or example.workers[0]
    found, started_s = Outcome(example.name, workers), time.monotonic()
    arguments = ["--check", "--hosts", str(plan.hosts), *(["--quick"] if plan.quick else [])]
    try:
        with LocalJob(example.module, arguments, workers, {}, server=server) as job:
            for rank, said in job.reports():
                if said["event"] == "failed" and found.verdict == OK:
                    found.verdict = said["text"]
                elif said["event"] == "end":
                    found.figures = said["figures"] if rank == 0 else found.figures
                    found.bytes = {path: found.bytes[path] + said["bytes"][path] for path in PATHS}
    except WorkerFailedError as error:
        found.verdict = str(error) if found.verdict == OK else found.verdict
    if SKIPPED in found.figures and found.verdict == OK:
        found.verdict = SKIPPED
    found.seconds = time.monotonic() - started_s
    return found


def table_of(outcomes: Sequence[Outcome]) -> FigureTable:
    """Table with one line per outcome."""
    table = FigureTable(
        "", ("example", "workers", "verdict", "seconds", *PATHS, "figures"), left=("verdict", "figures")
    )
    for each in outcomes:
        verdict = Text(each.verdict if each.verdict in (OK, SKIPPED) else "failed", "" if each.verdict == OK else "red")
        table.add(
            each.name, str(each.workers), verdict, f"{each.seconds:.0f}",
            *(decimal(each.bytes[path]) if each.bytes[path] else "" for path in PATHS), in_words(each.figures),
        )  # fmt: skip
    table.caption = "switch, shards, gloo: bytes of the tensors that all ranks together handed to each of them."
    return table


def in_words(figures: dict[str, Any]) -> str:
    """Figures as text on one line."""
    return ", ".join(f"{name.replace('_', ' ')} {shown(value)}" for name, value in figures.items())


def shown(value: Any) -> str:
    """A figure as text: four digits, or all digits of a whole number."""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)

"""`fanin bench staleness`: does staleness pay? Loss and accuracy against wall-clock time, in one table and one plot.

Real processes train a small network on handwritten digits, in every mode under every condition. Compute time is
emulated (staleness_worker.py): on a machine with fewer cores than workers real computing would be dominated by
contention. All modes of a condition run in the same processes, one after the other. Replicas must be bit-identical in
the end.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fanin.benchmarks.staleness_worker import MODES
from fanin.emulation.network.commands import in_namespace, require_privileges
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob
from fanin.errors import ConfigurationError, FaninError

CONDITIONS = {
    "even": "even workers",
    "random": "each step 5 times longer with probability 0.1",
    "slow-worker": "one of them 3 times slower, always",
    "slow-link": "links of a stated rate",
}
WORKER = "fanin.benchmarks.staleness_worker"
MASTER_PORT = 29_700
SMOOTHED = 3
"""Points over which accuracy is averaged before it is compared with the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    workers: int = 4
    steps: int = 200
    """Synchronous steps; the asynchronous modes take as many gradients."""
    step_ms: float = 20.0
    """Emulated compute time of an ordinary step."""
    target: float = 0.9
    """Test accuracy whose time is compared."""
    modes: tuple[str, ...] = MODES
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    rate_bit_s: float = 4e6
    """Of the slow links."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= 32:
            raise ConfigurationError(f"workers = {self.workers}; must be in 2..32")
        if self.steps < 20 or self.step_ms <= 0:
            raise ConfigurationError(f"{self.steps} steps of {self.step_ms} ms; at least 20, of more than 0 ms")
        for name, known in ((self.modes, MODES), (self.conditions, tuple(CONDITIONS))):
            if unknown := set(name) - set(known):
                raise ConfigurationError(f"{', '.join(sorted(unknown))}: none of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Row:
    """One mode under one condition."""

    condition: str
    mode: str
    to_target_s: float | None
    """Seconds until rank 0's smoothed accuracy reached the target; None: it did not."""
    speed_up: float | None
    """The synchronous mode's time to the target over this one's."""
    seconds: float
    """Of the whole run."""
    accuracy: float
    loss: float
    """At the end, on the test set."""
    choices: tuple[int, ...]
    """S or K as chosen at run time."""
    points: tuple[tuple[float, float, float], ...]
    """Seconds, loss, accuracy at rank 0."""


def bench(plan: Plan, *, json_file: Path | None, plot_file: Path | None, console: Console) -> list[Row]:
    """Measure, check, print a table; write the rows and the plot where asked to."""
    rows: list[Row] = []
    for condition in plan.conditions:
        with console.status(f"{plan.workers} workers, {CONDITIONS[condition]}"):
            if condition == "slow-link":
                try:
                    require_privileges()
                except FaninError as error:
                    console.print(f"slow-link is left out: {error}")
                    continue
            records = _over_slow_links(plan) if condition == "slow-link" else _run(plan, condition)
        rows += rows_of(plan, condition, records)
    console.print(table_of(plan, rows))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    if plot_file is not None:
        plot(plan, rows, plot_file)
        console.print(f"plot: {plot_file}")
    return rows


def rows_of(plan: Plan, condition: str, records: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """The rows of one condition; FaninError where replicas differ or a rank said nothing."""
    times = {mode: to_target(reports[0]["points"], plan.target) for mode, reports in records.items()}
    synchronous_s = times.get("synchronous")
    rows = []
    for mode in plan.modes:
        reports = records[mode]
        if len(reports) != plan.workers or len({report["replica"] for report in reports}) != 1:
            raise FaninError(f"{mode}, {condition}: the replicas differ at the end")
        seconds, _, loss, accuracy = reports[0]["points"][-1]
        reached_s = times[mode]
        rows.append(
            Row(
                condition=condition,
                mode=mode,
                to_target_s=reached_s,
                speed_up=synchronous_s / reached_s if synchronous_s and reached_s else None,
                seconds=seconds,
                accuracy=accuracy,
                loss=loss,
                choices=tuple(reports[0].get("choices", ())),
                points=tuple((at, point_loss, right) for at, _, point_loss, right in reports[0]["points"]),
            )
        )
    return rows


def to_target(points: list[tuple[float, int, float, float]], target: float) -> float | None:
    """When the mean of the last few accuracies first reached the target."""
    for end in range(SMOOTHED, len(points) + 1):
        window = points[end - SMOOTHED : end]
        if sum(point[3] for point in window) / SMOOTHED >= target:
            return window[-1][0]
    return None


def _arguments(plan: Plan, condition: str) -> list[str]:
    return [
        "--modes", ",".join(plan.modes), "--conditions", condition, "--steps", str(plan.steps),
        "--step-ms", str(plan.step_ms),
    ]  # fmt: skip


def _run(plan: Plan, condition: str) -> dict[str, list[dict[str, Any]]]:
    return _collect(LocalJob(WORKER, _arguments(plan, condition), plan.workers, {}))


def _over_slow_links(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """Each worker in a namespace of its own, behind a link of the stated rate; root only."""
    topology = Topology(workers=plan.workers, link=Link(rate_bit_s=plan.rate_bit_s))
    with (
        tempfile.TemporaryDirectory() as folder,
        Fabric(topology) as fabric,
        Switches(fabric, "native", Path(folder)) as switches,
    ):
        environment = {
            "FANIN_SWITCH": switches.root.url,
            "GLOO_SOCKET_IFNAME": WORKER_DEVICE,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": topology.worker_address(0),
            "MASTER_PORT": str(MASTER_PORT),
        }
        job = LocalJob(
            WORKER,
            _arguments(plan, "slow-link"),
            plan.workers,
            environment,
            lambda rank, line: in_namespace(fabric.worker_namespace(rank), line),
        )
        return _collect(job)


def _collect(job: LocalJob) -> dict[str, list[dict[str, Any]]]:
    """By mode, by rank."""
    told: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    with job:
        for rank, record in job.reports():
            told[record["mode"]][rank] = record
    return {mode: [by_rank[rank] for rank in sorted(by_rank)] for mode, by_rank in told.items()}


def table_of(plan: Plan, rows: list[Row]) -> Table:
    """For people."""
    title = f"{plan.workers} workers, {plan.step_ms:g} ms per ordinary step (emulated), target {plan.target:.0%}"
    table = Table(title=title)
    for heading in ("condition", "mode", "to target", "speed-up", "whole run", "accuracy", "loss", "chosen S or K"):
        table.add_column(heading, justify="left" if heading in ("condition", "mode") else "right", no_wrap=True)
    for row in rows:
        chosen = ", ".join(map(str, row.choices[-4:]))
        table.add_row(
            row.condition, row.mode,
            "never" if row.to_target_s is None else f"{row.to_target_s:.2f} s",
            "" if row.speed_up is None else f"{row.speed_up:.2f}",
            f"{row.seconds:.1f} s", f"{row.accuracy:.1%}", f"{row.loss:.3f}", chosen,
            end_section=row.mode == plan.modes[-1],
        )  # fmt: skip
    return table


def plot(plan: Plan, rows: list[Row], file: Path) -> None:
    """Loss above, accuracy below, a column per condition."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: pip install 'fanin[plot]'") from None
    conditions = [condition for condition in plan.conditions if any(row.condition == condition for row in rows)]
    figure = Figure(figsize=(4 * len(conditions) + 1, 7), layout="constrained")
    axes = figure.subplots(2, len(conditions), squeeze=False, sharey="row")
    colors = mpl.color_sequences["tab10"]
    for column, condition in enumerate(conditions):
        for row in (row for row in rows if row.condition == condition):
            seconds, losses, accuracies = zip(*row.points, strict=True)
            style = {"label": row.mode, "color": colors[MODES.index(row.mode)], "linewidth": 1.3}
            axes[0][column].plot(seconds, losses, **style)
            axes[1][column].plot(seconds, accuracies, **style)
        axes[0][column].set(title=CONDITIONS[condition], yscale="log")
        axes[1][column].axhline(plan.target, color="0.6", linewidth=0.8, linestyle="--")
        axes[1][column].set(xlabel="seconds", ylim=(0.5, 1.0))
    axes[0][0].set(ylabel="test loss")
    axes[1][0].set(ylabel="test accuracy")
    axes[0][-1].legend(fontsize="small")
    figure.savefig(file, dpi=120)

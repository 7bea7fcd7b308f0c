"""`fanin bench network`: all-reduces and training steps over emulated links of stated rates (root; docs/emulation.md).

Every host has a namespace and a link of its own, and the switch is where the plan says. As in `fanin bench allreduce`,
rivals take turns in every sample, on the same ranks and hosts, and every result is compared with a float64 sum and
between ranks. The ideal is the time that the busiest link needs (benchmarks/ideal.py). Rows that are bound by this
machine's processors rather than by the links are marked.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from rich.filesize import decimal

from fanin.benchmarks import allreduce, mpi
from fanin.benchmarks import shared_link as sharing
from fanin.benchmarks.allreduce import ROUNDS, checked_error
from fanin.benchmarks.harness import Output, Report, busy, by, reports_of_job, slowest, table
from fanin.benchmarks.ideal import ideal_s
from fanin.benchmarks.rivals import (
    FLOAT_BYTES,
    MAX_SAMPLES,
    Rival,
    Rivals,
    check_bytes,
    check_rivals,
    rivals_of,
)
from fanin.emulation.figures import FigureTable
from fanin.emulation.network import scenario
from fanin.emulation.network.topology import MAX_TOTAL_WORKERS, Topology
from fanin.errors import ConfigurationError, FaninError
from fanin.records.record import Row
from fanin.settings import Bounds, Lanes, Named, Numbers, Words, check_bounds, words_of

if TYPE_CHECKING:
    from fanin.emulation.network.fabric import Fabric

BOUND_MARK = " !"
"""Mark behind the processors' load in rows that the processors bound."""
MAX_JOBS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(scenario.Cluster):
    """Settings of the benchmark or, with `shared_link`, of another one (shared_link.py)."""

    workers: Annotated[int, Bounds(2, MAX_TOTAL_WORKERS)] = 4
    """Number of ranks in all."""
    queue: str = "1mib"
    """Queue at either end of every link: 512kib. With --shared-link: of the shared one, or several with commas."""
    uplink: str | None = None
    """Uplink of every rack: 100mbit, or rate=1gbit,delay=1ms. As other links by default. With --shared-link: the link
    that is shared, by hosts with a link of --rate each."""
    tcp_flows: Numbers = (0,)
    """TCP flows from host to host, at most 64; with --shared-link beside the workers, or several numbers with
    commas."""
    sizes: Annotated[Numbers, Named("bytes")] = (26_214_400,)
    """Bytes of float32 per worker, several separated by commas."""
    lanes: Lanes = (32, 16, 8)
    """fanin's lane widths, separated by commas: 8 (packed), 4/8 (bits up / down)."""
    against: Words = ("gloo",)
    """Rivals: gloo, mpi, or MODULE:BACKEND, which the import of the module registers; separated by commas."""
    samples: Annotated[int, Bounds(5, MAX_SAMPLES)] = 11
    """Samples per rival and size."""
    steps: Annotated[int, Bounds(0, MAX_SAMPLES)] = 0
    """Training steps to time as well (DDP, text transformer)."""
    shared_link: bool = False
    """All workers behind one link, without gloo and torch: who gets what."""
    jobs: Annotated[int, Bounds(1, MAX_JOBS)] = 1
    """With --shared-link: jobs of so many workers each."""
    seconds: Annotated[float | None, Bounds(sharing.MIN_SECONDS, 3600.0)] = None
    """With --shared-link: how long a row takes. 10, and 40 beside TCP flows."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.shared_link:
            _ = self.shared_plans
            return
        if len(self.tcp_flows) != 1:
            raise ConfigurationError(
                f"tcp_flows = {self.tcp_flows}; expected one number, or --shared-link", "--tcp-flows"
            )
        topology = self.topology
        if "mpi" in self.against and topology.ranks_per_host > 1:
            raise ConfigurationError(
                "against = mpi: OpenMPI is measured with ranks_per_host = 1 only", "--ranks-per-host"
            )
        check_bytes(*self.sizes)
        check_rivals([Rival("fanin", lanes) for lanes in self.lanes], self.against)

    def scenario(self, **changes: Any) -> scenario.Scenario:
        """The cluster to build; ConfigurationError if it is impossible."""
        shape = {each.name: getattr(self, each.name) for each in fields(scenario.Cluster)}
        uplink = None if self.uplink is None else scenario.uplink(self.uplink)
        return scenario.Scenario(**{**shape, "uplink": uplink, "tcp_flows": self.tcp_flows[0], **changes})

    @property
    def topology(self) -> Topology:
        """Hosts and links of the cluster."""
        return self.scenario().topology

    @property
    def shared_plans(self) -> list[sharing.Plan]:
        """Plans of the rows of --shared-link: one for each queue and number of TCP flows."""
        if len(self.sizes) != 1:
            raise ConfigurationError(f"bytes = {self.sizes}; expected one number with --shared-link", "--bytes")
        racks = 1 if self.uplink is None else 2  # a scenario with one rack has no uplink
        shapes = [self.scenario(queue=queue, racks=racks, tcp_flows=0).topology for queue in self.queue.split(",")]
        return [
            sharing.Plan(
                workers=self.workers,
                jobs=self.jobs,
                tcp_flows=beside,
                size=self.sizes[0],
                link=shape.link,
                uplink=None if self.uplink is None else shape.uplink,
                seconds=self.seconds or sharing.usual_seconds(beside),
            )
            for shape in shapes
            for beside in self.tcp_flows
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSteps:
    """Command line of a rank that takes training steps (step_worker.py)."""

    rivals: Rivals
    steps: int


def bench(plan: Plan, output: Output) -> Sequence[Row | sharing.Shares]:
    """Measure, check, print a table; write rows, record and page."""
    if plan.shared_link:
        return sharing.bench(plan.shared_plans, output)
    from fanin.emulation.network.cross_traffic import CrossTraffic
    from fanin.emulation.network.fabric import Fabric
    from fanin.emulation.network.switches import Switches
    from fanin.emulation.network.traffic import LinkWatch

    rivals = rivals_of([Rival("fanin", lanes) for lanes in plan.lanes], plan.against, ("tcp",), output)
    topology = plan.topology
    rows: list[Row] = []
    with ExitStack() as stack:
        fabric = stack.enter_context(Fabric(topology))
        stack.enter_context(Switches(fabric, "native", fabric.folder))
        watch = stack.enter_context(LinkWatch(fabric, output.began.clock_s))
        cluster = _Cluster(plan, topology, fabric, output)
        if plan.tcp_flows[0]:
            traffic = stack.enter_context(CrossTraffic(fabric, plan.tcp_flows[0]))
        for size in plan.sizes:
            rows += cluster.all_reduces(rivals, size)
        if plan.steps:
            rows += cluster.training_steps([rival for rival in rivals if rival.backend != "mpi"])
        if plan.tcp_flows[0]:
            output.notes.append(traffic.in_words())
    output.show(rows, table_of(plan, rows, output.notes))
    output.publish(
        f"All-reduce over emulated links, {plan.workers} workers, switch: {topology.switch_at.in_words}",
        {
            "workers": plan.workers,
            "ranks_per_host": plan.ranks_per_host,
            "switch_at": str(topology.switch_at),
            "racks": plan.racks,
            "cards": plan.cards,
            "rate_bit_s": topology.link.rate_bit_s,
            "uplink_bit_s": topology.uplink.rate_bit_s,
            "mtu": plan.mtu,
            "queue_bytes": topology.link.queue_bytes,
            "tcp_flows": plan.tcp_flows[0],
        },
        links=watch.links(),
        rows=tuple(rows),
    )
    return rows


class _Cluster:
    """Runs the ranks' programs in a fabric."""

    def __init__(self, plan: Plan, topology: Topology, fabric: Fabric, output: Output) -> None:
        self._plan, self._topology, self._fabric, self._output = plan, topology, fabric, output
        self._jobs = 0

    def all_reduces(self, rivals: Sequence[Rival], size: int) -> list[Row]:
        """Measure all-reduces; returns a row per rival. FaninError if a result is wrong or differs between ranks."""
        asked = allreduce.Asked(
            rivals=tuple(rivals), count=size // FLOAT_BYTES, samples_per_round=-(-self._plan.samples // ROUNDS)
        )
        environment = self._mpi(self._plan.workers) if any(rival.backend == "mpi" for rival in rivals) else {}
        found = self._run(f"{size:,} bytes", allreduce.WORKER, asked, environment)
        gloo_s = self._gloo_s(found)
        rows = []
        for rival in rivals:
            own = found[rival.label]
            resent = [each["retransmissions"] for each in own if each.get("retransmissions") is not None]
            rows.append(
                self._row(
                    rival,
                    own,
                    gloo_s,
                    bytes=size,
                    measures="allreduce",
                    ideal_s=ideal_s(self._topology, rival, size),
                    max_error=checked_error(rival, own, self._plan.workers),
                    retransmissions=sum(resent) if resent else None,
                )
            )
        return rows

    def training_steps(self, rivals: Sequence[Rival]) -> list[Row]:
        """Measure training steps; returns a row per rival. FaninError if replicas differ."""
        asked = AskedSteps(rivals=tuple(rivals), steps=self._plan.steps)
        found = self._run(f"{self._plan.steps} training steps", "fanin.benchmarks.step_worker", asked, {})
        gloo_s = self._gloo_s(found)
        rows = []
        for rival in rivals:
            own = found[rival.label]
            if len({report["replica"] for report in own}) != 1:
                raise FaninError(
                    f"{rival.label}: the ranks' parameters differ after {self._plan.steps} steps. "
                    "Remedy: please report this with the command"
                )
            size = own[0]["gradient_bytes"]
            rows.append(self._row(rival, own, gloo_s, bytes=size, measures="step", ideal_s=None, max_error=None))
        return rows

    def _gloo_s(self, found: dict[str, list[Report]]) -> float | None:
        return statistics.median(self._seconds(found["gloo"])) if "gloo" in found else None

    def _seconds(self, found: Sequence[Report]) -> list[float]:
        # Rounds are of equal length, so the last one may have more samples than were asked for.
        return slowest(found)[: self._plan.samples if "checksums" in found[0] else None]

    def _row(self, rival: Rival, found: Sequence[Report], gloo_s: float | None, **measured: Any) -> Row:
        """Make the row of one rival from its ranks' reports."""
        seconds = self._seconds(found)
        median_s = statistics.median(seconds)
        return Row(
            backend=rival.name,
            lanes=rival.widths[1],
            workers=self._plan.workers,
            rate_bit_s=self._topology.link.rate_bit_s,
            median_s=median_s,
            fastest_s=min(seconds),
            slowest_s=max(seconds),
            samples=len(seconds),
            ratio_to_gloo=gloo_s / median_s if gloo_s else None,
            switch=self._topology.switch_at.in_words,
            ranks_per_host=self._plan.ranks_per_host,
            processor=busy(found),
            **measured,
        )

    def _run(self, what: str, module: str, asked: Any, environment: dict[str, str]) -> dict[str, list[Report]]:
        from fanin.emulation.network.placed_job import MASTER_PORT, placed_job

        self._jobs += 1
        port = MASTER_PORT + self._jobs
        job = placed_job(self._fabric, module, words_of(asked), environment, master_port=port)
        return by(reports_of_job(self._output, f"{self._plan.workers} workers, {what}", job), "rival")

    def _mpi(self, workers: int) -> dict[str, str]:
        """Environment for OpenMPI, whose agent (address, command line) enters the namespace with that address."""
        from fanin.emulation.network.fabric import WORKER_DEVICE

        agent = self._fabric.folder / "mpi-agent"
        if not agent.exists():
            cases = "\n".join(
                f"{self._topology.worker_address(rank)}) namespace={self._fabric.worker_namespace(rank)};;"
                for rank in range(workers)
            )
            agent.write_text(
                f'#!/bin/sh\ncase "$1" in\n{cases}\n*) exit 1;;\nesac\nshift\n'
                'exec ip netns exec "$namespace" sh -c "$*"\n',
                encoding="utf-8",
            )
            agent.chmod(0o755)
        return {
            mpi.PROGRAM_VARIABLE: mpi.compile_program(str(self._fabric.folder)),
            mpi.AGENT_VARIABLE: str(agent),
            mpi.HOSTS_VARIABLE: ",".join(self._topology.worker_address(rank) for rank in range(workers)),
            mpi.DEVICE_VARIABLE: WORKER_DEVICE,
        }


def table_of(plan: Plan, rows: Sequence[Row], notes: Sequence[str] = ()) -> FigureTable:
    """The rows as a table for the terminal."""
    topology = plan.topology
    rate = topology.link.rate_bit_s
    limit = "without limit" if rate is None else f"{rate / 1e6:g} Mbit/s"
    hosts = f" on {topology.hosts} hosts" if plan.ranks_per_host > 1 else ""
    racks = f" in {plan.racks} racks" if plan.racks > 1 else ""
    racks += f" with {plan.cards} network cards each" if plan.cards > 1 else ""
    caption = (
        f"{min(row.samples for row in rows)} samples each, interleaved; ideal: what the busiest link alone needs, "
        "headers and all; processors: how busy this machine's were"
    )
    if any(row.processor_bound for row in rows):
        caption += f"; {BOUND_MARK.strip()}: they, not the links, set the time"

    def processors(row: Row) -> str:
        return "" if row.processor is None else f"{row.processor:.0%}{BOUND_MARK if row.processor_bound else ''}"

    return table(
        f"{plan.workers} workers{hosts}{racks}, links of {limit}, MTU {plan.mtu}; switch: "
        f"{topology.switch_at.in_words}",
        rows,
        [
            ("what", "measures"),
            ("size", lambda row: decimal(row.bytes)),
            ("backend", lambda row: f"{row.backend} {row.lanes}" if row.backend == "fanin" else row.backend),
            ("median ms", "median_s:ms"),
            ("ideal", "ideal_s:ms"),
            ("of ideal", lambda row: "" if row.ideal_s is None else f"{row.ideal_s / row.median_s:.2f}"),
            ("to gloo", "ratio_to_gloo:.2f"),
            ("resent", "retransmissions:,"),
            ("processors", processors),
        ],
        left=("backend",),
        caption="\n".join([caption, *notes]),
    )

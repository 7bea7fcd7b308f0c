"""`fanin bench sharded`: FSDP2 of the text transformer with exact and with quantized moves.

Steps: rivals take a step each in turn, on the same ranks, over links of a stated rate (namespaces, root) or on this
machine alone; a step's time is the slowest rank's. Bytes are from counters. Epochs: every rival trains from the same
seeds, and losses are compared; a file keeps each training, so that hours of trainings can be interrupted.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fanin.benchmarks.harness import (
    DEVICES,
    Output,
    Report,
    by,
    median_ratio,
    reports,
    require_device,
    slowest,
    table,
    usable,
)
from fanin.benchmarks.processor import busy_in_words
from fanin.benchmarks.rivals import MAX_SAMPLES
from fanin.benchmarks.sharded_rivals import RIVALS, ShardedRival
from fanin.benchmarks.sharded_runs import COMPARED_SEED, Run, Runs, Trainings, outcome_of, to_do
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.switch_place import Place, SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.network.units import Rate
from fanin.errors import ConfigurationError
from fanin.settings import Bounds, Named, OneOf, Words, check_bounds

WORKER = "fanin.benchmarks.sharded_worker"
EXACT = "fanin-32"
"""The rival with which bytes are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: Annotated[int, Bounds(2, 32)] = 8
    """Hosts, of one rank each."""
    rate_bit_s: Annotated[Rate, Named("rate")] = 1e8
    """Rate of every link, each way (root): 100mbit, 1gbit. none: this machine, without links."""
    switch_at: Place = SwitchPlace.parse("hosts")
    """Place of the switch, over links: own (a port per host), rank0, hosts, spare:K."""
    rivals: Words = ("gloo", "gloo-bfloat16", "fanin-32", "fanin-8")
    """Some of gloo, gloo-bfloat16, nccl, nccl-bfloat16 (both over sockets), fanin-32, fanin-8, fanin-8-kept (codes kept
    for backward), fanin-6, fanin-4, fanin-8-sketched (a fifth of the gradients, as TAGC keeps); separated by commas."""
    device: Annotated[str, OneOf(*DEVICES)] = "cpu"
    """Device of weights and gradients: cpu or cuda; ranks share devices where there are fewer."""
    steps: Annotated[int, Bounds(0, MAX_SAMPLES)] = 5
    """Steps to time, per rival."""
    epochs: Annotated[int, Bounds(0, 1000)] = 0
    """Epochs to train, per rival and seed."""
    epoch_steps: Annotated[int, Bounds(0, MAX_SAMPLES)] = 0
    """Most steps of an epoch, for a first look at losses; 0: all of them."""
    seeds: Annotated[int, Bounds(1, 100)] = 1
    """Seeds of weights and order of samples."""
    runs: Path | None = None
    """File that keeps every training; those that it has are not done again."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for label in self.rivals:
            ShardedRival.parse(label)
        if not self.rivals or len(set(self.rivals)) != len(self.rivals):
            raise ConfigurationError(
                f"rivals = {','.join(self.rivals)!r}. Remedy: name some of {', '.join(RIVALS)}, once each"
            )
        if not self.steps and not self.epochs:
            raise ConfigurationError(
                "steps = 0 and epochs = 0: nothing to measure; expected one of them above 0", "--steps or --epochs"
            )
        if self.link is not None:
            Topology(workers=self.workers, link=self.link, switch_at=self.switch_at)

    @property
    def link(self) -> Link | None:
        """Link of every host, its device as Linux makes it; None: all ranks on this machine, without links."""
        return None if self.rate_bit_s is None else Link(rate_bit_s=self.rate_bit_s, bands=True)

    def training(self, rival: str, seed: int) -> Run:
        """Settings of one rival's training with one seed."""
        place = "" if self.rate_bit_s is None else str(self.switch_at)
        return Run(rival, self.workers, self.epochs, seed, self.rate_bit_s, place, self.device, self.epoch_steps)

    @property
    def trainings(self) -> list[Run]:
        """All trainings, seed by seed."""
        seeds = range(self.seeds if self.epochs else 0)
        return [self.training(rival, seed) for seed in seeds for rival in self.rivals]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (sharded_worker.py)."""

    rivals: Words
    """Labels of the rivals whose steps are timed."""
    steps: int = 0
    trainings: Runs = ()
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one rival, as in the JSON file."""

    rival: str
    workers: int
    rate_bit_s: float | None
    parameter_bytes: int | None = None
    """Bytes of the whole model in float32."""
    seconds: tuple[float, ...] = ()
    """Time of every step, of the slowest rank."""
    median_s: float | None = None
    to_gloo: float | None = None
    """gloo's float32 time over this one's."""
    sent_bytes: float | None = None
    """Bytes sent per step, by the rank that sent most; None if nothing counts them."""
    share_of_exact: float | None = None
    """Bytes sent, as a share of those of fanin's exact moves."""
    processor: float | None = None
    """Load of this machine's processors, which all ranks share, in these steps."""
    used_s: float | None = None
    """Processor time of one rank in a step, with all its threads; the largest of any rank. It does not include the
    host's shard, which is a process of its own.
    """
    host_s: float | None = None
    """Processor time of a host in a step, its rank and its shard: the mean of the hosts, median of steps."""
    host_of_gloo: float | None = None
    """This one's `host_s` over gloo's, median of steps."""
    waited_s: float | None = None
    """Time of the last step spent waiting for gathers and reductions."""
    link_bytes: float | None = None
    """Bytes per step on a host's link, in its busier direction, including those of the shard."""
    losses: tuple[float, ...] = ()
    """Mean training loss of the last epoch, by seed."""
    test_losses: tuple[float, ...] = ()
    apart_step: float | None = None
    """Distance from the first rival after one step with the first seed: of the parameter that differs most, the norm of
    the difference over the parameter's norm."""
    apart: float | None = None
    """Distance from the first rival after all steps, in which rounding differences grow; measured as `apart_step`."""

    @property
    def link_s(self) -> float | None:
        """Time that a step's bytes alone take on a link."""
        return self.link_bytes * 8 / self.rate_bit_s if self.link_bytes and self.rate_bit_s else None

    @property
    def own_core_s(self) -> float | None:
        """Time of a step if every rank had a core of its own, and link and processor never worked at the same time."""
        return None if self.link_s is None or self.used_s is None else self.link_s + self.used_s


def bench(plan: Plan, output: Output) -> list[Row]:
    """Measure, print tables; write the rows. FaninError if ranks disagree on a loss. Steps are timed in every call."""
    require_device(plan.device)
    kept = Trainings(plan.runs)
    unusable: dict[str, str] = {}
    timed = _carry_out(plan, to_do(plan.trainings, kept), kept, unusable, output)
    rows = [_learned(plan, _timed(plan, label, timed), kept) for label in plan.rivals if label not in unusable]
    output.show(rows, table_of(plan, rows))
    output.say_unusable(unusable)
    if plan.steps:
        output.console.print(bounds_of(rows))
    return rows


def _carry_out(
    plan: Plan, runs: list[Run], kept: Trainings, unusable: dict[str, str], output: Output
) -> dict[str, list[Report]]:
    """Carry out steps and trainings, keep the trainings, note unusable rivals; returns reports on steps, by rival."""
    if not plan.steps and not runs:
        return defaultdict(list)
    asked = Asked(rivals=plan.rivals, steps=plan.steps, trainings=tuple(runs), device=plan.device)
    words = f"{plan.workers} workers, FSDP2"
    found = reports(output, words, plan.workers, WORKER, asked, link=plan.link, switch_at=plan.switch_at)
    steps = kept.collect(usable(found, unusable), runs, plan.workers, outcome_of, "training")
    return by(steps, "rival")


def _timed(plan: Plan, label: str, timed: dict[str, list[Report]]) -> Row:
    row = Row(label, plan.workers, plan.rate_bit_s)
    own = timed[label]
    if not own:
        return row
    seconds = slowest(own)
    sent = _most(own, "sent_bytes")
    exact = _most(timed[EXACT], "sent_bytes")
    return dataclasses.replace(
        row,
        parameter_bytes=own[0]["parameter_bytes"],
        seconds=tuple(seconds),
        median_s=statistics.median(seconds),
        to_gloo=median_ratio(own, timed["gloo"]),
        sent_bytes=sent,
        share_of_exact=sent / exact if sent and exact else None,
        processor=_most(own, "processor"),
        used_s=max(report["used_s"] for report in own),
        host_s=statistics.median(_host_means(own)),
        host_of_gloo=_of_gloo(own, timed["gloo"]),
        waited_s=_most(own, "waited_s"),
        link_bytes=_most(own, "link_bytes"),
    )


def _host_means(ranks: list[Report]) -> list[float]:
    """Processor time of a host by step, the mean of the hosts."""
    return [statistics.fmean(hosts) for hosts in zip(*(rank["host_s"] for rank in ranks), strict=True)]


def _of_gloo(own: list[Report], gloo: list[Report]) -> float | None:
    """Processor time of a host over gloo's in the same turn, median of steps; None without gloo."""
    if not gloo:
        return None
    return statistics.median(mine / its for mine, its in zip(_host_means(own), _host_means(gloo), strict=True))


def _most(found: Sequence[Report], key: str) -> float | None:
    """Largest value of all ranks; None if it is 0 or not known."""
    return max((report[key] or 0.0 for report in found), default=0.0) or None


def _learned(plan: Plan, row: Row, kept: Trainings) -> Row:
    if not plan.epochs:
        return row
    own = [kept[plan.training(row.rival, seed)] for seed in range(plan.seeds)]
    return dataclasses.replace(
        row,
        losses=tuple(each.loss for each in own),
        test_losses=tuple(each.test_loss for each in own),
        apart_step=own[COMPARED_SEED].apart_step,
        apart=own[COMPARED_SEED].apart,
    )


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""
    rate = "" if plan.rate_bit_s is None else f", links of {plan.rate_bit_s / 1e6:g} Mbit/s"
    where = "" if plan.device == "cpu" else f", weights on {plan.device}"
    first = statistics.mean(rows[0].losses) if rows[0].losses else None
    timed = f"{plan.steps} steps each, interleaved; MB sent: per step, by the rank that sent most, from counters"
    epochs = f"{plan.epochs} epochs" + (f" of {plan.epoch_steps} steps" if plan.epoch_steps else "")
    trained = (
        f"{epochs} from {plan.seeds} seeds; apart: how far a parameter is from the first rival's after one step, in "
        "norms"
    )

    def to_first(row: Row) -> str:
        return f"{statistics.mean(row.losses) / first - 1:+.2%}" if row.losses and first is not None else ""

    return table(
        f"FSDP2, text transformer, {plan.workers} workers{rate}{where}",
        rows,
        [
            ("moves", "rival"),
            ("median ms", "median_s:ms"),
            ("to gloo", "to_gloo:.2f"),
            ("MB sent", lambda row: "" if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.1f}"),
            ("of exact", "share_of_exact:.3f"),
            ("loss", lambda row: f"{statistics.mean(row.losses):.4f}" if row.losses else ""),
            ("test loss", lambda row: f"{statistics.mean(row.test_losses):.4f}" if row.test_losses else ""),
            ("to the first", to_first),
            ("apart", "apart_step:.2g"),
            ("in the end", "apart:.2g"),
        ],
        caption="; ".join([timed] * bool(plan.steps) + [trained] * bool(plan.epochs)),
    )


def bounds_of(rows: Sequence[Row]) -> FigureTable:
    """A table of what bounds a step: the link, or the processors that all ranks share."""
    gloo = next((row.own_core_s for row in rows if row.rival == "gloo"), None)

    def to_gloo(row: Row) -> str:
        return "" if gloo is None or row.own_core_s is None else f"{gloo / row.own_core_s:.2f}"

    return table(
        "what bounds a step",
        rows,
        [
            ("moves", "rival"),
            ("median ms", "median_s:ms"),
            ("busy", lambda row: busy_in_words(row.processor)),
            ("link ms", "link_s:ms0"),
            ("rank's ms", "used_s:ms0"),
            ("host's ms", "host_s:ms0"),
            ("of gloo's", "host_of_gloo:.2f"),
            ("waited ms", "waited_s:ms0"),
            ("with own core", "own_core_s:ms0"),
            ("to gloo", to_gloo),
        ],
        caption="of a step; busy: this machine's processors, with all ranks on them (*: they set the time); link: "
        "what the bytes alone take, by a host's device; rank's: what one rank used of a processor, without its host's "
        "shard; host's: with its shard, and over gloo's; waited: for gathers and reductions; with own core: link and "
        "rank's, a step of ranks with a core each if nothing overlaps, and by that gloo's time / this one's",
    )

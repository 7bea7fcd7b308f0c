"""`fanin bench`: measurements that check what they measure."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from fanin.cli import extras, later, output
from fanin.cli.epilogs import epilog
from fanin.cli.fields import parameter, with_options
from fanin.errors import ConfigurationError
from fanin.settings import settings_of

MAX_SAMPLES = 1_000_000

app = typer.Typer(no_args_is_help=True, help="Measure against other backends.")


@dataclass(frozen=True, slots=True)
class Apart:
    """A measurement that a flag of the command chooses; it needs no extra, and refuses some options of the command."""

    flag: str
    """Field of the Plan whose flag chooses this measurement."""
    refused: tuple[str, ...]
    """Parameters of options that have no meaning beside the flag."""
    why: str

    def check(self, typed: Mapping[str, Any]) -> None:
        """Raise ConfigurationError where one of the options that were `typed` has no meaning beside the flag."""
        if found := [f"--{each.replace('_', '-')}" for each in self.refused if each in typed]:
            raise ConfigurationError(
                f"{', '.join(found)}: not with --{self.flag.replace('_', '-')}, {self.why}. Remedy: leave them out"
            )


@dataclass(frozen=True, slots=True)
class Idle:
    """Parameters whose options do nothing in plans of one kind."""

    parameters: tuple[str, ...]
    told: str
    """Says of which kind: `without --train`."""
    is_so: Callable[[Any], bool]
    """Whether a plan is of that kind."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One command: the module of its name in fanin.benchmarks, which has a `Plan` and `bench` (harness.py)."""

    text: str
    """Help of the command."""
    extra: str = "torch"
    """Extra of pyproject.toml that it needs beyond fanin's own dependencies."""
    page: bool = False
    """Whether it has a record and a page besides its rows."""
    apart: Apart | None = None
    """Another measurement of the same command, by a flag."""
    idle: tuple[Idle, ...] = ()
    some: tuple[str, ...] = ()
    """Parameters of lists that name one thing at least, where they are typed."""

    def check(self, plan: Any, typed: Mapping[str, Any]) -> None:
        """Raise ConfigurationError for options that were `typed` and do nothing in this plan, or name nothing."""
        written = {each.field: f"--{each.option}" for each in settings_of(type(plan))}
        for each in self.idle:
            unused = [written[name] for name in each.parameters if name in typed]
            if unused and each.is_so(plan):
                raise ConfigurationError(f"{', '.join(unused)}: no effect {each.told}. Remedy: leave it out")
        for name in self.some:
            if name in typed and not getattr(plan, name):
                raise ConfigurationError(
                    f"{written[name]} {typed[name]!r} names nothing. Remedy: leave it out, or name one"
                )


SHARED_LINK = Apart(
    "shared_link",
    ("ranks_per_host", "switch_at", "racks", "cards", "lanes", "against", "samples", "steps", "record", "html"),
    "which sums int32 at one switch alone",
)
UNLINKED = Idle(
    ("switch_at",), "without links, on this machine alone (--rate none)", lambda plan: plan.rate_bit_s is None
)
BENCHMARKS = {
    "staleness": Benchmark(
        "Train synchronously, stale synchronously and asynchronously, with even and uneven workers.",
        extra="demo",
        page=True,
    ),
    "fairness": Benchmark(
        "Two jobs on one switch, one of them flooding it: what the other keeps of its rate (root).", page=True
    ),
    "network": Benchmark(
        "Time all-reduces and training steps over emulated links (root).",
        page=True,
        apart=SHARED_LINK,
        idle=(Idle(("jobs", "seconds"), "without --shared-link", lambda plan: not plan.shared_link),),
        some=("sizes",),
    ),
    "codecs": Benchmark(
        "Measure what gradient codecs lose, send and take; with --train, how fast they learn over slow links.",
        extra="demo",
        page=True,
        idle=(
            Idle(("bytes", "values"), "with --train", lambda plan: plan.train),
            Idle(
                ("tasks", "rates_bit_s", "batch", "timed_steps", "repeats"),
                "without --train",
                lambda plan: not plan.train,
            ),
        ),
        some=("codecs", "tasks", "values"),
    ),
    "meetings": Benchmark(
        "Train by local steps with few meetings, beside DDP, over slow links.",
        extra="demo",
        page=True,
        idle=(UNLINKED,),
    ),
    "sharded": Benchmark(
        "Time and train FSDP2 with exact and with quantized moves.",
        idle=(UNLINKED, Idle(("epoch_steps", "seeds", "runs"), "without --epochs", lambda plan: not plan.epochs)),
    ),
    "collectives": Benchmark(
        "Time broadcasts, gathers and scattered sums over fanin and gloo, and with --device cuda over NCCL's sockets.",
        idle=(UNLINKED,),
    ),
    "allreduce": Benchmark("Time torch.distributed.all_reduce over fanin and its rivals.", page=True),
    "federated": Benchmark(
        "Train federated clients of unlike data and speeds by six policies, for real and simulated.", extra="demo"
    ),
    "cost": Benchmark(
        "Processor time of an all-reduce per call and host, beside gloo's, and what links need of it (root)."
    ),
    "watching": Benchmark("Time sums and steps with and without metrics, top, a timeline and watch_ranks."),
}


def made(name: str, benchmark: Benchmark) -> Callable[..., None]:
    """The command's function: its options are the fields of the benchmark's Plan."""
    module = importlib.import_module(f"fanin.benchmarks.{name}")

    def bench(make: Callable[[], Any], typed: Mapping[str, Any], **files: Any) -> None:
        if benchmark.apart is not None and typed.get(benchmark.apart.flag):
            benchmark.apart.check(typed)
        else:
            extras.require(benchmark.extra, f"`fanin bench {name}`")
        from fanin.benchmarks.harness import Output

        plan = make()
        benchmark.check(plan, typed)
        own = (each for name in plan.__dataclass_fields__ if isinstance(each := getattr(plan, name), Path))
        unasked = output.unasked_page(files["html"]) if benchmark.page else []
        output.check(*files.values(), *own, unasked=unasked)
        module.bench(plan, Output(**files, command=output.command_line()))

    files = [parameter("json", output.JsonFile)]
    if benchmark.page:
        files += [parameter("record", output.RecordFile), parameter("html", output.HtmlFile)]
    return with_options(module.Plan, bench, benchmark.text, files)


for _name, _benchmark in BENCHMARKS.items():
    later.add(app, _name, _benchmark.text, partial(made, _name, _benchmark), epilog(_name))


@app.callback()
def bench() -> None:
    """Measure against other backends, in one run, with every result checked."""

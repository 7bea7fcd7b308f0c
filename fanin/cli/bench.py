"""`fanin bench`: measurements that check what they measure."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fanin.cli import extras, later, output
from fanin.cli.epilogs import epilog
from fanin.cli.fields import parameter, with_options
from fanin.errors import ConfigurationError

MAX_SAMPLES = 1_000_000

app = typer.Typer(no_args_is_help=True, help="Measure against other backends.")


@dataclass(frozen=True, slots=True)
class Apart:
    """A measurement that needs no extra, and has no use for some options of its command."""

    flag: str
    """Field of the flag."""
    refused: tuple[str, ...]
    """Parameters of options that have no meaning beside the flag."""
    why: str

    def check(self, typed: Mapping[str, Any]) -> None:
        """ConfigurationError for an option that means nothing there."""
        if found := [f"--{each.replace('_', '-')}" for each in self.refused if each in typed]:
            raise ConfigurationError(f"{', '.join(found)}: not with --{self.flag.replace('_', '-')}, {self.why}")


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


SHARED_LINK = Apart(
    "shared_link",
    ("ranks_per_host", "switch_at", "racks", "lanes", "against", "samples", "steps", "record", "html"),
    "which sums int32 at one switch alone",
)
BENCHMARKS = {
    "network": Benchmark(
        "Time all-reduces and training steps over emulated links (root).",
        page=True,
        apart=SHARED_LINK,
    ),
    "codecs": Benchmark(
        "Measure what gradient codecs lose, send and take; with --train, how fast they learn over slow links.",
        extra="demo",
        page=True,
    ),
    "sharded": Benchmark("Time and train FSDP2 with exact and with quantized moves."),
    "collectives": Benchmark(
        "Time broadcasts, gathers and scattered sums over fanin and gloo, and with --device cuda over NCCL's sockets."
    ),
    "allreduce": Benchmark("Time torch.distributed.all_reduce over fanin and its rivals.", page=True),
    "cost": Benchmark(
        "Processor time of an all-reduce per call and host, beside gloo's, and what links need of it (root)."
    ),
}


def made(name: str, benchmark: Benchmark) -> Callable[..., None]:
    """The command's function: its options are the fields of the benchmark's Plan."""
    module = importlib.import_module(f"fanin.benchmarks.{name}")

    def bench(make: Callable[[], Any], typed: Mapping[str, Any], **files: Path | None) -> None:
        if benchmark.apart is not None and typed.get(benchmark.apart.flag):
            benchmark.apart.check(typed)
        else:
            extras.require(benchmark.extra, f"`fanin bench {name}`")
        output.check(*files.values())
        from fanin.benchmarks.harness import Output

        module.bench(make(), Output(**files, command=output.command_line()))

    files = [parameter("json", output.JsonFile)]
    if benchmark.page:
        files += [parameter("record", output.RecordFile), parameter("html", output.HtmlFile)]
    return with_options(module.Plan, bench, benchmark.text, files)


for _name, _benchmark in BENCHMARKS.items():
    later.add(app, _name, _benchmark.text, partial(made, _name, _benchmark), epilog(_name))


@app.callback()
def bench() -> None:
    """Measure against other backends, in one run, with every result checked."""


@app.command(epilog=epilog("staleness"))
def staleness(
    workers: Annotated[int, typer.Option(min=2, max=32, help="Worker processes on this machine.")] = 4,
    steps: Annotated[
        int, typer.Option(min=5, max=MAX_SAMPLES, help="Synchronous steps; other modes take as many gradients.")
    ] = 160,
    step_ms: Annotated[
        float, typer.Option(min=0.1, max=60_000, help="Emulated compute time of an ordinary step.")
    ] = 30.0,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each mode, with a seed each.")] = 2,
    target: Annotated[float, typer.Option(min=0, max=1, help="Test accuracy whose time is compared.")] = 0.9,
    modes: Annotated[str, typer.Option(help="Separated by commas; all by default.")] = "",
    conditions: Annotated[
        str,
        typer.Option(
            help="Of even, random, slow-worker, slow-link and slow-worker-over-links (both root); all but the last by "
            "default."
        ),
    ] = "",
    rate: Annotated[str, typer.Option(help="Of the slow links.")] = "4mbit",
    task: Annotated[str, typer.Option(help="What is trained: digits or text.")] = "digits",
    slow: Annotated[
        float, typer.Option(min=1, max=1000, help="How many times longer than an ordinary one a slow worker's step is.")
    ] = 3.0,
    switch_at: Annotated[
        str, typer.Option(help="Where sums are made over links: own, rank0, hosts, spare:K, spare-only:K.")
    ] = "own",
    json: Annotated[Path | None, typer.Option(help="File for the rows, with the curves.")] = None,
    plot: Annotated[Path, typer.Option(help="PNG file for the curves.")] = Path("fanin-staleness.png"),
    record: output.RecordFile = None,
    html: output.HtmlFile = None,
) -> None:
    """Train synchronously, stale synchronously and asynchronously, with even and uneven workers."""
    extras.require("demo", "`fanin bench staleness`")
    output.check(json, plot, record, html)
    from rich.console import Console

    from fanin.benchmarks import staleness as benchmark
    from fanin.emulation.network import units
    from fanin.emulation.network.switch_place import SwitchPlace
    from fanin.emulation.network.topology import Link
    from fanin.errors import ConfigurationError

    rate_bit_s = Link(rate_bit_s=units.rate_bit_s(rate)).rate_bit_s
    if rate_bit_s is None:
        raise ConfigurationError("a slow link needs a rate, such as 4mbit")
    plan = benchmark.Plan(
        workers=workers,
        steps=steps,
        step_ms=step_ms,
        repeats=repeats,
        target=target,
        modes=tuple(modes.split(",")) if modes else benchmark.USUAL_MODES,
        conditions=tuple(conditions.split(",")) if conditions else benchmark.USUAL_CONDITIONS,
        rate_bit_s=rate_bit_s,
        task=task,
        slow=slow,
        switch_at=SwitchPlace.parse(switch_at),
    )
    benchmark.bench(
        plan,
        json_file=json,
        plot_file=plot,
        record_file=record,
        html=html,
        console=Console(),
        command=output.command_line(),
    )


@app.command(epilog=epilog("fairness"))
def fairness(
    rate: Annotated[str, typer.Option(help="Of every link, each way: 100mbit, 1gbit, none.")] = "100mbit",
    seconds: Annotated[float, typer.Option(min=0.5, max=3600, help="Of summing, for each row.")] = 5.0,
    target: Annotated[str, typer.Option(help="The switch's engine: native or python.")] = "native",
    json: output.JsonFile = None,
    record: output.RecordFile = None,
    html: output.HtmlFile = None,
) -> None:
    """Two jobs on one switch, one of them flooding it: what the other keeps of its rate (root)."""
    extras.require("torch", "`fanin bench fairness`")
    output.check(json, record, html)
    from rich.console import Console

    from fanin.benchmarks import fairness as benchmark
    from fanin.emulation.network import units
    from fanin.emulation.network.topology import Link

    link = Link(rate_bit_s=units.rate_bit_s(rate))
    benchmark.bench(
        link,
        seconds,
        target=target,
        json_file=json,
        record_file=record,
        html=html,
        console=Console(),
        command=output.command_line(),
    )

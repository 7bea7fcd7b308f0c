"""`fanin bench`: measurements that check what they measure."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanin.cli import extras, later, output
from fanin.cli.epilogs import epilog
from fanin.cli.fields import parameter, with_options

if TYPE_CHECKING:
    from fanin.emulation.network.topology import Link

MAX_BYTES = 1 << 34
"""Per worker: more fits no machine that these benchmarks are for."""
MAX_SAMPLES = 1_000_000
MAX_SHARERS = 32
MAX_SHARED_S = 3600.0
NOT_BESIDE_SHARED_LINK = (
    "ranks_per_host", "switch_at", "racks", "lanes", "against", "samples", "steps", "record", "html"
)  # fmt: skip
"""Options of `fanin bench network` that have no meaning beside --shared-link."""

app = typer.Typer(no_args_is_help=True, help="Measure against other backends.")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One command: the module of its name in fanin.benchmarks, which has a `Plan` and `bench` (harness.py)."""

    text: str
    """Help of the command."""
    extra: str = "torch"
    """Extra of pyproject.toml that it needs beyond fanin's own dependencies."""
    page: bool = False
    """Whether it has a record and a page besides its rows."""


BENCHMARKS = {
    "collectives": Benchmark(
        "Time broadcasts, gathers and scattered sums over fanin and gloo, and with --device cuda over NCCL's sockets."
    ),
    "allreduce": Benchmark("Time torch.distributed.all_reduce over fanin and its rivals.", page=True),
    "federated": Benchmark(
        "Train federated clients of unlike data and speeds by six policies, for real and simulated.", extra="demo"
    ),
    "cost": Benchmark(
        "Processor time of an all-reduce per call and host, beside gloo's, and what links need of it (root)."
    ),
}


def made(name: str, benchmark: Benchmark) -> Callable[..., None]:
    """The command's function: its options are the fields of the benchmark's Plan."""
    module = importlib.import_module(f"fanin.benchmarks.{name}")

    def bench(plan: Any, **files: Path | None) -> None:
        extras.require(benchmark.extra, f"`fanin bench {name}`")
        output.check(*files.values())
        from fanin.benchmarks.harness import Output

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


@app.command(epilog=epilog("codecs"))
def codecs(
    workers: Annotated[
        str, typer.Option(help="Worker processes, 2..32; with --train several numbers, separated by commas.")
    ] = "4",
    bytes_: Annotated[
        int, typer.Option("--bytes", min=4096, max=MAX_BYTES, help="Bytes of float32 per worker.")
    ] = 4_194_304,
    codecs: Annotated[str, typer.Option(help="As docs/codecs.md has them, separated by commas; all by default.")] = "",
    values: Annotated[
        str, typer.Option(help="normal, student, or gradients captured at a step of digits or text: digits@50.")
    ] = "normal,student,digits@50",
    steps: Annotated[
        int | None,
        typer.Option(
            min=3, max=100_000, help="Of each codec on each distribution, 5; with --train of training, by the task."
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train through each of them, and time steps over slow star links (root).")
    ] = False,
    task: Annotated[str, typer.Option(help="With --train: digits, text; separated by commas.")] = "digits",
    rates: Annotated[
        str, typer.Option(help="With --train: of the links, separated by commas; none: only what is learned.")
    ] = "100mbit,1gbit",
    batch: Annotated[
        int | None, typer.Option(min=2, max=1024, help="With --train: samples per step over all workers together.")
    ] = None,
    timed: Annotated[int, typer.Option(min=4, max=1000, help="With --train: steps over links of each rate.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="With --train: trainings, each of its own seed.")] = 1,
    runs: Annotated[
        Path | None,
        typer.Option(help="With --train: file that keeps every training; those that it has are not done again."),
    ] = None,
    json: output.JsonFile = None,
    record: output.RecordFile = None,
    html: output.HtmlFile = None,
) -> None:
    """Measure what gradient codecs lose, send and take; with --train, how fast they learn over slow links."""
    extras.require("demo", "`fanin bench codecs`")
    output.check(json, record, html)
    from rich.console import Console

    from fanin.benchmarks import codecs as benchmark
    from fanin.errors import ConfigurationError

    chosen, numbers = benchmark.split(codecs), _numbers("workers", workers)
    if train:
        from fanin.benchmarks import codecs_train, codecs_train_rows
        from fanin.emulation.network.units import rate_bit_s

        found = [rate_bit_s(text) for text in rates.split(",")]
        plan = codecs_train_rows.Plan(
            tasks=tuple(task.split(",")),
            workers=numbers,
            steps=steps,
            timed_steps=timed,
            repeats=repeats,
            batch=batch,
            rates_bit_s=tuple(rate for rate in found if rate is not None),
            codecs=chosen,
        )
        codecs_train.bench(
            plan,
            runs_file=runs,
            json_file=json,
            record_file=record,
            html=html,
            console=Console(),
            command=output.command_line(),
        )
        return
    if record is not None or html is not None or runs is not None:
        raise ConfigurationError("--record, --html and --runs are of `fanin bench codecs --train`")
    if len(numbers) != 1:
        raise ConfigurationError("several numbers of workers are for `fanin bench codecs --train`")
    measured = benchmark.Plan(
        workers=numbers[0],
        bytes=bytes_,
        steps=5 if steps is None else steps,
        codecs=chosen,
        values=tuple(values.split(",")),
    )
    benchmark.bench(measured, json_file=json, console=Console())


@app.command(epilog=epilog("network"))
def network(
    context: typer.Context,
    workers: Annotated[int, typer.Option(min=2, max=100, help="Ranks in all.")] = 4,
    ranks_per_host: Annotated[int, typer.Option(min=1, max=32, help="That share a namespace and a link.")] = 1,
    switch_at: Annotated[
        str,
        typer.Option(
            help="own (a port per host), rank0, hosts (a shard on each), spare:K (K further hosts too), spare-only:K."
        ),
    ] = "own",
    racks: Annotated[int, typer.Option(min=1, max=8, help="Of hosts, each behind an uplink.")] = 1,
    uplink: Annotated[
        str | None,
        typer.Option(
            help="Of every rack: 100mbit, or rate=1gbit,delay=1ms. As other links by default. With --shared-link: the "
            "link that is shared, by hosts with a link of --rate each."
        ),
    ] = None,
    queue: Annotated[
        str,
        typer.Option(
            help="At either end of every link: 512kib. With --shared-link: of the shared one, or several with commas."
        ),
    ] = "1mib",
    tcp_flows: Annotated[
        str,
        typer.Option(
            help="TCP flows from host to host, at most 64; with --shared-link beside the workers, or several numbers "
            "with commas."
        ),
    ] = "0",
    rate: Annotated[str, typer.Option(help="Of every link, each way: 100mbit, 1gbit, none.")] = "1gbit",
    delay: Annotated[str, typer.Option(help="Of every link, one way.")] = "0us",
    loss: Annotated[str, typer.Option(help="Of every link, per frame and direction.")] = "0%",
    mtu: Annotated[int, typer.Option(min=576, max=9000, help="Of every link.")] = 1500,
    bytes_: Annotated[
        str, typer.Option("--bytes", help="Bytes of float32 per worker, several separated by commas.")
    ] = "26214400",
    lanes: Annotated[
        str, typer.Option(help="fanin's lane widths, separated by commas: 8 (packed), 4/8 (bits up / down).")
    ] = "32,16,8",
    against: Annotated[str, typer.Option(help="Rivals: gloo, mpi; separated by commas.")] = "gloo",
    samples: Annotated[int, typer.Option(min=5, max=MAX_SAMPLES, help="Samples per rival and size.")] = 11,
    steps: Annotated[
        int, typer.Option(min=0, max=MAX_SAMPLES, help="Training steps to time as well (DDP, text transformer).")
    ] = 0,
    shared_link: Annotated[
        bool, typer.Option("--shared-link", help="All workers behind one link, without gloo and torch: who gets what.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, max=MAX_SHARERS, help="With --shared-link: jobs of so many workers each.")
    ] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0, max=MAX_SHARED_S, help="With --shared-link: how long a row takes. 10, and 40 beside TCP flows."
        ),
    ] = None,
    json: output.JsonFile = None,
    record: output.RecordFile = None,
    html: output.HtmlFile = None,
) -> None:
    """Time all-reduces and training steps over emulated links (root)."""
    if shared_link:
        _refuse_beside_shared_link(context)
    else:
        extras.require("torch", "`fanin bench network`")
    output.check(json, record, html)
    from rich.console import Console

    from fanin.emulation.network import scenario
    from fanin.emulation.network.switch_place import SwitchPlace
    from fanin.errors import ConfigurationError

    flows, sizes = _numbers("tcp-flows", tcp_flows), _numbers("bytes", bytes_)
    if len(flows) != 1 and not shared_link:
        raise ConfigurationError(f"tcp-flows = {tcp_flows!r}; expected one number, or --shared-link")
    if len(sizes) != 1 and shared_link:
        raise ConfigurationError(f"bytes = {bytes_!r}; expected one number with --shared-link")

    def described(queue: str) -> scenario.Scenario:
        return scenario.Scenario(
            workers=workers,
            ranks_per_host=ranks_per_host,
            switch_at=switch_at,
            racks=2 if shared_link and uplink is not None else racks,  # with one, a scenario has no uplink
            rate=rate,
            delay=delay,
            loss=loss,
            mtu=mtu,
            queue=queue,
            tcp_flows=0 if shared_link else flows[0],
            uplink=None if uplink is None else scenario.uplink(uplink),
        )

    if shared_link:
        from fanin.benchmarks import shared_link as sharing

        shapes = [described(each).topology for each in queue.split(",")]
        plans = [
            sharing.Plan(
                workers=workers,
                jobs=jobs,
                tcp_flows=beside,
                size=sizes[0],
                link=shape.link,
                uplink=None if uplink is None else shape.uplink,
                seconds=seconds or sharing.usual_seconds(beside),
            )
            for shape in shapes
            for beside in flows
        ]
        sharing.bench(plans, json_file=json, console=Console())
        return
    from fanin.benchmarks import network as benchmark

    topology = described(queue).topology
    plan = benchmark.Plan(
        workers=workers,
        ranks_per_host=ranks_per_host,
        switch_at=SwitchPlace.parse(switch_at),
        racks=racks,
        uplink=topology.uplink if racks > 1 else None,
        tcp_flows=flows[0],
        sizes=sizes,
        link=topology.link,
        lanes=_lanes(lanes),
        against=tuple(name for name in against.split(",") if name),
        samples=samples,
        steps=steps,
    )
    benchmark.bench(
        plan, json_file=json, record_file=record, html=html, console=Console(), command=output.command_line()
    )


@app.command(epilog=epilog("sharded"))
def sharded(
    workers: Annotated[int, typer.Option(min=2, max=32, help="Hosts, of one rank each.")] = 8,
    rate: Annotated[
        str, typer.Option(help="Of every link, each way (root): 100mbit, 1gbit. none: this machine, without links.")
    ] = "100mbit",
    switch_at: Annotated[str, typer.Option(help="own (a port per host), rank0, hosts, spare:K.")] = "hosts",
    rivals: Annotated[
        str,
        typer.Option(
            help="Of gloo, gloo-bfloat16, nccl, nccl-bfloat16 (both over sockets), fanin-32, fanin-8, fanin-8-kept "
            "(codes kept for backward), fanin-6, fanin-4; separated by commas."
        ),
    ] = "gloo,gloo-bfloat16,fanin-32,fanin-8",
    device: Annotated[
        str, typer.Option(help="Of weights and gradients: cpu or cuda; ranks share devices where there are fewer.")
    ] = "cpu",
    steps: Annotated[int, typer.Option(min=0, max=MAX_SAMPLES, help="To time, per rival.")] = 5,
    epochs: Annotated[int, typer.Option(min=0, max=1000, help="To train, per rival and seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Of weights and order of samples.")] = 1,
    runs: Annotated[
        Path | None, typer.Option(help="File that keeps every training; those that it has are not done again.")
    ] = None,
    json: output.JsonFile = None,
) -> None:
    """Time and train FSDP2 with exact and with quantized moves."""
    extras.require("torch", "`fanin bench sharded`")
    output.check(json, None, None)
    from rich.console import Console

    from fanin.benchmarks import sharded as benchmark
    from fanin.emulation.network.switch_place import SwitchPlace

    plan = benchmark.Plan(
        workers=workers,
        link=_link(rate, workers, switch_at),
        switch_at=SwitchPlace.parse(switch_at),
        rivals=tuple(each for each in rivals.split(",") if each),
        steps=steps,
        epochs=epochs,
        seeds=seeds,
        device=device,
    )
    benchmark.bench(plan, runs_file=runs, json_file=json, console=Console())


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


def _link(rate: str, workers: int, switch_at: str) -> Link | None:
    """Link of every host, its device as Linux makes it, checked as a scenario's; None for `none`: this machine, no
    links.
    """
    from fanin.emulation.network import scenario

    if rate == "none":
        return None
    link = scenario.Scenario(workers=workers, switch_at=switch_at, rate=rate).topology.link
    return replace(link, bands=True)


def _refuse_beside_shared_link(context: typer.Context) -> None:
    """ConfigurationError where the user gave an option that means nothing there."""
    from fanin.errors import ConfigurationError

    names = {each.name: each.opts[0] for each in context.command.params}
    given = [
        names[name]
        for name in NOT_BESIDE_SHARED_LINK
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if given:
        raise ConfigurationError(f"{', '.join(given)}: not with --shared-link, which sums int32 at one switch alone")


def _numbers(name: str, text: str) -> tuple[int, ...]:
    from fanin.errors import ConfigurationError

    try:
        return tuple(int(number) for number in text.split(",") if number)
    except ValueError:
        raise ConfigurationError(f"{name} = {text!r}; expected numbers separated by commas") from None


def _lanes(text: str) -> tuple[int | str, ...]:
    """`32,8,4/8`: packed widths, and bits up / bits down."""
    from fanin.numerics.reduction import lanes_number

    parts = [part for part in text.split(",") if part]
    widths: tuple[int | str, ...] = tuple(part if "/" in part else _numbers("lanes", part)[0] for part in parts)
    for width in widths:
        lanes_number(width)
    return widths


def _percentages(text: str) -> tuple[float, ...]:
    """`0,0.5,1`, each perhaps with a `%`."""
    from fanin.errors import ConfigurationError

    try:
        return tuple(float(part.strip().removesuffix("%")) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigurationError(f"loss = {text!r}; expected percentages separated by commas") from None

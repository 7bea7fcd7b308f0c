"""`fanin bench`: measurements that check what they measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Measure against other backends.")


@app.callback()
def bench() -> None:
    """Measure against other backends, in one run, with every result checked."""


@app.command()
def allreduce(
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 4,
    bytes_: Annotated[int, typer.Option("--bytes", help="Bytes of float32 per worker.")] = 26_214_400,
    lanes: Annotated[str, typer.Option(help="fanin's lane widths in bits, separated by commas.")] = "32,16,8",
    against: Annotated[str, typer.Option(help="Rivals: gloo, mpi; separated by commas.")] = "gloo",
    samples: Annotated[int, typer.Option(help="Samples per rival, at least 11.")] = 11,
    json: Annotated[Path | None, typer.Option(help="File for the rows.")] = None,
) -> None:
    """Time torch.distributed.all_reduce over fanin and its rivals."""
    from rich.console import Console

    from fanin.benchmarks import allreduce as benchmark
    from fanin.errors import ConfigurationError

    try:
        widths = tuple(int(width) for width in lanes.split(",") if width)
    except ValueError:
        raise ConfigurationError(f"lanes = {lanes!r}; expected numbers separated by commas") from None
    rivals = tuple(name for name in against.split(",") if name)
    plan = benchmark.Plan(workers=workers, bytes=bytes_, lanes=widths, against=rivals, samples=samples)
    benchmark.bench(plan, json_file=json, console=Console())

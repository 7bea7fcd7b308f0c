"""Runs every example of the gallery: makes its world, and reports its verdict, its figures and bytes by carrier.

An example's `play(asked)` runs in an existing world, returns its figures, and raises AssertionError (by `expect`) if
its check fails. `bytes_by_path` counts the bytes that a rank handed to each carrier: the switch, the shards of several
hosts, and gloo, which carries point-to-point messages and all-to-all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.errors import ConfigurationError
from fanin.examples.option_numbers import whole
from fanin.examples.parallel.catalogue import named
from fanin.examples.train import COLLECTIVE_TIMEOUT, report
from fanin.host.session.shards import ShardedSession

Figures = dict[str, Any]
"""Figures of an example by name, as tables show them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Options that every example has."""

    check: bool = True
    """Whether the example compares its result with one process, or with an exact expectation."""
    quick: bool = False
    """Whether it takes fewer steps, for a test; comparisons stay, but measured figures are less certain."""


def expect(fact: bool | Tensor, text: str) -> None:
    """Raise AssertionError with `text` unless `fact` is true."""
    if not bool(fact):
        raise AssertionError(text)


def apart(found: Tensor, wanted: Tensor) -> float:
    """Largest difference of two tensors, relative to the largest element of `wanted`."""
    scale = max(float(wanted.detach().abs().max()), 1e-30)
    return float((found.detach() - wanted.detach()).abs().max()) / scale


def gradient_of(parameter: Tensor) -> Tensor:
    """The parameter's gradient, which must exist."""
    assert parameter.grad is not None
    return parameter.grad


def counters_of(group: Any) -> dict[str, int]:
    """The counters of a fanin process group."""
    return {name: int(value) for name, value in group.counters().items()}


def fanin_groups() -> list[Any]:
    """All process groups of this process that count bytes."""
    groups = list(dist.distributed_c10d._world.pg_map)
    return [group for group in groups if hasattr(group, "counters")]


def bytes_by_path() -> dict[str, int]:
    """By carrier, bytes of tensors that this rank has handed over so far, in all of its groups."""
    sums = "shards" if isinstance(getattr(dist.group.WORLD, "session", None), ShardedSession) else "switch"
    found = {"switch": 0, "shards": 0, "gloo": 0}
    for group in fanin_groups():
        counted = counters_of(group)
        found[sums] += counted.get("switch.bytes", 0)
        found["gloo"] += counted.get("gloo.bytes", 0)
    return found


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Yield a dictionary that is filled, at exit, with the bytes by carrier of everything inside."""
    before, found = bytes_by_path(), dict[str, int]()
    yield found
    found.update({path: count - before[path] for path, count in bytes_by_path().items()})


def run(play: Callable[[Asked], Figures], name: str, text: str | None) -> None:
    """Run example `name` under torchrun: each rank prints one JSON object. SystemExit if a check fails."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with one process, or with what is known exactly")
    parser.add_argument("--quick", action="store_true", help="fewer steps and seeds")
    parser.add_argument(
        "--hosts", type=whole(1), default=1, help="hosts that the ranks claim to be on: 2 or more have shards"
    )
    arguments = parser.parse_args()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        named(name).require(size)
        if not 1 <= arguments.hosts <= size or size % arguments.hosts:
            raise ConfigurationError(f"--hosts {arguments.hosts}: Remedy: a divisor of the {size} workers")
    except ConfigurationError as error:
        parser.error(f"rank {rank}: {error}")
    if arguments.hosts > 1:
        os.environ["FANIN_HOST"] = f"host{rank * arguments.hosts // size}"
    torch.set_num_threads(1)
    dist.init_process_group("fanin", timeout=COLLECTIVE_TIMEOUT)
    try:
        figures = play(Asked(check=arguments.check, quick=arguments.quick))
    except AssertionError as error:
        report(event="failed", text=str(error))
        raise SystemExit(f"rank {rank}: {name}: {error}") from None
    report(event="end", figures=figures, bytes=bytes_by_path())
    dist.barrier()
    dist.destroy_process_group()

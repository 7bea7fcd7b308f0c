"""One rank of `fanin bench watching`: sums and steps in each way of watching, in turn.

Rank 0 starts the switch, whose processor time counts with its own, and the watching processes, whose time does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fanin.benchmarks.allreduce_worker import contribution
from fanin.benchmarks.process_times import spent
from fanin.benchmarks.ranks import COLLECTIVE_TIMEOUT, asked_of, group_of_ranks, progress, report
from fanin.benchmarks.rivals import FLOAT_BYTES
from fanin.benchmarks.watching import LANES, STEPS, SUMS, Asked
from fanin.emulation.conformance.subject import started
from fanin.emulation.processes import free_port
from fanin.host.session import joining
from fanin.host.session.exported import EXPORTED
from fanin.host.torch import watch_ranks
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.timeline import Timeline
from fanin.modules import running
from fanin.options import Options

WARM_UP_CALLS = 5
LAYERS = 16
BATCH = 8
EVERY = 10
"""Steps per watched step of watch_ranks."""
READY_S = 60.0
RESTS_S = 10.0
"""Seconds that a job idles while it is watched. Then it idles as long without being watched."""
METRICS, TOP, TIMELINE, UNACCOUNTED, WATCHED = "metrics", "top", "timeline", "unaccounted", "watch_ranks"


class Watcher:
    """A watching process, stopped between its turns."""

    def __init__(self, words: list[str], path: Path, stack: ExitStack) -> None:
        """Start the process, wait for its first line, and stop it. `path`: file for its output."""
        self._path = path
        with path.open("wb") as file:
            self.process = stack.enter_context(_ended(subprocess.Popen(words, stdout=file)))
        deadline = time.monotonic() + READY_S
        while not self.looks:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(words)} does not watch")
            time.sleep(0.05)
        self._before = self.looks
        self.process.send_signal(signal.SIGSTOP)

    @property
    def looks(self) -> int:
        """Number of lines that it has written."""
        return self._path.read_bytes().count(b"\n")

    @property
    def looks_in_turns(self) -> int:
        """Number of lines that it has written since its first stop."""
        return self.looks - self._before

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let it run from entry to exit."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill the process at exit, even if it is stopped."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(slots=True)
class Way:
    """One way of watching, on this rank."""

    name: str
    call: Callable[[], object]
    """Makes one sum, or one step."""
    error: Callable[[], tuple[float, int]]
    """Returns the error of a result, relative to the largest contribution, and its checksum."""
    looks: Callable[[], int] = int
    watcher: Watcher | None = None
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


class Bench:
    """This rank's groups and buffers, and the switch that all ranks use."""

    def __init__(self, asked: Asked, rank: int, ranks: int, stack: ExitStack) -> None:
        self.rank, self.ranks, self._stack = rank, ranks, stack
        self._count = asked.bytes // FLOAT_BYTES
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        given = [contribution(each, self._count) for each in range(ranks)]
        self._own, self._largest = given[rank], max(float(each.abs().max()) for each in given)
        self._exact = torch.stack(given).double().sum(0)
        at: list[Any] = [self._switch() if rank == 0 else None]
        dist.broadcast_object_list(at)
        self._url, self._metrics_url = at[0]
        self._watchers: list[Watcher] = []

    def _switch(self) -> tuple[str, str]:
        """Start the switch; returns its address, and the URL of its metrics."""
        metrics = f"127.0.0.1:{free_port()}"
        words = [*running("fanin", "switch"), "--bind", "127.0.0.1:0", "--metrics", metrics]
        address = self._stack.enter_context(started(words))
        return str(address), f"http://{metrics}/metrics"

    def group(self, **options: object) -> Any:
        """Make a group of all ranks at the switch."""
        given = Options.from_environment(
            os.environ, switch=self._url, lanes=LANES, connect_timeout_s=READY_S, **options
        )
        return dist.new_group(backend="fanin", timeout=COLLECTIVE_TIMEOUT, pg_options=given)

    def sums(self, name: str) -> Way:
        """Set up the sums of the way `name`, and warm them up."""
        account = patch.object(joining, "accountant", lambda *_: lambda: None)
        group = self.group(metrics="127.0.0.1:0") if name == METRICS else self.group()
        buffer = torch.empty(self._count)

        def call() -> None:
            buffer.copy_(self._own)
            dist.all_reduce(buffer, group=group)

        def error() -> tuple[float, int]:
            call()
            return float((buffer.double() - self._exact).abs().max()) / self._largest, _checksum(buffer)

        with account if name == UNACCOUNTED else contextlib.nullcontext():
            for _ in range(WARM_UP_CALLS):  # the first call joins
                call()
        way = Way(name, call, error)
        if name == METRICS:
            ports: list[Any] = [None] * self.ranks
            dist.all_gather_object(ports, EXPORTED.port)
            urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
            self._watch(way, [sys.executable, "-m", "fanin.benchmarks.scraper", *urls, self._metrics_url])
        elif name == TOP:
            self._watch(way, [*running("fanin", "top"), "--json", "--interval", "1", self._url])
        elif name == TIMELINE:
            way.looks = self._timeline(group)
        return way

    def _watch(self, way: Way, words: list[str]) -> None:
        if self.rank == 0:
            way.watcher = watcher = Watcher(words, self._folder / way.name, self._stack)
            way.looks = lambda: watcher.looks_in_turns
            self._watchers.append(watcher)

    def _timeline(self, group: Any) -> Callable[[], int]:
        assert isinstance(group, FaninProcessGroup)
        path = self._folder / "timeline"
        timeline = Timeline(group.session, Options(timeline=str(path)), self.rank, self.ranks)
        self._stack.callback(timeline.close)
        return lambda: path.read_text().count('"reduction"')

    def steps(self, name: str) -> Way:
        """Set up the training steps of the way `name`, and warm them up."""
        torch.manual_seed(1)
        width = max(1, int((self._count / LAYERS) ** 0.5))
        layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
        model = DistributedDataParallel(nn.Sequential(*layers), process_group=self.group())
        inputs = torch.randn(BATCH, width, generator=torch.Generator().manual_seed(self.rank))
        parameters = list(model.parameters())
        steps = 0

        def call() -> None:
            nonlocal steps
            steps += 1
            model.zero_grad()
            model(inputs).square().mean().backward()

        def error() -> tuple[float, int]:
            return 0.0, _checksum(torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]))

        way = Way(name, call, error)
        if name == WATCHED:
            self._stack.callback(watch_ranks(model, every=EVERY).remove)
            way.looks = lambda: steps // EVERY
        for _ in range(WARM_UP_CALLS):
            call()
        return way

    def sample(self, way: Way, calls: int) -> None:
        """Time `calls` calls, after one call that warms the caches."""
        without = [each.process.pid for each in self._watchers]
        with way.watcher.turn() if way.watcher is not None else contextlib.nullcontext():
            way.call()
            dist.barrier()
            before, started = spent(without), time.perf_counter()
            for _ in range(calls):
                way.call()
            wall_s = time.perf_counter() - started
            dist.barrier()  # the switch works for the other ranks until all are done
            processor_s = sum(spent(without).since(before))
        way.wall.append(wall_s / calls)
        way.processor.append(processor_s / calls)

    def look(self, way: Way) -> tuple[float, int]:
        """Processor seconds that watching costs this rank of an idle job, and the number of looks."""
        without, seconds = [each.process.pid for each in self._watchers], []
        looks = way.looks()
        for watcher in (None, way.watcher):
            with contextlib.nullcontext() if watcher is None else watcher.turn():
                dist.barrier()
                before = spent(without)
                time.sleep(RESTS_S)
                seconds.append(sum(spent(without).since(before)))
                dist.barrier()
        return seconds[1] - seconds[0], way.looks() - looks


def _checksum(values: Tensor) -> int:
    return zlib.crc32(values.numpy().tobytes())


def run(asked: Asked) -> None:
    """Take every way's turn in each sample, starting from the next way each time."""
    with group_of_ranks() as (rank, ranks), ExitStack() as stack:
        bench = Bench(asked, rank, ranks, stack)
        ways = [bench.sums(name) for name in SUMS] + [bench.steps(name) for name in STEPS]
        for number in range(asked.samples):
            first = number % len(ways)
            for way in ways[first:] + ways[:first]:
                bench.sample(way, asked.calls)
            progress(f"sample {number + 1} of {asked.samples}")
        for way in ways:
            error, checksum = way.error()
            figures: dict[str, object] = {"wall": way.wall, "processor": way.processor, "looks": way.looks()}
            if way.name in (METRICS, TOP):
                figures["look"] = bench.look(way)
            report({"way": way.name, **figures, "max_error": error, "checksum": checksum})
        dist.barrier()


if __name__ == "__main__":
    run(asked_of(Asked, __doc__))

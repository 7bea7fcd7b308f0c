"""Deals seeds out to processes in batches, and returns the results in order."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import multiprocessing
import signal
from collections.abc import Callable, Collection, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from fanin.emulation.simulator.tied_processes import end_with, interruptions_blocked
from fanin.errors import FaninError

BATCH_SEEDS = 10
"""Number of seeds in a batch, which one process runs: some tenths of a second of work."""
AHEAD = 4
"""Number of batches per process that are dealt out before the result of the first is taken."""
FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a process brings upon itself, by a bug."""
T = TypeVar("T")


def in_batches(run: Callable[[range], T], first_seed: int, seeds: int, processes: int) -> Iterator[T]:
    """Yield the result of `run` for each batch of seeds, in order, so the first failure seen has the lowest seed.

    Closing the iterator, and an exception such as KeyboardInterrupt, end the processes at once, amid their batches.
    FaninError, with the signal, when a process was killed.
    """
    end = first_seed + seeds
    batches = (range(start, min(end, start + BATCH_SEEDS)) for start in range(first_seed, end, BATCH_SEEDS))
    if processes == 1:
        yield from map(run, batches)
        return
    with interruptions_blocked():
        forkserver.ensure_running()
    context = _RememberingContext()
    watched, held = context.Pipe(duplex=False)
    batch = range(0)
    # The pipe is closed before the pool is waited for. Futures are not cancelled: the thread of the pool would raise
    # InvalidStateError when it tells a cancelled one that its process has ended.
    try:
        with concurrent.futures.ProcessPoolExecutor(processes, context, end_with, (watched,)) as pool, held, watched:
            futures: collections.deque[tuple[range, concurrent.futures.Future[T]]] = collections.deque()
            for each in itertools.islice(batches, AHEAD * processes):
                futures.append((each, pool.submit(run, each)))
            while futures:
                batch, first = futures.popleft()
                yield first.result()
                for each in itertools.islice(batches, 1):
                    futures.append((each, pool.submit(run, each)))
    except BrokenProcessPool as error:  # the pool has been waited for, so every process has its status
        raise _ended(context.started, batch) from error


class _RememberingContext(multiprocessing.context.ForkServerContext):
    """Remembers the processes that it makes, since a pool forgets those that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[BaseProcess] = []

    def Process(self, *arguments: Any, **named: Any) -> BaseProcess:  # type: ignore[override]  # noqa: N802
        process = multiprocessing.context.ForkServerProcess(*arguments, **named)
        self.started.append(process)
        return process


def _ended(processes: Collection[BaseProcess], batch: range) -> FaninError:
    """The error for a process that has ended amid its work, which `batch` was the first to miss."""
    ends = [(each.pid, each.exitcode) for each in processes if each.exitcode not in (None, 0)]
    # Once one has been killed, the others end as well: with a status, or by the pool's SIGTERM.
    pid, status = min(ends, key=lambda end: ((end[1] or 0) > 0, end[1] == -signal.SIGTERM), default=(None, None))
    where = f"before the schedules of seeds {batch.start} to {batch.stop - 1} were done"
    if status is None or status > 0:
        how = "" if status is None else f" with status {status}"
        return FaninError(f"process {pid or 'of the search'} ended{how} {where}. Remedy: run them with --processes 1")
    number = -status
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    if number == signal.SIGKILL:
        remedy = (
            "see `dmesg` for whether the kernel killed it since memory ran out, and then take fewer --processes; "
            "otherwise somebody did, so run the search again"
        )
    elif number in FAULTS:
        remedy = "run these seeds with --processes 1, and report what is shown"
    else:
        remedy = "see who sent the signal, and run the search again"
    return FaninError(f"process {pid}, one of the search's, was killed by {name} {where}. Remedy: {remedy}")

"""Deals seeds out to processes in batches, and returns the results in order."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from typing import TypeVar

from fanin.emulation.simulator.tied_processes import end_with, interruptions_blocked

BATCH_SEEDS = 10
"""Number of seeds in a batch, which one process runs: some tenths of a second of work."""
AHEAD = 4
"""Number of batches per process that are dealt out before the result of the first is taken."""
T = TypeVar("T")


def in_batches(run: Callable[[range], T], first_seed: int, seeds: int, processes: int) -> Iterator[T]:
    """Yield the result of `run` for each batch of seeds, in order, so the first failure seen has the lowest seed.

    Closing the iterator, and an exception such as KeyboardInterrupt, end the processes at once, amid their batches.
    """
    end = first_seed + seeds
    batches = (range(start, min(end, start + BATCH_SEEDS)) for start in range(first_seed, end, BATCH_SEEDS))
    if processes == 1:
        yield from map(run, batches)
        return
    with interruptions_blocked():
        forkserver.ensure_running()
    context = multiprocessing.get_context("forkserver")
    watched, held = context.Pipe(duplex=False)
    # The pipe is closed before the pool is waited for. Futures are not cancelled: the thread of the pool would raise
    # InvalidStateError when it tells a cancelled one that its process has ended.
    with concurrent.futures.ProcessPoolExecutor(processes, context, end_with, (watched,)) as pool, held, watched:
        futures: collections.deque[concurrent.futures.Future[T]] = collections.deque()
        for batch in itertools.islice(batches, AHEAD * processes):
            futures.append(pool.submit(run, batch))
        while futures:
            yield futures.popleft().result()
            for batch in itertools.islice(batches, 1):
                futures.append(pool.submit(run, batch))

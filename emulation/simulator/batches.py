"""Deals seeds out to processes in batches, and returns the results in order."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

BATCH_SEEDS = 50
"""Number of seeds in a batch, which one process runs."""
T = TypeVar("T")


def in_batches(run: Callable[[range], T], first_seed: int, seeds: int, processes: int) -> Iterator[T]:
    """Yield the result of `run` for each batch of seeds, in order, so the first failure seen has the lowest seed.
    Closing the iterator cancels the batches that have not begun.
    """
    end = first_seed + seeds
    batches = [range(start, min(end, start + BATCH_SEEDS)) for start in range(first_seed, end, BATCH_SEEDS)]
    if processes == 1:
        yield from map(run, batches)
        return
    context = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(processes, context, die_of_interruptions) as pool:
        futures = [pool.submit(run, batch) for batch in batches]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def die_of_interruptions() -> None:
    """Have Ctrl-C, which reaches every process of a terminal, end this one at once and without a word.

    As an exception it would be a traceback, or the result of a batch, after which the process begins the next one.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""The threads that all engines of a process share: how many there are, and that no engine holds up another."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fanin.protocol.events import WorkersGone
from tests.support.builders import reduction
from tests.support.engines import DEADLINE_S
from tests.support.native_engines import joined, serving, spec_of, worker_threads
from tests.support.processes import in_thread, until

JOBS = 12
MOST_THREADS = min(4, len(os.sched_getaffinity(0)))
"""Most threads of a process, as native/io/worker_threads.cpp has it."""


@contextlib.contextmanager
def jobs(server: Any, count: int = JOBS) -> Iterator[list[list[Any]]]:
    """Engines of two workers for each of so many jobs."""
    with contextlib.ExitStack() as stack:
        engines = []
        for job in range(count):
            spec = spec_of(2, job=job + 1)
            server.admit(spec)
            engines.append(stack.enter_context(joined(server, spec)))
        yield engines


def submit(engine: Any, value: float, count: int = 3000) -> tuple[int, Any]:
    array = np.full(count, value, np.float32)
    return engine.submit(reduction(array)), array


def sum_of(engines: list[Any]) -> None:
    """One sum of all of them, whose waits do not move packets: `done` is asked."""
    given = [submit(engine, rank + 1.0) for rank, engine in enumerate(engines)]
    until(lambda: all(engine.done(ticket) for engine, (ticket, _) in zip(engines, given, strict=True)))
    assert all((array == 3).all() for _, array in given)


def test_threads_do_not_grow_with_the_engines_and_end_with_the_last() -> None:
    with serving() as server:
        until(lambda: worker_threads() == 0)  # those of an earlier test that were joined a moment ago
        with jobs(server) as engines:
            assert worker_threads() <= MOST_THREADS
            for of_job in engines:
                sum_of(of_job)
            for of_job in engines[1:]:
                for engine in of_job:
                    engine.close()
            until(lambda: worker_threads() <= min(MOST_THREADS, 2))
            assert worker_threads() >= 1
            sum_of(engines[0])
        until(lambda: worker_threads() == 0)


@pytest.mark.parametrize("flows", [1, 3])
def test_a_wait_that_is_blocked_in_one_job_holds_up_no_other(flows: int) -> None:
    with serving(flows=flows) as server, jobs(server) as engines:
        alone = engines[0][0]
        ticket, _ = submit(alone, 1.0)  # the other rank contributes nothing
        wait = in_thread(lambda: alone.wait(ticket, DEADLINE_S))
        for of_job in engines[1:]:
            sum_of(of_job)
        assert not alone.done(ticket)
        submit(engines[0][1], 2.0)
        assert wait.result(DEADLINE_S)


def test_a_job_that_fails_or_is_closed_leaves_the_sums_of_others_alone() -> None:
    with serving() as server, jobs(server) as engines:
        given = [submit(of_job[0], 1.0, 200_000) for of_job in engines]
        engines[0][1].leave(DEADLINE_S)
        assert engines[0][0].next_event(DEADLINE_S) == WorkersGone(lost=0, left=1 << 1)
        assert engines[0][0].failed
        engines[1][1].close()
        engines[2][0].close()
        for of_job, (ticket, array) in list(zip(engines, given, strict=True))[3:]:
            submit(of_job[1], 2.0, 200_000)
            assert of_job[0].wait(ticket, DEADLINE_S)
            assert (array == 3).all()


def test_jobs_may_come_and_go_while_others_sum() -> None:
    with serving() as server, jobs(server, 2) as engines:
        ended: list[bool] = []

        def come_and_go() -> None:
            for job in range(10, 50):
                spec = spec_of(2, job=job)
                server.admit(spec)
                with joined(server, spec) as of_job:
                    sum_of(of_job)
                server.remove(job)
            ended.append(True)

        coming = in_thread(come_and_go)
        while not ended and not coming.done():
            for of_job in engines:
                sum_of(of_job)
        coming.result(DEADLINE_S)
        until(lambda: worker_threads() <= MOST_THREADS)


CHILD = """
import os, sys
import numpy as np
from tests.support.builders import reduction
from tests.support.native_engines import cluster, spec_of

def summed(engines):
    arrays = [np.ones(5000, np.float32) for _ in engines]
    tickets = [engine.submit(reduction(array)) for engine, array in zip(engines, arrays)]
    return all(engine.wait(ticket, 30) for engine, ticket in zip(engines, tickets)) and (arrays[0] == 2).all()

with cluster(spec_of(2)) as running:
    assert summed(running.engines)
    child = os.fork()
    if child == 0:
        with cluster(spec_of(2)) as own:
            os._exit(0 if summed(own.engines) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert summed(running.engines)
"""


BOUND = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from tests.support.native_engines import cluster, spec_of, worker_threads

with cluster(spec_of(4)):
    assert worker_threads() == 1, worker_threads()
"""


def test_a_process_that_is_bound_to_one_core_has_one_thread() -> None:
    command = [sys.executable, "-c", BOUND]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_forked_child_has_threads_of_its_own() -> None:
    # TSan ends a child of a process with threads unless told otherwise.
    environment = os.environ | {"TSAN_OPTIONS": f"{os.environ.get('TSAN_OPTIONS', '')}:die_after_fork=0"}
    command = [sys.executable, "-c", CHILD]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr

"""Many Python threads at one engine or server: everything may be called at any time, whatever else is being called.

These run under the sanitizers. They would find a crash: most of what they assert is that they end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from fanin.errors import ConfigurationError, FaninError
from fanin.numerics.reduction import Element, Reduction, sum_in_place
from fanin.protocol.job import JobSpec
from tests.support.builders import Array, reduction
from tests.support.engines import DEADLINE_S
from tests.support.native_engines import cluster, native, serving, spec_of

THREADS = 2
"""Number of threads of each kind at one engine."""
ROUNDS = 20
FOR_EVER_S = math.inf


class Owner:
    """The owner of an array; when it is dropped, other threads run."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __del__(self) -> None:
        os.sched_yield()  # a system call without the GIL


class Crowd:
    """Threads; what any of them raises is raised by `join`."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._raised: list[BaseException] = []

    def add(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._raised.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._raised:
            raise self._raised[0]


@contextlib.contextmanager
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    try:
        yield made
    finally:
        made.join()


def submit(engine: Any, array: Array) -> int:
    """In place, kept alive by an owner that nobody else has."""
    fields = {field.name: getattr(given, field.name) for given in [reduction(array)] for field in FIELDS}
    return int(engine.submit(Reduction(**(fields | {"owner": Owner(array)}))))


FIELDS = [field for field in dataclasses.fields(Reduction) if field.init]


def sum_and_wait(engine: Any, count: int = 500) -> None:
    for _ in range(ROUNDS):
        array = np.ones(count, np.float32)
        assert engine.wait(submit(engine, array), DEADLINE_S)
        assert (array == 2).all()


def sum_and_ask(engine: Any) -> None:
    for _ in range(ROUNDS):
        array = np.ones(500, np.float32)
        ticket = submit(engine, array)
        while not engine.done(ticket):
            os.sched_yield()
        assert (array == 2).all()


def sum_at_once(engine: Any) -> None:
    for _ in range(ROUNDS):
        array = np.ones(500, np.float32)
        owner = Owner(array)
        ticket = engine.submit_and_wait(sum_in_place(array.ctypes.data, array.size, Element.FLOAT32, 32, 0), 0.0, owner)
        del owner
        assert ticket == 0 or engine.wait(ticket, DEADLINE_S)
        assert (array == 2).all()


@pytest.mark.parametrize("flows", [1, 2])
def test_threads_that_submit_wait_ask_and_drop_at_once(flows: int) -> None:
    """All sums are alike, so that it does not matter in which order the ranks' threads submit theirs."""
    with cluster(spec_of(2), flows=flows) as running:
        for engine in running.engines:
            engine.subscribe()
        ended = threading.Event()

        def follow(engine: Any) -> None:
            while not ended.is_set():
                engine.next_event(0.01)
                engine.counters()

        with crowd() as readers:
            for engine in running.engines:
                readers.add(partial(follow, engine))
            try:
                with crowd() as workers:
                    for engine in running.engines:
                        for work in [sum_and_wait, sum_and_ask, sum_at_once] * THREADS:
                            workers.add(partial(work, engine))
            finally:
                ended.set()


@pytest.mark.parametrize("closers", [1, 3])
def test_an_engine_may_be_closed_while_others_are_inside(closers: int) -> None:
    """Every call returns then, and nothing is written afterwards."""
    for _ in range(5):
        with cluster(spec_of(2)) as running:
            engine = running.engines[0]  # the other rank contributes nothing: nothing is ever done
            arrays = [np.ones(500, np.float32) for _ in range(2 * THREADS)]
            inside = threading.Barrier(2 * THREADS + 1 + 1)

            def wait(array: Array, engine: Any = engine, inside: Any = inside) -> None:
                ticket = submit(engine, array)
                inside.wait()
                assert not engine.wait(ticket, FOR_EVER_S)
                assert not engine.done(submit(engine, array))

            def follow(engine: Any = engine, inside: Any = inside) -> None:
                inside.wait()
                while not engine.failed and engine.next_event(FOR_EVER_S) is not None:
                    pass

            with crowd() as threads:
                for array in arrays:
                    threads.add(partial(wait, array))
                threads.add(follow)
                inside.wait()
                for _ in range(closers):
                    threads.add(engine.close)
            assert all((array == 1).all() for array in arrays)


def test_an_engine_that_is_dropped_ends_by_itself() -> None:
    spec = spec_of(1)
    with serving() as server:
        server.admit(spec)
        for _ in range(20):
            engine = native.WorkerEngine(spec, 0, spec.tokens[0], "127.0.0.1", server.ports)
            engine.start()
            submit(engine, np.ones(500, np.float32))
            del engine


def test_jobs_come_and_go_at_a_server_that_others_ask_and_close() -> None:
    specs = [spec_of(2, job=job) for job in range(4)]
    with serving(flows=2) as server, crowd() as threads:

        def admit_and_remove(spec: JobSpec) -> None:
            for _ in range(ROUNDS):
                server.admit(spec)
                assert len(server.shared_memory(spec.job)) == 2
                server.job_counters(spec.job)
                server.remove(spec.job)

        def ask() -> None:
            for _ in range(ROUNDS):
                server.counters()
                server.jobs()
                server.next_event(0.0)

        for spec in specs:
            threads.add(partial(admit_and_remove, spec))
        threads.add(ask)
        threads.add(lambda: server.next_event(0.1))
        threads.join()
        threads.add(lambda: server.next_event(FOR_EVER_S))
        for _ in range(2):
            threads.add(server.close)


def test_starting_twice_or_after_the_end_does_nothing() -> None:
    spec = spec_of(1)
    with serving() as server:
        server.start()
        server.admit(spec)
        engine = native.WorkerEngine(spec, 0, spec.tokens[0], "127.0.0.1", server.ports)
        for _ in range(2):
            engine.start()
        for _ in range(2):
            engine.close()
        engine.start()
        assert engine.next_event(FOR_EVER_S) is None or engine.next_event(FOR_EVER_S) is None
        server.close()
        server.start()
    wires = native.Wires()
    wires.start()
    wires.start()
    with pytest.raises(RuntimeError):
        wires.join(0, 1)
    with pytest.raises(IndexError):
        wires.counters(1 << 63)
    wires.close()
    wires.close()


def test_bad_arguments_are_refused() -> None:
    spec = spec_of(1)
    with cluster(spec) as running:
        engine, array = running.engines[0], np.ones(4, np.float32)
        calls: list[Callable[[float], object]] = [lambda s: engine.wait(1, s), engine.next_event, engine.leave]
        for call in calls:
            with pytest.raises(ValueError, match="timeout"):
                call(math.nan)
        packed = sum_in_place(array.ctypes.data, 4, Element.FLOAT32, 32, 0)
        with pytest.raises(ValueError, match="element"):
            engine.submit_and_wait((*packed[:3], 99, *packed[4:]), 1.0, array)
        with pytest.raises(ConfigurationError, match="no codec 7"):
            engine.submit_and_wait((*packed[:4], 7, *packed[5:]), 1.0, array)
        assert not engine.wait(99, 0.0)
        assert engine.submit_and_wait(packed, math.inf, array) == 0
        for wrong_range in ((1, 4, 0, -1), (0, -1, 0, 4), (0, 1 << 62, 0, -1)):
            with pytest.raises(ValueError, match="packed reduction"):
                engine.submit_and_wait((*packed[:6], *wrong_range, 1.0), 1.0, array)
        with pytest.raises(ValueError, match="eleven fields"):
            engine.submit_and_wait(packed[:9], 1.0, array)
        facts = {name: getattr(spec, name) for name in dir(spec) if not name.startswith("_")}
        for wrong in ({"workers": 33}, {"tokens": ()}, {"codes_per_packet": 0}, {"words_per_packet": 1 << 20}):
            with pytest.raises(ValueError, match="JobSpec"):
                running.server.admit(type("Spec", (), facts | {"job": 9} | wrong)())


def test_what_a_machine_sends_is_complete_before_others_may_run() -> None:
    """Making the list may start the garbage collector, and with it another thread's call into the same machine."""
    spec = spec_of(2)
    machine = native.WorkerMachine(spec, 0, switch=0, token=spec.tokens[0])
    with crowd() as threads:
        for _ in range(THREADS):
            threads.add(lambda: [machine.datagrams_to_send(0.1 * turn) for turn in range(ROUNDS)])
    assert machine.counters()["packets_out"] > 0
    with pytest.raises((FaninError, RuntimeError)):
        machine.begin(5)

"""A native switch server and native engines in this process, over real sockets on loopback; sums to compare with."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fanin.protocol.events import Ready
from fanin.protocol.job import JobSpec
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES, slots_for
from fanin.protocol.wire import datagram_bytes
from tests.support.builders import Array, job_spec
from tests.support.engines import DEADLINE_S, Engines

native = pytest.importorskip("fanin._native", reason="the native extension is not built")

DEFAULT_LIMIT_BYTES = 212_992
"""Buffer that an ordinary user may ask for with SO_RCVBUF on Debian 12 (net.core.rmem_max)."""
PLENTY = 1 << 26


def spec_of(workers: int, *, words: int = 256, codes: int = 1, slots: int | None = None, job: int = 3) -> JobSpec:
    """A job whose window fits an ordinary user's buffers."""
    fitting = slots_for(DEFAULT_RECEIVE_BUFFER_BYTES, datagram_bytes(codes, words))
    return job_spec(
        job=job,
        generation=1000 + job,
        workers=workers,
        slots=slots or fitting,
        words_per_packet=words,
        codes_per_packet=codes,
        tokens=tuple(range(500, 500 + workers)),
    )


def impatient(spec: JobSpec) -> JobSpec:
    """The same job, in which silence is noticed soon, and not before the living are heard on a busy machine."""
    return dataclasses.replace(spec, liveness_timeout_s=1.0)


@contextlib.contextmanager
def serving(*, flows: int = 1, host: str = "127.0.0.1", **options: Any) -> Iterator[Any]:
    """A server that is closed in the end."""
    server = native.SwitchServer(host, 0, flows, PLENTY, **options)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def cluster(
    spec: JobSpec, *, flows: int = 1, host: str = "127.0.0.1", listen: str = "127.0.0.1", **options: Any
) -> Iterator[Engines]:
    """A server and all workers of one job, welcomed. `options` are for both ends."""
    with serving(flows=flows, host=listen, **options) as server:
        server.admit(spec)
        with joined(server, spec, host=host, **options) as engines:
            yield Engines(spec, server, engines)


@contextlib.contextmanager
def joined(
    server: Any, spec: JobSpec, *, host: str = "127.0.0.1", paths: Sequence[Sequence[str]] = (), **options: Any
) -> Iterator[list[Any]]:
    """All workers of one job, welcomed. `paths`: of shared memory, where ranks are not told the same."""
    engines: list[Any] = []
    try:
        for rank in range(spec.workers):
            own = {"shared_memory": list(paths[rank])} if paths else {}
            engines.append(native.WorkerEngine(spec, rank, spec.tokens[rank], host, server.ports, **options, **own))
            engines[-1].start()
        for engine in engines:
            assert engine.next_event(DEADLINE_S) == Ready(), engine.trouble
        yield engines
    finally:
        for engine in engines:
            engine.close()


def gradients(workers: int, count: int, seed: int = 1) -> list[Array]:
    """Standard normal float32, another array for each rank."""
    return [np.random.default_rng((seed, rank)).standard_normal(count).astype(np.float32) for rank in range(workers)]


def worker_threads() -> int:
    """Threads of this process that move packets of workers."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # one that ends at this moment
            names.append((task / "comm").read_text().strip())
    return names.count("fanin-worker")

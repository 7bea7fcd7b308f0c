"""A job in virtual time: a switch, its workers, their arrays, and what their reductions must come to, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fanin.emulation.simulator.oracle import expected as expected
from fanin.numerics.fixed_point import to_bfloat16
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.events import Ready, ReductionDone, WorkerEvent
from fanin.protocol.job import JobSpec
from tests.support.builders import Array as Array
from tests.support.builders import job_spec
from tests.support.builders import reduction as reduction
from tests.support.lockstep import Lockstep
from tests.support.machines import SWITCH_MACHINES as SWITCH_MACHINES
from tests.support.machines import WORKER_MACHINES as WORKER_MACHINES
from tests.support.network import SWITCH, Link, Network, Switch, Worker

MEMORY_BYTES = 1 << 30
job = job_spec


def worker_machine(kind: str, spec: JobSpec, worker: int, **given: Any) -> Worker:
    """Worker `worker` of the job; "mixed" makes every other one native, "lockstep" makes every one both."""
    if kind == "lockstep":
        native_machine = WORKER_MACHINES["native"]
        return Lockstep(spec, worker, native=native_machine, switch=SWITCH, token=spec.tokens[worker], **given)
    if kind == "mixed":
        kind = ("twin", "native")[worker % 2]
    return WORKER_MACHINES[kind](spec, worker, switch=SWITCH, token=spec.tokens[worker], **given)


@dataclass
class Cluster:
    """A switch and its workers, joined by a network and ready."""

    spec: JobSpec
    switch: Any
    workers: list[Worker]
    network: Network

    @classmethod
    def joined(
        cls, kind: str, *, spec: JobSpec, switch: str = "twin", link: Link | None = None, seed: int = 0, **given: Any
    ) -> Cluster:
        """Start everything and wait until all workers are welcome."""
        machine: Any = SWITCH_MACHINES[switch](MEMORY_BYTES)
        machine.admit(spec)
        workers = [worker_machine(kind, spec, worker, **given) for worker in range(spec.workers)]
        network = Network(cast(Switch, machine), workers, link=link, seed=seed)
        network.start()
        network.run_until(lambda: all(worker.ready for worker in workers), limit_s=30)
        return cls(spec, machine, workers, network)

    def submit(self, worker: int, what: Reduction) -> int:
        """Give a worker something to do."""
        ticket = self.workers[worker].submit(what)
        self.network.submitted(worker)
        return ticket

    def run(self, limit_s: float = 60.0) -> None:
        """Run until nothing is outstanding."""
        self.network.run_until(lambda: not any(worker.outstanding() for worker in self.workers), limit_s=limit_s)

    def all_reduce(self, inputs: Sequence[Array], *, limit_s: float = 60.0, **given: Any) -> list[Array]:
        """Reduce in place at every worker; the results."""
        arrays = [np.array(x) for x in inputs]
        for worker, array in enumerate(arrays):
            self.submit(worker, reduction(array, **given))
        self.run(limit_s)
        return arrays

    def news(self, worker: int) -> list[WorkerEvent]:
        """A worker's events, Ready and finished reductions apart."""
        return [e for e in self.network.worker_events[worker] if not isinstance(e, Ready | ReductionDone)]

    def total(self, counter: str) -> int:
        """A counter, added up over the workers."""
        return sum(worker.counters()[counter] for worker in self.workers)


def normal(element: Element, workers: int, count: int, seed: int = 1) -> list[Array]:
    """One array of normal numbers per worker."""
    values = np.random.default_rng(seed).standard_normal((workers, count))
    if element is Element.BFLOAT16:
        return [to_bfloat16(x.astype(np.float32)) for x in values]
    dtypes = {Element.FLOAT32: np.float32, Element.FLOAT64: np.float64, Element.FLOAT16: np.float16}
    return [x.astype(dtypes[element]) for x in values]


def same_bits(results: list[Array], want: Array) -> bool:
    """Whether every rank has exactly this."""
    return all(result.tobytes() == want.tobytes() for result in results)

"""A shard on every host, in virtual time: flows from every host to every shard, over one link per host."""

from __future__ import annotations

from typing import Any

import numpy as np

from fanin.numerics.reduction import Reduction
from fanin.protocol.job import JobSpec
from tests.support.builders import Array, job_spec, reduction
from tests.support.machines import SWITCH_MACHINES, WORKER_MACHINES
from tests.support.network import Link, Playground, SharedLink

MEMORY_BYTES = 1 << 30
SHARDS_FROM = 1000
"""Addresses: shard s has SHARDS_FROM + s, worker w's flow to it s * hosts + w."""


class ManyToMany:
    """`hosts` hosts, each with a worker and a shard behind one link; a worker deals a tensor to all shards."""

    def __init__(self, hosts: int, link: Link, *, kind: str = "native", seed: int = 0, **given: Any) -> None:
        """`link`: every host's. `given`: of the job's spec, the same at every shard."""
        self.hosts = hosts
        self.spec: JobSpec = job_spec(workers=hosts, **given)
        self.network = Playground(seed=seed)
        self.shards = []
        self.flows: dict[tuple[int, int], Any] = {}
        """By worker and shard."""
        for shard in range(hosts):
            machine: Any = SWITCH_MACHINES[kind](MEMORY_BYTES)
            machine.admit(self.spec)
            self.shards.append(machine)
            self.network.attach(SHARDS_FROM + shard, machine)
            for worker in range(hosts):
                flow = WORKER_MACHINES[kind](
                    self.spec, worker, switch=SHARDS_FROM + shard, token=self.spec.tokens[worker]
                )
                self.flows[worker, shard] = flow
                self.network.attach(shard * hosts + worker, flow)
        self.links: list[SharedLink] = [
            self.network.share([SHARDS_FROM + host, *(shard * hosts + host for shard in range(hosts))], link)
            for host in range(hosts)
        ]
        self.network.run_until(lambda: all(flow.ready for flow in self.flows.values()), limit_s=30)

    def all_reduce(self, inputs: list[Array], *, limit_s: float = 60.0, **given: Any) -> list[Array]:
        """Reduce in place, an equal part at each shard; the results."""
        arrays = [np.array(each) for each in inputs]
        for worker, array in enumerate(arrays):
            for shard, part in enumerate(np.split(array, self.hosts)):
                what: Reduction = reduction(part, **given)
                self.flows[worker, shard].submit(what)
                self.network.speak(shard * self.hosts + worker)
        busy = list(self.flows.values())
        self.network.run_until(lambda: not _outstanding(busy), limit_s=limit_s)
        return arrays

    def total(self, counter: str) -> int:
        """A counter, added up over all flows."""
        return sum(flow.counters()[counter] for flow in self.flows.values())

    @property
    def overflows(self) -> int:
        """Packets that found a queue full."""
        return sum(link.up.overflows + link.down.overflows for link in self.links)


def _outstanding(busy: list[Any]) -> bool:
    """Whether any of these flows has something to do; those that have not are taken out."""
    while busy and not busy[-1].outstanding():
        busy.pop()
    return bool(busy)

"""A shard on every host and on spare ones, in virtual time: flows from every host to every shard, over one link per
host."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fanin.numerics.reduction import Reduction
from fanin.protocol.job import JobSpec
from fanin.protocol.spread import Spread
from fanin.protocol.window import MIN_SHARE_SLOTS
from tests.support.builders import Array, job_spec, reduction
from tests.support.machines import SWITCH_MACHINES, WORKER_MACHINES
from tests.support.network import Link, Playground, SharedLink

MEMORY_BYTES = 1 << 30
SHARDS_FROM = 1000
"""Addresses: shard s has SHARDS_FROM + s, worker w's flow to it s * hosts + w."""


class ManyToMany:
    """`hosts` hosts, each with a worker and a shard behind one link; a worker deals a tensor to all shards."""

    def __init__(
        self, hosts: int, link: Link, *, spread: Spread | None = None, kind: str = "native", seed: int = 0, **given: Any
    ) -> None:
        """`link`: every host's. `spread`: over the hosts' shards and, beyond them, those of spare hosts; None: over the
        hosts' evenly. `given`: of the job's spec; its `slots` are dealt like sums, at least MIN_SHARE_SLOTS to each."""
        self.hosts, self.spread = hosts, spread or Spread.evenly(hosts)
        self.spec: JobSpec = job_spec(workers=hosts, **given)
        slots = [round(self.spec.slots * self.spread.part(shard)) for shard in range(self.spread.shards)]
        self.specs = [dataclasses.replace(self.spec, slots=max(MIN_SHARE_SLOTS, each)) for each in slots]
        self.network = Playground(seed=seed)
        # Before anybody speaks: HELLO measures the path.
        self.links: list[SharedLink] = [
            self.network.share(
                [SHARDS_FROM + host, *(shard * hosts + host for shard in range(self.spread.shards) if host < hosts)],
                link,
            )
            for host in range(self.spread.shards)
        ]
        self.shards = []
        self.flows: dict[tuple[int, int], Any] = {}
        """By worker and shard."""
        for shard in range(self.spread.shards):
            machine: Any = SWITCH_MACHINES[kind](MEMORY_BYTES)
            machine.admit(self.specs[shard])
            self.shards.append(machine)
            self.network.attach(SHARDS_FROM + shard, machine)
            for worker in range(hosts):
                flow = WORKER_MACHINES[kind](
                    self.specs[shard], worker, switch=SHARDS_FROM + shard, token=self.spec.tokens[worker]
                )
                self.flows[worker, shard] = flow
                self.network.attach(shard * hosts + worker, flow)
        self.network.run_until(lambda: all(flow.ready for flow in self.flows.values()), limit_s=30)

    def all_reduce(self, inputs: list[Array], *, limit_s: float = 60.0, **given: Any) -> list[Array]:
        """Reduce in place, at each shard its part; the results."""
        arrays = [np.array(each) for each in inputs]
        for worker, array in enumerate(arrays):
            self.submit(worker, array, **given)
        self.finish(limit_s)
        return arrays

    def submit(self, worker: int, array: Array, **given: Any) -> None:
        """Let one worker begin a sum, in place."""
        for shard, first, end in self.spread.shares(len(array), self.spec.words_per_packet, 1):
            what: Reduction = reduction(array[first:end], **given)
            self.flows[worker, shard].submit(what)
            self.network.speak(shard * self.hosts + worker)

    def finish(self, limit_s: float = 60.0) -> None:
        """Run until nothing is outstanding."""
        busy = list(self.flows.values())
        self.network.run_until(lambda: not _outstanding(busy), limit_s=limit_s)

    def lose(self, loss: float) -> None:
        """From now on every link loses that share of packets, in each direction."""
        for shared in self.links:
            shared.link = dataclasses.replace(shared.link, loss=loss)

    @property
    def lost(self) -> int:
        """Packets that links lost by chance."""
        return sum(link.up.lost + link.down.lost for link in self.links)

    def link_bytes(self, host: int) -> tuple[int, int]:
        """Bytes of packets that a host's link, or beyond the hosts' a spare one's, has carried up and down."""
        counters = {ends: flow.counters() for ends, flow in self.flows.items()}
        out = [each for (worker, shard), each in counters.items() if worker == host != shard]
        back = [each for (worker, shard), each in counters.items() if shard == host != worker]
        return tuple(
            sum(each[mine] for each in out) + sum(each[theirs] for each in back)
            for mine, theirs in (("bytes_out", "bytes_in"), ("bytes_in", "bytes_out"))
        )

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

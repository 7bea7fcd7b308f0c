"""Jobs in virtual time with a planted fault, and what the switch's statistics say before and after some seconds of it.

Rules of this file
------------------
* A job does steps: each worker computes for a while and then sums an array. Faults are drawn from the seed: whose they
  are, and how bad.
* Snapshots are those of a switch's controller, made of the real machine's counters.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np

from fanin.protocol.control import JobReport, MemberReport, Stats
from fanin.protocol.events import ReductionDone
from fanin.protocol.job import JobSpec
from fanin.protocol.spread import Spread
from tests.support.builders import reduction
from tests.support.cluster import Cluster, job
from tests.support.many_to_many import ManyToMany
from tests.support.network import SWITCH, Link

LINK = Link(delay_s=50e-6, bytes_per_s=12.5e6)
"""100 Mbit/s, and a round trip of a LAN."""
WORDS = 64
THINK_S = 0.010
"""Time that a healthy worker computes between sums, within THINK_VARIES of it."""
THINK_VARIES = 0.15
FAULTS = ("straggler", "lossy uplink", "lossy downlink", "clogged queue")
"""Faults that one rank has; `slow_shard` plants the other kind."""


def snapshot(machine: Any, spec: JobSpec, now: float) -> Stats:
    """Statistics as a switch answers them to its operator."""
    members = tuple(
        MemberReport(rank=rank, process=f"host{rank}:1", state="registered", counters=counters)
        for rank, counters in enumerate(machine.member_counters(spec.job))
    )
    report = JobReport(
        name="job", state="running", index=spec.job, generation=spec.generation, scheme="udp", size=spec.workers,
        quorum=spec.quorum, staleness=0, max_staleness=0, on_worker_loss="raise", slots=spec.slots,
        words_per_packet=spec.words_per_packet, flows=1, memory_bytes=0, ring_bytes=0, wanted_ring_bytes=0, age_s=now,
        members=members, counters=machine.job_counters(spec.job),
    )  # fmt: skip
    return Stats(
        software="", wire_version=0, engine="", uptime_s=now, memory_bytes=0, memory_used_bytes=0, curve=False,
        data=(), jobs=(report,), refused={},
    )  # fmt: skip


class PlantedJob:
    """A switch and workers that train, one of which has a fault (None: none has)."""

    def __init__(self, fault: str | None, seed: int, *, kind: str = "native", workers: int = 4) -> None:
        self.dice = random.Random(f"planted {seed}")
        self.rank = self.dice.randrange(workers)
        """Rank that has the fault."""
        self._fault = fault
        self.spec = job(workers=workers, slots=16, words_per_packet=WORDS)
        self.cluster = Cluster.joined(kind, spec=self.spec, switch=kind, link=LINK, seed=seed)
        self._done = [0] * workers
        self._plant()

    def watched(self, seconds: float) -> tuple[Stats, Stats]:
        """Train for so long, in virtual time; statistics before and after."""
        network, machine = self.cluster.network, self.cluster.switch
        before, ends_s = snapshot(machine, self.spec, network.now), network.now + seconds
        for worker in range(self.spec.workers):
            self._step(worker)
        network.try_until(lambda: self._go_on(ends_s), limit_s=seconds)
        return before, snapshot(machine, self.spec, network.now)

    def _plant(self) -> None:
        network, mine = self.cluster.network, 1 + self.rank
        if self._fault in ("lossy uplink", "lossy downlink"):
            path = (mine, SWITCH) if self._fault == "lossy uplink" else (SWITCH, mine)
            loss = self.dice.uniform(0.01, 0.05)
            network.wiretap = lambda now, source, destination, data: (
                (source, destination) != path or self.dice.random() >= loss
            )
        if self._fault == "clogged queue":
            slower = self.dice.uniform(8, 20)
            slow = dataclasses.replace(LINK, bytes_per_s=LINK.bytes_per_s / slower, queue_bytes=1 << 30)
            network.exception(SWITCH, mine, slow)

    def _step(self, worker: int) -> None:
        chunks = 96
        self.cluster.submit(worker, reduction(np.ones(chunks * WORDS, np.float32)))

    def _go_on(self, ends_s: float) -> bool:
        """Let every worker whose sum is there compute, and then do its next step; whether time is up."""
        network = self.cluster.network
        for worker, events in enumerate(network.worker_events):
            done = sum(isinstance(event, ReductionDone) for event in events)
            if done == self._done[worker]:
                continue
            self._done[worker] = done
            slower = 2.0 if self._fault == "straggler" and worker == self.rank else 1.0
            think_s = slower * THINK_S * self.dice.uniform(1 - THINK_VARIES, 1 + THINK_VARIES)
            network.after(think_s, self._step, worker)
        return network.now >= ends_s


def slow_shard(seed: int, *, slow: bool = True, kind: str = "native") -> tuple[int, list[Stats], list[Stats]]:
    """A job of three hosts over three switches and a spare one; its number, statistics before and after some steps.

    The link of the spare host, where there is a switch and no rank, is slow if `slow`.
    """
    dice = random.Random(f"slow shard {seed}")
    hosts, spare = 3, 3
    spread = Spread.evenly(hosts + 1)
    job = ManyToMany(hosts, LINK, spread=spread, kind=kind, seed=seed, slots=96, words_per_packet=WORDS)
    if slow:
        rate = LINK.bytes_per_s / dice.uniform(8, 20)
        job.links[spare].link = dataclasses.replace(LINK, bytes_per_s=rate, queue_bytes=1 << 30)

    def seen() -> list[Stats]:
        return [snapshot(shard, spec, job.network.now) for shard, spec in zip(job.shards, job.specs, strict=True)]

    before = seen()
    for _ in range(30):
        for worker in range(hosts):
            at_s = THINK_S * dice.uniform(1 - THINK_VARIES, 1 + THINK_VARIES)
            job.network.after(at_s, job.submit, worker, np.ones(240 * WORDS, np.float32))
        job.network.run_for(THINK_S * (1 + THINK_VARIES))
        job.finish()
    return spare, before, seen()

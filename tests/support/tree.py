"""A two-level tree of switches in virtual time: a root, leaves, workers, and links that lose, repeat and reorder."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fanin.events import Ready, ReductionDone, WorkerEvent
from fanin.job import JobSpec, Uplink
from tests.support.cluster import MEMORY_BYTES, SWITCH_MACHINES, WORKER_MACHINES, Array, job, reduction
from tests.support.network import Link

ROOT = 0
LEAF = 1
"""Address of the first leaf; worker w has address WORKER + w."""
WORKER = 100
MAX_STEPS = 500_000


class Tree:
    """`per_leaf` workers at each of so many leaves. Worker w of the tree is worker w mod per_leaf of its leaf."""

    def __init__(
        self,
        *,
        root: str,
        leaf: str,
        worker: str,
        leaves: int = 2,
        per_leaf: int = 2,
        link: Link | None = None,
        seed: int = 1,
        **given: Any,
    ) -> None:
        total = leaves * per_leaf
        self.now = 0.0
        self.per_leaf = per_leaf
        self.link, self.seed = link or Link(), seed
        self._random = random.Random(seed)
        self._in_flight: list[tuple[float, int, int, int, bytes]] = []
        self._number = 0
        self.cut: set[int] = set()
        """Addresses that nothing gets to or away from."""
        self.machines: dict[int, Any] = {}
        self.events: dict[int, list[WorkerEvent]] = {}
        self.root_spec = job(workers=leaves, total_workers=total, branches=True, generation=0xA0, job=9, **given)
        self.machines[ROOT] = SWITCH_MACHINES[root](MEMORY_BYTES)
        self.machines[ROOT].admit(self.root_spec)
        for branch in range(leaves):
            self._add_leaf(leaf, worker, branch, job(workers=per_leaf, total_workers=total, **given))
        self.workers = [self.machines[WORKER + w] for w in range(total)]
        for address in list(self.machines):
            self._speak(address)
        everybody = (1 << leaves) - 1
        self.run_until(lambda: self.machines[ROOT].members(9)[0] == everybody and all(w.ready for w in self.workers))
        self.run_for(0.5)

    def _add_leaf(self, kind: str, worker: str, branch: int, spec: JobSpec) -> None:
        token = self.root_spec.tokens[branch]
        uplink = Uplink(parent=ROOT, job=9, generation=0xA0, worker=branch, token=token)
        self.machines[LEAF + branch] = SWITCH_MACHINES[kind](MEMORY_BYTES)
        self.machines[LEAF + branch].admit_leaf(spec, uplink)
        for local in range(self.per_leaf):
            address = WORKER + branch * self.per_leaf + local
            make = WORKER_MACHINES[worker]
            self.machines[address] = make(spec, local, switch=LEAF + branch, token=spec.tokens[local])
            self.events[address] = []

    def submit(self, worker: int, array: Array, **given: Any) -> None:
        """In place."""
        self.workers[worker].submit(reduction(array, **given))
        self._speak(WORKER + worker)

    def all_reduce(self, inputs: Sequence[Array], **given: Any) -> list[Array]:
        """One reduction at every worker; the results."""
        arrays = [np.array(each) for each in inputs]
        for worker, array in enumerate(arrays):
            self.submit(worker, array, **given)
        self.run_until(lambda: not any(each.outstanding() for each in self.workers))
        return arrays

    def news(self, worker: int) -> list[WorkerEvent]:
        """What a worker has reported, Ready and finished reductions apart."""
        return [each for each in self.events[WORKER + worker] if not isinstance(each, Ready | ReductionDone)]

    def leave(self, worker: int) -> None:
        """Let a worker say BYE."""
        self.workers[worker].leave(self.now)
        self._speak(WORKER + worker)

    def run_for(self, seconds: float) -> None:
        """So long, whatever happens."""
        self._run(lambda: False, seconds)

    def run_until(self, finished: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Until then, which must come."""
        assert self._run(finished, limit_s), f"not finished after {limit_s} s; seed {self.seed}, {self.events}"

    def _run(self, finished: Callable[[], bool], limit_s: float) -> bool:
        limit = self.now + limit_s
        for _ in range(MAX_STEPS):
            if finished():
                return True
            timers = [
                (at, address)
                for address, machine in self.machines.items()
                if address not in self.cut and (at := machine.next_timer()) is not None
            ]
            timer_at, timer_address = min(timers, default=(float("inf"), ROOT))
            arrival_at = self._in_flight[0][0] if self._in_flight else float("inf")
            if min(timer_at, arrival_at) > limit:
                self.now = limit
                return finished()
            if arrival_at <= timer_at:
                at, _, source, destination, data = heapq.heappop(self._in_flight)
                self.now = max(self.now, at)
                if not {source, destination} & self.cut:
                    self.machines[destination].receive_datagram(data, source, self.now)
                    self._speak(destination)
            else:
                self.now = max(self.now, timer_at)
                self.machines[timer_address].handle_timer(self.now)
                self._speak(timer_address)
        raise AssertionError(f"a machine never rests; seed {self.seed}")

    def _speak(self, address: int) -> None:
        chance = self._random.random
        for data, destination in self.machines[address].datagrams_to_send(self.now):
            for _ in range(2 if chance() < self.link.duplicate else 1):
                if chance() < self.link.loss:
                    continue
                at = self.now + self.link.delay_s * (0.5 + chance())
                if chance() < self.link.reorder:
                    at += chance() * self.link.reorder_s
                self._number += 1
                heapq.heappush(self._in_flight, (at, self._number, address, destination, data))
        while (event := self.machines[address].next_event()) is not None:
            if address in self.events:
                self.events[address].append(event)

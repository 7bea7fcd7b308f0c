"""Trees of switches in virtual time: a root, leaves, workers, and links that lose, repeat and reorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fanin.protocol.events import Ready, ReductionDone, WorkerEvent
from fanin.protocol.job import JobSpec, Uplink
from tests.support.cluster import MEMORY_BYTES, SWITCH_MACHINES, WORKER_MACHINES, Array, job, reduction
from tests.support.network import Link, Playground

ROOT = 0
LEAF = 1
"""Address of the first leaf; worker w has address WORKER + w."""
WORKER = 100


class Tree(Playground):
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
        super().__init__(link=link, seed=seed)
        total = leaves * per_leaf
        self.per_leaf = per_leaf
        self.root_spec = job(workers=leaves, total_workers=total, branches=True, generation=0xA0, job=9, **given)
        self.leaves: list[Any] = []
        self.root = SWITCH_MACHINES[root](MEMORY_BYTES)
        self.root.admit(self.root_spec)
        self.attach(ROOT, self.root)
        self.workers: list[Any] = []
        for branch in range(leaves):
            places = tuple(range(branch * per_leaf, (branch + 1) * per_leaf))
            self._add_leaf(leaf, worker, branch, job(workers=per_leaf, total_workers=total, places=places, **given))
        everybody = (1 << leaves) - 1
        self.run_until(lambda: self.root.members(9)[0] == everybody and all(w.ready for w in self.workers))
        self.run_for(0.5)

    def _add_leaf(self, kind: str, worker: str, branch: int, spec: JobSpec) -> None:
        token = self.root_spec.tokens[branch]
        uplink = Uplink(parent=ROOT, job=9, generation=0xA0, worker=branch, token=token)
        leaf = SWITCH_MACHINES[kind](MEMORY_BYTES)
        leaf.admit_leaf(spec, uplink)
        self.leaves.append(leaf)
        self.attach(LEAF + branch, leaf)
        for local in range(self.per_leaf):
            machine = WORKER_MACHINES[worker](spec, local, switch=LEAF + branch, token=spec.tokens[local])
            self.workers.append(machine)
            self.attach(WORKER + branch * self.per_leaf + local, machine)

    def submit(self, worker: int, array: Array, **given: Any) -> None:
        """Submit a reduction in place."""
        self.workers[worker].submit(reduction(array, **given))
        self.speak(WORKER + worker)

    def all_reduce(self, inputs: Sequence[Array], **given: Any) -> list[Array]:
        """One reduction at every worker; the results."""
        arrays = [np.array(each) for each in inputs]
        for worker, array in enumerate(arrays):
            self.submit(worker, array, **given)
        self.run_until(lambda: not any(each.outstanding() for each in self.workers))
        return arrays

    def suspect_root(self) -> None:
        """Let all leaves suspect the root, whose controller has hung up on theirs."""
        for branch, leaf in enumerate(self.leaves):
            for index in leaf.jobs():
                leaf.suspect_parent(index, self.now)
            self.speak(LEAF + branch)

    def news(self, worker: int) -> list[WorkerEvent]:
        """A worker's events, Ready and finished reductions apart."""
        return [each for each in self.events[WORKER + worker] if not isinstance(each, Ready | ReductionDone)]

    def leave(self, worker: int) -> None:
        """Let a worker say BYE."""
        self.workers[worker].leave(self.now)
        self.speak(WORKER + worker)


class DeepTree(Playground):
    """Machines of one kind in a tree of any depth and shape: `children` are, by level from the leaves to the root, the
    children of each switch. Controllers make trees of two levels; machines are not told how many there are.
    """

    def __init__(
        self, kind: str, children: Sequence[Sequence[int]], *, link: Link, seed: int = 1, **given: Any
    ) -> None:
        super().__init__(link=link, seed=seed)
        total = int(sum(children[0]))
        self.workers: list[Any] = []
        uplink: list[Uplink | None] = [None]
        """Uplinks of the switches of the level that comes next, in order."""
        self.switches: list[int] = []
        """Addresses, level by level from the root."""
        for level, counts in reversed(list(enumerate(children))):
            below, first = list[Uplink | None](), 0
            for workers, above in zip(counts, uplink, strict=True):
                address = len(self.switches)
                shape = {"branches": True} if level else {"places": tuple(range(first, first + workers))}
                spec = job(workers=int(workers), total_workers=total, job=level + 1, **shape, **given)
                switch = SWITCH_MACHINES[kind](MEMORY_BYTES)
                if above is None:
                    switch.admit(spec)
                else:
                    switch.admit_leaf(spec, above)
                self.attach(address, switch)
                self.switches.append(address)
                first += int(workers)
                below += [
                    Uplink(parent=address, job=spec.job, generation=spec.generation, worker=each, token=token)
                    for each, token in enumerate(spec.tokens)
                ]
                if not level:
                    self._add_workers(kind, spec, address)
            uplink = below
        self.run_until(lambda: all(worker.ready for worker in self.workers))
        self.run_for(0.5)

    def _add_workers(self, kind: str, spec: JobSpec, switch: int) -> None:
        for local, token in enumerate(spec.tokens):
            machine = WORKER_MACHINES[kind](spec, local, switch=switch, token=token)
            self.attach(WORKER + len(self.workers), machine)
            self.workers.append(machine)

    def all_reduce(self, inputs: Sequence[Array]) -> list[Array]:
        """One reduction at every worker; the results."""
        arrays = [np.array(each) for each in inputs]
        for worker, array in enumerate(arrays):
            self.workers[worker].submit(reduction(array))
            self.speak(WORKER + worker)
        self.run_until(lambda: not any(each.outstanding() for each in self.workers))
        return arrays

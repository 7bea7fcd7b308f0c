"""A job from its launcher's view: starts processes, gives them work, and checks when and how it is done."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.emulation.simulator import oracle
from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.machines import WorkerType
from fanin.emulation.simulator.rule import Rule
from fanin.emulation.simulator.scenario import MOVES, JobPlan
from fanin.emulation.simulator.switch_host import Note, SwitchHost
from fanin.emulation.simulator.violations import AgreementError, ConservationError
from fanin.emulation.simulator.virtual_network import Network
from fanin.emulation.simulator.worker import RESTART_S, Phase, Process, StepWatcher
from fanin.host.stale.account import Account, UnbalancedError, check_balance
from fanin.numerics.reduction import Element, lanes_number
from fanin.protocol import control
from fanin.protocol.job import JobSpec

LAUNCHER_POLL_S = 0.5
"""Time between two looks whether the peers of a finished worker still get on."""

Array = npt.NDArray[Any]


class SimulatedJob:
    """The processes of one job. It is complete when all members of one generation have done all steps."""

    def __init__(
        self,
        plan: JobPlan,
        index: int,
        first_address: int,
        *,
        network: Network,
        switches: Sequence[SwitchHost],
        worker_type: WorkerType,
        dice: random.Random,
        seed: int,
        note: Note,
    ) -> None:
        """`switches`: the workers' switch or, for a tree, the leaves, to which workers are dealt out in turn."""
        self.plan = plan
        self.index = index
        self.network = network
        self.queue = network.queue
        self.worker_type = worker_type
        self.dice = dice
        self.note = note
        self.step_watchers: list[StepWatcher] = []
        self.complete = False
        self.attempts = 0
        """Generations that failed after a worker was admitted, or that finished."""
        self.processes = [
            Process(self, rank, first_address + rank, switches[rank % len(switches)]) for rank in range(plan.workers)
        ]
        self.results: dict[tuple[int, int], bytes] = {}
        """By generation and step, the first worker's result."""
        self.explanations: list[tuple[int, float, control.Explanation]] = []
        """Explanations that failed workers received: rank, time, explanation."""
        self._seed = seed
        self._finished: dict[int, set[int]] = {}
        """By generation, the ranks that have done all steps."""
        self._accounts: dict[int, dict[int, Account]] = {}
        """By generation and rank, the accounts of finished workers."""
        self._gone_wrong: set[int] = set()
        self.rule = Rule(plan)
        self.inputs = functools.lru_cache(maxsize=None)(self._inputs)
        self._sum_of = functools.lru_cache(maxsize=None)(self._summed)

    @property
    def name(self) -> str:
        """The job's name at the controller."""
        return f"job{self.index}"

    def start(self) -> None:
        """Start the process of every worker."""
        for process in self.processes:
            process.start()

    # --- work ---

    def _inputs(self, rank: int, step: int) -> Array:
        """The array that a worker reduces in a step, the same in every attempt."""
        dice = np.random.default_rng((self._seed, self.index, rank, step))
        count = self.plan.chunks * self.plan.words_per_packet - self.plan.short
        if self.plan.element == "int32":
            return dice.integers(0, 1 << 32, count, np.uint32).view(np.int32)
        epoch = np.random.default_rng((self._seed, self.index, rank, step // self.plan.steady_steps))
        values = dice.standard_normal(count)
        if self.plan.steady_steps > 1:
            values = np.clip(values, -1.0, 1.0)
            values[0] = 1.0  # the largest magnitude, so that the array's scale is that of its steady steps
        return (values * 2.0 ** epoch.integers(-8, 9)).astype(np.float32)

    # --- what processes report ---

    def check_result(self, process: Process, step: int, array: Array) -> None:
        """Check a worker's result of a step: all workers hold the same, and integers hold what the switch multicast."""
        assert process.spec is not None
        assert process.ledger is not None
        if self.plan.collective != "all_reduce":
            self._check_rule(process, step, array)
            return
        held = array.tobytes()
        if self.results.setdefault((process.generation, step), held) != held:
            raise AgreementError(f"{process}: another worker holds another result of step {step}")
        if self.plan.tree:  # one switch with all workers would come to the same
            told, right = self._expected(process, step), array
        elif self.plan.element == "int32":
            told = np.concatenate([self._told(process.ledger, step, chunk) for chunk in range(self.plan.chunks)])
            right = array.view(np.uint32)
        elif process.ledger.live == process.spec.full_mask:
            told, right = self._expected(process, step), array
        else:
            return
        if told.tobytes() != right.tobytes():
            raise ConservationError(f"{process}: step {step} came to {right[:4]}..., not {told[:4]}...")

    def _check_rule(self, process: Process, step: int, array: Array) -> None:
        """Check that a worker holds its part of a step, and that the rest of its array is unchanged."""
        assert process.spec is not None
        assert process.ledger is not None
        if self.plan.collective not in MOVES and process.ledger.live != process.spec.full_mask:
            return  # without an evicted worker, the expected sum is not known
        inputs = [self.inputs(rank, step) for rank in range(self.plan.workers)]
        total = None if self.plan.collective in MOVES else self._expected(process, step)
        right = self.rule.result(process.rank, step, inputs, total)
        if array.tobytes() != right.tobytes():
            raise ConservationError(f"{process}: {self.plan.collective} {step} left {array[:4]}..., not {right[:4]}...")

    def _told(self, ledger: JobLedger, step: int, chunk: int) -> Array:
        """The words of a chunk of a step, as they were multicast; for integers, whose chunks are items."""
        base, slot = divmod(step * self.plan.chunks + chunk, ledger.spec.slots)
        words = ledger.slots[slot].results[base].words
        return words if len(words) else np.zeros(self.plan.words_per_packet, np.uint32)

    def _expected(self, process: Process, step: int) -> Array:
        assert process.spec is not None
        return self._sum_of(process.spec, step)

    def _summed(self, spec: JobSpec, step: int) -> Array:
        """The expected result of a step; cached, since every worker's result is compared with it."""
        inputs = [self.inputs(rank, step) for rank in range(self.plan.workers)]
        return oracle.expected(spec, inputs, Element[self.plan.element.upper()], lanes_number(self.plan.lanes or 32))

    def finished(self, process: Process) -> None:
        """Note that a worker has done all its steps, and let it leave."""
        assert process.ledger is not None
        self._finished.setdefault(process.generation, set()).add(process.rank)
        if process.stale_work is not None:
            self._accounts.setdefault(process.generation, {})[process.rank] = process.stale_work.account
        self.queue.at(self.queue.now, process.leave)
        self.reconsider(process.ledger)

    def reconsider(self, ledger: JobLedger) -> None:
        """Complete the job if all workers that are needed are done; called when one is done or was evicted."""
        ranks = self._finished.get(ledger.whole.spec.generation, set())
        needed = {rank for rank in range(self.plan.workers) if self.plan.tree or ledger.live >> rank & 1}
        if self.complete or not ranks or not ranks >= needed:
            return
        self.note(f"job {self.index} is complete")
        self._settle(ledger)
        self._balance(ledger)
        self.attempts += 1
        self.complete = True

    def failed(self, process: Process) -> None:
        """Note that a worker has failed; start it again, and those that had left because they were done."""
        if process.ledger is not None and process.generation not in self._gone_wrong:
            self._gone_wrong.add(process.generation)
            self.attempts += 1
        self.start_again()

    def explained(self, process: Process, explanation: control.Explanation) -> None:
        """Keep the explanation that a failed worker got."""
        self.note(f"{process} is told: {explanation.text}")
        self.explanations.append((process.rank, self.queue.now, explanation))

    def departed(self, process: Process) -> None:
        """Restart a worker that has left, unless it was done and its peers still work on the same generation."""
        generation = process.generation
        done = self._finished.get(generation, set())
        if self.complete or process.phase is not Phase.OUT:
            return
        if process.rank not in done:
            self.start_again()
            return
        others = [other for other in self.processes if other.rank not in done]
        if any(other.node is None or other.ledger is None or other.generation != generation for other in others):
            process.start_after(RESTART_S)
        else:
            self.queue.after(LAUNCHER_POLL_S, self._look_after, process, process.life)

    def _look_after(self, process: Process, life: int) -> None:
        if process.life == life:
            self.departed(process)

    def start_again(self) -> None:
        """Start all processes that are out, after RESTART_S."""
        if not self.complete:
            for process in self.processes:
                process.start_after(RESTART_S)

    # --- the end ---

    def _balance(self, ledger: JobLedger) -> None:
        """Check that the accounts of all workers balance, if none was lost."""
        accounts = self._accounts.get(ledger.spec.generation, {})
        if self.plan.on_worker_loss == "raise" and ledger.live == ledger.spec.full_mask and accounts:
            try:
                check_balance([accounts[rank] for rank in sorted(accounts)])
            except UnbalancedError as error:
                raise ConservationError(f"{ledger}: {error}") from error

    def _settle(self, ledger: JobLedger) -> None:
        """Check, for integers, that results and open rounds together are the sum of all contributions, to the bit."""
        if (
            self.plan.element != "int32" or self.plan.tree or self.plan.collective in MOVES
        ):  # results of a tree are compared with the inputs instead
            return
        chunks, size = self.plan.chunks, self.plan.words_per_packet
        for index, slot in enumerate(ledger.slots):
            out = np.zeros(size, np.uint32)
            for words in (*(result.words for result in slot.results), slot.words):
                if len(words):
                    out += words
            put_in = np.zeros(size, np.uint32)
            for base, mask in slot.given.items():
                step, chunk = divmod(base * ledger.spec.slots + index, chunks)
                for process in self.processes:
                    if mask >> process.rank & 1:
                        array = self.inputs(process.rank, step)
                        put_in += array[chunk * size : (chunk + 1) * size].view(np.uint32)
            if out.tobytes() != put_in.tobytes():
                raise ConservationError(f"{ledger}: slot {index} gave {out[:4]}... for {put_in[:4]}...")

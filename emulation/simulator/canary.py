"""Seven switch machines with one defect each, which show that the simulator can find defects.

Each is the Python twin with a small change; the last is a leaf's, in trains (leaf_trains.py). `hunt` runs drawn
schedules against one until a checker objects; it must succeed within MAX_SCHEDULES, from any seed on, or the build
fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from fanin.emulation.simulator.chaos import Chaos, draw
from fanin.emulation.simulator.leaf_trains import TrainLeaf
from fanin.emulation.simulator.machines import SwitchType
from fanin.emulation.simulator.simulation import simulate
from fanin.emulation.simulator.trains import Train
from fanin.emulation.simulator.violations import ViolationError
from fanin.protocol.wire import HEADER_BYTES, OFFSET_KIND, Kind, Packet, Reason
from fanin.switch.machine.slot_machine import (
    PLAIN,
    Arrived,
    Contribution,
    ContributionHeader,
    Outcome,
    Round,
    Slot,
    SlotConfig,
    Verdict,
)
from fanin.switch.machine.switch_job import SwitchJob
from fanin.switch.machine.switch_machine import SwitchMachine

MAX_SCHEDULES = 600
"""Schedules after which a defect counts as not found."""


class ForgetsATag(Slot):
    """Reuses a ring entry for a later base, and keeps the bits of the earlier one."""

    def contribute(
        self, worker: int, base: int, given: Contribution | None, header: ContributionHeader = PLAIN
    ) -> Outcome:
        entry = base % self.config.history
        tag, bitmap = self.arrived[entry]
        if tag < base <= self.open:
            self.arrived[entry] = Arrived(base, bitmap)
        return super().contribute(worker, base, given, header)


class RemembersTooLittle(Slot):
    """Has rings of depth S_max + 1, one less than needed."""

    def __init__(self, config: SlotConfig) -> None:
        super().__init__(dataclasses.replace(config, history=config.history - 1))
        self._job = config

    def contribute(
        self, worker: int, base: int, given: Contribution | None, header: ContributionHeader = PLAIN
    ) -> Outcome:
        self._follow()
        return super().contribute(worker, base, given, header)

    def poke(self) -> tuple[int, Round] | None:
        self._follow()
        return super().poke()

    def _follow(self) -> None:
        """Copy the configuration again, because the controller changes the job's own."""
        self.config = dataclasses.replace(self._job, history=self._job.history - 1)


class AddsADuplicate(Slot):
    """Adds a repeated contribution to the open round again."""

    def contribute(
        self, worker: int, base: int, given: Contribution | None, header: ContributionHeader = PLAIN
    ) -> Outcome:
        outcome = super().contribute(worker, base, given, header)
        if outcome.verdict is Verdict.DUPLICATE and given is not None and self.count:
            at = self.open % self.config.history
            self.sums[at] = self.sums[at].plus(given, self.config.accumulator_bytes)
        return outcome


class ClosesEarly(Slot):
    """Closes a round when the floor reaches V - S, instead of when it has passed it."""

    def _close_if_due(self) -> tuple[int, Round] | None:
        self.floor += 1
        closed = super()._close_if_due()
        self.floor -= 1
        return closed


class SkipsThePassRule(Slot):
    """Does not count a pass as an arrival; its bit is set."""

    def contribute(
        self, worker: int, base: int, given: Contribution | None, header: ContributionHeader = PLAIN
    ) -> Outcome:
        return super().contribute(worker, base, given, header._replace(late=header.late or given is None))


def machine_of(slot_type: type[Slot]) -> type[SwitchMachine]:
    """A class of switch machines whose slots are all of that type."""

    job = type("Job", (SwitchJob,), {"slot_type": slot_type})
    return type("Machine", (SwitchMachine,), {"job_type": job})


class MixesGenerations(SwitchMachine):
    """Ignores the generation of packets."""

    def _objection(self, job: SwitchJob, packet: Packet, data: bytes, source: int) -> Reason | None:
        return super()._objection(job, dataclasses.replace(packet, generation=job.spec.generation), data, source)


class RepeatsWords(SwitchMachine):
    """Takes a contribution that follows another one of its sender in a train for a copy of it but for the header."""

    def receive_datagrams(self, datagrams: Train, now: float) -> None:
        """Take in a train."""
        before: tuple[bytes, int] = b"", -1
        for data, source in datagrams:
            alike = len(data) == len(before[0]) > HEADER_BYTES and source == before[1]
            if alike and data[OFFSET_KIND] == Kind.CONTRIBUTION == before[0][OFFSET_KIND]:
                data = data[:HEADER_BYTES] + before[0][HEADER_BYTES:]
            self.receive_datagram(data, source, now)
            before = data, source

    def regular(self) -> int:
        """Number of datagrams that were handled as part of a run: none are."""
        return 0


DEFECTS: dict[str, SwitchType] = {
    "forgets a tag": machine_of(ForgetsATag),
    "history of S_max + 1": machine_of(RemembersTooLittle),
    "adds a duplicate": machine_of(AddsADuplicate),
    "closes early": machine_of(ClosesEarly),
    "skips the pass rule": machine_of(SkipsThePassRule),
    "mixes two generations": MixesGenerations,
}
LEAF_DEFECTS: dict[str, SwitchType] = {
    "repeats words in a leaf's train": lambda memory_bytes: TrainLeaf(
        SwitchMachine(memory_bytes), RepeatsWords(memory_bytes)
    ),
}
"""Defects of leaves alone, which are hunted with schedules that have trees."""
HUNTED = (*DEFECTS, *LEAF_DEFECTS)


@dataclass(frozen=True, slots=True)
class Catch:
    """A planted defect that the simulator has found."""

    defect: str
    schedules: int
    """Number of schedules that were run to find it."""
    violation: ViolationError


def hunt(defect: str, first_seed: int) -> Catch | None:
    """Run schedules from `first_seed` on against a defect until a checker objects; None after MAX_SCHEDULES."""

    def run(seed: int) -> None:
        if defect in LEAF_DEFECTS:
            in_trees = draw(seed, Chaos(trains=True, trees=1.0))
            simulate(in_trees, seed, kind="python", leaf=LEAF_DEFECTS[defect])
        else:
            simulate(draw(seed), seed, kind="python", switch=DEFECTS[defect])

    return first_catch(defect, run, first_seed, MAX_SCHEDULES)


def first_catch(defect: str, run: Callable[[int], None], first_seed: int, most: int) -> Catch | None:
    """Call `run` with up to `most` seeds, and return the first that violates something, or None."""
    for number in range(most):
        try:
            run(first_seed + number)
        except ViolationError as violation:
            return Catch(defect, number + 1, violation)
    return None

"""Runs many schedules, and shortens the first that fails to the fewest faults with which it still fails.

A schedule is a seed: it seeds the run, and draws the scenario (chaos.py) unless one is given. Schedules are
independent, so batches of them run in several processes; the lowest seed that fails is reported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fanin.emulation.simulator.batches import in_batches
from fanin.emulation.simulator.chaos import draw_for
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind, SwitchType
from fanin.emulation.simulator.scenario import Fault, Scenario
from fanin.emulation.simulator.simulation import Report, simulate
from fanin.emulation.simulator.violations import ViolationError

MAX_SHORTENING_RUNS = 400
"""Most runs that shortening a schedule may take."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that violates something, and its shortened scenario."""

    seed: int
    scenario: Scenario
    violation: ViolationError
    faults_before: int
    """Number of its faults before it was shortened."""


@dataclass(slots=True)
class Tally:
    """Totals over the schedules of a search."""

    schedules: int = 0
    events: int = 0
    packets: int = 0
    contributions: int = 0
    forecasts: int = 0
    forecasts_missed: int = 0
    regular: int = 0
    virtual_s: float = 0.0
    slowest_recovery_s: float = 0.0
    failed: list[tuple[int, ViolationError]] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Add the report of a run."""
        self.schedules += 1
        self.events += report.events
        self.packets += report.packets
        self.contributions += report.contributions
        self.forecasts += report.forecasts
        self.forecasts_missed += report.forecasts_missed
        self.regular += report.regular
        self.virtual_s += report.virtual_s
        self.slowest_recovery_s = max(self.slowest_recovery_s, report.recovery_s)

    def merge(self, other: Tally) -> None:
        """Add the totals of another tally."""
        self.failed += other.failed  # first, so that an interruption never leaves a count that hides a failure
        self.schedules += other.schedules
        self.events += other.events
        self.packets += other.packets
        self.contributions += other.contributions
        self.forecasts += other.forecasts
        self.forecasts_missed += other.forecasts_missed
        self.regular += other.regular
        self.virtual_s += other.virtual_s
        self.slowest_recovery_s = max(self.slowest_recovery_s, other.slowest_recovery_s)


def search(
    first_seed: int,
    schedules: int,
    *,
    kind: Kind = "native",
    scenario: Scenario | None = None,
    processes: int = 1,
    progress: Callable[[Tally], None] | None = None,
    total: Tally | None = None,
) -> Tally:
    """Run schedules until all are done or one has failed; `progress` gets the totals after every batch.

    With `scenario`, only the seed of the run varies. In the result, `failed` is empty or begins with the lowest seed
    that failed. The result is `total`, if given, so whoever interrupts the search has the totals of the batches that
    had ended.
    """
    total = Tally() if total is None else total
    run = functools.partial(_run_batch, kind=kind, scenario=scenario)
    for tally in in_batches(run, first_seed, schedules, processes):
        total.merge(tally)
        if progress is not None:
            progress(total)
        if total.failed:
            break
    return total


def _run_batch(seeds: range, kind: Kind, scenario: Scenario | None) -> Tally:
    tally = Tally()
    for seed in seeds:
        try:
            tally.add(simulate(scenario or draw_for(kind, seed), seed, kind=kind))
        except ViolationError as violation:
            tally.schedules += 1
            tally.failed.append((seed, violation))
            break
    return tally


# --- shortening ---


def shorten(
    scenario: Scenario, seed: int, violation: ViolationError, *, kind: Kind = "native", switch: SwitchType | None = None
) -> Failure:
    """Remove all from a failing schedule that it does not need to fail: faults, link properties, jobs' extras.

    Faults by delta debugging (Zeller and Hildebrandt, IEEE TSE 28(2), 2002: `ddmin`). A shorter schedule must violate
    the same kind of invariant, not at the same event.
    """
    shortener = _Shortener(scenario, seed, violation, kind, switch)
    shortener.run()
    return Failure(seed, shortener.scenario, shortener.violation, len(scenario.faults))


class _Shortener:
    def __init__(
        self, scenario: Scenario, seed: int, violation: ViolationError, kind: Kind, switch: SwitchType | None
    ) -> None:
        self.scenario = scenario
        self.violation = violation
        self._seed = seed
        self._kind: Kind = kind
        self._switch = switch
        self._runs_left = MAX_SHORTENING_RUNS

    def run(self) -> None:
        self._shorten_faults()
        for simpler in self._simpler_links():
            self._try(simpler)
        self._shorten_jobs()

    def _try(self, candidate: Scenario) -> bool:
        """Whether the candidate fails with the same kind of violation; if so, it is shortened further."""
        if self._runs_left == 0 or candidate == self.scenario:
            return False
        self._runs_left -= 1
        try:
            simulate(candidate, self._seed, kind=self._kind, switch=self._switch)
        except ViolationError as found:
            if found.kind == self.violation.kind:
                self.scenario, self.violation = candidate, found
                return True
        return False

    def _shorten_faults(self) -> None:
        """ddmin: leave out ever smaller parts of the faults, as long as the schedule still fails."""
        part_count = 1
        while (faults := self.scenario.faults) and part_count <= len(faults):
            size = -(-len(faults) // part_count)
            parts = [faults[start : start + size] for start in range(0, len(faults), size)]
            rest = [self.scenario.with_faults(_without(faults, part)) for part in parts]
            if any(self._try(candidate) for candidate in rest):
                part_count = max(part_count - 1, 1)
            elif part_count == len(faults):
                return
            else:
                part_count = min(2 * part_count, len(faults))

    def _simpler_links(self) -> Iterator[Scenario]:
        """Yield the scenario with one property of its link set to the default, for each property."""
        for each in dataclasses.fields(Link):
            default: Any = each.default
            link = dataclasses.replace(self.scenario.link, **{each.name: default})
            yield dataclasses.replace(self.scenario, link=link)

    def _shorten_jobs(self) -> None:
        for index in reversed(range(len(self.scenario.jobs))):
            jobs = self.scenario.jobs
            if len(jobs) > 1 and not any(fault.job >= index for fault in self.scenario.faults):
                self._try(dataclasses.replace(self.scenario, jobs=(*jobs[:index], *jobs[index + 1 :])))
        for index in range(len(self.scenario.jobs)):
            for change in ({"ahead": 1}, {"think_s": 0.0, "slow": ()}, {"start_s": 0.0}):
                jobs = self.scenario.jobs
                job = dataclasses.replace(jobs[index], **change)
                self._try(dataclasses.replace(self.scenario, jobs=(*jobs[:index], job, *jobs[index + 1 :])))
            while (steps := self.scenario.jobs[index].steps) > 1:
                jobs = self.scenario.jobs
                job = dataclasses.replace(jobs[index], steps=steps // 2)
                if not self._try(dataclasses.replace(self.scenario, jobs=(*jobs[:index], job, *jobs[index + 1 :]))):
                    break


def _without(faults: tuple[Fault, ...], part: tuple[Fault, ...]) -> tuple[Fault, ...]:
    dropped = list(part)
    kept = []
    for fault in faults:
        if fault in dropped:
            dropped.remove(fault)
        else:
            kept.append(fault)
    return tuple(kept)

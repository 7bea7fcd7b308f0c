"""Many plans of shards.py, and defects planted in what ranks agree on that must be found."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from fanin.emulation.simulator.batches import in_batches
from fanin.emulation.simulator.canary import Catch, first_catch
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.shards import (
    ShardFault,
    ShardPlan,
    ShardReport,
    SurvivorType,
    draw_shards,
    simulate_shards,
)
from fanin.emulation.simulator.violations import ViolationError
from fanin.host.machine.shard_agreement import Agreement, Stage
from fanin.host.session.survivor import Life, Survivor
from fanin.numerics.reduction import Reduction
from fanin.protocol.control import Regroup, Regrouped, Reply

MAX_PLANS = 600
"""Plans after which a defect counts as not found."""


@dataclass(slots=True)
class ShardTally:
    """Totals over the plans of a search."""

    plans: int = 0
    packets: int = 0
    virtual_s: float = 0.0
    dealt_anew: int = 0
    """Plans in which the ranks went on as another job."""
    twice: int = 0
    """Number of runs that dealt their shards anew more than once."""
    violation: ViolationError | None = None
    """The first violation, if any."""

    def add(self, report: ShardReport) -> None:
        """Add the report of a run."""
        self.plans += 1
        self.packets += report.packets
        self.virtual_s += report.virtual_s
        self.dealt_anew += report.jobs > 1
        self.twice += report.jobs > 2

    def merge(self, other: ShardTally) -> None:
        """Enter another tally, of later seeds."""
        self.plans += other.plans
        self.packets += other.packets
        self.virtual_s += other.virtual_s
        self.dealt_anew += other.dealt_anew
        self.twice += other.twice
        self.violation = self.violation or other.violation


def search_shards(first_seed: int, plans: int, *, kind: Kind, processes: int) -> ShardTally:
    """Run that many, up to the batch with the first that violates something."""
    total = ShardTally()
    for tally in in_batches(functools.partial(_run_batch, kind=kind), first_seed, plans, processes):
        total.merge(tally)
        if total.violation is not None:
            break
    return total


def _run_batch(seeds: range, kind: Kind) -> ShardTally:
    tally = ShardTally()
    for seed in seeds:
        try:
            tally.add(simulate_shards(draw_shards(seed), seed, kind=kind))
        except ViolationError as violation:
            tally.violation = violation
            break
    return tally


def shorten_shards(
    plan: ShardPlan, seed: int, *, kind: Kind = "native", survivor: SurvivorType = Survivor
) -> tuple[ShardFault, ...]:
    """The faults that a plan needs to fail: without any of them it does not."""
    kept = list(plan.faults)
    for fault in plan.faults:
        fewer = [each for each in kept if each is not fault]
        try:
            simulate_shards(dataclasses.replace(plan, faults=tuple(fewer)), seed, kind=kind, survivor=survivor)
        except ViolationError:
            kept = fewer
    return tuple(kept)


class PassesNothingOn(Agreement):
    """Keeps to itself what a shard has told it that is lost since."""

    def requests(self, now: float) -> list[tuple[int, Regroup]]:
        return [] if self.stage is Stage.AGREED else super().requests(now)


class GoesOnInAnyPart(Agreement):
    """Goes on with however few shards are left."""

    def receive(self, shard: int, reply: Reply, now: float) -> None:
        if isinstance(reply, Regrouped):
            reply = dataclasses.replace(reply, dead=reply.lost)
        super().receive(shard, reply, now)


class ForgetsWhoIsMissed(Agreement):
    """Does not say which ranks are missed at some shard."""

    def requests(self, now: float) -> list[tuple[int, Regroup]]:
        self.gone.clear()
        return super().requests(now)


class FinishesMeanwhile(Survivor):
    """Takes results in that come after it has said how far it is."""

    def done(self, ticket: int) -> bool:
        kept = self.kept.get(ticket)
        if self.state is Life.DEALING and kept is not None and not kept.is_done and kept.has_come:
            kept.finish()
        return super().done(ticket)


class SumsWithWhatItHas(Survivor):
    """Takes itself for the one that has a result."""

    def holds(self, holder: int) -> bool:
        return True


class WaitsForTheDead(Survivor):
    """Does not say which job it is that the new one succeeds."""

    def after_turn(self) -> None:
        super().after_turn()
        if self.successor is not None:
            nothing = dataclasses.replace(self.successor.succeeds, job="")
            self.successor = dataclasses.replace(self.successor, succeeds=nothing)


class TakesZerosForResults(Survivor):
    """Does not look whether the rank that hands a result on has done so."""

    def submit(self, reduction: Reduction, now: float) -> int:
        self._trust()
        return super().submit(reduction, now)

    def done(self, ticket: int) -> bool:
        self._trust()
        return super().done(ticket)

    def take_results(self, now: float) -> None:
        self._trust()
        super().take_results(now)

    def _trust(self) -> None:
        for kept in self.kept:
            if kept.handed is not None and kept.has_come:
                kept.handed[1::2] = 1


class HasOneNameForAll(Agreement):
    """Goes on as a job whose name does not say which shard has decided."""

    def requests(self, now: float) -> list[tuple[int, Regroup]]:
        return [(shard, dataclasses.replace(said, shard=0)) for shard, said in super().requests(now)]


def agreeing(agreement: type[Agreement]) -> type[Survivor]:
    """A rank that agrees like that."""

    class Rank(Survivor):
        agreement_type = agreement

    return Rank


SHARD_DEFECTS: dict[str, type[Survivor]] = {
    "passes nothing on": agreeing(PassesNothingOn),
    "goes on in any part": agreeing(GoesOnInAnyPart),
    "forgets who is missed": agreeing(ForgetsWhoIsMissed),
    "finishes meanwhile": FinishesMeanwhile,
    "sums with what it has": SumsWithWhatItHas,
    "waits for the dead": WaitsForTheDead,
    "takes zeros for results": TakesZerosForResults,
    "has one name for all": agreeing(HasOneNameForAll),
}


SELDOM_DRAWN: dict[str, ShardPlan] = {
    "forgets who is missed": ShardPlan(
        hosts=4, packets=3, link=Link(loss=0.01),
        faults=(
            ShardFault(kind="cut", host=2, rank=0, at_s=0.0403), ShardFault(kind="halts", host=3, at_s=0.0741)
        ),
    ),
    "takes zeros for results": ShardPlan(
        hosts=3, steps=60, think_s=0.003, packets=13, link=Link(loss=0.15),
        faults=(
            ShardFault(kind="dies", host=2, at_s=0.10037), ShardFault(kind="ends", host=1, after="goes on")
        ),
    ),
    "has one name for all": ShardPlan(
        hosts=4, steps=60,
        faults=(
            ShardFault(kind="dies", host=3, at_s=0.1), ShardFault(kind="dies", host=0, after="hears"),
            ShardFault(kind="stops", host=3, at_s=0.0002, after="hears"),
        ),
    ),
}  # fmt: skip
"""Plans for defects that take what some hundred drawn plans do not have: a rank that one shard has evicted, and that
agrees with the others when another shard is lost; a rank that alone has a result and dies while it hands that on; the
only rank that has heard what was decided dies with the shard that has decided."""


def hunt_shards(defect: str, first_seed: int) -> Catch | None:
    """Run plans against a defect, from a seed on; None if MAX_PLANS do not find it."""

    def run(seed: int) -> None:
        simulate_shards(SELDOM_DRAWN.get(defect) or draw_shards(seed), seed, survivor=SHARD_DEFECTS[defect])

    return first_catch(defect, run, first_seed, MAX_PLANS)

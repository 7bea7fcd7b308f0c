"""Runs many plans of shards.py and cards.py, and plants defects in what ranks agree on that these runs must find."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fanin.emulation.simulator.batches import in_batches
from fanin.emulation.simulator.canary import Catch, first_catch
from fanin.emulation.simulator.cards import CardFault, CardPlan, draw_cards, simulate_cards
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
from fanin.host.session.survivor import Survivor, SurvivorState
from fanin.numerics.reduction import Reduction
from fanin.protocol.control import Regroup, Regrouped, Reply

MAX_PLANS = 600
"""Number of plans after which a defect counts as not found."""


@dataclass(slots=True)
class ShardTally:
    """Totals over the plans of a search."""

    plans: int = 0
    packets: int = 0
    virtual_s: float = 0.0
    dealt_anew: int = 0
    """Number of plans in which the ranks moved to a new job."""
    twice: int = 0
    """Number of plans in which the ranks moved to a new job more than once."""
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
        """Add the totals of another tally, whose seeds are later."""
        self.violation = self.violation or other.violation  # first, as in Tally.merge
        self.plans += other.plans
        self.packets += other.packets
        self.virtual_s += other.virtual_s
        self.dealt_anew += other.dealt_anew
        self.twice += other.twice


Plan = ShardPlan | CardPlan
Fault = TypeVar("Fault")


def draw_plan(seed: int, *, cards: bool) -> Plan:
    """Draw a plan by its seed. `cards`: hosts have several; a job goes on without lost ranks where the seed is odd."""
    return draw_cards(seed, leaves_out=seed % 2 == 1) if cards else draw_shards(seed)


def simulate_plan(plan: Plan, seed: int, *, kind: Kind, show: Callable[[str], None] | None = None) -> ShardReport:
    """Run a plan of either kind, as `simulate_shards` and `simulate_cards` do."""
    if isinstance(plan, CardPlan):
        return simulate_cards(plan, seed, kind=kind, show=show)
    return simulate_shards(plan, seed, kind=kind, show=show)


def search_shards(
    first_seed: int, plans: int, *, kind: Kind, processes: int, cards: bool = False, total: ShardTally | None = None
) -> ShardTally:
    """Run `plans` plans, up to the batch with the first violation; the result is `total`, as in `search`."""
    total = ShardTally() if total is None else total
    for tally in in_batches(functools.partial(_run_batch, kind=kind, cards=cards), first_seed, plans, processes):
        total.merge(tally)
        if total.violation is not None:
            break
    return total


def _run_batch(seeds: range, kind: Kind, cards: bool) -> ShardTally:
    tally = ShardTally()
    for seed in seeds:
        try:
            tally.add(simulate_plan(draw_plan(seed, cards=cards), seed, kind=kind))
        except ViolationError as violation:
            tally.plans += 1
            tally.violation = violation
            break
    return tally


def shorten_shards(
    plan: ShardPlan, seed: int, *, kind: Kind = "native", survivor: SurvivorType = Survivor
) -> tuple[ShardFault, ...]:
    """The faults that a plan needs to fail: it does not fail without any one of them."""

    def run(faults: Sequence[ShardFault]) -> None:
        simulate_shards(dataclasses.replace(plan, faults=tuple(faults)), seed, kind=kind, survivor=survivor)

    return _needed(plan.faults, run)


def shorten_plan(plan: Plan, seed: int, *, kind: Kind) -> tuple[ShardFault | CardFault, ...]:
    """The faults that a plan of either kind needs to fail, as `shorten_shards` finds them."""
    if isinstance(plan, ShardPlan):
        return shorten_shards(plan, seed, kind=kind)

    def run(faults: Sequence[ShardFault | CardFault]) -> None:
        simulate_cards(plan.only(faults), seed, kind=kind)

    return _needed((*plan.card_faults, *plan.faults), run)


def _needed(faults: Sequence[Fault], run: Callable[[Sequence[Fault]], None]) -> tuple[Fault, ...]:
    """Leave out faults, one after another, without which `run` still violates something, and return the others."""
    kept = list(faults)
    for fault in faults:
        fewer = [each for each in kept if each is not fault]
        try:
            run(fewer)
        except ViolationError:
            kept = fewer
    return tuple(kept)


class PassesNothingOn(Agreement):
    """Does not tell other shards the decision of a shard that is lost since."""

    def requests(self, now: float) -> list[tuple[int, Regroup]]:
        return [] if self.stage is Stage.AGREED else super().requests(now)


class GoesOnInAnyPart(Agreement):
    """Goes on however few shards are left."""

    def receive(self, shard: int, reply: Reply, now: float) -> None:
        if isinstance(reply, Regrouped):
            reply = dataclasses.replace(reply, dead=reply.lost)
        super().receive(shard, reply, now)


class KeepsWhatItHeldBack(Agreement):
    """Does not report which sums it has held back."""

    def requests(self, now: float) -> list[tuple[int, Regroup]]:
        return [(shard, dataclasses.replace(said, held_back=())) for shard, said in super().requests(now)]


class DoubtsNothing(Survivor):
    """Takes sums that lack a rank which some shard may still have."""

    leaves_out = False


class FinishesMeanwhile(Survivor):
    """Accepts results that arrive after it has reported its progress."""

    def done(self, ticket: int) -> bool:
        kept = self.kept.get(ticket)
        if self.state is SurvivorState.DEALING and kept is not None and not kept.is_done and kept.has_come:
            kept.finish()
        return super().done(ticket)


class SumsWithWhatItHas(Survivor):
    """Behaves as if it had every result that some rank must hand on."""

    def holds(self, holder: int) -> bool:
        return True


class WaitsForTheDead(Survivor):
    """Does not name the job that the new job succeeds, so the new job waits for ranks that are lost."""

    def after_turn(self) -> None:
        super().after_turn()
        if self.successor is not None:
            nothing = dataclasses.replace(self.successor.succeeds, job="")
            self.successor = dataclasses.replace(self.successor, succeeds=nothing)


class TakesZerosForResults(Survivor):
    """Takes a rank's handed-on result without checking that the rank has filled it in."""

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
    """Gives the new job a name that does not depend on the shard that decided."""

    def requests(self, now: float) -> list[tuple[int, Regroup]]:
        return [(shard, dataclasses.replace(said, shard=0)) for shard, said in super().requests(now)]


def agreeing(agreement: type[Agreement]) -> type[Survivor]:
    """A Survivor class whose ranks use that agreement."""

    class Rank(Survivor):
        agreement_type = agreement

    return Rank


SHARD_DEFECTS: dict[str, type[Survivor]] = {
    "passes nothing on": agreeing(PassesNothingOn),
    "goes on in any part": agreeing(GoesOnInAnyPart),
    "keeps what it held back": agreeing(KeepsWhatItHeldBack),
    "doubts nothing": DoubtsNothing,
    "finishes meanwhile": FinishesMeanwhile,
    "sums with what it has": SumsWithWhatItHas,
    "waits for the dead": WaitsForTheDead,
    "takes zeros for results": TakesZerosForResults,
    "has one name for all": agreeing(HasOneNameForAll),
}


SELDOM_DRAWN: dict[str, ShardPlan] = {
    "keeps what it held back": ShardPlan(
        hosts=4, steps=120, think_s=0.001, packets=3, link=Link(loss=0.3),
        faults=(
            ShardFault(kind="ends", host=3, at_s=0.09568), ShardFault(kind="dies", host=2, at_s=0.85813)
        ),
    ),
    "doubts nothing": ShardPlan(
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
"""Plans for defects that some hundred drawn plans do not trigger: a shard is lost that some ranks know to have evicted
a rank, and others do not; a rank that one shard has evicted agrees with the others when another one is lost; a rank
that alone has a result dies while it hands the result on; the only rank that has heard a decision dies together with
the shard that decided."""


def hunt_shards(defect: str, first_seed: int) -> Catch | None:
    """Run plans from `first_seed` on against a defect until a check fails; None after MAX_PLANS."""

    def run(seed: int) -> None:
        simulate_shards(SELDOM_DRAWN.get(defect) or draw_shards(seed), seed, survivor=SHARD_DEFECTS[defect])

    return first_catch(defect, run, first_seed, MAX_PLANS)

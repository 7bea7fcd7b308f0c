"""Many plans of shards.py, and defects planted in what ranks agree on that must be found."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass

from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.shards import ShardFault, ShardPlan, SurvivorType, draw_shards, simulate_shards
from fanin.emulation.simulator.violations import ViolationError
from fanin.host.machine.agreement import Agreement, Stage
from fanin.host.session.survivor import Life, Survivor
from fanin.protocol.control import Regroup, Regrouped, Reply

BATCH_PLANS = 50
MAX_PLANS = 600
"""Plans after which a defect counts as not found."""


@dataclass(slots=True)
class ShardTally:
    """What plans came to, added up."""

    plans: int = 0
    packets: int = 0
    virtual_s: float = 0.0
    dealt_anew: int = 0
    """Plans in which the ranks went on as another job."""
    twice: int = 0
    """Those in which they did so more than once."""
    violation: ViolationError | None = None
    """The first."""


def search_shards(
    first_seed: int, plans: int, *, kind: Kind, processes: int, progress: Callable[[int], None] | None = None
) -> ShardTally:
    """Run that many, up to the batch with the first that violates something."""
    batches = range(first_seed, first_seed + plans, BATCH_PLANS)
    work = functools.partial(_run_batch, end=first_seed + plans, kind=kind)
    total = ShardTally()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for tally in pool.map(work, batches):
            total.plans += tally.plans
            total.packets += tally.packets
            total.virtual_s += tally.virtual_s
            total.dealt_anew += tally.dealt_anew
            total.twice += tally.twice
            total.violation = tally.violation
            if progress is not None:
                progress(total.plans)
            if tally.violation is not None:
                pool.shutdown(cancel_futures=True)
                break
    return total


def _run_batch(first_seed: int, *, end: int, kind: Kind) -> ShardTally:
    tally = ShardTally()
    for seed in range(first_seed, min(first_seed + BATCH_PLANS, end)):
        try:
            report = simulate_shards(draw_shards(seed), seed, kind=kind)
        except ViolationError as violation:
            tally.violation = violation
            return tally
        tally.plans += 1
        tally.packets += report.packets
        tally.virtual_s += report.virtual_s
        tally.dealt_anew += report.jobs > 1
        tally.twice += report.jobs > 2
    return tally


def shorten_shards(plan: ShardPlan, seed: int, *, survivor: SurvivorType = Survivor) -> tuple[ShardFault, ...]:
    """The faults that a plan needs to fail: without any of them it does not."""
    kept = list(plan.faults)
    for fault in plan.faults:
        fewer = [each for each in kept if each is not fault]
        try:
            simulate_shards(dataclasses.replace(plan, faults=tuple(fewer)), seed, survivor=survivor)
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
}


def hunt_shards(defect: str, first_seed: int) -> tuple[int, ViolationError] | None:
    """Run plans against a defect, from a seed on: how many it took, and what was found."""
    for number in range(MAX_PLANS):
        seed = first_seed + number
        try:
            simulate_shards(draw_shards(seed), seed, survivor=SHARD_DEFECTS[defect])
        except ViolationError as violation:
            return number + 1, violation
    return None

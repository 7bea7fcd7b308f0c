"""Draws scenarios from a seed: small jobs, short runs, and every fault in every combination.

Runs are short because small cases suffice to break protocols: the exhaustive exploration of the slot machine finds all
that it finds with three workers, three rounds and two slots. It has no time, packets, membership or control channel;
these are drawn here.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Literal, get_args

from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.scenario import (
    MOVES,
    OF_A_LEAF,
    OF_A_WORKER,
    OF_ALL,
    TUNES,
    Collective,
    Direction,
    Fault,
    FaultKind,
    JobPlan,
    Scenario,
)
from fanin.host.machine.scale_forecast import AGE_WORDS
from fanin.host.stale.policies import POLICIES
from fanin.protocol.job import OnWorkerLoss

MAX_FAULTS = 6
BUSY_S = 0.4
"""Virtual seconds within which faults begin; a job that takes longer ends without faults."""
LONGEST_FAULT_S = 1.5
FREEZES_S = (0.3, 1.2, 7.0)
"""Lengths of a freeze in seconds: shorter and longer than either liveness timeout that is drawn."""
MILD = ("cut", "clog", "degrade", "pause", *OF_ALL, *TUNES)
"""Kinds of faults that a job survives; most faults are of these, so that most runs come far."""
MILD_SHARE = 0.75
LOSS_CHOICES: tuple[OnWorkerLoss, ...] = ("raise", "raise", "raise", "continue")
LONG_STEPS = 30
"""Steps of a job that survives the loss of a worker: enough for the worker to come back while the others work."""
REBIRTH_SHARE = 0.15
"""Share of scenarios in which the switch restarts early and packets of its earlier life stray into the next."""
REBIRTH_STRAY = 0.3
SMALL_SHARE = 0.5
"""Share of float jobs whose arrays of one packet leave room for the age of a forecast."""
TREE_SHARE = 0.2
"""Share of scenarios with leaf switches."""
MAX_LEAVES = 3
LONGER = (1, 3, 8)
"""Factors of a job's slots and packets, for trains."""
WORKERS_OF_A_TREE = 6
"""Most workers of a job in a tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Bounds of the random draw of a scenario."""

    workers: int = 4
    """Most workers of a job."""
    staleness: int = 3
    """Largest staleness bound S."""
    faults: int = MAX_FAULTS
    """Most faults of a scenario."""
    kinds: tuple[FaultKind, ...] = get_args(FaultKind)
    trees: float = TREE_SHARE
    """Probability that a scenario has leaf switches."""
    trains: bool = False
    """Whether arrays are longer, and packets have no checksums, with which they would be in no run (trains.py)."""


def draw_for(kind: Kind, seed: int) -> Scenario:
    """Draw the scenario of a seed for machines of that kind."""
    return draw(seed, Chaos(trains=kind == "trains"))


def draw(seed: int, chaos: Chaos | None = None) -> Scenario:
    """Draw the scenario of a seed."""
    chaos, dice = chaos or Chaos(), random.Random(seed)
    leaves = dice.randint(1, MAX_LEAVES) if dice.random() < chaos.trees else 0
    jobs = tuple(
        _job(dice, chaos, tree=leaves > 0 and (position == 0 or dice.random() < 0.5))
        for position in range(dice.choice((1, 1, 1, 2)))
    )
    jobs = tuple(_with_rule(random.Random(f"{seed}, rule of job {index}"), job) for index, job in enumerate(jobs))
    jobs = tuple(_widened(random.Random(f"{seed}, lanes of job {index}"), job) for index, job in enumerate(jobs))
    faults = tuple(_fault(dice, chaos, jobs, leaves) for _ in range(dice.randint(0, chaos.faults)))
    for index, job in enumerate(jobs):
        if job.on_worker_loss == "continue":
            faults = (*faults, _loss(dice, index, job))
    link = _link(dice) if dice.random() < 0.8 else Link(delay_s=_delay_s(dice))
    if "restart" in chaos.kinds and dice.random() < REBIRTH_SHARE:
        link = dataclasses.replace(link, stray=REBIRTH_STRAY, stray_s=BUSY_S + LONGEST_FAULT_S)
        restart = Fault(
            kind="restart",
            at_s=round(dice.random() * BUSY_S / 4, 4),
            for_s=round(dice.random() / 10, 4),
            leaf=dice.choice((None, *range(leaves))),
        )
        faults = (*faults, restart)
    if chaos.trains:
        longer = random.Random(f"{seed}, trains")
        jobs = tuple(_longer(longer, job) for job in jobs)
        link = dataclasses.replace(link, corrupt=0.0)
        faults = tuple(_undamaged(fault) for fault in faults)
    return Scenario(
        name=f"chaos-{seed}",
        jobs=jobs,
        leaves=leaves,
        link=link,
        faults=faults,
        noise_s=BUSY_S,
        liveness_timeout_s=dice.choice((1.0, 5.0)),
    )


def _job(dice: random.Random, chaos: Chaos, *, tree: bool) -> JobPlan:
    workers = dice.randint(1, WORKERS_OF_A_TREE if tree else chaos.workers)
    slots = dice.randint(1, 3)
    stale = not tree and dice.random() < 0.6
    element: Literal["int32", "float32"] = "int32" if stale else dice.choice(("int32", "float32"))
    small = element == "float32" and dice.random() < SMALL_SHARE
    think_s = dice.choice((0.0, 1e-3, 0.02))
    staleness = dice.randint(0, chaos.staleness) if stale else 0
    policy = dice.choice((None, *POLICIES)) if stale else None
    on_worker_loss: OnWorkerLoss = dice.choice(LOSS_CHOICES) if stale else "raise"
    return JobPlan(
        workers=workers,
        quorum=dice.randint(1, workers) if stale else None,
        staleness=staleness,
        max_staleness=dice.choice((None, dice.randint(staleness, chaos.staleness))) if stale else None,
        slots=slots,
        element=element,
        chunks=slots if stale else 1 if small else dice.randint(1, 3 * slots),
        short=dice.randint(AGE_WORDS, 7) if small else 0,
        steady_steps=dice.choice((1, 3, 100)) if small else 1,
        steps=dice.randint(2, 10) if on_worker_loss == "raise" else LONG_STEPS,
        ahead=dice.randint(1, 3),
        think_s=think_s,
        slow=tuple(dice.choice((1.0, 1.0, 5.0)) for _ in range(workers)) if think_s else (),
        passes=dice.choice((0.0, 0.0, 0.3)) if policy is None and stale else 0.0,
        policy=policy,
        on_worker_loss=on_worker_loss,
        tree=tree,
        start_s=dice.choice((0.0, 0.0, 0.01)),
    )


def _with_rule(dice: random.Random, job: JobPlan) -> JobPlan:
    """Give half of the synchronous jobs another collective, in which not every worker adds and keeps everything."""
    if job.every_chunk_has_a_slot or dice.random() < 0.5:
        return job
    collective = dice.choice(get_args(Collective)[1:])
    if collective in MOVES:
        job = dataclasses.replace(job, element="int32", short=0, steady_steps=1)
    return dataclasses.replace(job, collective=collective)


def _widened(dice: random.Random, job: JobPlan) -> JobPlan:
    """Give half of the float jobs wide sums."""
    if job.element != "float32" or dice.random() < 0.5:
        return job
    return dataclasses.replace(
        job, lanes=dice.choice(("4/8", "2/8") if job.tree else ("8/8", "4/8", "4/4", "2/8", "2/4"))
    )


def _longer(dice: random.Random, job: JobPlan) -> JobPlan:
    factor = 1 if job.short else dice.choice(LONGER)  # an array that forecasts its scales is of one packet
    return dataclasses.replace(job, slots=factor * job.slots, chunks=factor * job.chunks, checksum=False)


def _undamaged(fault: Fault) -> Fault:
    """Return the fault without damage to packets, which only checksums would show."""
    if fault.link is None:
        return fault
    return dataclasses.replace(fault, link=dataclasses.replace(fault.link, corrupt=0.0))


def _delay_s(dice: random.Random) -> float:
    return dice.choice((5e-6, 50e-6, 2e-3))


def _link(dice: random.Random) -> Link:
    """Draw a link with some of every fault; damage is included, so jobs need checksums."""
    much = dice.choice((0.02, 0.1, 0.3))

    def share() -> float:
        return round(dice.choice((0.0, 1.0)) * dice.random() * much, 3)

    return Link(
        delay_s=_delay_s(dice),
        bytes_per_s=dice.choice((1.25e9, 1e6)),
        queue_bytes=dice.choice((1 << 20, 1000)),
        loss=share(),
        duplicate=share(),
        reorder=share(),
        reorder_s=dice.choice((500e-6, 20e-3)),
        stray=share(),
        stray_s=dice.choice((0.05, 2.0)),
        corrupt=share(),
    )


def _loss(dice: random.Random, index: int, job: JobPlan) -> Fault:
    """Draw a fault in which a worker goes away and comes back."""
    return Fault(
        kind="crash" if dice.random() < 0.5 else "leave",
        at_s=round(dice.random() * BUSY_S, 4),
        for_s=round(dice.random() * LONGEST_FAULT_S, 4),
        job=index,
        rank=dice.randrange(job.workers),
    )


def _length_s(dice: random.Random, kind: FaultKind) -> float:
    if kind == "freeze":
        return dice.choice(FREEZES_S)
    return 0.0 if kind in ("evict", *TUNES) else round(dice.random() ** 3 * LONGEST_FAULT_S, 4)


def _fault(dice: random.Random, chaos: Chaos, jobs: tuple[JobPlan, ...], leaves: int) -> Fault:
    job = dice.randrange(len(jobs))
    workers = jobs[job].workers
    kinds = [kind for kind in chaos.kinds if not (kind == "evict" and jobs[job].tree)]
    mild = [kind for kind in kinds if kind in MILD]
    wild = [kind for kind in kinds if kind not in MILD]
    kind = dice.choice(mild if mild and (not wild or dice.random() < MILD_SHARE) else wild)
    leaf = dice.randrange(leaves) if leaves and kind in OF_A_LEAF and dice.random() < 0.5 else None
    of_one = kind in OF_A_WORKER or (leaf is None and kind not in ("restart", *OF_ALL, *TUNES) and dice.random() < 0.7)
    tunes = {"quorum": dice.randint(1, workers), "staleness": dice.randint(0, jobs[job].largest_staleness)}
    return Fault(
        kind=kind,
        at_s=round(dice.random() * BUSY_S, 4),
        for_s=_length_s(dice, kind),
        job=job,
        rank=dice.randrange(workers) if of_one else None,
        leaf=leaf,
        direction=dice.choice(get_args(Direction)) if kind in ("cut", "clog") else "both",
        value=tunes.get(kind),
        link=_link(dice) if kind == "degrade" else None,
    )

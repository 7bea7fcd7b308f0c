"""Simulates a job over several shards that survives the loss of some, in virtual time, and checks the outcome.

Every host has a rank and a shard; spare hosts have a shard alone. The controllers, the switch machines, the worker
machines, the agreement and what a rank keeps (host/session/survivor.py) are the real ones.

    fault  | what happens
    -------+----------------------------------------------------------------------------------------------------------
    dies   | the process of a shard ends: nothing listens at its port, and its ranks see that
    halts  | a shard falls silent, as without power
    kills  | the processes of a host, a rank and a shard, end
    power  | a host falls silent
    ends   | the process of a rank ends, and its host's shard goes on
    stops  | a rank falls silent, and its host's shard goes on
    part   | the network falls into two: hosts with lower numbers, and the others; for good
    cut    | nothing passes any more between a shard and one rank

A fault strikes at a time or, with `after`, at a time after the first rank has reached a step of going on:

    step     | the first rank
    ---------+--------------------------------------------------------------------------------------------------------
    asks     | has said which shards it has lost
    hears    | has heard the decision
    meets    | is a member of the new job at one of its shards
    goes on  | is a member at all of them, and deals out the unfinished reductions

What must hold
--------------
* *One job*: ranks that are members of a job of one name have the same ranks and shards in it. At the end all ranks that
  go on are in one job, which has no other members.
* *Once each*: these ranks have the same words as the result of a step. Each result that any rank has, also of one that
  has stopped, contains the contribution of each of them once, and that of any other rank at most once.
* *Nothing else*: the checks of single switches hold (ledger.py).
* *They go on*: every rank that may not stop does all steps. A rank may stop if it, or its host, was struck, or if it
  was parted from others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machine_kinds import switch_type, worker_type
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.recorder import Recorder
from fanin.emulation.simulator.shard_member import HANG_UP_S, WORDS, ShardMember
from fanin.emulation.simulator.switch_host import SwitchHost, SwitchSetup
from fanin.emulation.simulator.violations import (
    AgreementError,
    ConservationError,
    CrashError,
    ProgressError,
    ViolationError,
)
from fanin.emulation.simulator.virtual_network import Network
from fanin.errors import EvictedError, FaninError
from fanin.host.session.survivor import LostOnTheWay, Successor, Survivor, SurvivorState
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol import control
from fanin.protocol.job import OnWorkerLoss
from fanin.protocol.spread import Spread

FaultKind = Literal["dies", "halts", "kills", "power", "ends", "stops", "part", "cut"]
Step = Literal["asks", "hears", "meets", "goes on"]
KINDS: tuple[FaultKind, ...] = ("dies", "dies", "halts", "kills", "power", "part", "cut", "ends", "stops")
STEPS: tuple[Step, ...] = ("asks", "hears", "hears", "meets", "goes on")
"""The steps that a drawn fault may follow; repeated ones are drawn more often."""
DIGIT_BITS = 4
"""Bits of a result per rank, which count how often the rank's contribution is in it."""
LIVENESS_TIMEOUT_S = 1.0
POLL_S = 0.05
LIMIT_S = 30.0
MAX_EVENTS = 200_000
"""Eight times the events of the longest of some hundred drawn plans, so that ranks that ask for ever are noticed."""
AHEAD = 3
"""Most steps that a rank has under way."""
JOB = "spread"
Words = npt.NDArray[np.int32]
SurvivorType = Callable[..., Survivor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFault:
    """One fault of the table above."""

    kind: FaultKind
    host: int
    """The affected host; for `part`, the first host of the second part."""
    rank: int = 0
    """The rank that `cut` strikes."""
    at_s: float = 0.0
    after: Step | None = None
    """Step from which `at_s` counts; None: it counts from when all ranks work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """The plan of a run: hosts, work, link and faults."""

    hosts: int
    spares: int = 0
    steps: int = 20
    think_s: float = 0.02
    """Mean time between two steps of a rank."""
    packets: int = 6
    """Packets of a large step; every third step has one packet."""
    link: Link = field(default_factory=Link)
    faults: tuple[ShardFault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """The outcome of a run without a violation."""

    seed: int
    virtual_s: float
    jobs: int
    """Number of jobs that the ranks were in, one after another: 1 if no shard was lost."""
    ranks: int
    """Number of ranks that have done all steps."""
    stopped: tuple[str, ...]
    """Why ranks stopped that live; one text each."""
    packets: int


def draw_shards(seed: int) -> ShardPlan:
    """Draw a plan by its seed."""
    dice = random.Random(f"shards {seed}")
    hosts = dice.randint(2, 4)
    spares = dice.choice((0, 0, 0, 1))
    faults: list[ShardFault] = []
    for number in range(dice.choice((0, 1, 1, 1, 2, 2, 3))):
        kind = dice.choice(KINDS)
        after = dice.choice(STEPS) if number > 0 and dice.random() < 0.6 else None
        host = dice.randrange(hosts if kind in ("kills", "power", "ends", "stops") else hosts + spares)
        if kind == "part":
            host = dice.randint(1, hosts + spares - 1)
        at_s = dice.choice((0.0, 0.0005, 0.001, 0.01, 0.1)) * dice.random() if after else dice.uniform(0.0, 0.3)
        if number and not after:
            at_s += dice.choice((0.0, 0.0, 1.0, 3.0)) * dice.random()
        rank = dice.randrange(hosts) if kind == "cut" else 0
        faults.append(ShardFault(kind=kind, host=host, rank=rank, at_s=at_s, after=after))
    link = Link(
        loss=dice.choice((0.0, 0.0, 0.01, 0.05)), duplicate=dice.choice((0.0, 0.02)), reorder=dice.choice((0.0, 0.1)),
    )  # fmt: skip
    return ShardPlan(hosts=hosts, spares=spares, link=link, faults=tuple(faults), packets=dice.choice((3, 6, 13)))


def simulate_shards(
    plan: ShardPlan,
    seed: int,
    *,
    kind: Kind = "native",
    survivor: SurvivorType = Survivor,
    show: Callable[[str], None] | None = None,
) -> ShardReport:
    """Run a plan until all ranks are done or have stopped. A ViolationError says what does not hold; `survivor`
    replaces the class that keeps and agrees for a rank."""
    return ShardRun(plan, seed, kind, survivor, show).run()


class ShardRun:
    """One run in progress."""

    on_worker_loss: OnWorkerLoss = "continue"

    def __init__(
        self, plan: ShardPlan, seed: int, kind: Kind, survivor: SurvivorType, show: Callable[[str], None] | None
    ) -> None:
        self.plan, self.seed = plan, seed
        self.queue = EventQueue()
        self.recorder = Recorder(self.queue, show=show, pcap=None)
        dice = random.Random(seed)
        self.network = Network(self.queue, plan.link, dice)
        self.network.watchers.append(self.recorder)
        self.worker_type, self.survivor_type = worker_type(kind), survivor
        make = switch_type(kind)
        setup = SwitchSetup(
            network=self.network, make=make, make_leaf=make, dice=dice, memory_bytes=1 << 24,
            liveness_timeout_s=LIVENESS_TIMEOUT_S, note=self.recorder.note, evicted=lambda ledger: None,
        )  # fmt: skip
        shards = plan.hosts + plan.spares
        self.shards = [SwitchHost(setup, address=number, name=f"shard {number}") for number in range(shards)]
        for shard in self.shards:
            shard.start()
        self._addresses = shards
        self.parted_at: int | None = None
        self.paths_cut: set[tuple[int, int]] = set()
        """Pairs (rank, shard) between which nothing passes."""
        self.struck: set[int] = set()
        """Hosts that a fault has struck."""
        self.jobs: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
            JOB: (tuple(range(plan.hosts)), tuple(range(shards)))
        }
        """Ranks and shards of every job, by the job's name."""
        self.steps: set[Step] = set()
        """Steps that some rank has reached."""
        self.ranks = [ShardRank(self, number) for number in range(plan.hosts)]
        self._begun = 0

    def begun(self) -> None:
        """Note that a rank has begun to work; after the last, schedule the faults that follow no step."""
        self._begun += 1
        if self._begun == len(self.ranks):
            self.schedule(None)

    def schedule(self, after: Step | None) -> None:
        """Schedule the faults that follow this step, or none."""
        for fault in self.plan.faults:
            if fault.after == after:
                self.queue.after(fault.at_s, self.strike, fault)

    def run(self) -> ShardReport:
        try:
            self._run()
            self.judge()
        except ViolationError as violation:
            violation.locate(self.seed, self.queue.happened, self.queue.now, self.recorder.tail())
            raise
        except Exception as error:
            crash = CrashError(f"{type(error).__name__}: {error}")
            crash.locate(self.seed, self.queue.happened, self.queue.now, self.recorder.tail())
            raise crash from error
        going_on = [rank for rank in self.ranks if rank.going_on]
        return ShardReport(
            seed=self.seed,
            virtual_s=self.queue.now,
            jobs=1 + max(rank.survivor.dealt_anew for rank in self.ranks),
            ranks=len(going_on),
            stopped=tuple(str(rank.survivor.failure) for rank in self.ranks if rank.alive and not rank.going_on),
            packets=self.network.packets,
        )

    def _run(self) -> None:
        while not all(rank.finished for rank in self.ranks):
            if self.queue.next_at() > LIMIT_S or self.queue.happened > MAX_EVENTS:
                raise ProgressError("; ".join(f"{rank}" for rank in self.ranks if not rank.finished))
            self.queue.step()

    # --- faults ---

    def comes_to(self, step: Step) -> None:
        """Note that a rank has reached a step; on the first time, schedule the faults that follow it."""
        if step not in self.steps:
            self.steps.add(step)
            self.recorder.note(f"step: {step}")
            self.schedule(step)

    def strike(self, fault: ShardFault) -> None:
        """Let a fault happen."""
        self.recorder.note(f"fault: {fault}")
        if fault.kind == "part":
            self.parted_at = fault.host if self.parted_at is None else self.parted_at
        if fault.kind == "cut":
            self.paths_cut.add((fault.rank, fault.host))
        if fault.kind in ("part", "cut"):
            for rank in self.ranks:
                for member in rank.everywhere:
                    self.part(member)
            return
        if fault.kind in ("kills", "power", "ends", "stops"):
            self.struck.add(fault.host)
            self.ranks[fault.host].die(loudly=fault.kind in ("kills", "ends"))
        if fault.kind in ("ends", "stops"):
            return
        self.shards[fault.host].stop()
        if fault.kind in ("dies", "kills"):
            for rank in self.ranks:
                for member in rank.everywhere:
                    if member.number == fault.host and not self.apart(rank.number, fault.host):
                        self.queue.after(HANG_UP_S, member.hang_up)
        else:
            self.shards[fault.host].silent = True

    def apart(self, rank: int, shard: int) -> bool:
        """Whether a fault has separated a rank from a shard, so that no packet passes between them."""
        parted = self.parted_at is not None and (rank < self.parted_at) != (shard < self.parted_at)
        return parted or (rank, shard) in self.paths_cut

    def part(self, member: ShardMember) -> None:
        """Block both paths between a member's rank and its shard if a fault has separated the two."""
        if self.apart(member.rank, member.number):
            for one, other in ((member.address, member.host.address), (member.host.address, member.address)):
                self.network.pipe(one, other).blocked = 1

    def address(self) -> int:
        """Return an address that is not in use."""
        self._addresses += 1
        return self._addresses

    # --- what must hold ---

    def is_in(self, rank: ShardRank) -> None:
        """Check that a rank and the others in its present job agree on ranks and shards."""
        survivor = rank.survivor
        found = (survivor.ranks, survivor.shards)
        if (known := self.jobs.setdefault(survivor.name, found)) != found:
            raise AgreementError(f"{rank} is in job {survivor.name} with ranks and shards {found}, others with {known}")
        if rank.number not in survivor.ranks:
            raise AgreementError(f"{rank} is in job {survivor.name} of the ranks {survivor.ranks}")

    def judge(self) -> None:
        """Raise a ViolationError unless everything that must hold does."""
        going_on = [rank for rank in self.ranks if rank.going_on]
        names = {rank.survivor.name for rank in going_on}
        if len(names) > 1:
            raise AgreementError(
                f"ranks go on in unlike jobs: {[(rank.number, rank.survivor.name) for rank in going_on]}"
            )
        for step in range(1, self.plan.steps + 1):
            results = {rank.results[step].tobytes() for rank in going_on}
            if len(results) > 1:
                raise AgreementError(f"unlike results of step {step}")
            seen = {rank.results[step].tobytes(): rank.results[step] for rank in self.ranks if step in rank.results}
            for words in seen.values():
                self.judge_words(step, words, {each.number for each in going_on})
        self.judge_stops()

    def judge_words(self, step: int, words: Words, needed: set[int]) -> None:
        """Check a step's result: even words count contributors, a digit per rank; odd ones add up the step's number."""
        for digits, total in zip(words[::2].tolist(), words[1::2].tolist(), strict=True):
            counts = [digits >> DIGIT_BITS * rank & (1 << DIGIT_BITS) - 1 for rank in range(self.plan.hosts)]
            wrong = any(count > 1 for count in counts) or any(counts[rank] != 1 for rank in needed)
            if wrong or total != step * sum(counts) or digits >> DIGIT_BITS * self.plan.hosts:
                raise ConservationError(f"step {step}: contributions by rank are {counts}, and their number {total}")

    def judge_stops(self) -> None:
        stopped = [rank for rank in self.ranks if rank.alive and not rank.going_on]
        if not stopped or self.parted_at is not None:
            return  # either part may stop; `judge` has checked that they do not both go on
        cut_off = {rank for rank, _ in self.paths_cut}
        stopped = [rank for rank in stopped if rank.number not in cut_off]
        for rank in stopped:
            if not self._too_few():
                raise ProgressError(f"{rank} stopped: {rank.survivor.failure}")

    def _too_few(self) -> bool:
        """Whether the shards that fell silent together with ranks may have been the larger part of the network."""
        gone = {fault.host for fault in self.plan.faults if fault.kind in ("dies", "halts", "kills", "power", "cut")}
        silent = {fault.host for fault in self.plan.faults if fault.kind in ("halts", "power", "cut")}
        left = len(self.shards) - len(gone)
        missing = self.struck | {rank for rank, _ in self.paths_cut}
        return left == 0 or (2 * left <= left + len(silent) and bool(missing))


class ShardRank:
    """A rank as a process: a Survivor, its memberships, and its steps; surviving.py does this with threads."""

    def __init__(self, run: ShardRun, number: int) -> None:
        self.run, self.number = run, number
        self.alive = True
        self.everywhere: list[ShardMember] = []
        """Memberships in all jobs, earlier ones included."""
        self.results: dict[int, Words] = {}
        self._inputs: dict[int, Words] = {}
        self._survivor: Survivor | None = None
        self._at = self._joins(JOB, range(len(run.shards)), number, run.plan.hosts)
        self._found: dict[int, ShardMember] | None = None
        self._closed = False
        self._poked = False
        self._next_s = 0.0
        """Earliest time at which it submits the next step."""
        self._dice = random.Random(f"rank {number} {run.seed}")

    def __str__(self) -> str:
        state = "joins" if self._survivor is None else f"{self._survivor.state.name} in {self._survivor.name}"
        return f"rank {self.number} {state}, {len(self.results)} steps done"

    @property
    def survivor(self) -> Survivor:
        assert self._survivor is not None
        return self._survivor

    @property
    def going_on(self) -> bool:
        """Whether it is alive and has not stopped: it has done, or will do, all of its steps."""
        return self.alive and self._survivor is not None and self._survivor.failure is None

    @property
    def finished(self) -> bool:
        """Whether it is dead, has stopped, or has done all steps."""
        done = len(self.results) == self.run.plan.steps and self.survivor.state is SurvivorState.WHOLE
        return not self.alive or (self._survivor is not None and (done or self._survivor.state is SurvivorState.OVER))

    def die(self, *, loudly: bool) -> None:
        """End its process; `loudly`: the shards notice, because its connections close."""
        self.alive = False
        for member in self.everywhere:
            member.die()
            if loudly:
                member.host.hung_up(member.peer)

    # --- members ---

    def _joins(
        self, job: str, shards: Sequence[int], worker: int, workers: int, succeeds: control.Predecessor | None = None,
        loses_s: float = 0.0,
    ) -> dict[int, ShardMember]:  # fmt: skip
        members = {
            shard: ShardMember(
                self.run.shards[shard], shard, self.run.address(), rank=self.number, job=job, worker=worker,
                workers=workers, network=self.run.network, worker_type=self.run.worker_type, changed=self._changed,
                cut=self.run.part, succeeds=succeeds, loses_s=loses_s, on_worker_loss=self.run.on_worker_loss,
            )
            for shard in shards
        }  # fmt: skip
        self.everywhere += members.values()
        return members

    def _changed(self) -> None:
        """Schedule one `_turn` for whatever has changed."""
        if not self._poked:
            self._poked = True
            self.run.queue.at(self.run.queue.now, self._turn)

    def _poll(self) -> None:
        if self.alive and not self._closed:
            self._turn()
            self.run.queue.after(POLL_S, self._poll)

    def _turn(self) -> None:
        self._poked = False
        if not self.alive:
            return
        now = self.run.queue.now
        if self._survivor is None:
            if any(member.failure for member in self._at.values()):
                raise ProgressError(f"{self} could not join: {[member.failure for member in self._at.values()]}")
            if all(member.ready for member in self._at.values()):
                names = [f"shard {number}" for number in self._at]
                self._survivor = self.run.survivor_type(
                    JOB, self.number, self.run.plan.hosts, list(self._at.values()), Spread.evenly(len(self._at)), names
                )
                self._poll()
                self.run.begun()
            return
        survivor = self._survivor
        failures = {number: member.failure for number, member in self._at.items() if member.failure is not None}
        survivor.lose(failures, now)
        survivor.take_results(now)
        self._agree(now)
        if survivor.successor is not None:
            self._join(survivor.successor, now)
        self._collect()
        if survivor.state is SurvivorState.WHOLE:
            self._work(now)
        if survivor.state is SurvivorState.OVER and not self._closed:
            self._closed = True
            self.run.recorder.note(f"{self}: {survivor.failure}")
            for member in (*self._at.values(), *(self._found or {}).values()):
                member.close()

    def _agree(self, now: float) -> None:
        survivor = self.survivor
        if (agreement := survivor.agreement) is None:
            return
        agreement.handle_timer(now)
        for shard, request in agreement.requests(now):
            if not self.run.shards[shard].alive and not self.run.shards[shard].silent:
                continue  # this rank hears within HANG_UP_S that nothing listens there
            member = self._at[shard]
            member.replied_to = self._replied
            self.run.comes_to("asks")
            member.request(request)
        survivor.after_turn()
        if (agreement := survivor.agreement) is not None and (at := agreement.next_timer()) is not None:
            self.run.queue.at(max(at, now + 1e-4), self._turn)

    def _replied(self, shard: int, reply: control.Reply) -> None:
        if not self.alive or self._survivor is None or self._survivor.agreement is None:
            return
        if isinstance(reply, control.Regrouped):
            self.run.recorder.note(f"rank {self.number}: {reply}")
            self.run.comes_to("hears")
        self._survivor.agreement.receive(shard, reply, self.run.queue.now)
        self._changed()

    def _join(self, successor: Successor, now: float) -> None:
        if self._found is None:
            self._found = self._joins(
                successor.name, successor.shards, successor.worker, successor.workers, successor.succeeds,
                successor.loses_s,
            )  # fmt: skip
            return
        found = self._found
        if any(member.ready for member in found.values()):
            self.run.comes_to("meets")
        if not all(member.ready or member.over for member in found.values()):
            return
        self._found = None
        failures = [each.failure for each in found.values() if each.failure]
        told = next((each for each in failures if not isinstance(each, LostOnTheWay)), None)
        ready = {number: member for number, member in found.items() if member.ready}
        if told is not None or not ready:
            for member in found.values():
                member.close()
            evicted = (each for each in failures if isinstance(each, EvictedError))
            self.survivor.cannot_join(told or next(evicted, FaninError("all of them are lost")))
            return
        before = list(self._at.values())
        for member in before:
            member.abandon(FaninError("goes on elsewhere"))
        self._at = ready
        if self.run.on_worker_loss == "continue":
            for member in ready.values():
                member.stands_for(self.survivor.successors_ranks)
        self.survivor.joined(ready, now)
        if self.survivor.state is SurvivorState.WHOLE:
            self.run.is_in(self)
            self.run.comes_to("goes on")
        for member in before:
            member.close()

    # --- steps ---

    def _work(self, now: float) -> None:
        survivor, plan = self.survivor, self.run.plan
        while (
            survivor.state is SurvivorState.WHOLE
            and now >= self._next_s
            and survivor.submitted < plan.steps
            and survivor.submitted - len(self.results) < AHEAD
        ):
            self._next_s = now + plan.think_s * 2 * self._dice.random()
            self.run.queue.at(self._next_s, self._changed)
            step = survivor.submitted + 1
            count = 2 * (WORDS // 2) * (1 if step % 3 == 0 else plan.packets)
            words = np.empty(count, np.int32)
            words[::2], words[1::2] = 1 << DIGIT_BITS * self.number, step
            self._inputs[step] = words
            what = Reduction(
                source=words.ctypes.data, destination=words.ctypes.data, count=count, element=Element.INT32, owner=words
            )
            survivor.submit(what, now)

    def _collect(self) -> None:
        for step in list(self._inputs):
            if self.survivor.done(step):
                self.results[step] = self._inputs.pop(step)

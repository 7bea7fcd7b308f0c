"""Simulates a job over hosts with several network cards that goes on without a network, in virtual time.

Every host has a rank, and a shard at each of its cards; card c of all hosts is on network c. Ranks keep and agree by
host/session/card_survivor.py or, in a job that goes on without lost ranks (`leaves_out`), host/session/survivor.py. The
rest is that of shards.py, whose faults strike shards and hosts here, too: number `host` of `dies` and `halts` is a
shard's, and shard n is at card n // hosts of host n % hosts.

    fault | what happens
    ------+-----------------------------------------------------------------------------------------------------------
    card  | nothing passes any more between a host and the others through one of its cards
    flaps | the same, for a time: FLAP_S, which is shorter than any timeout, or, in jobs that go on without lost ranks,
          | also one that is near a timeout, or longer
    mute  | nothing that a host sends through one of its cards arrives any more; what others send to it does

What must hold
--------------
* *Every contribution*: each result that any rank has, also of one that has stopped, contains every rank's contribution
  once, and all ranks have the same.
* *They go on*: all ranks do all steps where faults strike one network alone. Else they may stop, each with an error:
  a second network may be lost while they join a job there.
* *One job*: as in shards.py.

In a job that goes on without lost ranks, what must hold is that of shards.py, and all ranks go on while there is a
network that no fault strikes, whenever faults strike the others.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.shard_member import ShardMember
from fanin.emulation.simulator.shards import (
    LIVENESS_TIMEOUT_S,
    STEPS,
    FaultKind,
    ShardFault,
    ShardPlan,
    ShardReport,
    ShardRun,
    Step,
)
from fanin.emulation.simulator.violations import AgreementError, ProgressError
from fanin.host.session.card_survivor import CardSurvivor
from fanin.host.session.survivor import Survivor
from fanin.protocol.job import OnWorkerLoss

FLAP_S = LIVENESS_TIMEOUT_S / 4
CardFaultKind = Literal["card", "flaps", "mute"]
CARD_KINDS: tuple[CardFaultKind, ...] = ("card", "card", "card", "flaps")
KINDS_WITHOUT_RANKS: tuple[CardFaultKind, ...] = ("card", "card", "flaps", "mute")
"""Kinds that are drawn for jobs that go on without lost ranks; repeated ones are drawn more often."""
FLAPS_WITHOUT_RANKS_S = (FLAP_S, 0.95 * LIVENESS_TIMEOUT_S, LIVENESS_TIMEOUT_S, 1.2 * LIVENESS_TIMEOUT_S, 4.0)
HOST_KINDS: tuple[FaultKind, ...] = ("dies", "halts", "kills", "power", "ends", "stops")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFault:
    """A fault of the table above."""

    kind: CardFaultKind
    host: int
    card: int
    at_s: float = 0.0
    after: Step | None = None
    lasts_s: float = FLAP_S
    """Time until a card that `flaps` is there again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """The plan of a run: hosts, cards, work, link and faults."""

    hosts: int
    cards: int = 2
    steps: int = 60
    packets: int = 6
    link: Link = Link()
    leaves_out: bool = False
    """Whether the job goes on without lost ranks (on_worker_loss="continue"); else with all (fallback="cards")."""
    card_faults: tuple[CardFault, ...] = ()
    faults: tuple[ShardFault, ...] = ()

    def only(self, faults: Collection[ShardFault | CardFault]) -> CardPlan:
        """The same plan with these of its faults alone."""
        return dataclasses.replace(
            self,
            card_faults=tuple(each for each in self.card_faults if each in faults),
            faults=tuple(each for each in self.faults if each in faults),
        )

    @property
    def networks_struck(self) -> set[int]:
        """The networks that faults take something from for longer than FLAP_S; all of them where a host is struck."""
        found = {each.card for each in self.card_faults if each.kind != "flaps" or each.lasts_s > FLAP_S}
        for each in self.faults:
            alone = each.kind in ("dies", "halts")
            found.update({each.host // self.hosts} if alone else range(self.cards))
        return found


def draw_cards(seed: int, *, leaves_out: bool = False) -> CardPlan:
    """Draw a plan by its seed."""
    dice = random.Random(f"cards {seed}")
    hosts, cards = dice.randint(2, 4), dice.choice((2, 2, 3))
    card_faults: list[CardFault] = []
    faults: list[ShardFault] = []
    alone = dice.randrange(cards)
    for number in range(dice.choice((1, 1, 2, 2, 3))):
        after = dice.choice(STEPS) if number > 0 and dice.random() < 0.6 else None
        at_s = dice.choice((0.0, 0.0005, 0.001, 0.01, 0.1)) * dice.random() if after else dice.uniform(0.0, 0.3)
        if number and not after:
            at_s += dice.choice((0.0, 0.0, 1.0, 3.0)) * dice.random()
        card = alone if dice.random() < 0.7 else dice.randrange(cards)
        if dice.random() < 0.75:
            kind = dice.choice(KINDS_WITHOUT_RANKS if leaves_out else CARD_KINDS)
            lasts_s = dice.choice(FLAPS_WITHOUT_RANKS_S) if leaves_out else FLAP_S
            host = dice.randrange(hosts)
            card_faults.append(CardFault(kind=kind, host=host, card=card, at_s=at_s, after=after, lasts_s=lasts_s))
            continue
        strikes = dice.choice(HOST_KINDS)
        host = dice.randrange(hosts) + (card * hosts if strikes in ("dies", "halts") else 0)
        faults.append(ShardFault(kind=strikes, host=host, at_s=at_s, after=after))
    link = Link(
        loss=dice.choice((0.0, 0.0, 0.01, 0.05)), duplicate=dice.choice((0.0, 0.02)), reorder=dice.choice((0.0, 0.1)),
    )  # fmt: skip
    return CardPlan(
        hosts=hosts, cards=cards, link=link, card_faults=tuple(card_faults), faults=tuple(faults),
        packets=dice.choice((3, 6, 13)), leaves_out=leaves_out,
    )  # fmt: skip


def simulate_cards(
    plan: CardPlan,
    seed: int,
    *,
    kind: Kind = "native",
    survivor: type[Survivor] | None = None,
    show: Callable[[str], None] | None = None,
) -> ShardReport:
    """Run a plan until all ranks are done or have stopped. A ViolationError says what does not hold; `survivor`
    replaces the class that keeps and agrees for a rank, and `show` gets a line per packet and event."""
    return _CardRun(plan, seed, kind, survivor or (Survivor if plan.leaves_out else CardSurvivor), show).run()


class _CardRun(ShardRun):
    """One run in progress."""

    def __init__(
        self, plan: CardPlan, seed: int, kind: Kind, survivor: type[Survivor], show: Callable[[str], None] | None
    ) -> None:
        self._cards = plan
        self.on_worker_loss: OnWorkerLoss = "continue" if plan.leaves_out else "raise"
        self._cut: set[tuple[int, int]] = set()
        """Hosts and cards through which nothing passes now."""
        self._mute: set[tuple[int, int]] = set()
        """Hosts and cards from which nothing arrives any more."""
        self._dead: set[tuple[int, int]] = set()
        """Hosts and cards through which nothing will ever pass again."""
        shards = ShardPlan(
            hosts=plan.hosts, spares=plan.hosts * (plan.cards - 1), steps=plan.steps, packets=plan.packets,
            link=plan.link, faults=plan.faults,
        )  # fmt: skip
        cards = [f"eth{card}" for card in range(plan.cards) for _ in range(plan.hosts)]
        keeps_by = functools.partial(survivor, cards=cards) if issubclass(survivor, CardSurvivor) else survivor
        super().__init__(shards, seed, kind, keeps_by, show)

    # --- faults ---

    def schedule(self, after: Step | None) -> None:
        super().schedule(after)
        for fault in self._cards.card_faults:
            if fault.after == after:
                self.queue.after(fault.at_s, self._cut_off, fault)

    def _cut_off(self, fault: CardFault) -> None:
        self.recorder.note(f"fault: {fault}")
        (self._mute if fault.kind == "mute" else self._cut).add((fault.host, fault.card))
        self._dead.update({(fault.host, fault.card)} if fault.kind == "card" else ())
        self._part_all()
        if fault.kind == "flaps":
            self.queue.after(fault.lasts_s, self._mend, fault)

    def _mend(self, fault: CardFault) -> None:
        if (fault.host, fault.card) not in self._dead:
            self.recorder.note(f"mended: {fault}")
            self._cut.discard((fault.host, fault.card))
            self._part_all()

    def _part_all(self) -> None:
        for rank in self.ranks:
            for member in rank.everywhere:
                self.part(member)

    def strike(self, fault: ShardFault) -> None:
        super().strike(fault)
        if fault.kind in ("kills", "power"):  # the host's shards at its other cards
            alike: FaultKind = "dies" if fault.kind == "kills" else "halts"
            for card in range(1, self._cards.cards):
                super().strike(ShardFault(kind=alike, host=fault.host + card * self.plan.hosts))

    def apart(self, rank: int, shard: int) -> bool:
        card, host = divmod(shard, self.plan.hosts)
        return rank != host and not self._cut.isdisjoint({(rank, card), (host, card)})

    def part(self, member: ShardMember) -> None:
        apart, (card, host) = self.apart(member.rank, member.number), divmod(member.number, self.plan.hosts)
        for one, other, sender in (
            (member.address, member.host.address, member.rank), (member.host.address, member.address, host),
        ):  # fmt: skip
            mute = member.rank != host and (sender, card) in self._mute
            self.network.pipe(one, other).blocked = int(apart or mute)

    # --- what must hold ---

    def judge(self) -> None:
        """Raise a ViolationError unless everything that must hold does."""
        if self._cards.leaves_out:
            super().judge()
            return
        everybody = set(range(self.plan.hosts))
        for step in range(1, self.plan.steps + 1):
            results = {each.results[step].tobytes(): each.results[step] for each in self.ranks if step in each.results}
            if len(results) > 1:
                raise AgreementError(f"unlike results of step {step}")
            for words in results.values():
                self.judge_words(step, words, everybody)
        names = {each.survivor.name for each in self.ranks if each.going_on}
        if len(names) > 1:
            raise AgreementError(f"ranks go on in unlike jobs: {names}")
        self.judge_stops()

    def judge_stops(self) -> None:
        stopped = [each for each in self.ranks if each.alive and not each.going_on]
        survived = self._cards.cards - 1 if self._cards.leaves_out else 1
        if stopped and len(self._cards.networks_struck) <= survived:
            told = "; ".join(f"{each}: {each.survivor.failure}" for each in stopped)
            raise ProgressError(f"ranks stopped, and networks were lost that may be, {survived} at most: {told}")

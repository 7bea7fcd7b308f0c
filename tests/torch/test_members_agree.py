"""Members of meetings come, die and are cut off at every moment, in virtual time: the agreement and the ledger."""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from fanin.host.torch.training.meetings.agreement import (
    BEGINNING,
    NOTHING,
    Adopt,
    Agreement,
    Notice,
    Patience,
    Propose,
    Pulse,
    Record,
    notice_of,
    record_of,
    to_text,
)
from fanin.host.torch.training.meetings.ledger import Ledger

SCHEDULES = 10_000 if os.environ.get("FANIN_TEST_PROFILE") == "soak" else 1_000
BEAT_S, POLL_S, FORM_S = 0.5, 0.25, 4.0
PATIENCE = Patience(silent_s=2.0, longest_s=20.0, turn_s=0.5)
ENDS_S, SETTLES_S = 40.0, 110.0
"""Nothing happens to members after the first; by the second, what is left trains together."""

Delta = tuple[int, int]


class Group:
    """The ranks of one epoch: meetings that complete when all have handed in, until one rank is gone."""

    def __init__(self, world: World, record: Record) -> None:
        self.world, self.record = world, record
        self.joined: set[int] = set()
        self.broken = False
        self.begun = False
        self.handed: dict[int, dict[int, tuple[Delta, ...]]] = {}
        self.last: int | None = None
        """The epoch's last meeting, whose roll has said that somebody waits."""

    def join(self, member: Member) -> None:
        self.joined.add(member.id)
        if self.joined == set(self.record.members) and not self.broken:
            self.begun = True
            for each in self.joined:
                self.world.later(self.world.random.uniform(0, 0.2), self.world.members[each].formed, self)

    def hand_in(self, member: int, number: int, deltas: tuple[Delta, ...]) -> None:
        handed = self.handed.setdefault(number, {})
        handed[member] = deltas
        if len(handed) == len(self.record.members) and not self.broken:
            if self.last is None and self.world.somebody_waits():
                self.last = number
            content = tuple(sorted(each for said in handed.values() for each in said))
            for each in handed:
                self.world.later(
                    self.world.random.uniform(0, 0.5), self.world.members[each].result, self, number, content
                )

    def lose(self, gone: int) -> None:
        """A rank is gone: the others hear of it one by one, perhaps without its name."""
        if not self.broken:
            self.broken = True
            named = (gone,) if self.world.random.random() < 0.8 else ()
            for each in self.record.members:
                self.world.later(self.world.random.uniform(0, 1.5), self.world.members[each].broke, self, named)


class World:
    """Virtual time, and a store."""

    def __init__(self, seed: int, founders: int, overlap: bool) -> None:
        self.random = random.Random(seed)
        self.overlap = overlap
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()
        self.record = BEGINNING
        self.records = [BEGINNING]
        self.notices: dict[int, Notice] = {}
        self.founders = founders
        self.members: dict[int, Member] = {}
        self.groups: dict[int, Group] = {}

    def later(self, after_s: float, act: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (self.now_s + after_s, next(self._order), act, arguments))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act, arguments = heapq.heappop(self._events)
            act(*arguments)
        self.now_s = until_s

    def come(self) -> Member:
        member = Member(self, len(self.members))
        self.members[member.id] = member
        return member

    def somebody_waits(self) -> bool:
        there = (self.members[each] for each, said in self.notices.items() if said.epoch < self.record.number)
        return any(each.dead_s is None and each.agreement is not None and not each.away for each in there)

    def compare_and_set(self, before: int, record: Record) -> None:
        if self.record.number == before:
            self.record = record_of(to_text(record))
            self.records.append(record)


class Member:
    """A process: it trains by numbers in place of gradients."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.id = world, number
        self.ledger = Ledger()
        self.pulse = Pulse(PATIENCE.silent_s)
        self.history: list[tuple[Delta, ...]] | None = None
        self.pending: list[Delta] = []
        self.handed: dict[int, tuple[Delta, ...]] = {}
        self.results: dict[int, tuple[Delta, ...]] = {}
        self.backlog: dict[int, tuple[Delta, ...]] = {}
        self.made = itertools.count()
        self.dropped: list[Delta] = []
        """Handed in or not, by a member whose state counts no more."""
        self.dead_s: float | None = None
        self.cut: tuple[float, float] = (0.0, 0.0)
        self.group: Group | None = None
        self.agreement: Agreement | None = None
        self.number = 0
        self.waits_for: int | None = None
        self.state: tuple[int, list[tuple[Delta, ...]]] | None = None
        self.step = 0
        world.later(0.0, self.ask, ())

    # --- time ---

    @property
    def away(self) -> bool:
        return self.cut[0] <= self.world.now_s < self.cut[1]

    @property
    def beats(self) -> int:
        now_s = self.world.now_s if self.dead_s is None else self.dead_s
        missed = max(0.0, min(now_s, self.cut[1]) - self.cut[0])
        return int((now_s - missed) / BEAT_S)

    def die(self) -> None:
        if self.dead_s is None:
            self.dead_s = self.world.now_s
            self._vanish()

    def cut_off(self, for_s: float) -> None:
        self.cut = (self.world.now_s, self.world.now_s + for_s)
        self._vanish()

    def _vanish(self) -> None:
        if self.group is not None:
            self.group.lose(self.id)

    # --- the next epoch ---

    def ask(self, lost: tuple[int, ...]) -> None:
        self.group, self.state, self.waits_for = None, None, None
        self.own = self.ledger.notice(self.id, self.step, lost)
        self.posted = False
        self.agreement = Agreement(self.own, self.world.founders, 1, PATIENCE, self.pulse, self.world.now_s)
        self.look()

    def look(self) -> None:
        world = self.world
        if self.dead_s is not None or self.agreement is None:
            return
        if not self.away:
            if not self.posted:
                world.notices[self.id] = notice_of(to_text(self.own))
                self.posted = True
            self.pulse.hear(world.now_s, {each: world.members[each].beats for each in world.notices})
            decision = self.agreement.decide(world.now_s, world.record, world.notices)
            if isinstance(decision, Adopt):
                self.adopt(decision.record)
                return
            if isinstance(decision, Propose):
                world.later(world.random.uniform(0, 0.1), world.compare_and_set, world.record.number, decision.record)
        world.later(POLL_S * world.random.uniform(0.5, 1.5), self.look)

    def adopt(self, record: Record) -> None:
        self.agreement = None
        self.world.notices[self.id] = replace(self.own, epoch=record.number, asks=False)
        settled = self.ledger.adopt(self.own, record)
        for number in settled.again:
            self.pending += self.handed.pop(number)
        if settled.standing == "new":
            self.dropped += [*self.pending, *(each for said in self.handed.values() for each in said)]
            self.dropped += [each for meeting in self.history or () for each in meeting if each[0] == self.id]
            self.history, self.pending, self.handed = None, [], {}
        self.backlog, self.results = {}, {}
        self.number, self.step = record.landed, record.step
        group = self.world.groups.setdefault(record.number, Group(self.world, record))
        self.group = group
        self.world.later(self.world.random.uniform(0, 0.3), self.form, group)

    def form(self, group: Group) -> None:
        if self.dead_s is None and self.group is group:
            if not self.away:
                group.join(self)
            self.world.later(FORM_S, self.give_up_forming, group)

    def give_up_forming(self, group: Group) -> None:
        if self.group is group and self.dead_s is None and not group.begun:
            group.lose(self.id)
            self.ask(())

    def formed(self, group: Group) -> None:
        if self.group is not group or self.dead_s is not None or group.broken:
            return
        if group.record.founding:
            self.ledger.founded()
            self.history = []
        if self.ledger.listens:
            self.world.later(self.world.random.uniform(0.1, 12.0), self.fetch, group)
            self.listen(group)
        else:
            self.train(group)

    # --- training ---

    def train(self, group: Group) -> None:
        self.world.later(self.world.random.uniform(0.5, 2.0), self.trained, group)

    def trained(self, group: Group) -> None:
        if self.group is not group or self.dead_s is not None:
            return
        self.step += 1
        self.pending.append((self.id, next(self.made)))
        if self.number - 1 in self.handed:  # of an overlapped meeting: its result must be there first
            self.waits_for = self.number - 1
            self.land(group)
        else:
            self.launch(group)

    def launch(self, group: Group) -> None:
        number, self.number = self.number, self.number + 1
        self.handed[number], self.pending = tuple(self.pending), []
        self.ledger.launched(number)
        group.hand_in(self.id, number, self.handed[number])
        if self.world.overlap:
            self.train(group)
        else:
            self.waits_for = number

    def result(self, group: Group, number: int, content: tuple[Delta, ...]) -> None:
        if self.group is not group or self.dead_s is not None or self.away:
            return
        if group.broken and self.world.random.random() < 0.5:
            return
        self.results[number] = content
        if self.ledger.listens:
            self.hear(group)
        else:
            self.land(group)

    def land(self, group: Group) -> None:
        if self.waits_for is None or self.waits_for not in self.results:
            return
        number, self.waits_for = self.waits_for, None
        assert self.history is not None
        del self.handed[number]
        self.ledger.note_landed(number)
        self.history.append(self.results.pop(number))
        if number == group.last:
            self.ask(())
        elif self.world.overlap:
            self.launch(group)
        else:
            self.train(group)

    def broke(self, group: Group, lost: tuple[int, ...]) -> None:
        if self.group is group and self.dead_s is None:
            self.ask(lost)

    # --- listening ---

    def listen(self, group: Group) -> None:
        if not self.ledger.full:
            group.hand_in(self.id, self.ledger.hears_next, ())

    def fetch(self, group: Group) -> None:
        """A holder hands over what it has at this moment; one that is gone is asked in vain."""
        if self.group is not group or self.dead_s is not None:
            return
        giver = self.world.members[self.world.random.choice(group.record.holders)]
        if giver.group is group and giver.dead_s is None and not (giver.away or self.away):
            assert giver.history is not None
            self.state = (giver.ledger.next, list(giver.history))
            if self.ledger.full:
                self.arrive(group)
        else:
            self.world.later(1.0, self.fetch, group)

    def hear(self, group: Group) -> None:
        while (number := self.ledger.hears_next) in self.results:
            self.backlog[number] = self.results.pop(number)
            self.ledger.heard(number)
            if number == group.last:
                self.ask(())
                return
            if self.state is not None and self.arrive(group):
                return
            self.listen(group)

    def arrive(self, group: Group) -> bool:
        assert self.state is not None
        version, history = self.state
        arrived = self.ledger.arrived(version)
        if arrived is None:
            return False
        self.history = history + [self.backlog[number] for number in arrived.apply]
        for number in arrived.counted:
            del self.handed[number]
        self.number = self.ledger.next
        self.train(group)
        return True


def disturb(world: World) -> None:
    """Deaths, cut-offs and newcomers at random moments; one member at least stays."""
    chance = world.random
    for _ in range(chance.randrange(1, 6)):
        at_s, what = chance.uniform(0.0, ENDS_S), chance.random()
        if what < 0.4:
            world.later(at_s, _kill_one, world)
        elif what < 0.55:
            for_s = chance.uniform(0.5, 8.0)
            world.later(at_s, _cut_half, world, for_s)
        else:
            world.later(at_s, _newcomer, world)


def _alive(world: World) -> list[Member]:
    return [each for each in world.members.values() if each.dead_s is None]


def _kill_one(world: World) -> None:
    if len(_alive(world)) > 1:
        world.random.choice(_alive(world)[1:]).die()


def _newcomer(world: World) -> None:
    if world.random.random() < 0.3:
        world.later(world.random.uniform(0.1, 6.0), world.come().die)
    else:
        world.come()


def _cut_half(world: World, for_s: float) -> None:
    there = [each for each in _alive(world) if not each.away and each.cut == (0.0, 0.0)]
    for each in there[1::2]:
        each.cut_off(for_s)


def check(world: World, seed: int) -> str:
    """Every promise that holds for all schedules; how it ended."""
    numbers = [each.number for each in world.records]
    assert numbers == list(range(len(numbers))), seed
    left = _alive(world)
    holders = [each for each in left if each.group is not None and not each.ledger.listens and each.history is not None]
    if not holders:
        stuck = [each for each in left if each.agreement is not None and each.posted]
        assert len(stuck) == len(left), f"seed {seed}: nobody trains, and not all of those left ask"
        assert all(each.ledger.next == NOTHING or each.own.epoch < world.record.number for each in stuck), seed
        return "lost"
    group = holders[0].group
    assert group is not None
    assert all(each.group is group for each in holders), f"seed {seed}: two groups train"
    assert not group.broken, seed
    whole = max((each.history for each in holders if each.history is not None), key=len)
    for each in holders:
        assert each.history is not None
        assert each.history == whole[: len(each.history)], f"seed {seed}: replicas differ"
        assert len(each.history) == each.ledger.next
    counted = Counter(delta for meeting in whole for delta in meeting)
    assert all(count == 1 for count in counted.values()), f"seed {seed}: a delta counts twice"
    for each in left:
        own = [*each.pending, *(delta for said in each.handed.values() for delta in said)]
        assert len(own) == len(set(own)), f"seed {seed}: member {each.id}"
    for each in holders:
        elsewhere = {*each.pending, *each.dropped, *(delta for said in each.handed.values() for delta in said)}
        assert not counted.keys() & set(each.pending), f"seed {seed}: member {each.id} would hand in twice"
        for number, said in each.handed.items():
            assert number >= len(whole) or set(said) <= counted.keys(), f"seed {seed}: meeting {number}"
        made = {(each.id, number) for number in range(next(each.made))}
        assert made == {delta for delta in counted if delta[0] == each.id} | elsewhere, f"seed {seed}: member {each.id}"
    return "trains"


def run(seed: int) -> tuple[World, str]:
    founders = 2 + seed % 3
    world = World(seed, founders, overlap=seed % 5 < 2)
    for _ in range(founders):
        world.come()
    disturb(world)
    world.run(SETTLES_S)
    return world, check(world, seed)


def test_replicas_are_alike_and_every_delta_counts_once_whatever_comes_or_goes() -> None:
    ended, epochs, grown = Counter[str](), 0, 0
    for seed in range(SCHEDULES):
        world, how = run(seed)
        ended[how] += 1
        epochs += world.record.number
        grown += len(world.record.members) > world.founders
    assert ended["trains"] > 0.97 * SCHEDULES, ended
    assert epochs > 2 * SCHEDULES
    assert grown > SCHEDULES // 20

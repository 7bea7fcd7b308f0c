"""Local steps whose members come and go: threads of this process (test_elastic_kill.py kills processes)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import nn
from torch._C import _distributed_c10d as c10d

from fanin.errors import AdmissionError, ConfigurationError, StoreSilentError, WorkerLostError
from fanin.host.torch import ElasticLocalSteps, Members, Outer
from fanin.host.torch.training.meetings import state_transfer
from fanin.host.torch.training.meetings.agreement import Patience
from fanin.host.torch.training.meetings.schedule import Land, Schedule
from fanin.options import Options
from tests.support.processes import DEADLINE_S, a_switch, in_thread

DILOCO = Outer(lr=0.7, momentum=0.9, nesterov=True)
HASTY = Patience(silent_s=3.0, lost_s=1.0, turn_s=0.2)
ENDS_S = 4 * DEADLINE_S
"""Far more than a training here takes; members wait for silence several times."""
AFTER = 5
"""Meetings for which members go on once the last one has come."""
RATE = 0.05
SEEDED = threading.Lock()

KINDS: dict[str, dict[str, Any]] = {
    "one fragment": {"period": 3, "codec": "8/8"},
    "streaming": {"period": 6, "fragments": 2, "overlap": 2, "mix": 0.5, "codec": "rotated:8/8"},
}

COUNTED: dict[str, dict[str, Any]] = {
    "waits": {"period": 3},
    "overlap": {"period": 4, "overlap": 2, "mix": "keep"},
}


@pytest.fixture(scope="module")
def switch() -> Iterator[str]:
    with a_switch("native-udp") as running:
        yield str(running.address)


def network() -> nn.Module:
    with SEEDED:  # members are threads, which share torch's generator
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


class Place:
    """The store and the switch of some members, and the meetings after which they stop."""

    def __init__(self, switch: str, founders: int, **given: Any) -> None:
        self.store = c10d.HashStore()
        self.founders, self.given = founders, {"outer": DILOCO} | given
        self.options, self.patience = Options(switch=switch, join_timeout_s=20.0), HASTY
        self.act: Callable[[ElasticLocalSteps], None] = learn
        self.made: Counter[tuple[int, int]] = Counter()
        """Steps by meeting, the one that they go into, and member."""
        self.goal: int | None = None
        """Meetings after which everybody stops; None: not known yet."""
        self.mortal = -1
        """Number of the member that dies."""
        self.vanished = threading.Event()
        """Whether it has died."""
        self.survived = 0
        """Meetings that had landed at a member which goes on when the other died."""

    def member(self, **given: Any) -> ElasticLocalSteps:
        members = Members(self.store, founders=self.founders, options=self.options, patience=self.patience)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        return ElasticLocalSteps(model, optimizer, members, **self.given | given)

    def founder(self, until: Callable[[ElasticLocalSteps], bool] | None = None) -> list[torch.Tensor]:
        """Train to the goal, or vanish at a moment of one's own."""
        training = self.member()
        return self._train(training, until)

    def newcomer(self) -> list[torch.Tensor]:
        """Come, and say how far everybody goes on."""
        training = self.member()
        assert training.meetings > 0
        self.goal = training.meetings + AFTER
        return self._train(training, None)

    def _train(
        self, training: ElasticLocalSteps, until: Callable[[ElasticLocalSteps], bool] | None
    ) -> list[torch.Tensor]:
        while self.goal is None or training.meetings < self.goal:
            if until is not None and until(training):
                vanish(training)
                self.vanished.set()
                return []
            self.act(training)
        training.flush()
        weights = [each.detach().clone() for each in training.model.state_dict().values()]
        assert training.in_step
        training.leave()
        return weights


def learn(training: ElasticLocalSteps) -> None:
    """One step, on data of this member and step."""
    generator = torch.Generator().manual_seed(100 * training.steps + training._members.id)
    inputs, targets = torch.randn(8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)
    training.zero_grad()
    nn.functional.cross_entropy(training.model(inputs), targets).backward()
    training.step()


def vanish(training: ElasticLocalSteps) -> None:
    """Die, as far as the others can see: no more beats, no farewell, no connection."""
    training._members.stop()
    training.group.abort()


def trained(place: Place, act: Callable[[ElasticLocalSteps], None] = learn) -> list[list[torch.Tensor]]:
    """Everyone's weights in the end: one of three members dies in a period, and then another comes."""
    place.act = act
    alone = threading.Event()

    def dies(training: ElasticLocalSteps) -> bool:
        place.mortal = training._members.id
        return training.meetings >= 2 and training.steps % place.given["period"] == 1

    def looks(training: ElasticLocalSteps) -> bool:
        if training.meetings >= 3 and training.members == 2:
            place.survived = training._members.record.landed
            alone.set()
        return False

    ends: list[Future[Any]] = [
        in_thread(lambda: place.founder(looks)), in_thread(place.founder), in_thread(lambda: place.founder(dies))
    ]  # fmt: skip
    assert alone.wait(ENDS_S), "the others do not go on without it"
    ends.append(in_thread(place.newcomer))
    everyones = [each.result(ENDS_S) for each in reversed(ends)][::-1]  # the last one knows most of what failed
    assert everyones.pop(2) == []
    return everyones


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_dies_between_meetings_and_another_comes_and_all_have_the_same_bits(switch: str, kind: str) -> None:
    everyones = trained(Place(switch, 3, **KINDS[kind]))
    assert all(torch.equal(own, first) for each in everyones for own, first in zip(each, everyones[0], strict=True))
    assert all(bool(each.isfinite().all()) for each in everyones[0])


@pytest.mark.parametrize("given", COUNTED.values(), ids=COUNTED)
def test_every_step_counts_once_whoever_dies_or_comes(switch: str, given: dict[str, Any]) -> None:
    """Each step moves each weight by one, on every member: so their means move by as many as each meeting has steps.

    Members need not have made equally many: one hears of a death in the middle of a period, another at its end. Steps
    of the one that dies count up to the last meeting that another member has landed. Of an overlapped meeting a
    newcomer leaves out as many steps as the others have made meanwhile.
    """
    check_that_every_step_counts_once(Place(switch, 3, outer=Outer(), **given))


@pytest.mark.parametrize("given", COUNTED.values(), ids=COUNTED)
def test_steps_of_a_member_that_dies_count_nowhere_if_it_alone_has_landed_them(
    switch: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others hear of its death before they have the meeting's sums, as happens where their packets come late."""
    place = Place(switch, 3, outer=Outer(), **given)
    land = ElasticLocalSteps._land

    def late(training: ElasticLocalSteps, action: Land) -> None:
        members, number = training._members.record.members, action.number
        if training._members.record.number == 1 and number == 1 and training._members.id != place.mortal:
            assert place.vanished.wait(DEADLINE_S)
            raise WorkerLostError((members.index(place.mortal),), "it died before its sums came")
        land(training, action)

    monkeypatch.setattr(ElasticLocalSteps, "_land", late)
    check_that_every_step_counts_once(place)
    assert place.survived == 1


def check_that_every_step_counts_once(place: Place) -> None:
    def step(training: ElasticLocalSteps) -> None:
        for each in training.model.parameters():
            each.grad = torch.full_like(each, 1 / RATE)
        place.made[training.meetings, training._members.id] += 1
        training.step()

    for weights in trained(place, step):
        moved = network()[0].bias.detach() - weights[1]  # type: ignore[index]
        counted = {key: n for key, n in place.made.items() if key[1] != place.mortal or key[0] < place.survived}
        by_meeting = {meeting: [n for (at, _), n in counted.items() if at == meeting] for meeting, _ in counted}
        expected = torch.full_like(moved, sum(sum(each) / len(each) for each in by_meeting.values()))
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=place.given.get("overlap", 0) / 3)


def test_members_go_on_alone_and_a_newcomer_makes_them_two(switch: str) -> None:
    place = Place(switch, 1, period=2)
    came = threading.Event()

    def look(training: ElasticLocalSteps) -> bool:
        if training.meetings >= 1:
            came.set()
        return False

    alone = in_thread(lambda: place.founder(look))
    assert came.wait(ENDS_S)
    newcomer = in_thread(place.newcomer)
    one: Any = alone.result(ENDS_S)
    other: Any = newcomer.result(ENDS_S)
    assert all(map(torch.equal, one, other))


def test_members_that_cannot_reach_each_other_hand_the_state_over_in_the_store(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(state_transfer, "Source", unreachable)
    monkeypatch.setattr(state_transfer, "CHUNK_BYTES", 64)  # many more of them than the store holds at a time
    test_members_go_on_alone_and_a_newcomer_makes_them_two(switch)


def test_a_process_that_would_train_something_else_is_told_at_once(switch: str) -> None:
    place = Place(switch, 1, period=2)
    training = place.member()
    try:
        with pytest.raises(ConfigurationError, match="period differs"):
            place.member(period=3)
    finally:
        training.leave()


def test_founders_that_do_not_come_are_an_error_within_a_stated_time() -> None:
    place = Place("udp://127.0.0.1:9", 2, period=2)
    place.options, place.patience = Options(join_timeout_s=0.1), Patience(longest_s=0.1)
    with pytest.raises(AdmissionError, match="1 of 2 processes have come"):
        place.member()


@pytest.mark.parametrize(
    ("changed", "founders", "refusal"),
    [
        ({"MASTER_ADDR": ""}, 1, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "http"}, 1, "MASTER_PORT='http' is no number"),
        ({"MASTER_PORT": "70000"}, 1, "MASTER_PORT=70000; must be in 1..65535"),
        ({"WORLD_SIZE": "two"}, None, "WORLD_SIZE='two' is no number"),
        ({}, 0, "founders = 0"),
    ],
)
def test_variables_that_name_no_store_are_refused_before_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], founders: int | None, refusal: str
) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1", **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=refusal):
        Members.from_environment(founders=founders)


def test_a_store_that_nobody_serves_is_an_error_within_a_stated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreSilentError, match=r"nobody serves the store at MASTER_ADDR=127\.0\.0\.1, MASTER_PORT=1"):
        Members.from_environment(founders=1, options=Options(join_timeout_s=0.3))


def test_an_overlap_of_a_whole_period_is_refused(switch: str) -> None:
    with pytest.raises(ConfigurationError, match="below the shortest period"):
        Place(switch, 1, period=2, overlap=2).member()


@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_a_newcomer_has_the_schedule_of_those_that_train(fragments: int) -> None:
    period = 7
    founder, newcomer = Schedule(fragments), Schedule(fragments)
    launched = 0
    while launched < 2 * fragments + 1:
        if founder.period is None:
            founder.begin(period)
        if not founder.stepped():
            continue
        launched += 1
        newcomer.resume(founder.number - 1, founder.step, period, founder.met, skipped=1, following=period)
        while founder.next_meeting(period).in_steps > 1:  # type: ignore[union-attr]
            if founder.period is None:
                founder.begin(period)
            assert founder.stepped() == []
            if newcomer.step < founder.step:
                newcomer.stepped()
        assert newcomer.step == founder.step
        assert newcomer.next_meeting() == founder.next_meeting()

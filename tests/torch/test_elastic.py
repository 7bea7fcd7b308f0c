"""Local steps whose members come and go. Members are threads of this process; others are killed in test_elastic_kill.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import nn
from torch._C import _distributed_c10d as c10d

from fanin.errors import AdmissionError, ConfigurationError
from fanin.host.torch import ElasticLocalSteps, Members, Outer
from fanin.host.torch.training.meetings.agreement import Patience
from fanin.host.torch.training.meetings.schedule import Schedule
from fanin.options import Options
from tests.support.processes import DEADLINE_S, a_switch, in_thread

DILOCO = Outer(lr=0.7, momentum=0.9, nesterov=True)
HASTY = Patience(silent_s=3.0, lost_s=1.0, turn_s=0.2)
AFTER = 5
"""Meetings for which members go on once the last one has come."""
SEEDED = threading.Lock()

KINDS: dict[str, dict[str, Any]] = {
    "one fragment": {"period": 3},
    "8/8 with a residual": {"period": 3, "codec": "8/8"},
    "streaming": {"period": 6, "fragments": 2, "overlap": 2, "mix": 0.5, "codec": "8/8"},
    "keeping": {"period": 4, "overlap": 2, "mix": "keep"},
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
    """Where members meet, and how far they go."""

    def __init__(self, switch: str, founders: int, **given: Any) -> None:
        self.store = c10d.HashStore()
        self.founders, self.given = founders, {"outer": DILOCO} | given
        self.options = Options(switch=switch, join_timeout_s=20.0)
        self.goal: int | None = None
        """Meetings after which everybody stops; None: not known yet."""

    def member(self, **given: Any) -> ElasticLocalSteps:
        members = Members(self.store, founders=self.founders, options=self.options, patience=HASTY)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
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
                return []
            learn(training)
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
    training._members._closing.set()
    training.group.abort()  # type: ignore[attr-defined]


def alike(everyones: list[list[torch.Tensor]]) -> bool:
    return all(torch.equal(one, other) for each in everyones[1:] for one, other in zip(everyones[0], each, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_dies_between_meetings_and_another_comes_and_all_have_the_same_bits(switch: str, kind: str) -> None:
    place = Place(switch, 3, **KINDS[kind])
    seen = threading.Event()

    def dies(training: ElasticLocalSteps) -> bool:
        return training.meetings >= 2 and training.steps % 2 == 1

    def first() -> list[torch.Tensor]:
        def look(training: ElasticLocalSteps) -> bool:
            if training.meetings >= 3 and training.members == 2:
                seen.set()
            return False

        return place.founder(look)

    ends: list[Future[Any]] = [in_thread(first), in_thread(place.founder), in_thread(lambda: place.founder(dies))]
    assert seen.wait(DEADLINE_S), "the others do not go on without it"
    ends.append(in_thread(place.newcomer))
    everyones = [each.result(DEADLINE_S) for each in ends]
    assert everyones.pop(2) == []
    assert alike(everyones)
    assert all(bool(each.isfinite().all()) for each in everyones[0])

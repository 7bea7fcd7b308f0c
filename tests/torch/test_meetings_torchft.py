"""torchft's LocalSGD and DiLoCo over fanin's process group, against local steps of ours with the same rules.

The manager is a stand-in that always has its quorum: who is in it is torchft's matter, what is summed ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn
from torch._C import _distributed_c10d as c10d

import fanin.host.torch
from fanin.host.torch import LocalSteps, Outer
from fanin.options import Options
from tests.support.processes import on_every
from tests.support.services import a_service, address_of
from tests.torch.groups import groups_of, on_every_rank

local_sgd = pytest.importorskip(
    "torchft.local_sgd", reason="torchft is not installed: pip install 'fanin[torchft]'", exc_type=ImportError
)

SIZE = 3
PERIOD = 4
STEPS = 12
RATE = 0.05
SEEDED = threading.Lock()


class Manager:
    """A torchft.Manager whose replicas are all there."""

    _use_async_quorum = False

    def __init__(self, group: Any) -> None:
        self._group, self._step = group, 0

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Any:
        options: Any = c10d.AllreduceOptions()
        options.reduceOp = c10d.ReduceOp.AVG
        return self._group.allreduce([tensor], options)

    def current_step(self) -> int:
        return self._step

    def should_commit(self) -> bool:
        self._step += 1
        return True

    def start_quorum(self) -> None:
        """Nobody comes or goes."""

    def allow_state_dict_read(self) -> None:
        """Nobody reads a checkpoint here."""

    disallow_state_dict_read = allow_state_dict_read

    def register_state_dict_fn(self, *_: Any) -> None:
        """Nobody recovers from a state here."""


def network() -> nn.Module:
    with SEEDED:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 4))


def train(model: nn.Module, rank: int, step: Callable[[], object]) -> list[torch.Tensor]:
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(100 * number + rank)
        inputs = torch.randn(8, 8, generator=generator)
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.arange(8) % 4).backward()
        step()
    return [each.detach().clone() for each in model.parameters()]


def ours(outer: Outer) -> list[torch.Tensor]:
    """Rank 0's weights after local steps."""
    with groups_of(Options()) as groups:

        def act(rank: int) -> list[torch.Tensor]:
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            return train(model, rank, LocalSteps(model, optimizer, period=PERIOD, outer=outer, group=groups[rank]).step)

        return on_every_rank(act)[0]  # type: ignore[return-value]


@pytest.fixture(scope="module")
def groups() -> Iterator[list[Any]]:
    """Configured for one quorum of all, as a Manager does it."""
    with a_service(schemes=("udp",), memory_bytes=256 << 20) as service:
        server = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        made = [
            fanin.host.torch.ProcessGroupFanin(timedelta(seconds=60), Options(switch=str(address_of(service))))
            for _ in range(SIZE)
        ]

        def configure(rank: int) -> None:
            where = f"127.0.0.1:{server.port}/quorum"
            made[rank].configure(where, f"r{rank}", rank, SIZE, quorum_id=1, group_rank=0, group_world_size=1)

        on_every(configure, range(SIZE))
        yield made
        for each in made:
            each.shutdown()


def theirs(groups: list[Any], wrap: Callable[[Manager, nn.Module, torch.optim.Optimizer], Any]) -> list[Any]:
    def act(rank: int) -> list[torch.Tensor]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with wrap(Manager(groups[rank]), model, optimizer):
            return train(model, rank, optimizer.step)

    return on_every(act, range(SIZE))


def same_on_all_ranks_and_as(ours: list[torch.Tensor], theirs: list[Any]) -> bool:
    for each in theirs:
        for own, other, first in zip(ours, each, theirs[0], strict=True):
            torch.testing.assert_close(other, own, rtol=1e-4, atol=1e-5)
            assert torch.equal(other, first)
    return True


def test_local_sgd_has_the_weights_of_plain_local_steps(groups: list[Any]) -> None:
    found = theirs(groups, lambda *parts: local_sgd.LocalSGD(*parts, sync_every=PERIOD))
    assert same_on_all_ranks_and_as(ours(Outer()), found)


def test_diloco_has_the_weights_of_local_steps_with_its_outer_optimizer(groups: list[Any]) -> None:
    def wrap(manager: Manager, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        return local_sgd.DiLoCo(manager, [model], optimizer, outer, sync_every=PERIOD)

    assert same_on_all_ranks_and_as(ours(Outer(lr=0.7, momentum=0.9, nesterov=True)), theirs(groups, wrap))


def test_streaming_diloco_runs_and_its_replicas_stay_close(groups: list[Any]) -> None:
    """Fragments that land one step late, half of them the worker's own: alike but for what has not met yet."""

    def wrap(manager: Manager, model: Any, optimizer: torch.optim.Optimizer) -> Any:
        fragments = [model[0], model[2]]
        outer = [torch.optim.SGD(each.parameters(), lr=0.7, momentum=0.9, nesterov=True) for each in fragments]
        return local_sgd.DiLoCo(
            manager, fragments, optimizer, outer, sync_every=PERIOD, fragment_sync_delay=1, fragment_update_alpha=0.5
        )

    found = theirs(groups, wrap)
    for each in found:
        for own, other in zip(found[0], each, strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=0.1)

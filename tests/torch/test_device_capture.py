"""Collectives of device tensors while a CUDA graph is captured: refused by name, with nothing sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fanin.errors import UnsupportedError
from fanin.host.torch import FaninProcessGroup, TwoLevelState, two_level_hook
from fanin.host.torch.collectives.profiler_ranges import NAMES
from fanin.host.torch.device.encoder import Contribution
from fanin.options import Options
from tests.torch.groups import SIZE, Groups, groups_of, on_every_rank

COUNT = 9_000


class OnDevice(torch.Tensor):
    """Host memory that says that it is a CUDA device's."""

    device = property(lambda _: torch.device("cuda", 0))
    is_cpu = property(lambda _: False)


def there(count: int = COUNT) -> torch.Tensor:
    return torch.ones(count).as_subclass(OnDevice)


def parts() -> list[torch.Tensor]:
    return [there() for _ in range(SIZE)]


def encoded() -> list[Contribution]:
    values = there()
    return [Contribution(values=values, lanes=8, residual=None, adds=False, output=values, finish=None)] * 2


CALLS: dict[str, tuple[str, Callable[[FaninProcessGroup], Any]]] = {
    "allreduce": ("all_reduce", lambda group: group.allreduce([there()])),
    "allreduce, small": ("all_reduce", lambda group: group.allreduce([there(4)])),
    "allreduce, empty": ("all_reduce", lambda group: group.allreduce([there(0)])),
    "allreduce_coalesced": ("all_reduce_coalesced", lambda group: group.allreduce_coalesced(parts())),
    "all_reduce_lanes": ("all_reduce", lambda group: group.all_reduce_lanes(there(), lanes=8)),
    "average_encoded": ("all_reduce", lambda group: group.average_encoded(encoded())),
    "reduce": ("reduce", lambda group: group.reduce([there()], root=0)),
    "reduce_scatter": ("reduce_scatter", lambda group: group.reduce_scatter([there()], [parts()])),
    "reduce_scatter_single": (
        "reduce_scatter_tensor", lambda group: group.reduce_scatter_single(there(), there(SIZE * COUNT))
    ),
    "reduce_scatter_single_coalesced": (
        "reduce_scatter_tensor_coalesced|reduce_scatter_tensor",
        lambda group: group.reduce_scatter_single_coalesced([there()], [there(SIZE * COUNT)]),
    ),
    "reduce_scatter_lanes": (
        "reduce_scatter_tensor", lambda group: group.reduce_scatter_lanes(there(), there(SIZE * COUNT), lanes=8)
    ),
    "barrier": ("barrier", lambda group: group.barrier()),
    "broadcast": ("broadcast", lambda group: group.broadcast([there()], root=0)),
    "allgather": ("all_gather", lambda group: group.allgather([parts()], [there()])),
    "all_gather_single": (
        "all_gather_into_tensor", lambda group: group.all_gather_single(there(SIZE * COUNT), there())
    ),
    "all_gather_single_coalesced": (
        "all_gather_into_tensor_coalesced",
        lambda group: group.all_gather_single_coalesced([there(SIZE * COUNT)], [there()]),
    ),
    "allgather_coalesced": (
        "all_gather", lambda group: group.allgather_coalesced([[there()] for _ in range(SIZE)], [there()])
    ),
    "gather, at the root": ("gather", lambda group: group.gather([parts()], [there()], root=0)),
    "gather, elsewhere": ("gather", lambda group: group.gather([], [there()], root=1)),
    "scatter, at the root": ("scatter", lambda group: group.scatter([there()], [parts()], root=0)),
    "scatter, elsewhere": ("scatter", lambda group: group.scatter([there()], [], root=1)),
    "all_to_all_single": (
        "all_to_all_single", lambda group: group.all_to_all_single(there(), there(), [], [])
    ),
    "alltoall": ("all_to_all", lambda group: group.alltoall(parts(), parts())),
    "send": ("send", lambda group: group.send([there()], 1, 0)),
    "recv": ("recv", lambda group: group.recv([there()], 1, 0)),
    "recv_anysource": ("recv", lambda group: group.recv_anysource([there()], 0)),
}  # fmt: skip


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.fixture(
    scope="module",
    params=[None, Options(inside="gloo"), Options(fallback="gloo")],
    ids=["one level", "two levels", "with a fallback"],
)
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with groups_of(request.param) as made:
        yield made


@pytest.mark.parametrize("case", CALLS)
def test_a_collective_in_a_captured_region_is_refused_by_name(case: str, groups: Groups, capturing: None) -> None:
    name, call = CALLS[case]
    counted = groups[0].counters()
    with pytest.raises(UnsupportedError, match=rf"^({name}): .*CUDA graph is captured.*Remedy: leave collectives out"):
        call(groups[0])
    paths = ("switch.", "gloo.", "local.", "two_levels.")
    assert {name: n for name, n in groups[0].counters().items() if name.startswith(paths)} == {
        name: n for name, n in counted.items() if name.startswith(paths)
    }


def test_collectives_between_coalescing_marks_are_refused(groups: Groups, capturing: None) -> None:
    groups[0]._start_coalescing(torch.device("cuda", 0))
    with pytest.raises(UnsupportedError, match="CUDA graph is captured"):
        groups[0].allreduce([there()])
    groups[0]._end_coalescing(torch.device("cuda", 0)).wait()


def test_a_bucket_of_two_level_hook_is_refused(monkeypatch: pytest.MonkeyPatch, capturing: None) -> None:
    state = TwoLevelState.__new__(TwoLevelState)
    monkeypatch.setattr(state, "_one_level", None, raising=False)
    monkeypatch.setattr(state, "levels", SimpleNamespace(), raising=False)
    bucket: Any = SimpleNamespace(buffer=there)
    with pytest.raises(UnsupportedError, match=r"^two_level_hook: .*CUDA graph is captured"):
        two_level_hook(state, bucket)


def test_every_collective_of_the_group_is_tried_above() -> None:
    def function(name: str) -> object:
        return inspect.unwrap(getattr(FaninProcessGroup, name))

    tried = {function(case.partition(",")[0]) for case in CALLS}
    assert {function(name) for name in NAMES if hasattr(FaninProcessGroup, name)} <= tried


def test_host_tensors_are_not_asked_about_captures(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> bool:
        raise AssertionError("a host tensor has nothing to do with a device's stream")

    monkeypatch.setattr(torch.cuda, "is_initialized", asked)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", asked)

    def act(rank: int) -> None:
        for count in (4, COUNT):
            tensor = torch.ones(count)
            groups[rank].allreduce([tensor]).wait()
            assert torch.equal(tensor, torch.full((count,), float(SIZE)))

    on_every_rank(act)

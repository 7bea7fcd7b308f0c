"""Collectives in traces of torch.profiler (host/torch/collectives/profiler_ranges.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")

from fanin.host.torch.collectives import profiler_ranges  # noqa: E402
from fanin.host.torch.collectives.process_group import FaninProcessGroup  # noqa: E402
from fanin.host.torch.collectives.profiler_ranges import NAMES, PREFIX, named_ranges  # noqa: E402
from fanin.host.torch.handles.completion import Completion  # noqa: E402
from fanin.host.torch.handles.work import FaninWork  # noqa: E402


class LocalOnTheWay(FaninWork):
    """A collective whose result comes with the wait."""

    _name = "all_reduce"

    def _transported(self) -> bool:
        return False

    def _await(self, timeout_s: float) -> None:
        return None


@named_ranges
class Group:
    """Two collectives, one of which calls itself again as one that goes through torch's dispatcher does."""

    group_name = "world"
    flight = None

    def size(self) -> int:
        return 4

    def rank(self) -> int:
        return 1

    def allreduce(self, tensors: Any, opts: Any = None) -> object:
        return self.work

    def broadcast(self, tensors: Any, again: bool = True) -> object:
        if again:
            return self.broadcast(tensors, again=False)
        return self.work

    def barrier(self, opts: Any = None) -> None:
        raise RuntimeError("refused")

    def __init__(self) -> None:
        self.work = object()


def traced(act: Any, tmp_path: Path) -> list[dict[str, Any]]:
    """The events of ours in a trace of `act`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        act()
    path = tmp_path / "trace.json"
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if str(event.get("name", "")).startswith(PREFIX)]


def test_a_range_is_the_call_and_ends_with_the_session_that_it_began_in(tmp_path: Path) -> None:
    """torch would end it by the memory of a session that is over: the process died of it."""
    group = Group()
    for _ in range(2):
        found = traced(lambda: group.allreduce([torch.ones(4, 5)]), tmp_path)
        assert [event["name"] for event in found] == ["fanin:all_reduce"]


def test_a_wait_is_a_range_on_the_thread_that_waits(tmp_path: Path) -> None:
    work = LocalOnTheWay(Completion(), [torch.ones(3)], 1.0)
    assert [event["name"] for event in traced(work.wait, tmp_path)] == ["fanin:all_reduce:wait"]
    assert [event["name"] for event in traced(lambda: None, tmp_path)] == []


def test_a_call_has_the_facts_that_torch_records_of_other_backends(tmp_path: Path) -> None:
    group = Group()
    found = traced(lambda: group.allreduce([torch.ones(4, 5)]), tmp_path)
    (call,) = (event for event in found if event["name"] == "fanin:all_reduce")
    wanted = {
        "Collective name": "all_reduce",
        "In msg nelems": 20,
        "dtype": "float32",
        "Process Group Name": "world",
        "Group size": 4,
        "Rank": 1,
        "Input Dims": [[4, 5]],
    }
    assert {name: call["args"].get(name) for name in wanted} == wanted


def test_a_call_that_comes_again_through_the_dispatcher_is_one_range(tmp_path: Path) -> None:
    found = traced(lambda: Group().broadcast([torch.ones(3)]), tmp_path)
    assert sorted(event["name"] for event in found) == ["fanin:broadcast"]


def test_a_refused_call_ends_its_range_and_those_that_follow_have_theirs(tmp_path: Path) -> None:
    def act() -> None:
        with pytest.raises(RuntimeError, match="refused"):
            Group().barrier()
        Group().broadcast([torch.ones(3)])

    names = {event["name"] for event in traced(act, tmp_path)}
    assert {"fanin:barrier", "fanin:broadcast"} <= names


def test_nothing_is_recorded_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler_ranges, "_RecordFunctionFast", None)
    group = Group()
    assert group.allreduce([torch.ones(3)]) is group.work


def test_every_collective_of_the_process_group_is_a_range() -> None:
    ranged = {name for name in dir(FaninProcessGroup) if hasattr(getattr(FaninProcessGroup, name), "__wrapped__")}
    own = {name for name in NAMES if name in dir(FaninProcessGroup)}
    assert own <= ranged
    assert {"allreduce", "broadcast", "allgather", "reduce_scatter", "barrier", "alltoall"} <= own

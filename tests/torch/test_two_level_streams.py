"""Streams of sums over two levels: what is ordered behind what, by streams that remember what they have waited for.

NCCL and the group between hosts have streams of their own here; a wait of theirs lets the current stream wait, no more.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fanin.errors import WorkerLostError
from fanin.host.torch.collectives import two_levels
from fanin.host.torch.collectives.two_levels import TwoLevels, Waiting
from fanin.host.torch.handles import host_tensor
from fanin.host.torch.handles.completion import Completion
from fanin.host.torch.handles.failures import Failures
from fanin.host.torch.meeting.levels import Levels

RANKS, COUNT, TIMEOUT_S = 2, 1001, 20.0


class Stream:
    """A stream, by the names of the work that it, or what it has waited for, was given."""

    def __init__(self, name: str = "a stream", behind: frozenset[str] = frozenset()) -> None:
        self.name, self.behind = name, behind

    def record_event(self) -> Stream:
        """An event: a stream that is given nothing."""
        return Stream(self.name, self.behind)

    def wait_event(self, event: Stream) -> None:
        self.behind |= event.behind


class Streams:
    """The current stream of each thread, and what every piece of work is behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = Stream("program")
        self.lanes = Stream("scattering"), Stream("gathering")
        self.behind: dict[str, frozenset[str]] = {}
        self.through: set[str] = set()
        """Work whose end some thread has waited for on the device."""
        self.wrote: list[str] = []
        """Names of the streams on which memory of the caller was written."""
        self._now = threading.local()
        self._lock = threading.Lock()
        monkeypatch.setattr(TwoLevels, "streams", lambda _levels, _device: self.lanes)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device=None: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self._on)
        monkeypatch.setattr(Stream, "synchronize", lambda event: self.through.update(event.behind), raising=False)
        writing_to = host_tensor.writing_to

        def writes(tensor: torch.Tensor) -> Any:
            self.wrote.append(self.current.name)
            return writing_to(tensor)

        monkeypatch.setattr(two_levels, "writing_to", writes)

    @property
    def current(self) -> Stream:
        found: Stream = getattr(self._now, "stream", self.program)
        return found

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self._now.stream = self.current, stream
        yield
        self._now.stream = before

    def give(self, name: str, stream: Stream | None = None) -> Callable[..., None]:
        """Give work to a stream, behind what the current one has; returns a wait by which the current one is behind."""
        stream = stream or self.current
        with self._lock:
            stream.behind |= self.current.behind
            self.behind[name] = stream.behind
            stream.behind |= {name}
        return lambda *_: self.current.wait_event(stream)


class NcclOf:
    """`Inside` of two ranks with equal tensors; its two groups have a stream each."""

    kind, device_type = "nccl", "cpu"

    def __init__(self, streams: Streams) -> None:
        self.broken, self.gathered = False, 0
        self.scattered: Counter[str] = Counter()
        """How many scatters were called on each stream."""
        self._streams, self._own = streams, (Stream("nccl 0"), Stream("nccl 1"))
        self.seen: dict[int, threading.Event] = {number: threading.Event() for number in range(4)}

    def reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor, timeout_s: float) -> Any:
        number = sum(self.scattered.values())
        self.scattered[self._streams.current.name] += 1
        part.copy_(RANKS * whole[: len(part)])
        waits = self._streams.give(f"scatter {number}", self._own[0])
        self.seen[number].set()
        return SimpleNamespace(wait=waits)

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor, timeout_s: float) -> Any:
        whole.copy_(part.repeat(RANKS))
        number, self.gathered = self.gathered, self.gathered + 1
        return SimpleNamespace(wait=self._streams.give(f"gather {number}", self._own[1]))

    def break_connections(self) -> None:
        self.broken = True

    def close(self) -> None:
        pass


def levels_over(inside: Any) -> TwoLevels:
    """The sums of two levels of rank 0, between whose hosts the caller sums."""
    cause: Any = SimpleNamespace(found=lambda own: own)
    failures = Failures("group", 0, 4, [0, 1, 2, 3])
    return TwoLevels(Levels(inside=(0, 1), between=(0, 2)), inside, None, failures, Completion(), Counter(), cause)


def begun(streams: Streams, levels: TwoLevels, number: int, wait: Callable[[], None] | None = None) -> tuple[Any, Any]:
    """Start a sum of a tensor that the program's stream has made; its sum between hosts waits by `wait`."""
    tensor = torch.full((COUNT,), float(number + 1))
    streams.give(f"gradients {number}")

    def start(part: torch.Tensor) -> Waiting:
        ordered = streams.give(f"sum {number}", Stream("between"))
        part.mul_(10)

        def finish() -> None:
            if wait is not None:
                wait()
            ordered()

        return finish

    return tensor, levels.reduce(tensor, [tensor], start, TIMEOUT_S, average=False)


def test_each_step_is_behind_the_one_before_and_a_sum_is_over_once_the_device_has_gathered_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(monkeypatch)
    inside = NcclOf(streams)
    levels = levels_over(inside)

    def once_the_next_is_scattered(number: int) -> Callable[[], None]:
        return lambda: ensure(inside.seen[min(number + 1, 2)].wait(TIMEOUT_S))

    sums = [begun(streams, levels, number, once_the_next_is_scattered(number)) for number in range(3)]
    for number, (tensor, work) in enumerate(sums):
        work.wait()
        assert f"gather {number}" in streams.through, "over before the device has the result"
        assert torch.equal(tensor, torch.full((COUNT,), 20.0 * (number + 1)))
        assert f"gradients {number}" in streams.behind[f"scatter {number}"]
        assert f"scatter {number}" in streams.behind[f"sum {number}"]
        assert f"sum {number}" in streams.behind[f"gather {number}"]
        assert f"sum {number}" not in streams.behind.get(f"scatter {number + 1}", ())
    assert inside.scattered == {"scattering": 3}
    assert set(streams.wrote) == {"program"}, "entered before the lane's stream is current"
    assert streams.program.behind == {f"gradients {number}" for number in range(3)}, "the program's stream has waited"


def ensure(come: bool) -> None:
    assert come, "sums do not overlap"


def test_with_all_ranks_on_one_host_the_gather_is_behind_the_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    levels = levels_over(NcclOf(streams))
    tensor = torch.ones(COUNT)
    streams.give("gradients")
    levels.reduce(tensor, [tensor], lambda part: lambda: part.mul_(3), TIMEOUT_S, average=False).wait()
    assert streams.behind["gather 0"] >= {"gradients", "scatter 0"}
    assert torch.equal(tensor, torch.full((COUNT,), 6.0))


def test_a_sum_that_fails_leaves_nan_behind_its_own_stream_and_ends_every_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(monkeypatch)
    inside = NcclOf(streams)
    levels = levels_over(inside)

    def lost() -> None:
        raise WorkerLostError((1,), "rank 1 is gone")

    whole, first = begun(streams, levels, 0)
    first.wait()
    failed, second = begun(streams, levels, 1, lost)
    with pytest.raises(WorkerLostError) as raised:
        second.wait()
    assert raised.value.ranks == (2,), "in ranks of the whole group"
    assert bool(failed.isnan().all())
    assert streams.wrote[-1] == "gathering"
    assert torch.equal(whole, torch.full((COUNT,), 20.0))
    assert inside.broken
    assert "gather 1" not in streams.behind
    with pytest.raises(WorkerLostError):
        begun(streams, levels, 2)

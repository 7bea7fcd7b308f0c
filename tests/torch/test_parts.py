"""The backend's parts that need no second process."""

from __future__ import annotations

import json
import math
import os
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, ConfigurationError, FaninError, SwitchLostError, WorkerLostError
from fanin.host.torch import backend
from fanin.host.torch.backend import options_for
from fanin.host.torch.collectives.fallback import Fallback, State
from fanin.host.torch.collectives.timeline import Timeline
from fanin.host.torch.device.pieces import overlap
from fanin.host.torch.handles import work
from fanin.host.torch.handles.call import Call, tag_of
from fanin.host.torch.handles.completion import CallbackPool, Completion
from fanin.host.torch.handles.failures import Failures, Watch
from fanin.host.torch.handles.host_tensor import movable, plain
from fanin.host.torch.handles.work import CombinedWork, FaninWork
from fanin.host.torch.meeting import incarnation
from fanin.host.torch.meeting.incarnation import find_incarnation
from fanin.host.torch.meeting.reachable import reachable_host
from fanin.host.torch.meeting.store_host import StoreHost
from fanin.numerics.reduction import Element
from fanin.options import Options
from tests.support.frames import in_module

TIMEOUT_S = 20.0


def test_a_callback_that_blocks_delays_no_other() -> None:
    pool = CallbackPool()
    release, ran = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        release.wait(TIMEOUT_S)
        ran.release()

    for _ in range(5):
        pool.call(block)
    after = threading.Event()
    pool.call(after.set)
    assert after.wait(TIMEOUT_S)
    release.set()
    for _ in range(5):
        assert ran.acquire(timeout=TIMEOUT_S)


def test_the_pool_never_exceeds_its_bound_and_loses_nothing() -> None:
    pool = CallbackPool(max_threads=2)
    names: set[str] = set()
    ran = threading.Semaphore(0)

    def note() -> None:
        names.add(f"{threading.get_ident()}")
        ran.release()

    for _ in range(200):
        pool.call(note)
    for _ in range(200):
        assert ran.acquire(timeout=TIMEOUT_S)
    assert len(names) <= 2


class ALatePart(FaninWork):
    """One that takes `takes_s`, or as long as it may, on a clock of the test's; notes how long it may."""

    def __init__(self, given_s: list[float], now: list[float], takes_s: float = math.inf) -> None:
        super().__init__(Completion(), [], 0.0)
        self._given_s, self._now, self._takes_s = given_s, now, takes_s

    def _transported(self) -> bool:
        return False

    @in_module("fanin")
    def _await(self, timeout_s: float) -> None:
        self._given_s.append(timeout_s)
        self._now[0] += min(timeout_s, self._takes_s)
        if timeout_s < self._takes_s:
            raise CollectiveTimeoutError("Timed out waiting")


def test_collectives_behind_one_handle_share_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    given_s: list[float] = []
    now = [0.0]
    monkeypatch.setattr("fanin.host.torch.handles.work.time.monotonic", lambda: now[0])
    parts = [ALatePart(given_s, now, 6.0), ALatePart(given_s, now, 4.0), ALatePart(given_s, now)]
    together = CombinedWork(parts, Completion(), [], 99.0)
    with pytest.raises(CollectiveTimeoutError, match=r"3 collectives .* had 10 s together: Timed out waiting"):
        together.wait(timedelta(seconds=10))
    assert given_s == [10.0, 4.0, work.MIN_WAIT_S]


class AWatchedSession:
    """One rank's, and what the watch calls: which raises the first `raises` times."""

    rank, job_name = 0, "job"

    def __init__(self, failure: FaninError | None = None, raises: int = 0) -> None:
        self.failure, self._raises, self.calls = failure, raises, 0

    def called(self, _failure: FaninError | None = None) -> None:
        self.calls += 1
        if self.calls <= self._raises:
            raise RuntimeError("can't start new thread")


def test_a_group_whose_turn_raises_has_another_and_the_others_have_theirs(caplog: pytest.LogCaptureFixture) -> None:
    lost = WorkerLostError((1,), "rank 1 is gone")
    well, failed, last = AWatchedSession(raises=2), AWatchedSession(lost, raises=1), AWatchedSession(lost)
    watch = Watch()
    watch._watched = {cast("Any", each): (each.called, each.called) for each in (well, failed, last)}
    for _ in range(4):
        assert watch._call_back()
    assert (well.calls, failed.calls, last.calls) == (4, 2, 1)
    left: list[object] = list(watch._watched)
    assert left == [well]
    assert len(caplog.records) == 2, "each group's trouble is told once"


class ALostSwitch:
    """A reducer and its session, whose switch is gone before anything came of it."""

    address, sessions = "udp://127.0.0.1:1", ()

    def __init__(self) -> None:
        self.session = self
        self.failure = SwitchLostError(self.address, "no answer")

    def hand_over(self, _call: Call) -> int:
        raise self.failure

    def done(self, ticket: int) -> bool:
        raise AssertionError(f"reduction {ticket} was refused")


class GlooThatEnds:
    """A gloo group that takes one more sum and then fails."""

    def __init__(self, gloo: Any) -> None:
        self._gloo, self._left = gloo, 1
        self.allgather = gloo.allgather

    def allreduce(self, *given: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("out of memory")
        return self._gloo.allreduce(*given)


def test_ranks_that_agree_and_cannot_go_on_over_gloo_say_so_and_wait_for_nothing() -> None:
    lost = ALostSwitch()
    fallback = Fallback(c10d.HashStore(), 0, 1, timedelta(seconds=TIMEOUT_S), Failures("g", 0, 1, []), Completion())
    fallback._gloo = GlooThatEnds(fallback._gloo)
    fallback.attach(cast("Any", lost))

    def submit() -> FaninWork:
        ones = torch.ones(3)
        call = Call("all_reduce", ones, [ones], timeout_s=TIMEOUT_S, kept=ones, element=Element.FLOAT32, lanes=32)
        return fallback.submit(call)

    works = [submit() for _ in range(3)]
    with pytest.warns(RuntimeWarning, match="is lost"):
        fallback.recover(lost.failure)
    assert fallback.state is State.BROKEN
    assert works[0].wait()
    for after in works[1:]:
        assert after.is_completed()
        with pytest.raises(FaninError, match=r"no answer.*cannot go on over gloo: out of memory"):
            after.wait()
    with pytest.raises(FaninError, match="cannot go on over gloo"):
        submit()


def test_collectives_have_tags_of_their_own() -> None:
    names = ["all_reduce", "reduce", "reduce_scatter", "barrier"]
    tags = {tag_of(name, average) for name in names for average in (False, True)}
    assert len(tags) == 2 * len(names)
    assert all(0 < tag < 256 for tag in tags)


def test_pieces_keep_what_lies_in_the_kept_range() -> None:
    assert overlap(0, 10, 0, 30) == (0, 10)
    assert overlap(10, 10, 15, 100) == (5, 5)
    assert overlap(10, 10, 0, 12) == (0, 2)
    assert overlap(10, 10, 12, 3) == (2, 3)
    assert overlap(10, 10, 20, 5) == (0, 0)


def test_host_tensors_share_memory_where_they_can_and_copy_back_where_not() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert movable(tensor).restore is None
    assert movable(tensor).tensor.data_ptr() == tensor.data_ptr()
    assert movable(torch.zeros(3, dtype=torch.int16)).tensor.dtype is torch.uint8
    turned = tensor.t()
    assert not plain(turned)
    host_tensor = movable(turned)
    host_tensor.tensor.fill_(7)
    assert host_tensor.restore is not None
    host_tensor.restore()
    assert bool((tensor == 7).all())


def test_a_carried_storage_can_still_be_resized() -> None:
    tensor = torch.zeros(10)
    movable(tensor)
    tensor.untyped_storage().resize_(0)


@pytest.mark.parametrize(
    ("master", "expected"), [("", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1")]
)
def test_an_embedded_switch_stays_on_loopback_when_the_ranks_do(
    monkeypatch: pytest.MonkeyPatch, master: str, expected: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    assert reachable_host() == expected


def test_a_group_made_again_under_its_old_name_meets_in_another_place() -> None:
    store = c10d.HashStore()
    first, _ = find_incarnation(store, "g", 0, [1, 2])
    again, _ = find_incarnation(store, "g", 0, [1, 2])
    other_rank, _ = find_incarnation(store, "g", 1, [1, 2])
    first.set("job", "old")
    assert other_rank.get("job") == b"old"
    assert not again.check(["job"])
    assert not find_incarnation(store, "g", 0, [0, 1, 2])[0].check(["job"])


def test_a_process_in_the_place_of_another_goes_where_rank_0_is(monkeypatch: pytest.MonkeyPatch) -> None:
    store, patience = c10d.HashStore(), timedelta(seconds=1)
    for rank in (0, 1):
        for _ in range(2):
            found, replaces = find_incarnation(store, "g", rank, [], patience)
            assert not replaces, "the same process makes the group again"
    found.set("job", "second")
    monkeypatch.setattr(incarnation, "_LIVED", set())
    place, replaces = find_incarnation(store, "g", 1, [], patience)
    assert (replaces, place.get("job")) == (True, b"second")
    for rank in (0, 1):
        incarnation._LIVED.add(("g", "world", rank, 2))
        again, replaces = find_incarnation(store, "g", rank, [], patience)
        assert not replaces, "it counts like the others from there on"
        again.set(f"third{rank}", "")
    assert again.check(["third0", "third1"])


def test_a_process_in_the_place_of_another_finds_a_group_that_was_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, patience = c10d.HashStore(), timedelta(seconds=1)
    for rank in (0, 1):
        find_incarnation(store, "g", rank, [], patience)
        incarnation.renewed_store(store, rank, [], "after training").set("job", "renewed")
    monkeypatch.setattr(incarnation, "_LIVED", set())
    place, replaces = find_incarnation(store, "g", 1, [], patience)
    assert (replaces, place.get("job")) == (True, b"renewed")


def test_options_come_from_the_caller_then_the_world_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_SWITCH", "udp://env:1")
    monkeypatch.setenv("FANIN_LANES", "16")
    assert options_for(None, None) == Options(switch="udp://env:1", lanes=16)
    assert options_for(Options(lanes=8), None) == Options(switch="udp://env:1", lanes=8)
    assert options_for(None, Options(lanes=4)) == Options(lanes=4)
    assert options_for(Options(switch="udp://own:2"), Options(lanes=4)) == Options(switch="udp://own:2")
    monkeypatch.setenv("FANIN_HOST", "this one")
    assert options_for(Options(lanes=8), None) == Options(switch="udp://env:1", host="this one", lanes=8)
    with pytest.raises(ConfigurationError, match=r"fanin\.Options"):
        options_for({"switch": "udp://host:1"}, None)


@pytest.mark.parametrize("given", [None, Options(lanes=8)])
def test_a_variable_without_effect_is_told_once(
    given: Options | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backend, "_logged", set())
    monkeypatch.setenv("FANIN_SWITCHES", "udp://env:1")
    options_for(given, None)
    options_for(given, None)
    (said,) = [each.getMessage() for each in caplog.records if "FANIN_SWITCHES" in each.getMessage()]
    assert "Did you mean FANIN_SWITCH?" in said


def test_a_group_inherits_from_the_world_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_world_options", None)
    asked = SimpleNamespace(
        store=c10d.HashStore(), group_rank=0, group_size=1, timeout=timedelta(seconds=TIMEOUT_S), group_id="world",
        global_ranks_in_group=[],
    )  # fmt: skip
    world = backend.create(asked, Options(lanes=8))
    asked.group_id, asked.global_ranks_in_group = "part", [0]
    after = backend.create(asked, None)
    assert after.options.lanes == 32, "that world is gone"
    for each in (after, world):
        each.shutdown()


def world_of_one(options: Options) -> Any:
    asked = SimpleNamespace(
        store=c10d.HashStore(), group_rank=0, group_size=1, timeout=timedelta(seconds=TIMEOUT_S), group_id="world",
        global_ranks_in_group=[],
    )  # fmt: skip
    return backend.create(asked, options)


def test_a_world_of_one_writes_its_steps_and_is_killed_at_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: killed.append(number))
    world = world_of_one(Options(timeline=str(tmp_path / "%r.jsonl"), faults="kill=worker:0@step:2"))
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    steps_before_death = []
    for _ in range(3):
        steps_before_death.append(len(killed))
        optimizer.step()
    world.shutdown()
    lines = [json.loads(line) for line in (tmp_path / "0.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "step", "step", "step", "end"]
    assert (lines[0]["rank"], lines[0]["size"], lines[0]["job"]) == (0, 1, "")
    assert steps_before_death == [0, 0, 1]


def test_a_world_refuses_a_fault_at_a_rank_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(faults="drop=1%;kill=worker:9@step:1")
    with pytest.raises(ConfigurationError, match=r"there is no worker 9: workers are 0\.\.0"):
        world_of_one(options)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # the faults are over, and the world may have shrunk
    world_of_one(options).shutdown()


def test_a_rank_alone_refuses_a_codec_that_there_is_not() -> None:
    with pytest.raises(ConfigurationError, match="there is no 'junk'"):
        world_of_one(Options(codec="junk"))
    world_of_one(Options(codec="lanes:8")).shutdown()


def test_a_timeline_that_two_processes_write_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = Options(timeline=str(tmp_path / "time.jsonl"))
    for _ in range(2):  # one after the other, as a restart of the job
        Timeline(None, options, rank=0, size=2).close()
    assert not caplog.records
    first, second = (Timeline(None, options, rank, size=2) for rank in range(2))
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("rank 1: another process writes FANIN_TIMELINE=")
    assert said.endswith("Remedy: put %r, which becomes the rank, into its name")
    for each in (second, first):
        each.close()


def test_a_world_of_one_names_the_options_that_have_no_effect_there(caplog: pytest.LogCaptureFixture) -> None:
    world_of_one(Options(metrics=":0", pcap="p", faults="drop=1%;kill=worker:0@step:9", on_nonfinite="skip")).shutdown()
    (said,) = [each.getMessage() for each in caplog.records if "no effect" in each.getMessage()]
    assert said.endswith("no effect of FANIN_METRICS, FANIN_PCAP, FANIN_FAULTS, FANIN_ON_NONFINITE")
    caplog.clear()
    world_of_one(Options(faults="kill=worker:0@step:9", lanes=8)).shutdown()
    assert not [each for each in caplog.records if "no effect" in each.getMessage()]


def test_a_rank_hears_of_the_end_of_the_store_that_rank_0_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    served = c10d.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=TIMEOUT_S))
    client = c10d.TCPStore("127.0.0.1", served.port, None, False, timedelta(seconds=TIMEOUT_S))
    store = c10d.PrefixStore("outer", c10d.PrefixStore("inner", client))
    early, late = StoreHost(store, 1), StoreHost(store, 2)
    assert not early.wait_until_gone(0.0)
    del served
    assert late.wait_until_gone(TIMEOUT_S)
    assert not late.wait_until_gone(TIMEOUT_S)  # no second wait


def test_there_is_no_wait_for_a_store_that_is_not_rank_0s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not StoreHost(c10d.HashStore(), 1).wait_until_gone(TIMEOUT_S)
    served = c10d.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=TIMEOUT_S))
    assert not StoreHost(served, 0).wait_until_gone(TIMEOUT_S)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert not StoreHost(served, 1).wait_until_gone(TIMEOUT_S)

"""`wait` that orders streams and blocks nobody: reducers over devices in virtual time, with real machines and links.

One thread plays all ranks. So a `wait` that blocked would never see the ranks that come later, and would raise.
"""

from __future__ import annotations

import contextlib
import random
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fanin.errors import CollectiveTimeoutError, FaninError, WorkerLostError
from fanin.host.torch.device import lines, pipeline
from tests.support.builders import reduction
from tests.support.cluster import Cluster
from tests.support.virtual_ranks import TIMEOUT_S, Program, VirtualGroup, VirtualWorld
from tests.support.virtual_sums import KINDS, gradients, of_host, same_bits

SLOT_BYTES, CODE_SLOT_BYTES = 1024, 64
COUNT = 3_001
"""Elements of three pieces in 8-bit lanes, and of twelve in 32."""
LATE_S = 0.2


@pytest.fixture(autouse=True)
def _small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors are several pieces."""
    monkeypatch.setattr(lines, "SLOT_BYTES", SLOT_BYTES)
    monkeypatch.setattr(lines, "CODE_SLOT_BYTES", CODE_SLOT_BYTES)


def elements_are(tensor: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Whether each element has those bits."""
    size = tensor.element_size()
    return (tensor.view(torch.uint8) == right.view(torch.uint8)).view(-1, size).all(dim=1)


def marked(tensor: torch.Tensor) -> torch.Tensor:
    """Whether each element says that its collective has failed."""
    return tensor.isnan() if tensor.is_floating_point() else tensor == torch.iinfo(tensor.dtype).min


@pytest.mark.parametrize(("lanes", "dtype"), KINDS, ids=str)
def test_wait_returns_before_the_others_have_come_and_later_work_of_the_stream_sees_the_result(
    lanes: int, dtype: torch.dtype
) -> None:
    world = VirtualWorld()
    seen: dict[int, torch.Tensor] = {}
    times: dict[str, float] = {}

    def early(groups: list[VirtualGroup]) -> Program:
        device, x = groups[0].device, torch.zeros(COUNT, dtype=dtype)
        device.compute(lambda: x.copy_(gradients(0, 0, COUNT, dtype)))  # what the collective is to read
        work = groups[0].average(x, lanes)
        assert work.orders_streams
        assert work.wait() is True
        times["returned"] = world.clock.now_s
        assert not work.is_completed()
        future = work.get_future()
        assert future.done(), "a future is complete at once, under our stream"
        assert future.value()[0] is x

        def later() -> None:
            times["went on"] = world.clock.now_s
            seen[0] = x.clone()

        device.compute(later)
        device.compute(x.zero_)  # nor does the device write the memory any more
        yield

    def late(groups: list[VirtualGroup]) -> Program:
        assert "went on" not in times, "work behind wait() has not waited"
        times["came"] = world.clock.now_s
        x = gradients(1, 0, COUNT, dtype)
        groups[0].average(x, lanes).wait()
        groups[0].device.look(seen, 1, x)
        yield

    world.play(0, early)
    world.play(1, late, LATE_S)
    world.run()
    assert times["returned"] < times["came"] < times["went on"]
    right = of_host(world, lanes, 0, COUNT, dtype)
    assert all(same_bits(seen[rank], right) for rank in range(2))


def test_a_wait_with_a_time_of_its_own_blocks_and_tells_that_it_is_over() -> None:
    """The world stands still meanwhile, so a wait that blocked would be noticed above."""
    world = VirtualWorld()

    def alone(groups: list[VirtualGroup]) -> Program:
        work = groups[0].average(gradients(0, 0, COUNT))
        with pytest.raises(CollectiveTimeoutError, match=r"no result after 0\.05 s"):
            work.wait(timedelta(milliseconds=50))
        yield

    world.play(0, alone)
    world.play(1, lambda groups: ended(groups[0].average(gradients(1, 0, COUNT))), LATE_S)
    world.run()


def ended(*_: object) -> Program:
    """A program whose one step was taken in the arguments."""
    yield


@pytest.mark.parametrize("seed", range(8))
def test_several_collectives_in_flight_come_right_in_whatever_order_they_are_waited_for(seed: int) -> None:
    drawn = random.Random(seed)
    world = VirtualWorld(seed, ranks=3, ring_slots=drawn.randint(1, 4))
    kinds = [(*drawn.choice(KINDS), drawn.randint(1, 2 * COUNT)) for _ in range(4)]
    seen: dict[tuple[int, int], torch.Tensor] = {}
    in_flight: list[int] = []

    def train(rank: int, groups: list[VirtualGroup]) -> Program:
        group, works, tensors = groups[0], [], []
        for number, (lanes, dtype, count) in enumerate(kinds):
            tensors.append(gradients(rank, number, count, dtype))
            works.append(group.average(tensors[-1], lanes))
            if drawn.random() < 0.5:
                yield
        in_flight.append(sum(not work.is_completed() for work in works))
        for number in drawn.sample(range(len(works)), len(works)):
            with group.device.on(group.device.stream("another")):
                works[number].wait()
                group.device.look(seen, (rank, number), tensors[number])
            yield

    world.on_all(train)
    world.run()
    assert max(in_flight) >= 2
    for (_, number), result in seen.items():
        lanes, dtype, count = kinds[number]
        assert same_bits(result, of_host(world, lanes, number, count, dtype)), kinds[number]
    assert len(seen) == world.ranks * len(kinds)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_collective_in_flight_owes_goes_into_the_next_one_as_on_the_host(seed: int) -> None:
    steps = 3
    world = VirtualWorld(seed, ring_slots=2)
    seen: dict[Any, torch.Tensor] = {}

    def train(rank: int, groups: list[VirtualGroup]) -> Program:
        owed = torch.zeros(COUNT)
        for step in range(steps):
            x = gradients(rank, step, COUNT)
            groups[0].average(x, 4, residual=owed).wait()
            groups[0].device.look(seen, (rank, step), x)
        groups[0].device.look(seen, (rank, "owed"), owed)
        yield

    world.on_all(train)
    world.run()
    hosts = Cluster.joined("twin", spec=world.spec)
    owed = [np.zeros(COUNT, np.float32) for _ in range(world.ranks)]
    for step in range(steps):
        results = [gradients(rank, step, COUNT).numpy() for rank in range(world.ranks)]
        for rank, array in enumerate(results):
            hosts.submit(rank, reduction(array, lanes=4, divisor=float(world.ranks), residual=owed[rank]))
        hosts.run()
        assert all(same_bits(seen[rank, step], torch.from_numpy(array)) for rank, array in enumerate(results))
    assert all(same_bits(seen[rank, "owed"], torch.from_numpy(array)) for rank, array in enumerate(owed))
    assert all(array.any() for array in owed)


@pytest.mark.parametrize("comes", [True, False], ids=["comes late", "never comes"])
@pytest.mark.parametrize(("ring_slots", "queued"), [(1, 5), (3, 3)], ids=["one by one", "three at a time"])
def test_a_call_holds_its_thread_while_no_more_pieces_may_wait_on_the_device(
    ring_slots: int, queued: int, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MAX_QUEUED", 5)
    world = VirtualWorld(ring_slots=ring_slots)
    world.held_rank = 0
    seen: dict[Any, torch.Tensor] = {}
    returned_s: list[float] = []

    def early(groups: list[VirtualGroup]) -> Program:
        x = gradients(0, 0, COUNT, torch.int32)
        groups[0].average(x, 32)
        returned_s.append(world.clock.now_s)
        groups[0].device.wait_event(groups[0].device.current(), groups[0].reducer._jobs[0].done)
        groups[0].device.look(seen, 0, x)
        yield

    def late(groups: list[VirtualGroup]) -> Program:
        (line,) = world.groups[0][0].reducer._lines.values()
        assert line.pipeline._words.ring._taken == queued, "of twelve pieces"
        groups[0].average(gradients(1, 0, COUNT, torch.int32), 32)
        yield

    begins_s = world.clock.now_s
    world.play(0, early)
    if comes:
        world.play(1, late, LATE_S)
    world.run()
    assert returned_s[0] - begins_s > (LATE_S if comes else TIMEOUT_S)
    assert same_bits(seen[0], of_host(world, 32, 0, COUNT, torch.int32)) == comes
    if not comes:
        assert bool(marked(seen[0]).all())
        with pytest.raises(CollectiveTimeoutError):
            world.groups[0][0].average(gradients(0, 0, COUNT))


# --- failures ---


GONE = WorkerLostError((1,), "rank 1 is gone")


def lose(world: VirtualWorld) -> None:
    for groups in world.groups:
        for group in groups:
            group.lose(GONE)


@pytest.mark.parametrize("seed", range(24))
def test_when_the_network_side_fails_every_stream_goes_on_outputs_are_marked_and_the_next_call_raises(
    seed: int,
) -> None:
    drawn = random.Random(seed)
    lanes, dtype = KINDS[seed % len(KINDS)]
    world = VirtualWorld(seed, ring_slots=drawn.randint(1, 3))
    seen: dict[tuple[int, int], torch.Tensor] = {}
    works: dict[tuple[int, int], Any] = {}

    def train(rank: int, groups: list[VirtualGroup]) -> Program:
        for number in range(4):
            x = gradients(rank, number, COUNT, dtype)
            with contextlib.suppress(WorkerLostError):  # of an earlier one, or of this one, where it is known by now
                works[rank, number] = groups[0].average(x, lanes)
                works[rank, number].wait()
            groups[0].device.look(seen, (rank, number), x)
            yield

    world.on_all(train)
    world.clock.after(drawn.random() * 0.012, lambda: lose(world))
    world.run()
    for at, work in works.items():
        bad = marked(seen[at])
        right = elements_are(seen[at], of_host(world, lanes, at[1], COUNT, dtype))
        assert bool((right | bad).all()), "values that are neither the sum nor marked"
        if work.exception() is None:
            continue
        assert bool(bad.any())
        with pytest.raises(WorkerLostError, match="rank 1"):
            work.wait()
        with pytest.raises(WorkerLostError, match="rank 1"):
            world.groups[at[0]][0].average(gradients(0, 0, COUNT))


def test_failures_at_these_moments_find_a_sum_in_every_state() -> None:
    """So the test above is not about sums alone that are over, or that have not begun."""
    found = dict.fromkeys(("all of it marked", "some", "none"), 0)
    for moment in range(16):
        world, x = VirtualWorld(3), gradients(0, 0, COUNT)

        def first(groups: list[VirtualGroup], x: torch.Tensor = x) -> Program:
            groups[0].average(x).wait()
            yield

        world.play(0, first)
        world.play(1, lambda groups: ended(groups[0].average(gradients(1, 0, COUNT))))
        world.clock.after(moment * 0.5e-3, partial(lose, world))
        world.run()
        bad = marked(x)
        found["all of it marked" if bad.all() else "some" if bad.any() else "none"] += 1
    assert all(found.values()), found


@pytest.mark.parametrize(("lanes", "dtype"), KINDS, ids=str)
def test_where_a_rank_never_comes_streams_go_on_after_the_timeout_and_the_next_call_raises_it(
    lanes: int, dtype: torch.dtype
) -> None:
    world = VirtualWorld()
    seen: list[torch.Tensor] = []
    ended: list[float] = []

    def alone(groups: list[VirtualGroup]) -> Program:
        group, x = groups[0], gradients(0, 0, COUNT, dtype)
        group.average(x, lanes).wait()
        group.device.compute(lambda: seen.append(x.clone()))
        group.device.compute(lambda: ended.append(world.clock.now_s))
        yield

    begins_s = world.clock.now_s
    world.play(0, alone)
    world.run()
    assert TIMEOUT_S <= ended[0] - begins_s < TIMEOUT_S + 0.1
    assert bool(marked(seen[0]).all())
    with pytest.raises(CollectiveTimeoutError, match=r"no result after 2 s"):
        world.groups[0][0].average(gradients(0, 0, COUNT))


def test_a_rank_that_is_gone_is_named_by_the_machines_and_ends_the_others_collectives() -> None:
    world = VirtualWorld(ranks=3, liveness_timeout_s=TIMEOUT_S / 4)
    seen: list[torch.Tensor] = []

    def stay(groups: list[VirtualGroup]) -> Program:
        group, x = groups[0], gradients(groups[0].words.rank, 0, COUNT)
        group.average(x).wait()
        group.device.compute(lambda: seen.append(x.clone()))
        yield

    for rank in (0, 1):
        world.play(rank, stay)
    for session in (world.groups[2][0].words, world.groups[2][0].codes):
        world.playground.cut(session._address)
    world.run()
    assert len(seen) == 2
    assert all(bool(marked(x).all()) for x in seen)
    for rank in (0, 1):
        with pytest.raises(WorkerLostError) as raised:
            world.groups[rank][0].average(gradients(rank, 0, COUNT))
        assert raised.value.ranks == (2,)
    assert world.clock.now_s < TIMEOUT_S


def test_a_group_that_is_left_lets_its_streams_go() -> None:
    world = VirtualWorld()
    seen: list[torch.Tensor] = []

    def alone(groups: list[VirtualGroup]) -> Program:
        group, x = groups[0], gradients(0, 0, COUNT)
        group.average(x).wait()
        group.device.compute(lambda: seen.append(x.clone()))
        yield
        group.reducer.close()

    world.play(0, alone)
    world.run()
    assert world.clock.now_s < TIMEOUT_S
    assert bool(marked(seen[0]).all())
    with pytest.raises(FaninError, match="left while this collective was under way"):
        world.groups[0][0].average(gradients(0, 0, COUNT))


# --- several groups ---


def in_order(world: VirtualWorld, seen: dict[Any, torch.Tensor], *, opposite: bool, dependent: bool) -> None:
    def use(rank: int, groups: list[VirtualGroup]) -> Program:
        device = groups[0].device
        order = [1, 0] if opposite and rank else [0, 1]
        tensors = {number: gradients(rank, number, COUNT) for number in order}
        works = {}
        for number in order:
            works[number] = groups[number].average(tensors[number])
            if dependent:
                works[number].wait()
            yield
        for number in order:
            works[number].wait()
            device.look(seen, (rank, number), tensors[number])

    world.on_all(use)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("opposite", [False, True])
def test_two_groups_with_streams_of_their_own_may_be_begun_in_opposite_orders(seed: int, opposite: bool) -> None:
    world = VirtualWorld(seed, groups=2, ring_slots=2)
    seen: dict[Any, torch.Tensor] = {}
    in_order(world, seen, opposite=opposite, dependent=False)
    world.run()
    assert world.clock.now_s < TIMEOUT_S
    assert sorted(seen) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (_, number), result in seen.items():
        assert same_bits(result, of_host(world, 8, number, COUNT, torch.float32))


@pytest.mark.parametrize("opposite", [False, True])
@pytest.mark.parametrize(
    ("queues", "dependent"), [(32, True), (1, False)], ids=["the second waits for the first", "one hardware queue"]
)
def test_opposite_orders_beyond_the_promise_end_with_the_timeout_and_a_typed_error(
    queues: int, dependent: bool, opposite: bool
) -> None:
    """docs/gpu.md: groups that depend on each other need one order, and all groups a queue for each stream."""
    world = VirtualWorld(groups=2, ring_slots=2, queues=queues)
    seen: dict[Any, torch.Tensor] = {}
    in_order(world, seen, opposite=opposite, dependent=dependent)
    world.run()
    failed = [group for groups in world.groups for group in groups if group.reducer.error is not None]
    assert bool(failed) == opposite == (world.clock.now_s > TIMEOUT_S)
    assert len(seen) == 4
    for (_, number), result in seen.items():
        right = elements_are(result, of_host(world, 8, number, COUNT, torch.float32))
        assert bool((right | marked(result)).all())
        assert opposite or bool(right.all())
    for group in failed:
        with pytest.raises(CollectiveTimeoutError, match="no result after 2 s"):
            group.average(gradients(0, 0, COUNT))

"""The device's path on host memory: streams are threads, numbers are numpy's, sessions and switch are real."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, FaninError, NonFiniteError, WorkerLostError
from fanin.host.torch.device import device_agreement, lines
from fanin.host.torch.device.arithmetic import MARKS, NOT_FINITE, UNSPOILED
from fanin.host.torch.device.lines import HEAD_BYTES, pinned
from fanin.host.torch.device.numpy_arithmetic import NumpyArithmetic
from fanin.host.torch.device.sight import Blocks, Sight
from fanin.host.torch.handles.call import Call
from fanin.host.torch.meeting.side_store import SideStore
from fanin.numerics.reduction import EXACT, LANES, WIDE_SUMS, Element, Operator, lanes_number
from fanin.options import Options
from tests.support.host_device import HostDevice
from tests.torch.device_groups import reducers_of
from tests.torch.groups import SIZE, groups_of, on_every_rank

TIMEOUT_S = 60.0
SLOT_BYTES = 16 << 10


@pytest.fixture(autouse=True)
def _small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors are several pieces."""
    monkeypatch.setattr(lines, "SLOT_BYTES", SLOT_BYTES)
    monkeypatch.setattr(lines, "CODE_SLOT_BYTES", 64)


ELEMENTS = {
    torch.float32: Element.FLOAT32, torch.bfloat16: Element.BFLOAT16, torch.float16: Element.FLOAT16,
    torch.int32: Element.INT32, torch.float64: Element.FLOAT64, torch.int64: Element.INT64,
}  # fmt: skip


def request(tensor: torch.Tensor, **fields: Any) -> Call:
    given: dict[str, Any] = {
        "collective": "all_reduce", "source": tensor, "kept": tensor, "element": ELEMENTS[tensor.dtype], "lanes": 32,
        "outputs": [tensor], "timeout_s": TIMEOUT_S,
    }  # fmt: skip
    return Call(**{**given, **fields})


def bits(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().view(torch.uint8).numpy()


def test_values_and_residuals_have_the_bits_of_the_hosts_path() -> None:
    count = 40_001
    with reducers_of() as (groups, reducers):

        def act(rank: int) -> None:
            for lanes, dtype in itertools.product(LANES, (torch.float32, torch.bfloat16, torch.float16)):
                compare(rank, lanes, dtype)
            for number, lanes in enumerate(WIDE_SUMS):
                compare(rank, lanes, (torch.float32, torch.bfloat16, torch.float16)[number % 3])

        def compare(rank: int, lanes: int, dtype: torch.dtype) -> None:
            generator = torch.Generator().manual_seed(rank)
            x = torch.randn(count, generator=generator).to(dtype)
            owed = torch.randn(count, generator=generator) * 0.01
            mine, theirs = x.clone(), x.clone()
            my_owed, their_owed = owed.clone(), owed.clone()
            groups[rank].all_reduce_lanes(theirs, lanes=lanes, average=True, residual=their_owed).wait()
            asked = request(mine, lanes=lanes, average=True, residual=my_owed)
            reducers[rank].submit(asked).wait()
            assert np.array_equal(bits(mine), bits(theirs)), (lanes, dtype)
            assert np.array_equal(bits(my_owed), bits(their_owed)), (lanes, dtype)

        on_every_rank(act)


@pytest.mark.parametrize("lanes", [8, lanes_number("4/8")])
def test_a_scattered_part_has_the_bits_of_the_hosts_path(lanes: int) -> None:
    part = 60_007
    with reducers_of() as (groups, reducers):

        def act(rank: int) -> None:
            x = torch.randn(SIZE * part, generator=torch.Generator().manual_seed(rank))
            mine, theirs = torch.empty(part), torch.empty(part)
            groups[rank].reduce_scatter_lanes(theirs, x, lanes=lanes).wait()
            fields: dict[str, Any] = {"kept": mine, "keep_first": rank * part, "lanes": lanes, "outputs": [mine]}
            asked = request(x, collective="reduce_scatter", **fields)
            reducers[rank].submit(asked).wait()
            assert np.array_equal(bits(mine), bits(theirs))

        on_every_rank(act)


def test_what_has_no_lanes_goes_as_it_is_in_several_pieces() -> None:
    count = 3 * SLOT_BYTES // 4 + 17
    with reducers_of() as (_, reducers):

        def act(rank: int) -> None:
            whole = torch.arange(count, dtype=torch.int32) + rank
            double = torch.randn(40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * (rank + 1)
            largest = torch.arange(1000, dtype=torch.int64) * (rank + 1)
            expected = double / (rank + 1) * (SIZE * (SIZE + 1) / 2)
            works = [
                reducers[rank].submit(request(whole)),
                reducers[rank].submit(request(double)),
                reducers[rank].submit(request(largest, lanes=EXACT, operator=Operator.MAX)),
            ]
            for work in works:
                work.wait()
            assert torch.equal(whole, torch.arange(count, dtype=torch.int32) * SIZE + SIZE * (SIZE - 1) // 2)
            assert torch.allclose(double, expected, rtol=1e-9)
            assert torch.equal(largest, torch.arange(1000, dtype=torch.int64) * SIZE)

        on_every_rank(act)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_pieces_of_what_goes_as_it_is_have_the_bits_of_the_hosts_path(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = 100_000  # more than a packet of the loopback interface, and no multiple of it
    monkeypatch.setattr(lines, "SLOT_BYTES", slot)
    count = slot
    with reducers_of() as (groups, reducers):

        def act(rank: int) -> None:
            reducers[rank]._means = replace(reducers[rank]._means, arithmetic=None)  # as without Triton
            x = torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)
            for lanes in (32,) if dtype == torch.float64 else (32, 8):
                mine, theirs = x.clone(), x.clone()
                groups[rank].all_reduce_lanes(theirs, lanes=lanes).wait()
                reducers[rank].submit(request(mine, lanes=lanes)).wait()
                assert bool((bits(mine) == bits(theirs)).all()), lanes

        on_every_rank(act)


def test_requests_on_host_memory_keep_their_place_among_pieces() -> None:
    with reducers_of() as (groups, reducers):

        def act(rank: int) -> None:
            tensors = [torch.full((60_000 + i,), float(i)) for i in range(8)]
            works = []
            for i, tensor in enumerate(tensors):
                if i % 2:
                    works.append(reducers[rank].submit(request(tensor, lanes=8)))
                else:
                    switch = groups[rank]._resources._switch_reducer
                    assert switch is not None
                    hand_over = switch.hand_over
                    works.append(reducers[rank].queue(request(tensor), hand_over))
            for work in works:
                work.wait()
            for i, tensor in enumerate(tensors):
                assert torch.allclose(tensor, torch.full_like(tensor, float(i * SIZE)), rtol=0.02)

        on_every_rank(act)


def test_after_a_rank_is_lost_outputs_are_nan_and_every_later_call_raises() -> None:
    with reducers_of() as (groups, reducers):

        def act(rank: int) -> None:
            reducers[rank].submit(request(torch.ones(5000), lanes=8)).wait()

        on_every_rank(act)
        groups[2].abort()
        coded, raw = torch.ones(50_000), torch.ones(50_000, dtype=torch.float64)
        works = [reducers[0].submit(request(coded, lanes=8)), reducers[0].submit(request(raw))]
        for work in works:
            with pytest.raises(WorkerLostError, match="rank 2"):
                work.wait()
        reducers[0].drain()
        for work in works:
            assert work._job.done.reached.wait(TIMEOUT_S)
        assert bool(coded.isnan().all())
        assert bool(raw.isnan().all())
        with pytest.raises(WorkerLostError, match="rank 2"):
            reducers[0].submit(request(torch.ones(5000)))
        with pytest.raises(WorkerLostError, match="rank 2"):
            reducers[0].queue(request(torch.ones(5000)), lambda _request: 1)


def test_where_some_rank_has_no_device_tensors_go_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with groups_of(None) as groups:
        monkeypatch.setattr(device_agreement, "has_device", lambda: True)
        for group in groups:
            switch = group._resources._switch_reducer
            assert switch is not None
            monkeypatch.setattr(switch, "_make_device", group._resources._make_device)
        monkeypatch.setattr(Call, "device", property(lambda _call: torch.device("cuda", 0)))

        def act(rank: int) -> None:
            tensor = torch.full((3000,), rank + 1, dtype=torch.int32)
            groups[rank].all_reduce_lanes(tensor).wait()
            assert bool((tensor == SIZE * (SIZE + 1) // 2).all())
            switch = groups[rank]._resources._switch_reducer
            assert switch is not None
            assert switch.device is None

        on_every_rank(act)


def test_a_rank_that_does_not_come_to_its_first_device_tensor_is_named() -> None:
    store = c10d.HashStore()
    side = SideStore(store)
    device_agreement.tell(store, "g", 0, device_agreement.NUMBERS, True)
    with pytest.raises(CollectiveTimeoutError, match="ranks 1, 2 of this group"):
        device_agreement.all_say(side, "g", 0, 3, device_agreement.NUMBERS, timedelta(milliseconds=50))
    for rank in (1, 2):
        device_agreement.tell(store, "g", rank, device_agreement.NUMBERS, rank != 2)
    assert not device_agreement.all_say(side, "g", 0, 3, device_agreement.NUMBERS, timedelta(seconds=5))


class ScarceDevice(HostDevice):
    """Not all memory may be pinned."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def pinned(self, count_bytes: int) -> torch.Tensor:
        if count_bytes > self._most_bytes:
            raise RuntimeError("CUDA error: out of memory")
        return super().pinned(count_bytes)


def test_a_ring_has_fewer_slots_where_pinned_memory_is_scarce_and_says_so_where_there_is_too_little() -> None:
    most = HEAD_BYTES + 3 * SLOT_BYTES
    memory, slots = pinned(ScarceDevice(most), 8, 0)
    assert (len(memory), slots) == (HEAD_BYTES + 2 * SLOT_BYTES, 2)
    with pytest.raises(FaninError, match="ulimit -l"):
        pinned(ScarceDevice(HEAD_BYTES + SLOT_BYTES), 8, 0)


def test_every_rank_learns_who_has_spoiled_a_sum_on_a_device_and_goes_on() -> None:
    """float32 in lanes by marks beside the codes, in 32 bits too; float64 and small sums by the engine's."""
    options = Options(on_nonfinite="raise")
    cases = [
        (9_001, torch.float32, 8),
        (9_001, torch.bfloat16, 32),
        (9_001, torch.float64, 32),
        (500, torch.float32, 0),
    ]
    with reducers_of(options) as (_, reducers):

        def act(rank: int) -> None:
            for count, dtype, lanes in cases:
                x = torch.ones(count, dtype=dtype)
                if rank in (1, 2):
                    x[400 + rank] = torch.inf
                work = reducers[rank].submit(request(x, lanes=lanes or EXACT))
                for _ in range(2):
                    with pytest.raises(NonFiniteError) as raised:
                        work.wait()
                    assert raised.value.ranks == (1, 2)
                assert bool(x.isnan().any()) or bool(x.isinf().any())
                after = torch.ones(count, dtype=dtype)
                reducers[rank].submit(request(after, lanes=lanes or EXACT)).wait()
                assert torch.allclose(after, torch.full_like(after, SIZE), rtol=0.05)
            first, *_ = reducers[rank]._failures.nonfinite.reports
            for culprit in first.culprits:
                assert culprit.first <= 400 + culprit.rank < culprit.first + culprit.count < 9_001
            assert reducers[rank]._failures.nonfinite.counters()["nonfinite.sums"] == len(cases)

        on_every_rank(act)


def test_a_spoiled_sum_on_a_device_has_the_next_step_left_out() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with reducers_of(Options(on_nonfinite="skip")) as (_, reducers):

        def act(rank: int) -> None:
            x = torch.ones(9_001)
            if rank == 2:
                x[17] = torch.nan
            work = reducers[rank].submit(request(x, lanes=8))
            assert not work.orders_streams
            work.wait()

        weight.grad = torch.ones(3)
        optimizer.step()
        assert torch.equal(weight.detach(), torch.zeros(3))
        on_every_rank(act)
        for expected in (0.0, -1.0):
            weight.grad = torch.ones(3)
            optimizer.step()
            assert torch.equal(weight.detach(), torch.full((3,), expected))


def test_marks_name_the_part_and_the_block_of_each_rank() -> None:
    parts = [Blocks(0, 0, 100, 10), Blocks(16, 100, 40_000_000, 10)]
    marks = np.full((4, MARKS), UNSPOILED, np.int16)
    codes = np.zeros(16 + 4_000_000, np.int16)
    for rank, number in ((0, 9), (2, 16), (3, 16 + 3_999_999)):
        codes[:] = 0
        codes[number:] = NOT_FINITE
        NumpyArithmetic().mark(codes, own := np.zeros(4 * MARKS, np.int16), rank)
        marks = np.maximum(marks, own.reshape(4, MARKS))
    sight = Sight(1)
    sight.read_marks(parts, 4, 0, marks.ctypes.data)
    assert sight.spoilers == [(0, 90, 10), (2, 100, 10), (3, 40_000_090, 10)]

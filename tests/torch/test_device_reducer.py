"""The device's path on host memory: streams are threads, numbers are numpy's, sessions and switch are real."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, FaninError, WorkerLostError
from fanin.host.torch.collectives.device_parts import DeviceParts
from fanin.host.torch.device import agreement, lines
from fanin.host.torch.device.lines import HEAD_BYTES, pinned
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.completion import Completion
from fanin.host.torch.handles.failures import Failures
from fanin.host.torch.meeting.side_store import SideStore
from fanin.numerics.reduction import EXACT, LANES, Element, Operator
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


def test_a_scattered_part_has_the_bits_of_the_hosts_path() -> None:
    part = 60_007
    with reducers_of() as (groups, reducers):

        def act(rank: int) -> None:
            x = torch.randn(SIZE * part, generator=torch.Generator().manual_seed(rank))
            mine, theirs = torch.empty(part), torch.empty(part)
            groups[rank].reduce_scatter_lanes(theirs, x, lanes=8).wait()
            asked = request(x, collective="reduce_scatter", kept=mine, keep_first=rank * part, lanes=8, outputs=[mine])
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
        monkeypatch.setattr(agreement, "has_device", lambda: True)
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
    agreement.tell(store, "g", 0, agreement.NUMBERS, True)
    with pytest.raises(CollectiveTimeoutError, match="ranks 1, 2 of this group"):
        agreement.all_say(side, "g", 3, agreement.NUMBERS, timedelta(milliseconds=50))
    for rank in (1, 2):
        agreement.tell(store, "g", rank, agreement.NUMBERS, rank != 2)
    assert not agreement.all_say(side, "g", 3, agreement.NUMBERS, timedelta(seconds=5))


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


def test_ranks_that_must_know_who_has_spoiled_a_sum_send_cuda_tensors_by_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Devices quantize without the marks by which a rank is named (docs/nonfinite.md)."""
    for policy in ("raise", "skip"):
        failures = Failures("group", 0, 2, [0, 1], policy)
        options = Options(on_nonfinite=policy)
        parts = DeviceParts(c10d.HashStore(), "job", 0, 2, timedelta(seconds=1), options, failures, Completion())
        caplog.clear()
        made = parts.make(cast(Any, None), torch.device("cuda", 0), cast(Any, None), cast(Any, None))
        assert made is None
        assert f"on_nonfinite={policy!r}" in caplog.text

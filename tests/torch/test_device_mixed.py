"""Ranks whose tensors are on devices beside ranks whose are on the host, in one collective: refused, or the sum."""

from __future__ import annotations

import pytest
import torch

from fanin.errors import CollectiveMismatchError, WorkerLostError
from fanin.host.torch.device import cuda, device_agreement, lines, triton_arithmetic
from fanin.host.torch.device.threads import ThreadedDevice
from fanin.host.torch.handles.call import Call
from tests.support.host_device import HostDevice, TensorArithmetic
from tests.torch.groups import SIZE, groups_of, on_every_rank

LARGE, SMALL = 50_000, 100


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Addresses of the tensors that are taken for a device's."""
    found: set[int] = set()

    def device(call: Call) -> torch.device:
        return torch.device("cuda", 0) if call.source.data_ptr() in found else call.source.device

    monkeypatch.setattr(Call, "device", property(device))
    monkeypatch.setattr(device_agreement, "has_device", lambda: True)
    monkeypatch.setattr(cuda, "make_device", lambda _device, _asked, told: ThreadedDevice(HostDevice(), told))
    monkeypatch.setattr(triton_arithmetic, "triton_arithmetic", lambda *_, **__: TensorArithmetic())
    monkeypatch.setattr(lines, "SLOT_BYTES", 16 << 10)  # a large tensor is several pieces
    return found


@pytest.mark.parametrize("lanes", [8, 32])
@pytest.mark.parametrize("before", [0, 2], ids=["the first", "a later one"])
@pytest.mark.parametrize("alone", ["host", "device"])
def test_large_sums_of_host_and_device_tensors_are_refused_on_every_rank(
    lanes: int, before: int, alone: str, on_device: set[int]
) -> None:
    common = [torch.ones(LARGE) for _ in range(SIZE)]
    tensors = [torch.ones(LARGE) for _ in range(SIZE)]
    on_device |= {tensor.data_ptr() for tensor in common}
    on_device |= {tensor.data_ptr() for tensor in (tensors[:-1] if alone == "host" else tensors[-1:])}
    with groups_of(None) as groups:

        def act(rank: int) -> Exception | None:
            for _ in range(before):
                groups[rank].all_reduce_lanes(common[rank], lanes=lanes).wait()
            try:
                groups[rank].all_reduce_lanes(tensors[rank], lanes=lanes).wait()
            except (CollectiveMismatchError, WorkerLostError) as error:
                return error
            return None

        errors = on_every_rank(act)
    assert None not in errors
    told = [str(error) for error in errors if isinstance(error, CollectiveMismatchError)]
    assert told
    assert all("host memory on some ranks" in text for text in told)


def test_a_small_sum_of_host_and_device_tensors_is_the_sum(on_device: set[int]) -> None:
    common, tensors = ([torch.ones(count) for _ in range(SIZE)] for count in (LARGE, SMALL))
    on_device |= {tensor.data_ptr() for tensor in (*common, *tensors[:-1])}
    with groups_of(None) as groups:

        def act(rank: int) -> None:
            for tensor in (common[rank], tensors[rank]):
                groups[rank].all_reduce_lanes(tensor, lanes=8).wait()

        on_every_rank(act)
    assert all(torch.equal(tensor, torch.full((SMALL,), float(SIZE))) for tensor in tensors)


def test_whether_a_first_small_tensor_is_on_a_device_must_be_alike(on_device: set[int]) -> None:
    tensors = [torch.ones(SMALL) for _ in range(SIZE)]
    on_device |= {tensor.data_ptr() for tensor in tensors[:-1]}
    with groups_of(None) as groups:

        def act(rank: int) -> bool:
            with pytest.raises((CollectiveMismatchError, WorkerLostError)) as raised:
                groups[rank].all_reduce_lanes(tensors[rank], lanes=8).wait()
            return isinstance(raised.value, CollectiveMismatchError)

        assert any(on_every_rank(act))


@pytest.mark.parametrize(("count", "passes"), [(4_000, True), (9_000, False)], ids=["one piece", "several pieces"])
def test_what_travels_as_it_is_passes_in_one_piece_and_is_refused_in_several(
    count: int, passes: bool, on_device: set[int]
) -> None:
    common = [torch.ones(LARGE) for _ in range(SIZE)]
    tensors = [torch.ones(count, dtype=torch.int32) for _ in range(SIZE)]
    on_device |= {tensor.data_ptr() for tensor in (*common, *tensors[:-1])}
    with groups_of(None) as groups:

        def act(rank: int) -> bool:
            groups[rank].all_reduce_lanes(common[rank]).wait()
            try:
                groups[rank].all_reduce_lanes(tensors[rank]).wait()
            except (CollectiveMismatchError, WorkerLostError):
                return False
            return torch.equal(tensors[rank], torch.full_like(tensors[rank], SIZE))

        assert on_every_rank(act) == [passes] * SIZE

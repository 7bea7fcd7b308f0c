"""Bad input and faults on the way of a device: a typed error, or the slower way, by name."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensorMode

from fanin.errors import ArgumentError, FaninError, UnsupportedError
from fanin.host.torch.collectives.arguments import Arguments
from fanin.host.torch.collectives.device_parts import DeviceParts
from fanin.host.torch.device import cuda, device_agreement, triton_arithmetic
from fanin.host.torch.device.announcement import FIRST_DEVICE_TENSOR
from fanin.host.torch.device.arithmetic import Plan
from fanin.host.torch.device.device import Memory, Stream
from fanin.host.torch.device.reducer import DeviceReducer
from fanin.host.torch.device.threads import ThreadedDevice
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.completion import Completion
from fanin.host.torch.handles.failures import Failures
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options
from tests.support.cluster import job
from tests.support.host_device import HostDevice, TensorArithmetic
from tests.torch.device_groups import reducers_of
from tests.torch.groups import SIZE, on_every_rank

TIMEOUT_S = 60.0
COUNT = 9_001


def average(tensor: torch.Tensor, lanes: int = 8) -> Call:
    return Call(
        "all_reduce", tensor, [tensor], timeout_s=TIMEOUT_S, kept=tensor, element=Element.FLOAT32, lanes=lanes,
        average=True,
    )  # fmt: skip


class LostDevice(HostDevice):
    """A device whose calls fail from some moment on, as CUDA's do after an illegal access or a fall off the bus."""

    lost = False

    def copy(self, stream: Stream, target: Memory, source: Memory) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        super().copy(stream, target, source)


@pytest.mark.parametrize("lanes", [8, 32])
def test_a_lost_device_ends_the_group_with_its_own_error_and_never_leaves_values(lanes: int) -> None:
    with reducers_of() as (_, reducers):
        on_every_rank(lambda rank: reducers[rank].submit(average(torch.ones(COUNT), lanes)).wait())
        below = LostDevice()
        line = reducers[0]._lines[torch.device("cpu")]
        cast(ThreadedDevice, line.device)._below = below
        below.lost = True
        work = reducers[0].submit(average(torch.ones(COUNT), lanes))
        with pytest.raises(FaninError, match="unspecified launch failure"):
            work.wait()
        with pytest.raises(FaninError, match="unspecified launch failure"):
            reducers[0].submit(average(torch.ones(COUNT), lanes))
        for reducer in reducers[1:]:  # whose peer is gone
            reducer._fail(FaninError("over"))


class FullDevice(HostDevice):
    """A device without memory for the buffers of a sum."""

    full = False

    def allocate(self, stream: Stream, count_bytes: int) -> torch.Tensor:
        if self.full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 26.00 MiB")
        return super().allocate(stream, count_bytes)


def test_where_a_device_has_no_memory_for_a_sum_torchs_error_is_raised_and_the_group_is_over() -> None:
    with reducers_of() as (_, reducers):
        on_every_rank(lambda rank: reducers[rank].submit(average(torch.ones(COUNT))).wait())
        below = FullDevice()
        cast(ThreadedDevice, reducers[0]._lines[torch.device("cpu")].device)._below = below
        below.full = True
        with pytest.raises(torch.OutOfMemoryError, match=r"26\.00 MiB"):
            reducers[0].submit(average(torch.ones(COUNT)))
        below.full = False
        with pytest.raises(FaninError, match="out of memory"):
            reducers[0].submit(average(torch.ones(COUNT)))
        for reducer in reducers[1:]:
            reducer._fail(FaninError("over"))


def test_tensors_that_a_program_drops_live_until_the_device_is_through_and_not_longer() -> None:
    with reducers_of() as (_, reducers):
        kept: list[tuple[weakref.ref[Any], DeviceReducer]] = []

        def act(rank: int) -> None:
            tensor = torch.full((COUNT,), float(rank))
            kept.append((weakref.ref(tensor.untyped_storage()), reducers[rank]))
            reducers[rank].submit(average(tensor))
            del tensor  # neither waited for nor held

        on_every_rank(act)
        for _, reducer in kept:
            reducer.drain()
            for job in list(reducer._jobs):
                assert job.done.reached.wait(TIMEOUT_S)
        on_every_rank(lambda rank: reducers[rank].submit(average(torch.ones(COUNT))).wait())
        gc.collect()
        assert [held() for held, _ in kept] == [None] * SIZE


class ProgramStream:
    """A stream that the program makes, and destroys when it likes."""


class StreamsDevice(HostDevice):
    """A device whose current stream is the program's."""

    stream_now: object = "user"

    def current(self) -> Stream:
        return self.stream_now

    def record(self, stream: Stream) -> object:
        return object()


def test_a_stream_of_the_program_may_be_destroyed_after_the_call() -> None:
    with reducers_of() as (_, reducers):

        def act(rank: int) -> None:
            reducers[rank].submit(average(torch.ones(COUNT))).wait()
            below = StreamsDevice()
            cast(ThreadedDevice, reducers[rank]._lines[torch.device("cpu")].device)._below = below
            below.stream_now = made = ProgramStream()
            held = weakref.ref(made)
            tensor = torch.full((COUNT,), float(rank))
            work = reducers[rank].submit(average(tensor))
            below.stream_now = "user"
            del made
            assert held() is None
            work.wait()
            assert torch.allclose(tensor, torch.full_like(tensor, (SIZE - 1) / 2), rtol=0.02)

        on_every_rank(act)


def test_tensors_on_several_devices_in_one_call_are_refused_by_their_names() -> None:
    arguments = Arguments(0, 1, lambda: "cpu:fanin,cuda:fanin")
    here = torch.ones(4)
    with FakeTensorMode():
        there, other = (torch.empty(4, device=device) for device in ("cuda:0", "cuda:1"))
    for first, second in ((here, there), (there, other)):
        with pytest.raises(ArgumentError, match=rf"tensors on {first.device} and {second.device} in one call"):
            arguments.of_parts("all_gather_into_tensor", first, second, written=first)
        with pytest.raises(ArgumentError, match=rf"tensors on {first.device} and {second.device} in one call"):
            arguments.of_several("all_reduce_coalesced", [first, second])


# --- Triton ---


def failing(error: Exception) -> Any:
    def make(*_: Any) -> Any:
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'triton'"), "No module named 'triton'"),
        (AttributeError("module 'triton.language' has no attribute 'div_rn'"), "has no attribute 'div_rn'"),
        (RuntimeError("Failed to find C compiler"), "Failed to find C compiler"),
    ],
    ids=["absent", "of another version", "without a compiler"],
)
def test_a_triton_that_cannot_be_used_is_an_error_that_says_why_and_what_to_do(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_arithmetic, "_probed", failing(error))
    with pytest.raises(UnsupportedError, match=rf"{said}.*quantized there\. Remedy: the Triton that this torch"):
        triton_arithmetic.triton_arithmetic(torch.device("cuda", 0))


def test_a_triton_with_other_bits_is_an_error_that_names_the_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_arithmetic, "_probed", lambda _: (TensorArithmetic(), ("words",)))
    with pytest.raises(UnsupportedError, match="other bits than numpy on cuda:0: words"):
        triton_arithmetic.triton_arithmetic(torch.device("cuda", 0))


@pytest.mark.parametrize("faulty", [0, 1], ids=["this rank's", "another rank's"])
def test_where_a_ranks_triton_fails_all_quantize_on_their_hosts_and_say_so(
    faulty: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def tried(_device: torch.device, plans: Iterable[Plan] = (), *, marks: bool = False) -> TensorArithmetic:
        list(plans)
        if faulty == 0:
            raise UnsupportedError("Triton cannot be used on cuda:0: it is broken")
        return TensorArithmetic()

    monkeypatch.setattr(triton_arithmetic, "triton_arithmetic", tried)
    monkeypatch.setattr(device_agreement, "has_device", lambda: True)
    monkeypatch.setattr(cuda, "make_device", lambda _device, _asked, told: ThreadedDevice(HostDevice(), told))
    store = c10d.HashStore()
    device_agreement.tell(store, "job", 1, device_agreement.DEVICE, True)
    device_agreement.tell(store, "job", 1, device_agreement.NUMBERS, faulty != 1)
    failures = Failures("group", 0, 2, [0, 1])
    parts = DeviceParts(store, "job", 0, 2, timedelta(seconds=5), Options(lanes="8/8"), failures, Completion())
    spec = job(workers=2, accumulators=True)
    submitted: list[Reduction] = []
    session = SimpleNamespace(
        size=2, rank=0, wait=lambda _ticket, _timeout_s: None, submit=submitted.append, spec=spec, failure=None
    )
    switch: Any = SimpleNamespace(session=session, divisor=2.0)
    made = parts.make(switch, torch.device("cuda", 0), cast(Any, None), cast(Any, None))
    assert made is not None
    assert made.arithmetic is None
    assert [each.tag for each in submitted] == [FIRST_DEVICE_TENSOR]
    assert ("it is broken" if faulty == 0 else "does not work on another rank") in caplog.text

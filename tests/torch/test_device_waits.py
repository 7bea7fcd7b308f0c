"""Ways in which streams wait for results: which one is tried, used and named, on devices that pretend."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fanin.errors import ConfigurationError
from fanin.host.torch.collectives.device_parts import DeviceParts
from fanin.host.torch.device import cuda, device_agreement, flags
from fanin.host.torch.device.cuda import CudaDevice, SpinningDevice
from fanin.host.torch.device.device import Event, Flag, Stream
from fanin.host.torch.device.threads import ThreadedDevice
from fanin.host.torch.gpus import waiting_way
from fanin.host.torch.handles.call import Call
from fanin.options import Options
from tests.support.host_device import HostDevice
from tests.torch.groups import SIZE, groups_of, on_every_rank

DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _no_way_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    cuda.way_for.cache_clear()
    yield
    cuda.way_for.cache_clear()


# --- which way ---


def working(monkeypatch: pytest.MonkeyPatch, *ways: str) -> list[str]:
    """Have only these ways work; returns those that are tried."""
    tried: list[str] = []

    def probe(way: str, _device: torch.device) -> tuple[bool, str, float]:
        tried.append(way)
        return (True, "", 1e-5) if way in ways else (False, f"no {way} here", float("nan"))

    monkeypatch.setattr(cuda, "probe", probe)
    return tried


@pytest.mark.parametrize(
    ("works", "found", "why", "tried"),
    [
        (("value", "kernel", "block"), "value", "", ["value"]),
        (("kernel", "block"), "kernel", "value: no value here", ["value", "kernel"]),
        (("block",), "block", "value: no value here; kernel: no kernel here", ["value", "kernel", "block"]),
    ],
    ids=["value", "kernel", "block"],
)
def test_the_first_way_that_works_is_used_and_what_fails_before_it_is_told(
    works: tuple[str, ...], found: str, why: str, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = working(monkeypatch, *works)
    assert cuda.way_for(DEVICE, "auto") == (found, why)
    assert cuda.way_for(DEVICE, "auto") == (found, why)
    assert seen == tried  # once per process
    assert cuda.describe(DEVICE, Options()).endswith(f"; {why}") == bool(why)


@pytest.mark.parametrize(
    ("connections", "found"), [("1", "block"), ("2", "block"), ("3", "value"), ("8", "value"), ("", "value")]
)
def test_with_too_few_hardware_queues_a_thread_waits_and_says_so(
    connections: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = working(monkeypatch, "value", "kernel", "block")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    way, why = cuda.way_for(DEVICE, "auto")
    assert way == found
    if found == "block":
        assert why == f"CUDA_DEVICE_MAX_CONNECTIONS={connections} leaves no queue beside the program's"
        assert why in cuda.describe(DEVICE, Options())
        assert tried == []


@pytest.mark.parametrize("asked", cuda.WAYS)
def test_a_way_that_is_asked_for_is_used_alone_and_refused_where_it_fails(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = working(monkeypatch, asked)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert cuda.way_for(DEVICE, asked) == (asked, "asked for")
    assert tried == [asked]
    cuda.way_for.cache_clear()
    working(monkeypatch)
    with pytest.raises(ConfigurationError, match=rf"device_wait = '{asked}' does not work on cuda:0: no {asked} here"):
        cuda.way_for(DEVICE, asked)


@pytest.mark.parametrize(
    ("way", "kind"), [("value", CudaDevice), ("kernel", SpinningDevice), ("block", ThreadedDevice)]
)
def test_each_way_has_its_device(way: str, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    working(monkeypatch, way)
    made: Any = cuda.make_device(DEVICE, "auto", lambda _error: None)
    try:
        assert type(made) is kind
        assert made.way == way
    finally:
        made.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(), "value: streams wait in the device's queue (cuStreamWaitValue32)"),
        (
            Options(on_nonfinite="raise"),
            "value: streams wait in the device's queue (cuStreamWaitValue32); wait() blocks all the same for the "
            "errors of on_nonfinite='raise'",
        ),
        (
            Options(inside="nccl"),
            "value: streams wait in the device's queue (cuStreamWaitValue32); wait() blocks all the same in sums of "
            "two levels (inside='nccl')",
        ),
        (Options(device_wait="block"), "block: wait() blocks the calling thread; asked for"),
        (
            Options(device_wait="block", on_nonfinite="skip"),
            "block: wait() blocks the calling thread; asked for",
        ),
        (
            Options(fallback="gloo"),
            "block: wait() blocks the calling thread; fallback='gloo' takes CUDA tensors by the host",
        ),
        (
            Options(on_worker_loss="continue"),
            "block: wait() blocks the calling thread; on_worker_loss='continue' waits for the number of contributions",
        ),
    ],
    ids=["auto", "raise", "two levels", "block", "block and skip", "fallback", "continue"],
)
def test_doctor_names_the_way_that_a_group_with_these_options_takes(
    options: Options, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    working(monkeypatch, "value", "kernel", "block")
    assert waiting_way(DEVICE, options) == said


# --- the probe ---


class FakeDevice:
    """A device whose one stream waits for a flag, and sets another one once it has come."""

    def __init__(self, _device: torch.device) -> None:
        self._waits: tuple[Flag, int] | None = None
        self._writes: list[tuple[Flag, int]] = []

    def pinned(self, count_bytes: int) -> torch.Tensor:
        self._memory = torch.zeros(count_bytes, dtype=torch.uint8)
        return self._memory

    def stream(self, name: str) -> Stream:
        return name

    def record(self, _stream: Stream) -> Event:
        return self

    def synchronize(self, _stream: Stream | None = None) -> None:
        pass

    def wait_value(self, _stream: Stream, flag: Flag, value: int) -> None:
        self._waits = flag, value

    def write_value(self, _stream: Stream, flag: Flag, value: int) -> None:
        self._writes.append((flag, value))
        self._go_on()

    def raise_flag(self, flag: Flag, value: int) -> None:
        flags.store(flag, value)
        self._go_on()

    def _go_on(self) -> None:
        if self._waits is None or flags.reached(flags.load(self._waits[0]), self._waits[1]):
            self._waits = None
            for write in self._writes:
                flags.store(*write)
            self._writes = []


class Hasty(FakeDevice):
    """A device whose stream does not wait."""

    def wait_value(self, _stream: Stream, flag: Flag, value: int) -> None:
        pass


class Stuck(FakeDevice):
    """A device whose stream does not see that its flag is set."""

    def raise_flag(self, flag: Flag, value: int) -> None:
        pass


class Broken(FakeDevice):
    """A device whose driver has no such call."""

    def wait_value(self, _stream: Stream, flag: Flag, value: int) -> None:
        raise AttributeError("the CUDA driver has no cuStreamWaitValue32_v2: it is older than 11.7")


class Hanging(FakeDevice):
    """A device whose driver does not return from a call before the flag is set, by another thread."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._raised = threading.Event()

    def wait_value(self, _stream: Stream, flag: Flag, value: int) -> None:
        self._raised.wait(60.0)

    def raise_flag(self, flag: Flag, value: int) -> None:
        super().raise_flag(flag, value)
        self._raised.set()


@pytest.mark.parametrize(("way", "name"), [("value", "CudaDevice"), ("kernel", "SpinningDevice")])
@pytest.mark.parametrize(
    ("kind", "works", "why"),
    [
        (FakeDevice, True, ""),
        (Hasty, False, "a stream did not wait for a flag"),
        (Stuck, False, "a stream still waited seconds after its flag was set"),
        (Broken, False, "AttributeError: the CUDA driver has no cuStreamWaitValue32_v2: it is older than 11.7"),
        (Hanging, False, "a call of the driver took longer than 0.05 s"),
    ],
)
def test_the_probe_tells_whether_a_stream_waits_and_goes_on_and_never_raises(
    way: str, name: str, kind: type, works: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, name, kind)
    if not works:
        monkeypatch.setattr(cuda, "PROBE_TIMEOUT_S", 10.0 if kind is Hasty or kind is Broken else 0.05)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    found, said, took_s = cuda.probe(way, DEVICE)
    assert (found, said) == (works, why)
    assert (took_s >= 0) == works  # else not a number


def test_a_thread_can_always_wait_and_is_not_tried() -> None:
    assert cuda.probe("block", DEVICE) == (True, "", 0.0)


# --- describe() ---


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """A function that has requests taken for ones on a device, which this rank has or has not."""

    def pretend(has_device: Callable[[], bool]) -> None:
        monkeypatch.setattr(device_agreement, "has_device", has_device)
        monkeypatch.setattr(Call, "device", property(lambda _call: DEVICE))
        monkeypatch.setattr(cuda, "make_device", lambda _device, _asked, told: ThreadedDevice(HostDevice(), told))
        monkeypatch.setattr(DeviceParts, "_arithmetic", lambda *_: None)

    return pretend


def described(options: Options | None) -> tuple[str, str]:
    """The texts of rank 0 on its group before its first device tensor, and after."""
    with groups_of(options) as groups:
        before = groups[0].describe()
        on_every_rank(lambda rank: groups[rank].all_reduce_lanes(torch.ones(9)).wait())
        return before, groups[0].describe()


def test_describe_names_the_way_and_why_not_a_better_one(monkeypatch: pytest.MonkeyPatch, pretending: Any) -> None:
    working(monkeypatch, "block")
    pretending(lambda: True)
    before, after = described(None)
    assert after == (
        f"{before}; cuda:0: streams wait by 'block' (wait() blocks the calling thread; value: no value here; kernel: "
        "no kernel here), 8 slots of 1024 KiB, quantized on the host"
    )


@pytest.mark.parametrize("has_device", [True, False])
def test_describe_says_that_with_a_fallback_all_go_by_the_host(has_device: bool, pretending: Any) -> None:
    pretending(lambda: has_device)
    _, after = described(Options(fallback="gloo"))
    assert after.endswith("; CUDA tensors go by the host, since fallback='gloo'") == has_device


def test_describe_says_where_all_go_by_the_host(pretending: Any) -> None:
    answers = iter([True] * (SIZE - 1))
    pretending(lambda: next(answers, False))
    before, after = described(None)
    assert after == f"{before}; CUDA tensors go by the host, since some rank of the group has no CUDA device"

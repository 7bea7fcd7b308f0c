"""A CUDA device: streams and copies by torch, flags by the driver (`libcuda.so.1`).

Three ways of waiting for a flag, the first that works unless the options name one:

    value   cuStreamWaitValue32: the stream waits and holds nothing; microseconds after the flag was set
    kernel  torch's Work.block_current_stream: a kernel that polls and holds a multiprocessor's slot; up to 1 ms
    block   a thread of ours per stream waits for the flag, and queues what comes then (threads.py): `Work.wait` blocks

Rules
-----
* Flags and slots are pinned memory, which the driver maps: reads and writes by the device are ordered by the stream.
* A way is tried once per process and device before it is used.
* Calls into the driver release the GIL: where a stream's queue is full, they wait, and other threads of ours must run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fanin.errors import ConfigurationError, FaninError
from fanin.host.torch.device import flags
from fanin.host.torch.device.device import Action, Event, Flag, Memory, Stream
from fanin.options import Options

_Work: Any = dist.Work
GREATER_OR_EQUAL = 0
"""CU_STREAM_WAIT_VALUE_GEQ: until (int32_t)(*address - value) >= 0."""
WRITE_DEFAULT = 0
"""CU_STREAM_WRITE_VALUE_DEFAULT: with a fence before it, so what the stream has written is seen first."""
PROBE_TIMEOUT_S = 10.0
"""Longest wait for a probe of a way; half of it for a stream to go on after its flag was set."""
FLAG_BYTES = 128
"""Distance between flags, so that no two share a cache line, or a pair of them."""
MIN_CONNECTIONS = 3
"""Hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) below which streams of ours that wait would hold up the program's."""
WAYS = ("value", "kernel", "block")


class Driver:
    """The few calls of CUDA's driver that torch does not offer."""

    def __init__(self) -> None:
        """OSError or AttributeError where there is no driver, or one without them."""
        library = ctypes.CDLL("libcuda.so.1")
        self._wait = _function(library, ("cuStreamWaitValue32_v2", "cuStreamWaitValue32"))
        self._write = _function(library, ("cuStreamWriteValue32_v2", "cuStreamWriteValue32"))
        self._copy = library.cuMemcpyAsync
        self._copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        self._copy.restype = ctypes.c_int
        self._mapped = library.cuMemHostGetDevicePointer_v2
        self._mapped.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p, ctypes.c_uint]
        self._mapped.restype = ctypes.c_int
        self._name = library.cuGetErrorName
        self._name.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        self._name.restype = ctypes.c_int

    def wait_value(self, stream: int, address: int, value: int) -> None:
        """Make the stream (CUDA's handle) wait until the word at a device address is at least `value`."""
        self._check("cuStreamWaitValue32", self._wait(stream, address, value, GREATER_OR_EQUAL))

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Make the stream (CUDA's handle) write `value` to a device address after its earlier work."""
        self._check("cuStreamWriteValue32", self._write(stream, address, value, WRITE_DEFAULT))

    def copy(self, stream: int, target: int, source: int, count_bytes: int) -> None:
        """Make the stream copy between pinned memory and its device; ten times as quick to call as torch's copy_."""
        self._check("cuMemcpyAsync", self._copy(target, source, count_bytes, stream))

    def mapped(self, address: int) -> int:
        """Address at which the device sees pinned memory of the host."""
        found = ctypes.c_uint64()
        self._check("cuMemHostGetDevicePointer", self._mapped(ctypes.byref(found), address, 0))
        return int(found.value)

    def _check(self, call: str, result: int) -> None:
        if result:
            name = ctypes.c_char_p()
            self._name(result, ctypes.byref(name))
            text = (name.value or b"an unknown error").decode()
            raise FaninError(f"{call} failed with {text} ({result}). Remedy: see `nvidia-smi` and `dmesg`")


def _function(library: ctypes.CDLL, names: tuple[str, ...]) -> Any:
    """The first of the names that the driver exports: (stream, address, value, flags) -> result."""
    for name in names:
        if hasattr(library, name):
            found = getattr(library, name)
            found.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
            found.restype = ctypes.c_int
            return found
    raise AttributeError(f"the CUDA driver has no {names[0]}: it is older than 11.7")


@functools.cache
def driver() -> Driver:
    """The process's only instance of the driver."""
    return Driver()


class CudaDevice:
    """`Device`, by the way "value". Streams and events are torch's, memory is a flat tensor of bytes, flags addresses.

    All methods but `raise_flag` are called by threads that may wait for CUDA.
    """

    way = "value"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._mapped: dict[int, int] = {}
        self._bound = threading.local()

    def stream(self, name: str) -> Stream:
        """Make a stream of high priority: it has little to do, and others wait for it."""
        return torch.cuda.Stream(self.device, priority=-1)

    def current(self) -> Stream:
        """The calling thread's current stream."""
        return torch.cuda.current_stream(self.device)

    def record(self, stream: Stream) -> Event:
        """Record an event behind all that the stream was given so far."""
        return stream.record_event()

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Make all later work of the stream begin after the event."""
        stream.wait_event(event)

    def copy(self, stream: Stream, target: Memory, source: Memory) -> None:
        """Copy between the device's memory and pinned memory of the host, of the same size.

        torch does not know of the copy: the owner of the pinned memory frees it when it is not in use any more.
        """
        if len(target) != len(source):
            raise AssertionError(f"{len(source)} bytes are copied to {len(target)}")
        self._bind()
        driver().copy(stream.cuda_stream, target.data_ptr(), source.data_ptr(), len(source))

    def launch(self, stream: Stream, action: Action) -> None:
        """Call the action, which queues kernels, with the stream as the current one."""
        with torch.cuda.stream(stream):
            action()

    def wait_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Make all later work of the stream begin once the flag has reached the value."""
        self._bind()
        driver().wait_value(stream.cuda_stream, self._device_address(flag), value)

    def write_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Let the stream set the flag once all its earlier work is done."""
        self._bind()
        driver().write_value(stream.cuda_stream, self._device_address(flag), value)

    def raise_flag(self, flag: Flag, value: int) -> None:
        """Set the flag now, from a thread of the host."""
        flags.store(flag, value)

    def synchronize(self, stream: Stream) -> None:
        """Wait, in this thread, for all that the stream was given."""
        stream.synchronize()

    def done(self, event: Event) -> bool:
        """Whether the event has come."""
        return bool(event.query())

    def join(self, event: Event, timeout_s: float | None) -> bool:
        """Let the caller's current stream wait for the event; True, at once."""
        torch.cuda.current_stream(self.device).wait_event(event)
        return True

    def pinned(self, count_bytes: int) -> torch.Tensor:
        """Pinned memory, filled with zeros."""
        return torch.zeros(count_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def allocate(self, stream: Stream, count_bytes: int) -> torch.Tensor:
        """Memory of the device that is used, and freed, in the order of that stream."""
        with torch.cuda.stream(stream):
            return torch.empty(count_bytes, dtype=torch.uint8, device=self.device)

    def retire(self, stream: Stream, memory: torch.Tensor, beside: torch.Tensor) -> None:
        """Keep torch from reusing pinned memory, which is about to be freed, before the stream has come here.

        A copy into `beside` shows torch that the stream uses the memory.
        """
        with torch.cuda.stream(stream):
            beside[:1].copy_(memory[:1], non_blocking=True)

    def close(self) -> None:
        """Do nothing: this device has no threads to end."""

    def _device_address(self, flag: Flag) -> int:
        found = self._mapped.get(flag)
        if found is None:
            found = self._mapped[flag] = driver().mapped(flag)
        return found

    def _bind(self) -> None:
        """Make the device's context this thread's: the driver wants one, which a thread's first call of torch makes."""
        if not getattr(self._bound, "done", False):
            torch.cuda.current_stream(self.device).query()
            self._bound.done = True


class _Blocker(_Work):  # type: ignore[misc]
    """A work for torch's block_current_stream: a flag completes its future."""

    def __init__(self) -> None:
        super().__init__()
        self.future: torch.futures.Future[None] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[None]:
        """The future that the flag completes."""
        return self.future


class SpinningDevice(CudaDevice):
    """`Device`, by the way "kernel": torch's kernel polls, and the device sets flags by copies of four bytes."""

    way = "kernel"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._lock = threading.Lock()
        self._waiting: dict[Flag, list[tuple[int, _Blocker]]] = {}
        self._over: list[_Blocker] = []
        """Blockers that have been let go, to be dropped by a thread that may call the driver."""
        self._blocks: list[torch.Tensor] = []

    def pinned(self, count_bytes: int) -> torch.Tensor:
        """Allocate pinned memory (CudaDevice.pinned), and keep it: flags in it are found by their addresses."""
        made = super().pinned(count_bytes)
        self._blocks.append(made)
        return made

    def wait_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Make all later work of the stream begin once the flag has reached the value, by a kernel that polls."""
        over, self._over = self._over, []
        del over
        blocker = _Blocker()
        with torch.cuda.stream(stream):
            blocker.block_current_stream()
        with self._lock:
            self._waiting.setdefault(flag, []).append((value, blocker))
        self._let_go(flag)  # the value may have been reached meanwhile

    def write_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Let the stream set the flag, by a copy of four bytes, once all its earlier work is done."""
        signed = value - flags.VALUES if value >= flags.VALUES // 2 else value
        with torch.cuda.stream(stream), torch.no_grad():
            number = torch.full((1,), signed, dtype=torch.int32, device=self.device)
            self._word(flag).copy_(number, non_blocking=True)

    def raise_flag(self, flag: Flag, value: int) -> None:
        """Set the flag now, and let go of the streams that wait for its value."""
        super().raise_flag(flag, value)
        self._let_go(flag)

    def _word(self, flag: Flag) -> torch.Tensor:
        for block in self._blocks:
            if 0 <= (first := flag - block.data_ptr()) < len(block):
                return block[first : first + 4].view(torch.int32)
        raise AssertionError("a flag lies in pinned memory of ours")

    def _let_go(self, flag: Flag) -> None:
        stands = flags.load(flag)
        with self._lock:
            waiting = self._waiting.get(flag, [])
            gone = [blocker for value, blocker in waiting if flags.reached(stands, value)]
            self._waiting[flag] = [each for each in waiting if not flags.reached(stands, each[0])]
        self._over += gone
        for blocker in gone:
            blocker.future.set_result(None)


def probe(way: str, device: torch.device) -> tuple[bool, str, float]:
    """Whether a stream waits for a flag that way and goes on when it comes; why not; and how long after, in seconds.

    The median of a few tries. It never raises, and takes less than three times PROBE_TIMEOUT_S: a call of the driver
    that does not return is given up, with the thread that made it.
    """
    if way == "block":
        return True, "", 0.0
    tried = _Probe(way, device)
    thread = threading.Thread(target=tried.run, name="fanin-probe", daemon=True)
    thread.start()
    thread.join(PROBE_TIMEOUT_S)
    if thread.is_alive():
        tried.let_go()
        thread.join(PROBE_TIMEOUT_S)
        return False, f"a call of the driver took longer than {PROBE_TIMEOUT_S:g} s", float("nan")
    return tried.found


class _Probe:
    """A stream that waits for one flag and sets another, a few times."""

    TRIES = 11

    def __init__(self, way: str, device: torch.device) -> None:
        self._way, self._device = way, device
        self._made: CudaDevice | None = None
        self._come = 0
        self.found = (False, "nothing was tried", float("nan"))

    def run(self) -> None:
        """Try the way and set `found`; in a thread of its own, since a call of the driver may not return."""
        try:
            with torch.cuda.device(self._device):
                self.found = self._try()
        except Exception as error:
            self.found = (False, f"{type(error).__name__}: {error}", float("nan"))

    def let_go(self) -> None:
        """Raise the flag from another thread, so that no stream waits for it any more."""
        if self._made is not None and self._come:
            self._made.raise_flag(self._come, flags.VALUES // 4)

    def _try(self) -> tuple[bool, str, float]:
        made = self._made = CudaDevice(self._device) if self._way == "value" else SpinningDevice(self._device)
        memory = made.pinned(2 * FLAG_BYTES)
        come = self._come = memory.data_ptr()
        gone = come + FLAG_BYTES
        stream = made.stream("probe")
        # A kernel's first launch loads it, which may wait for all streams, and so for one that waits for our flag.
        made.write_value(stream, gone, 0)
        made.synchronize(stream)
        took = []
        for number in range(1, self.TRIES + 1):
            made.wait_value(stream, come, number)
            made.write_value(stream, gone, number)
            behind = made.record(stream)
            if flags.wait(gone, number, 0.001):
                return False, "a stream did not wait for a flag", float("nan")
            begin = time.perf_counter()
            made.raise_flag(come, number)
            if not flags.wait(gone, number, PROBE_TIMEOUT_S / 2):
                return False, "a stream still waited seconds after its flag was set", float("nan")
            took.append(time.perf_counter() - begin)
            behind.synchronize()
        return True, "", sorted(took)[len(took) // 2]


@functools.cache
def way_for(device: torch.device, asked: str) -> tuple[str, str]:
    """The way by which streams of that device wait, and why better ways do not work; `asked`: Options.device_wait.

    ConfigurationError: the way that was asked for does not work.
    """
    if asked in WAYS:
        works, why, _ = probe(asked, device)
        if not works:
            raise ConfigurationError(
                f"device_wait = {asked!r} does not work on {device}: {why}. Remedy: leave it unset, or 'block'"
            )
        return asked, "asked for"
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    if connections.isdecimal() and int(connections) < MIN_CONNECTIONS:
        return "block", f"CUDA_DEVICE_MAX_CONNECTIONS={connections} leaves no queue beside the program's"
    reasons: list[str] = []
    for way in WAYS:
        works, why, _ = probe(way, device)
        if works:
            return way, "; ".join(reasons)
        reasons.append(f"{way}: {why}")
    raise AssertionError("a thread can always wait")


def make_device(device: torch.device, asked: str, failed: Callable[[BaseException], None]) -> Any:
    """The device by the way that works, or that was asked for. `failed` is told where a thread of its streams fails."""
    from fanin.host.torch.device.threads import ThreadedDevice

    way, _ = way_for(device, asked)
    if way == "block":
        return ThreadedDevice(CudaDevice(device), failed)
    return CudaDevice(device) if way == "value" else SpinningDevice(device)


def asked_by(options: Options) -> tuple[str, str]:
    """The way that a group with these options asks for, and why, where it is not `device_wait` that says so.

    In a job that continues, the divisor is the number of contributions, which no device knows beforehand; and with a
    fallback, a sum may be made anew, so tensors go by the host, and the end of a sum is waited for.
    """
    if options.on_worker_loss != "raise":
        return "block", f"on_worker_loss={options.on_worker_loss!r} waits for the number of contributions"
    if options.fallback != "raise":
        how = "may sum anew over other cards" if options.fallback == "cards" else "takes CUDA tensors by the host"
        return "block", f"fallback={options.fallback!r} {how}"
    return options.device_wait, ""


def describe(device: torch.device, options: Options) -> str:
    """How streams of that device wait for a group with these options, in words, and why no better way is used."""
    asked, because = asked_by(options)
    way, why = way_for(device, asked)
    why = because or why
    said = {
        "value": "streams wait in the device's queue (cuStreamWaitValue32)",
        "kernel": "a kernel waits in the stream (torch's block_current_stream)",
        "block": "wait() blocks the calling thread",
    }[way]
    with contextlib.suppress(RuntimeError, AssertionError):  # no device any more; a torch without CUDA
        said += f" on {torch.cuda.get_device_name(device)}"
    if why and way != "value":
        said += f"; {why}"
    if way != "block" and options.on_nonfinite != "warn":
        said += f"; wait() blocks all the same for the errors of on_nonfinite={options.on_nonfinite!r}"
    if way != "block" and options.inside:
        said += f"; wait() blocks all the same in sums of two levels (inside={options.inside!r})"
    return said

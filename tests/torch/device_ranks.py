"""Programs of the ranks of tools/device_checks.py: `python -m tests.torch.device_ranks PROGRAM OUT.json [ARGUMENTS]`.

A program is a function of (report, rank, size, arguments). It reports by name; what it raises is reported as `wrong`.
Needs a CUDA device, which all ranks share.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import fanin
from fanin._torch_entry import register
from fanin.errors import ConfigurationError, FaninError, NonFiniteError
from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.shifted_weights import ShiftedWeights
from fanin.host.torch import CodecState, FaninProcessGroup, TwoLevelState, codec_hook, two_level_hook
from fanin.host.torch import counters as fanin_counters
from fanin.host.torch.device.triton_arithmetic import triton_arithmetic
from fanin.host.torch.device.weights import DeviceWeights
from fanin.host.torch.gpus import examine_gpus
from tests.support.buckets import Bucket
from tests.support.host_device import pretend
from tests.support.kernel_cases import weight_differences

DEVICE = torch.device(os.environ.get("DEVICE", "cuda:0"))
"""cpu: the programs are tried without a GPU, through threads in the place of streams (tests/support/host_device.py)."""
LATE_S = 0.2
"""How much later a peer comes than the others."""
PROMISED_S = 12.0
"""Until every survivor of a failure has raised (docs/errors.md), and some."""
LARGE = 1_200_001 if DEVICE.type == "cuda" else 20_001
"""Elements of a bucket of two pieces, where there is a device to encode it."""
MIB = 1 << (20 if DEVICE.type == "cuda" else 15)


class Report:
    """A rank's report; the file is whole after every entry, so that a rank that hangs has reported what it knew."""

    def __init__(self, path: Path) -> None:
        self._path, self.said = path, dict[str, Any]()

    def __call__(self, name: str, value: Any) -> None:
        """Report the value under that name."""
        self.said[name] = value
        self._path.write_text(json.dumps(self.said))


def expect(legal: bool, text: str) -> None:
    """AssertionError with the text, also under -O."""
    if not legal:
        raise AssertionError(text)


def world(timeout_s: float = 60.0, **options: Any) -> FaninProcessGroup:
    """Join the world's group with these options."""
    take_device()
    dist.init_process_group("fanin", timeout=timedelta(seconds=timeout_s), pg_options=fanin.Options(**options))
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    return group


def take_device() -> None:
    """Make DEVICE the process's, or the host's memory one."""
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    else:
        pretend()


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def median_ms(times_s: list[float]) -> float:
    """Median of the times, in milliseconds."""
    return 1e3 * statistics.median(times_s)


# --- one rank ---


def about(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """The machine; PCIe rates of pinned copies of pieces and of a large tensor."""
    properties = torch.cuda.get_device_properties(DEVICE)
    report("device", f"{properties.name}, {properties.total_memory >> 30} GiB, sm_{properties.major}{properties.minor}")
    report("torch", f"{torch.__version__}, CUDA {torch.version.cuda}, Python {sys.version.split()[0]}")
    report("processors", os.cpu_count())
    report("CUDA_DEVICE_MAX_CONNECTIONS", os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset"))
    try:
        import triton

        report("triton", triton.__version__)
    except ImportError as error:
        report("triton", f"none: {error}")
    for count_bytes in (256 << 10, MIB, 64 * MIB):
        host = torch.zeros(count_bytes, dtype=torch.uint8, pin_memory=True)
        device = torch.zeros(count_bytes, dtype=torch.uint8, device=DEVICE)
        for name, target, source in (("out", host, device), ("in", device, host)):
            took = _by_events(partial(target.copy_, source, non_blocking=True), 20)
            report(f"{count_bytes >> 10} KiB {name}, GB/s", count_bytes / took / 1e9)


def _by_events(action: Callable[[], object], repeats: int) -> float:
    """Seconds of one action on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    action()
    synchronize()
    begin.record()
    for _ in range(repeats):
        action()
    end.record()
    synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def probe(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Report the ways of waiting that work; the first is the one that devices use."""
    from fanin.host.torch.device import cuda

    for way in cuda.WAYS[:2]:
        works, why, latency_s = cuda.probe(way, DEVICE)
        report(way, f"{1e6 * latency_s:.1f} us after the flag" if works else f"does not work: {why}")
    report("chosen", cuda.describe(DEVICE, fanin.Options()))
    expect(cuda.way_for(DEVICE, "auto")[0] != "block", "no stream of this device waits for a flag")


def kernels(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Every case of the interpreted tests, larger; then times of 25 MiB."""
    checks = _kernel_checks()
    begin = time.monotonic()
    triton_arithmetic(DEVICE)
    report("compiling and trying them, s", time.monotonic() - begin)
    report("launch on the calling thread, us", checks.launch_us(DEVICE))
    for up in (8, 4, 32):
        report(
            f"{up} bits",
            [f"{row.name} {1e3 * row.ms:.1f} us, {row.gb_s:.0f} GB/s" for row in checks.times(DEVICE, up=up)],
        )
    wrong = checks.bits(DEVICE)
    report("cases that differ from numpy", wrong)
    expect(not wrong, f"{len(wrong)} differences from numpy")


def sweep(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """How the kernels' work is best divided."""
    for row in _kernel_checks().sweep(DEVICE):
        name = f"{row.name}, tile {row.tile}, {row.warps} warps"
        report(name, f"{1e3 * row.ms:.1f} us, {row.gb_s:.0f} GB/s")


def _kernel_checks() -> Any:
    torch.cuda.set_device(DEVICE)
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    return importlib.import_module("tools.kernel_checks")


# --- two ranks ---


def bits(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """The device against the host's path, with residuals, scattered and whole, of one piece and of several."""
    group = world()
    different = []
    large = 6_000_000 if DEVICE.type == "cuda" else 7_000
    cases = [(count, torch.float32, lanes) for count in (700_001, 5_000, large) for lanes in (8, 4, 16, 32)]
    cases += [(700_001, dtype, 8) for dtype in (torch.bfloat16, torch.float16)]
    for number, (count, dtype, lanes) in enumerate(cases):
        generator = torch.Generator().manual_seed(rank + count)
        x = torch.randn(count, generator=generator).to(dtype)
        owed = torch.randn(count, generator=generator) * 0.01
        mine, my_owed = x.to(DEVICE, copy=True), owed.to(DEVICE, copy=True)
        group.all_reduce_lanes(x, lanes=lanes, average=True, residual=owed).wait()
        group.all_reduce_lanes(mine, lanes=lanes, average=True, residual=my_owed).wait()
        if not (_same(mine, x) and _same(my_owed, owed)):
            different.append(f"{count} {dtype} {lanes}")
        report("sums with residual", f"{number + 1 - len(different)} of {number + 1} have the host's bits")
    part = 400_007
    whole = torch.randn(size * part, generator=torch.Generator().manual_seed(rank))
    theirs, mine = torch.empty(part), torch.empty(part, device=DEVICE)
    group.reduce_scatter_lanes(theirs, whole, lanes=8).wait()
    group.reduce_scatter_lanes(mine, whole.to(DEVICE), lanes=8).wait()
    report("reduce_scatter", "the host's bits" if _same(mine, theirs) else "other bits")
    expect(_same(mine, theirs), "reduce_scatter differs")
    report("way", group.describe())
    expect(not different, f"differ: {different}")
    dist.destroy_process_group()


def _same(device: torch.Tensor, host: torch.Tensor) -> bool:
    return torch.equal(device.cpu().reshape(-1).view(torch.uint8), host.reshape(-1).view(torch.uint8))


def spoiled(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Name the rank with NaN or infinities: on_nonfinite="raise", in lanes, as they are, and through a codec."""
    group = world(on_nonfinite="raise")
    count, bad = LARGE, LARGE - 4_003
    parameter, state = torch.nn.Parameter(torch.zeros(count)), CodecState("lanes:8", group=group)

    def hooked(tensor: torch.Tensor) -> None:
        _hooked(state, parameter, tensor)

    sums: dict[str, tuple[Callable[[torch.Tensor], object], torch.dtype]] = {
        "8 bits": (lambda x: group.all_reduce_lanes(x, lanes=8).wait(), torch.float32),
        "4/8": (lambda x: group.all_reduce_lanes(x, lanes="4/8").wait(), torch.float32),
        "32 bits of bfloat16": (lambda x: group.all_reduce_lanes(x, lanes=32).wait(), torch.bfloat16),
        "float64": (lambda x: group.all_reduce_lanes(x).wait(), torch.float64),
        "codec_hook": (hooked, torch.float32),
    }
    for name, (action, dtype) in sums.items():
        tensor = torch.ones(count, dtype=dtype, device=DEVICE)
        tensor[bad] = torch.inf if rank == 1 else 1.0
        try:
            action(tensor)
        except (NonFiniteError, RuntimeError) as error:  # a RuntimeError of torch's future around it
            report(name, str(error).partition(". Remedy")[0][-200:])
            expect("rank 1 contributed" in str(error), f"{name}: {error}")
        else:
            raise AssertionError(f"{name}: nobody was named")
        (culprit,) = group.nonfinite.reports[-1].culprits
        expect(culprit.first <= bad < culprit.first + culprit.count, f"{name}: {culprit}")
        tensor = torch.ones(count, dtype=dtype, device=DEVICE)
        action(tensor)
        expect(bool(tensor.isfinite().all()), f"{name}: not finite afterwards")
    dist.destroy_process_group()


def waits(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Rank 1 comes late: how long calls hold rank 0's thread, and when its stream has the result."""
    group = world(device_wait=arguments[0])
    for name, count, lanes in (
        ("25 MiB, 8 bits", 25 * MIB // 4, 8),
        ("25 MiB as it is", 25 * MIB // 4, 32),
        ("small", 100, 32),
    ):
        tensor = torch.ones(count, device=DEVICE)
        for _ in range(3):
            group.all_reduce_lanes(tensor, lanes=lanes).wait()
        synchronize()
        call_s, wait_s, through_s, right = [], [], [], True
        for _ in range(5):
            tensor = torch.ones(count, device=DEVICE)
            synchronize()
            dist.barrier()
            if rank == 1:
                time.sleep(LATE_S)
            begin = time.perf_counter()
            work = group.all_reduce_lanes(tensor, lanes=lanes)
            called = time.perf_counter()
            work.wait()
            waited = time.perf_counter()
            synchronize()
            through_s.append(time.perf_counter() - begin)
            call_s.append(called - begin)
            wait_s.append(waited - called)
            right &= bool((tensor == size).all())
        report(f"{name}: call, ms", median_ms(call_s))
        report(f"{name}: wait, us", 1e3 * median_ms(wait_s))
        report(f"{name}: stream, ms", median_ms(through_s))
        expect(right, f"{name}: wrong values")
        if rank == 0:
            expect(statistics.median(through_s) > 0.8 * LATE_S, f"{name}: the stream did not wait for the peer")
            if arguments[0] != "block" and DEVICE.type == "cuda":
                expect(statistics.median(call_s) + statistics.median(wait_s) < 0.05, f"{name}: the thread was held up")
    tensor = torch.ones(25 * MIB // 4, device=DEVICE)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 3)
    expect(bool((future.wait() == 3 * size).all()), "a future's callback saw other values")
    dist.destroy_process_group()


def killed(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Rank 1 is killed while rank 0's streams wait for it."""
    group = world(device_wait=arguments[0])
    tensor = torch.ones(2 * MIB, device=DEVICE)
    for _ in range(3):
        group.all_reduce_lanes(tensor, lanes=8).wait()
    synchronize()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _failed(report, group, "WorkerLostError", PROMISED_S)


def late(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Rank 1 never calls what rank 0 calls."""
    group = world(timeout_s=4.0, device_wait=arguments[0])
    tensor = torch.ones(2 * MIB, device=DEVICE)
    for _ in range(3):
        group.all_reduce_lanes(tensor, lanes=8).wait()
    synchronize()
    dist.barrier()
    if rank == 1:
        time.sleep(10.0)
        os._exit(0)
    _failed(report, group, "CollectiveTimeoutError", 8.0)


def _failed(report: Report, group: FaninProcessGroup, expected: str, promised_s: float) -> None:
    """Check the failure at the survivor: outputs are NaN, the stream goes on, and the next call raises."""
    outputs = [torch.ones(2 * MIB, device=DEVICE) for _ in range(3)]
    begin = time.monotonic()
    said = "nothing"
    try:
        for output, lanes in zip(outputs, (8, 32, 8), strict=True):
            group.all_reduce_lanes(output, lanes=lanes).wait()
    except FaninError as error:
        said = type(error).__name__
    synchronize()
    report("streams went on after, s", time.monotonic() - begin)
    report("wait raised", said)
    nan = [float(output.isnan().float().mean()) for output in outputs]
    report("parts of the outputs that are NaN", nan)
    try:
        for _ in range(3):
            group.all_reduce_lanes(outputs[0], lanes=8).wait()
            synchronize()
    except FaninError as error:
        report("next call", f"{type(error).__name__}: {error}")
        expect(type(error).__name__ == expected, f"{type(error).__name__} for {expected}")
    else:
        raise AssertionError("no later call raised")
    expect(time.monotonic() - begin < promised_s, "too late")
    expect(nan[0] > 0 or said != "nothing", "values instead of NaN")
    os._exit(0)


def cuda_checks(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """tests/torch/cuda_checks.py, every check although others fail."""
    from tests.torch import cuda_checks as module

    torch.manual_seed(0)
    if DEVICE.type == "cpu":
        module.device_of = lambda rank: DEVICE
    world(timeout_s=25.0)
    failed, passed = [], 0
    for name, check in list(vars(module).items()):
        if name.startswith("check_"):
            begin = time.monotonic()
            report("in", name)
            try:
                check(rank, size)
                passed += 1
            except Exception:
                failed.append(name)
                report(f"failed {name}", traceback.format_exc()[-1500:])
            report("passed", f"{passed} of {passed + len(failed)}")
            if (took := time.monotonic() - begin) > 5.0:
                report(f"{name} took, s", took)
    expect(not failed, f"failed: {failed}")
    dist.destroy_process_group()


def hsdp(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """FSDP2 over (hosts, inside): gloo inside in the place of NCCL, fanin between."""
    from tests.torch import cuda_checks as module

    take_device()
    if DEVICE.type == "cpu":
        module.device_of = lambda rank: DEVICE
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    override: Any = {"replicate": ("fanin", fanin.Options(lanes=8)), "shard": "gloo"}
    mesh = init_device_mesh(
        DEVICE.type, (2, size // 2), mesh_dim_names=("replicate", "shard"), backend_override=override
    )
    expected = module.gloo_trained(rank)
    model = module.network().to(DEVICE)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    module.train(model, rank)
    far = _farthest(model, expected, mesh)
    report("farthest from DDP over gloo", far)
    counted = fanin_counters(mesh.get_group("replicate"))
    report("sums", {name: value for name, value in counted.items() if name.startswith("switch")})
    expect(far < 0.05, "trains otherwise")
    dist.destroy_process_group()


def _farthest(model: torch.nn.Module, expected: list[torch.Tensor], mesh: DeviceMesh) -> float:
    """How far this rank's shards are from their chunks of whole parameters.

    Nothing is gathered for it: gloo's all_gather_into_tensor takes device memory for the host's, and the process dies.
    """
    parts, place, far = mesh["shard"].size(), mesh.get_local_rank("shard"), 0.0
    for parameter, whole in zip(model.parameters(), expected, strict=True):
        assert isinstance(parameter, DTensor)
        chunks = whole.chunk(parts)
        own = chunks[place] if place < len(chunks) else whole[:0]
        mine = parameter.to_local().detach().cpu()
        expect(mine.shape == own.shape, f"a shard of {tuple(mine.shape)} for {tuple(own.shape)}")
        if own.numel():
            far = max(far, float((mine - own).abs().max()))
    return far


# --- codecs ---


def codecs(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Averages, residuals and states of codec_hook on the device and on the host; then what a bucket takes."""
    group = world()
    different = _codecs_that_differ(report, rank, group, ("lanes:8", "rotated:8", "rotated:4"), LARGE)
    report("differ", different)
    count = 25 * MIB // 4 if DEVICE.type == "cuda" else 50_000
    parameter, gradients = torch.nn.Parameter(torch.zeros(count)), torch.randn(count, device=DEVICE)
    gloo = dist.new_group(backend="gloo")
    for text in ("lanes:8:feedback=False", "lanes:8", "rotated:8"):
        state = CodecState(text, group=group)
        wall_s, processor_s, call_s = _timed(partial(_hooked, state, parameter, gradients), 9, gloo)
        report(f"{text}, ms", wall_s * 1e3)
        report(f"{text}: processor, ms", processor_s * 1e3)
        report(f"{text}: calling thread, ms", call_s * 1e3)
    expect(not different, f"differ: {different}")
    dist.destroy_process_group()


def _codecs_that_differ(
    report: Report, rank: int, group: FaninProcessGroup, texts: Sequence[str], large: int
) -> list[str]:
    """Codecs whose averages or states on the device are not the host's, over three steps, of two sizes."""
    different = []
    for text in texts:
        for dtype, count in ((torch.float32, large), (torch.bfloat16, 20_001)):
            there, here = (CodecState(text, group=group) for _ in range(2))
            parameters = [torch.nn.Parameter(torch.zeros(count)) for _ in range(2)]
            for step in range(3):
                x = torch.randn(count, generator=torch.Generator().manual_seed(10 * rank + step)).to(dtype)
                averaged = codec_hook(there, _bucket(parameters[0], x.to(DEVICE, copy=True))).wait()
                with on_the_host(group):
                    expected = codec_hook(here, _bucket(parameters[1], x)).wait()
                if not _same(averaged, expected):
                    different.append(f"{text} {dtype} step {step}")
            states = [each.state_dict()["buckets"][0]["state"] for each in (there, here)]
            if not all(_same(states[0][name], states[1][name]) for name in states[1]):
                different.append(f"{text} {dtype} state")
            report("compared", f"{text} of {count} {dtype}")
    return different


def _hooked(state: CodecState, parameter: torch.Tensor, gradients: torch.Tensor) -> None:
    codec_hook(state, _bucket(parameter, gradients)).wait()


def _bucket(parameter: torch.Tensor, gradients: torch.Tensor) -> Any:
    return Bucket(parameter, gradients)


def wide(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Wide sums, and rounding at random, on the device against the host's path; then what wide sums of 25 MiB take."""
    group = world()
    different = []
    counts = (700_001, 6_000_000) if DEVICE.type == "cuda" else (7_000, 20_001)
    for number, widths in enumerate(("8/8", "4/8", "4/4", "2/8", "2/4")):
        dtype, count = (torch.float32, torch.bfloat16, torch.float16)[number % 3], counts[number % 2]
        x = torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)
        owed = torch.randn(count, generator=torch.Generator().manual_seed(rank + size)) * 0.01
        mine, my_owed = x.to(DEVICE, copy=True), owed.to(DEVICE, copy=True)
        group.all_reduce_lanes(x, lanes=widths, average=True, residual=owed).wait()
        group.all_reduce_lanes(mine, lanes=widths, average=True, residual=my_owed).wait()
        if not (_same(mine, x) and _same(my_owed, owed)):
            different.append(f"{widths} of {count} {dtype}")
    texts = "lanes:4/8", "rotated:4/8", "lanes:8:stochastic=True", "lanes:4/8:stochastic=True"
    different += _codecs_that_differ(report, rank, group, texts, counts[1])
    report("differ", different)
    if DEVICE.type == "cuda":
        gloo = dist.new_group(backend="gloo")
        tensor = torch.randn(25 * MIB // 4, device=DEVICE)
        for name in ("8/8", "4/8", "2/8"):
            wall_s, processor_s, _ = _timed(partial(_in_lanes, group, tensor, name), 5, gloo)
            report(f"25 MiB in {name} bits, ms", wall_s * 1e3)
            report(f"25 MiB in {name} bits: processor, ms", processor_s * 1e3)
    report("way", group.describe())
    expect(not different, f"differ: {different}")
    dist.destroy_process_group()


def _in_lanes(group: FaninProcessGroup, tensor: torch.Tensor, lanes: str) -> None:
    group.all_reduce_lanes(tensor, lanes=lanes).wait()


@contextlib.contextmanager
def on_the_host(group: FaninProcessGroup) -> Iterator[None]:
    """Buckets that are made meanwhile are encoded by the host, where the host stands for a device as well."""
    resources: Any = group._resources
    resources.arithmetic_on = lambda _device: None
    try:
        yield
    finally:
        del resources.arithmetic_on


def weights(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Bytes and values of weights on the device, and the times of 25 MiB of float32."""
    wrong = [
        f"{bits} bits, {count} elements: {found}"
        for bits, count, bucket in ((8, 100_003, 1024), (6, 70_001, 64), (4, 99_999, 1024), (8, 1, 64))
        if (found := weight_differences(DeviceWeights, DEVICE, bits, count, bucket))
    ]
    report("differ from the host's codec", wrong)
    codec = ShiftedWeights()
    coder, x = DeviceWeights(codec.device_plan()), torch.randn(25 * MIB // 4, device=DEVICE)
    encoded = torch.zeros(1, codec.encoded_bytes(len(x)), dtype=torch.uint8, device=DEVICE)
    encode_s = _by_events(lambda: coder.encode(x, encoded[0], Randomness(1, 2), 3, 0), 20)
    decode_s = _by_events(lambda: coder.decode_rows(encoded, x[None], first=0, count=len(x)), 20)
    report("25 MiB: encode, ms", encode_s * 1e3)
    report("25 MiB: decode, ms", decode_s * 1e3)
    expect(not wrong, f"differ: {wrong}")


# --- times ---


def times(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Medians in ms, of the wall and of this rank's processors, per all-reduce of so many MiB of float32."""
    count = int(arguments[0]) * MIB // 4
    group = world()
    gloo = dist.new_group(backend="gloo")
    tensor = torch.randn(count, device=DEVICE)
    owed = torch.zeros(count, device=DEVICE)
    repeats = 9 if count < 10 * MIB else 3
    rivals: dict[str, Callable[[], object]] = {
        "8 bits": lambda: group.all_reduce_lanes(tensor, lanes=8).wait(),
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
        "8 bits with residual": lambda: group.all_reduce_lanes(tensor, lanes=8, residual=owed).wait(),
        "32 bits": lambda: group.all_reduce_lanes(tensor, lanes=32).wait(),
        "4 bits": lambda: group.all_reduce_lanes(tensor, lanes=4).wait(),
        "4/8": lambda: group.all_reduce_lanes(tensor, lanes="4/8").wait(),
    }
    for name, action in rivals.items():
        try:
            wall_s, processor_s, call_s = _timed(action, repeats, gloo)
        except ConfigurationError as error:  # lanes too narrow for so many ranks
            report(name, str(error))
            continue
        report(f"{name}: ms", wall_s * 1e3)
        report(f"{name}: processor, ms", processor_s * 1e3)
        report(f"{name}: calling thread, ms", call_s * 1e3)
    host = tensor.cpu()
    wall_s, processor_s, _ = _timed(lambda: group.all_reduce_lanes(host, lanes=8).wait(), repeats, gloo)
    report("8 bits, tensors on the host: ms", wall_s * 1e3)
    report("8 bits, tensors on the host: processor, ms", processor_s * 1e3)
    dist.destroy_process_group()


def _timed(action: Callable[[], object], repeats: int, gloo: Any) -> tuple[float, float, float]:
    found = []
    for number in range(repeats + 2):
        dist.barrier(group=gloo)
        synchronize()
        wall, processor = time.perf_counter(), time.process_time()
        action()
        called = time.perf_counter()
        synchronize()
        if number >= 2:
            found.append((time.perf_counter() - wall, time.process_time() - processor, called - wall))
    columns = list(zip(*found, strict=True))
    return statistics.median(columns[0]), statistics.median(columns[1]), statistics.median(columns[2])


def nccl(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """NCCL over sockets between ranks that pass for hosts of their own."""
    _nccl_over_sockets(rank)
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", timeout=timedelta(seconds=20))
    _report_sums(report)
    report("version", ".".join(map(str, torch.cuda.nccl.version())))
    os._exit(0)


def _report_sums(report: Report) -> None:
    """Time sums of 25 MiB over the world; the first two warm up."""
    tensor, took = torch.ones(25 * MIB // 4, device=DEVICE), []
    for _ in range(7):
        synchronize()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        synchronize()
        took.append(time.perf_counter() - begin)
    report("25 MiB, ms", median_ms(took[2:]))


def _nccl_over_sockets(rank: int) -> None:
    """Ranks of one device pass for hosts of their own."""
    os.environ |= {
        "NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2",
    }  # fmt: skip


def two_levels(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Sums of two levels: NCCL inside hosts of two ranks each, fanin between them; by the option, and by DDP's hook."""
    _nccl_over_sockets(rank)
    os.environ["FANIN_HOST"] = f"host-{rank // 2}"
    kind = "nccl" if DEVICE.type == "cuda" else "gloo"
    group = world(inside=kind)
    report("group", group.describe())
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)):
        given = [torch.randn(70_001, generator=torch.Generator().manual_seed(each)).to(dtype) for each in range(size)]
        expected = torch.stack([each.double() for each in given]).mean(0)
        tensor = given[rank].to(DEVICE, copy=True)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        far = float((tensor.cpu().double() - expected).abs().max() / expected.abs().max())
        report(f"farthest from the average, {dtype}", f"{far:.2e}")
        expect(far <= tolerance, f"{dtype}: {far:.2e} from the average")
    state = TwoLevelState(inside=kind, lanes=8, error_feedback=True)
    gradients = torch.randn(70_001, generator=torch.Generator().manual_seed(rank))
    average = two_level_hook(state, _bucket(torch.nn.Parameter(gradients), gradients.to(DEVICE))).wait()
    report("the hook's average is on", str(average.device))
    report("residual", state.residual_norm())
    _report_sums(report)
    report("counters", {name: count for name, count in group.counters().items() if name.startswith("two_levels")})
    os._exit(0)


def rehearse(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Run several programs in turn, with arguments behind colons ("times:25"): a rehearsal starts processes once."""
    for number, each in enumerate(arguments):
        if number:  # a world of its own, by a store of its own
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        program, *given = each.split(":")
        globals()[program](report, rank, size, given)
        report(f"{each} ran", True)


def doctor(report: Report, rank: int, size: int, arguments: list[str]) -> None:
    """Report the checks that `fanin doctor` makes of the device."""
    for check in examine_gpus(fanin.Options()):
        report(check.name, f"{check.state}: {check.result}")


def main() -> None:
    """Run the program named on the command line."""
    program, path, *arguments = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1)  # by tools/device_checks.py, when the time is over
    register()  # without an installation nobody else does
    report = Report(Path(path))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        globals()[program](report, rank, size, arguments)
    except Exception as error:
        report("wrong", f"{type(error).__name__}: {error}"[:800])
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # what still waits on a device is not waited for


if __name__ == "__main__":
    main()

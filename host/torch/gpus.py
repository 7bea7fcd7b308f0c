"""Facts of a machine's GPUs that matter to fanin: for `fanin doctor` and `fanin advise`.

`gpu_of` measures, and needs a device; `checks_of` and what fanin/advice/gpu_notes.py makes of the facts need none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fanin.host.diagnosis import Check
from fanin.host.torch.device import cuda
from fanin.host.torch.meeting.levels import is_mig_instance
from fanin.options import Options

COPY_BYTES = 64 << 20
COPIES = 4
"""Number of timed copies; the fastest counts, since the first may find the bus asleep."""
SLOW_PCIE_BYTES_S = 6e9
"""Rate below which copies earn a warning: an x16 slot of PCIe 3 carries 12 GB/s; x4, or a riser, less than this."""
TRITON = "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts of one CUDA device."""

    name: str
    memory_bytes: int
    out_bytes_s: float
    """Rate of copies from the device into pinned memory."""
    in_bytes_s: float
    """Rate of copies from pinned memory to the device."""
    waits: str
    """How its streams wait for a result: `waiting_way`'s text."""
    mig: bool = False
    uuid: str = ""
    """The driver's number of the device, by which ranks that share one are told; empty where torch does not say it."""


def triton_version() -> str | None:
    """The version of the installed Triton, found without importing it; None where it is not installed."""
    if importlib.util.find_spec(TRITON) is None:
        return None
    try:
        return importlib.metadata.version(TRITON)
    except importlib.metadata.PackageNotFoundError:  # a wheel of another name, such as pytorch-triton
        return "of an unknown version"


def waiting_way(device: torch.device, options: Options) -> str:
    """How streams of a device wait for results, as text: `way: description`."""
    asked, _ = cuda.asked_by(options)
    way, _ = cuda.way_for(device, asked)
    return f"{way}: {cuda.describe(device, options)}"


def gpu_of(device: torch.device, options: Options) -> Gpu:
    """The facts of a CUDA device. Takes about 0.1 s and 64 MiB of its memory and of pinned memory.

    Raises torch's errors where the device is out of memory, and ConfigurationError where FANIN_DEVICE_WAIT names a way
    that does not work.
    """
    properties = torch.cuda.get_device_properties(device)
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    here = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
    return Gpu(
        name=properties.name,
        memory_bytes=properties.total_memory,
        out_bytes_s=_rate(here, there),
        in_bytes_s=_rate(there, here),
        waits=waiting_way(device, options),
        mig=is_mig_instance(properties.name, os.environ),
        uuid=str(getattr(properties, "uuid", "")),
    )


def _rate(to: torch.Tensor, source: torch.Tensor) -> float:
    """Bytes per second of the fastest of COPIES copies from `source` to `to`, by the device's clock."""
    seconds = []
    for _ in range(COPIES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        to.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return float(source.nbytes / min(seconds))


def examine_gpus(options: Options) -> Iterator[Check]:
    """Yield the GPU checks of `fanin doctor`, for a machine that has a driver."""
    if not torch.cuda.is_available():
        yield _without_device()
        return
    found = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        try:
            with torch.cuda.device(device):
                found.append(gpu_of(device, options))
        except Exception as error:  # out of memory, or lost: the other devices are still checked
            remedy = "see nvidia-smi: another process may hold its memory, or it may be lost"
            yield Check(name=f"gpu {index}", state="failure", result=str(error).splitlines()[0], remedy=remedy)
    yield from checks_of(found, triton_version())


def _without_device() -> Check:
    """The warning for a machine that has a driver, but on which torch sees no device."""
    built = torch.version.cuda
    result = f"a driver is there, and PyTorch {torch.__version__} sees no CUDA device"
    remedy = "see nvidia-smi, and CUDA_VISIBLE_DEVICES"
    if built is None:
        remedy = "install a build of PyTorch for CUDA (https://pytorch.org/get-started), if tensors are to be on GPUs"
    return Check(name="gpu", state="warning", result=result, remedy=remedy)


def checks_of(gpus: Sequence[Gpu], triton: str | None) -> Iterator[Check]:
    """Yield the checks of these GPUs and of the installed Triton's version (None: it is not installed)."""
    for index, gpu in enumerate(gpus):
        name = f"gpu {index}"
        rates = f"{gpu.out_bytes_s / 1e9:.1f} GB/s out, {gpu.in_bytes_s / 1e9:.1f} GB/s in"
        result = f"{gpu.name}, {gpu.memory_bytes / (1 << 30):.0f} GiB; PCIe {rates} through pinned memory"
        slow = min(gpu.out_bytes_s, gpu.in_bytes_s) < SLOW_PCIE_BYTES_S
        yield Check(
            name=name,
            state="warning" if slow else "ok",
            result=result,
            remedy="an x16 slot of PCIe 3 carries 12 GB/s: see nvidia-smi -q -d PERFORMANCE,CLOCK and its Link Width, "
            "or take narrower lanes, which cross it as well"
            if slow
            else "",
        )
        way, _, words = gpu.waits.partition(":")
        blocks = way == "block"
        yield Check(
            name=f"{name} waiting",
            state="warning" if blocks else "ok",
            result=f"{way}: {words.strip()}",
            remedy="it works; FSDP overlaps less. docs/gpu.md, Ways of waiting, has the reasons" if blocks else "",
        )
        if gpu.mig:
            yield Check(name=f"{name} MIG", result="a MIG instance: one level works, and inside='nccl' does not")
    if not gpus:
        return
    if triton is None:
        yield Check(
            name="triton",
            state="warning",
            result="not installed: gradients cross PCIe whole and are quantized by the processor",
            remedy="PyTorch's wheels for CUDA on Linux bring it; pip install triton of the version that they name",
        )
    else:
        yield Check(name="triton", result=f"{triton}: gradients are quantized on the device")

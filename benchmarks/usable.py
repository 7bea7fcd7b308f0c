"""Finds rivals that do not run here before anything is timed: all ranks try each once, and report failures by label.

NCCL uses the hosts' sockets, as between machines: every rank claims a host of its own (NCCL_HOSTID), so that NCCL takes
several ranks of one GPU for ranks of several machines, which it otherwise refuses ("Duplicate GPU detected"), and uses
neither NVLink nor shared memory. Since 2.30 NCCL_MULTI_RANK_GPU_ENABLE allows it as well. Its kernels spin, so ranks
that share a GPU take turns in time slices: its times measure the links only if these are slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from fanin.benchmarks.harness import UNUSABLE
from fanin.benchmarks.ranks import report
from fanin.benchmarks.rivals import NCCL

Label = TypeVar("Label")
TRIAL_TIMEOUT_S = 60.0
"""Longest time that a rival's first collectives may take; NCCL may hang when ranks share a GPU."""
TRIAL_ELEMENTS = 1024


def prepare_nccl(rank: int, environment: MutableMapping[str, str]) -> None:
    """Set variables so that NCCL uses sockets alone, on gloo's network; variables that are already set stay."""
    for name, value in {
        "NCCL_HOSTID": f"fanin-bench-{rank}",
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_MAX_CTAS": "4",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": environment.get("GLOO_SOCKET_IFNAME", "lo"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # a failure is to be reported, and not to end the process
    }.items():
        environment.setdefault(name, value)


def device_of_rank(kind: str) -> torch.device:
    """This rank's device; ranks share CUDA devices if there are fewer devices than ranks."""
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def usable_groups(
    makers: Mapping[Label, Callable[[], dist.ProcessGroup]], device: torch.device
) -> dict[Label, dist.ProcessGroup]:
    """By label, the groups that run on this device; every rank reports the others under their labels."""
    prepare_nccl(dist.get_rank(), os.environ)
    groups = {}
    for label, make in makers.items():
        group, reason = tried(make, device)
        if group is not None:
            groups[label] = group
        else:
            report({"rival": getattr(label, "label", label), UNUSABLE: reason})
    return groups


def tried(make: Callable[[], dist.ProcessGroup], device: torch.device) -> tuple[dist.ProcessGroup | None, str]:
    """Make a group and try it; (group, "") or (None, reason), alike on all ranks. The world must be over gloo.

    The trial makes the collectives of FSDP2 and of DDP, on `device`.
    """
    group, reason = None, ""
    try:
        group = make()
    except Exception as error:
        reason = _in_a_line(error)
    if agreed := _first_reason(reason):
        return None, agreed
    assert group is not None
    try:
        _try(group, device)
    except Exception as error:
        reason = _in_a_line(error)
    if agreed := _first_reason(reason):
        if group.name() == NCCL:  # a hanging collective would keep the device from the other rivals
            group._get_backend(device).abort()
        return None, agreed
    return group, ""


def _try(group: dist.ProcessGroup, device: torch.device) -> None:
    ranks = dist.get_world_size()
    part, whole = torch.ones(TRIAL_ELEMENTS, device=device), torch.ones(ranks * TRIAL_ELEMENTS, device=device)
    ends_s = time.monotonic() + TRIAL_TIMEOUT_S
    starts: tuple[Callable[[], dist.Work | None], ...] = (
        lambda: dist.all_reduce(part, group=group, async_op=True),
        lambda: dist.reduce_scatter_tensor(part, whole, group=group, async_op=True),
        lambda: dist.all_gather_into_tensor(whole, part, group=group, async_op=True),
    )
    for start in starts:
        work = start()
        assert work is not None
        while group.name() == NCCL and not work.is_completed():  # NCCL's `wait` waits for a stream only
            if time.monotonic() >= ends_s:
                raise TimeoutError(f"its first collectives were not done after {TRIAL_TIMEOUT_S:g} s")
            time.sleep(0.01)
        work.wait(timedelta(seconds=TRIAL_TIMEOUT_S))
    if float(whole.sum()) != ranks * ranks * TRIAL_ELEMENTS:
        raise ValueError("its first collectives have wrong results")


def _first_reason(reason: str) -> str:
    """The reason of the lowest rank that has one, with the rank; the same on all ranks, empty if none has one."""
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, reason)
    return next((f"rank {rank}: {each}" for rank, each in enumerate(found) if each), "")


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]

"""`fanin advise` where ranks have GPUs: whether NCCL over its sockets would do as well, and what PCIe carries.

Closed forms, as in forecasts.py: NCCL's ring moves 2 (N - 1) / N of a tensor over every host's link, in float32
and with N ranks in all, whatever is inside the hosts. NCCL is predicted, not run: several ranks of it on hosts of this
job would need a program of their own, and what bounds them here is the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fanin.advice.forecasts import Choice, Forecast, Network, Profile, step_s
from fanin.host.torch.gpus import Gpu

NCCL_HOP_S = 20e-6
"""Time that a hop of NCCL's ring adds to half a round trip: a proxy thread and a kernel that polls."""
AS_GOOD = 1.1
"""NCCL does as well where it is predicted to take no longer than this many times the best choice: round trips, which a
ring has more of, are its least certain part."""


def nccl_step_s(network: Network, profile: Profile) -> float:
    """Seconds of a step whose buckets NCCL's ring sums over its sockets, one after the other, each when it is ready."""
    now = 0.0
    for ready_s, size in profile.buckets:
        now = max(now, ready_s) + nccl_sum_s(network, size)
    return max(now, profile.compute_s)


def nccl_sum_s(network: Network, size: int) -> float:
    """Seconds of one sum of `size` bytes over hosts; rates are of TCP's payload, which sockets of NCCL carry, too."""
    crossings = 2 * (network.size - 1) / network.size
    hops = 2 * (network.hosts - 1)
    return crossings * size * 8 / min(network.rates) + hops * (network.round_trip_s / 2 + NCCL_HOP_S)


def pcie_step_s(network: Network, gpus: Sequence[Gpu | None], choice: Choice, profile: Profile) -> float:
    """Seconds that the words of all buckets take over PCIe, out of or into the slowest GPU, with sums of one level."""
    rates = [min(gpu.out_bytes_s, gpu.in_bytes_s) for gpu in gpus if gpu is not None]
    return profile.bytes * choice.lanes / 32 / min(rates)


def gpu_notes(network: Network, gpus: Sequence[Gpu | None], profile: Profile, best: Forecast | None) -> tuple[str, ...]:
    """Lines for people; none where no rank has a GPU. `gpus`: by rank. `best`: None where gloo is recommended."""
    without = [rank for rank, gpu in enumerate(gpus) if gpu is None]
    if len(without) == len(gpus):
        return ()
    if without:
        named = ", ".join(map(str, without))
        return (
            f"ranks {named} have no GPU, and others do: sums go by the host on all ranks, and inside='nccl' is refused",
        )
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus if gpu is not None))
    ways = ", ".join(dict.fromkeys(gpu.waits.partition(":")[0] for gpu in gpus if gpu is not None))
    rates = [min(gpu.out_bytes_s, gpu.in_bytes_s) for gpu in gpus if gpu is not None]
    lines = [f"GPUs: {names}; PCIe at least {min(rates) / 1e9:.1f} GB/s; streams wait by: {ways}"]
    if network.hosts == 1:
        return (*lines, "all ranks are on one host: stay with NCCL, which sums over NVLink or PCIe without a network")
    lines.append(_verdict(network, gpus, profile, best))
    several = max(network.ranks) > 1
    known = [gpu.uuid for gpu in gpus if gpu is not None and gpu.uuid]
    if len(set(known)) < len(known):
        lines.append("ranks share a GPU: they sum over one level, since inside='nccl' takes one rank per GPU")
    elif several and len(set(network.ranks)) == 1 and not any(gpu is not None and gpu.mig for gpu in gpus):
        lines.append(
            f"hosts have {network.ranks[0]} GPUs each: FANIN_INSIDE=nccl sums inside them over NVLink, and each rank "
            f"quantizes 1/{network.ranks[0]} of a gradient (docs/gpu.md)"
        )
    return tuple(lines)


def _verdict(network: Network, gpus: Sequence[Gpu | None], profile: Profile, best: Forecast | None) -> str:
    nccl_s = nccl_step_s(network, profile)
    moved = f"NCCL over sockets moves {2 * (network.size - 1) / network.size:.2f} of a tensor per link, predicted"
    moved += f" {nccl_s * 1e3:,.1f} ms"
    if best is None:
        return f"{moved}: stay with NCCL, since nothing of fanin's is faster than a ring here"
    # Processors are no part of it: kernels of the device quantize. The measured times are those of host memory.
    ours_s = max(
        step_s(_with_idle_processors(network), best.choice, profile), pcie_step_s(network, gpus, best.choice, profile)
    )
    told = f"{best.choice.in_words} {ours_s * 1e3:,.1f} ms"
    if nccl_s <= AS_GOOD * ours_s:
        why = "32-bit lanes move as many bytes" if best.choice.lanes == 32 else "the links are not what bounds a step"
        return f"{moved}, {told}: stay with NCCL, since {why}"
    return f"{moved}, {told}: {nccl_s / ours_s:.2f} times as fast as NCCL over sockets, if links bound both"


def _with_idle_processors(network: Network) -> Network:
    return dataclasses.replace(network, cores=(float("inf"),) * network.hosts)

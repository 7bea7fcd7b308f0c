"""Comparing replicas of a model bit for bit, for the price of one small sum.

    check_replicas(model)                              # now; raises ReplicasDifferError on every rank
    check_replicas_every(100, model, optimizer)        # after every hundredth step of the optimizer

Each rank hashes its own tensors where they are, and one sum of an int64 per rank brings all hashes to all ranks. Ranks
whose hashes differ say more: they exchange one hash per tensor and name the first tensor that differs.

The hash of a tensor is the sum modulo 2^64 of its 64-bit words, each mixed with its index by the finalizer of
SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). The mixing is a bijection
of the word, so a change within one word always changes the hash; other changes are missed once in 2^64. A sum of
integers does not depend on the order, so a GPU and a CPU arrive at the same hash.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from fanin.errors import ArgumentError, ReplicasDifferError, UnsupportedError

_CHUNK_WORDS_ON_CPU = 1 << 16
"""Words that are mixed at once, which bounds memory: 512 KiB and their temporaries stay in a core's cache."""
_CHUNK_WORDS_ON_DEVICE = 1 << 22
"""Words that are mixed at once on a device, whose kernels take as long to start as to mix a fortieth of these."""
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 divided by the golden ratio, as int64: SplitMix64's increment."""
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
"""Shifts and multipliers of SplitMix64's finalizer, which ends with a shift by 31."""

_Entry = tuple[str, str, int]
"""Name, dtype with shape, and hash of one tensor."""


def check_replicas(model: nn.Module, group: dist.ProcessGroup | None = None, *, buffers: bool = True) -> None:
    """Return if all ranks of the group hold the same bits of every parameter and buffer; collective.

    `group`: the ranks that should be alike; None means all ranks. It may be of any backend.
    `buffers`: False leaves buffers out, such as the statistics of BatchNorm, which each rank of DDP keeps for itself
    between two forward passes.

    NaNs are compared by their bits. Tensors of a sharded model (FSDP) differ by design: pass the group of the ranks
    that hold the same shard (HSDP's replicas), and shards are compared.

    Raises ReplicasDifferError on every rank alike, with the first tensor that differs and the ranks where it does;
    UnsupportedError for shards without a group, and for sparse, quantized and meta tensors.
    """
    if dist.get_rank(group) < 0 or dist.get_world_size(group) == 1:
        return
    tensors = _tensors(model, buffers, sharded=group is not None)
    entries = [(name, f"{tensor.dtype} {list(tensor.shape)}", _hash(tensor)) for name, tensor in tensors]
    everyones = _gather(_digest(entries), tensors[0][1].device if tensors else torch.device("cpu"), group)
    if len(set(everyones)) > 1:
        raise _difference(entries, group)


def check_replicas_every(
    steps: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup | None = None,
    *,
    buffers: bool = True,
) -> RemovableHandle:
    """Call `check_replicas` after every `steps`-th step of the optimizer; the handle's `remove()` ends it.

    All ranks must take the same steps. Raises ArgumentError where `steps` is below 1.
    """
    if steps < 1:
        raise ArgumentError(f"check_replicas_every: {steps} steps. Remedy: give 1 or more")
    taken = 0

    def after_step(*_: Any) -> None:
        nonlocal taken
        taken += 1
        if taken % steps == 0:
            check_replicas(model, group, buffers=buffers)

    return optimizer.register_step_post_hook(after_step)


def _tensors(model: nn.Module, buffers: bool, *, sharded: bool) -> list[tuple[str, Tensor]]:
    """This rank's tensors with their names, in the model's order, each once."""
    named: list[tuple[str, Tensor]] = list(model.named_parameters())
    if buffers:
        named += model.named_buffers()
    return [(name, _local(name, tensor.detach(), sharded)) for name, tensor in named]


def _local(name: str, tensor: Tensor, sharded: bool) -> Tensor:
    if isinstance(tensor, DTensor):
        if not sharded and any(not placement.is_replicate() for placement in tensor.placements):
            raise UnsupportedError(
                f"check_replicas: {name!r} is sharded, so its parts differ by design. Remedy: pass the group of the "
                f"ranks that hold the same shard, such as mesh.get_group('replicate')"
            )
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise UnsupportedError(
            f"check_replicas: {name!r} is sparse, quantized or a meta tensor, which have no bytes"
            ". Remedy: compare the model without it"
        )
    return tensor


def _hash(tensor: Tensor) -> int:
    """Hash of a tensor's bytes, as int64."""
    flat = tensor.contiguous().reshape(-1)
    at_once = _CHUNK_WORDS_ON_CPU if flat.device.type == "cpu" else _CHUNK_WORDS_ON_DEVICE
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for chunk, part in enumerate(flat.split(at_once * 8 // flat.element_size())):
        data = part.view(torch.uint8)
        words = torch.zeros(-(-data.numel() // 8), dtype=torch.int64, device=flat.device)  # aligned, and padded with 0
        words.view(torch.uint8)[: data.numel()] = data
        total += _mix(words, chunk * at_once).sum()
    return int(total.item())


def _mix(words: Tensor, first: int) -> Tensor:
    """Mix words with their indexes, which begin with `first`; in place."""
    words += torch.arange(first + 1, first + 1 + words.numel(), device=words.device) * _ODD
    for shift, factor in _ROUNDS:
        words ^= _shifted(words, shift)
        words *= factor
    words ^= _shifted(words, 31)
    return words


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's `>>` repeats the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _digest(entries: list[_Entry]) -> int:
    """One int64 of all tensors, their names, dtypes and shapes."""
    digest = hashlib.blake2b(repr(sorted(entries)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _gather(digest: int, device: torch.device, group: dist.ProcessGroup | None) -> list[int]:
    """Every rank's digest: a sum in which each rank fills its own element, so that nothing can overflow."""
    digests = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
    digests[dist.get_rank(group)] = digest
    dist.all_reduce(digests, group=group)
    return [int(each) for each in digests]


def _difference(entries: list[_Entry], group: dist.ProcessGroup | None) -> ReplicasDifferError:
    """Ask every rank for its tensors, and say where the first difference is."""
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, entries, group=group)
    tables = [{name: (kind, bits) for name, kind, bits in each} for each in everyones]
    names = list(dict.fromkeys(name for table in tables for name in table))
    differing = [name for name in names if len({table.get(name) for table in tables}) > 1]
    first = [table.get(differing[0]) for table in tables]
    usual, holders = collections.Counter(first).most_common(1)[0]
    ranks = tuple(range(len(first)))
    if 2 * holders > len(first):  # otherwise no majority can be taken for right, and all are named
        ranks = tuple(rank for rank in ranks if first[rank] != usual)
    named = f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
    kinds = " or ".join(sorted({"missing" if held is None else held[0] for held in first}))
    return ReplicasDifferError(
        differing[0],
        ranks,
        f"replicas differ on {named} of {len(first)}: {differing[0]!r} ({kinds}) is the first of {len(differing)} "
        f"tensors out of {len(names)} whose bits are not alike. Remedy: start all ranks from the same weights "
        f"(DistributedDataParallel does, and so does a checkpoint), and see that no rank changes its weights alone or "
        f"misses a step",
    )

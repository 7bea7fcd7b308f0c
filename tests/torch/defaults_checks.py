"""A program with a default device and element type of its own. Run by rank_main.py; see test_defaults.py.

Before the group is made, as programs set them: for "meta" stands "cuda", which not every machine has.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fanin.host.torch import CodecState, LanesState, codec_hook, lanes_hook, shard_codecs

torch.set_default_device("meta")
torch.set_default_dtype(torch.bfloat16)


def full(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, device="cpu")


def check_collectives(rank: int, size: int) -> None:
    """Above all those that need memory of their own."""
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()
    mean = full(rank, 9, dtype=torch.int16)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [(size - 1) // 2] * 9
    for count in (3, 50_000):
        for turned in (full(-1.0, count, 2).t(), full(-1.0, 2, count)):
            dist.all_reduce(turned, dist.ReduceOp.MAX)
            assert float(turned[1, 2]) == -1
            copies = [torch.empty_like(turned) for _ in range(size)]
            dist.all_gather(copies, turned * rank)
            assert [float(copy[1, 2]) for copy in copies] == [-rank for rank in range(size)]
            dist.broadcast(turned.mul_(rank), 1)
            assert float(turned[1, 2]) == -1
    uneven = [full(rank, each + 1) for each in range(size)]
    arrived = [full(-1.0, rank + 1) for _ in range(size)]
    dist.all_to_all(arrived, uneven)
    assert [float(part[-1]) for part in arrived] == list(range(size))
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, rank)
    assert objects == list(range(size))


def check_hooks_of_ddp(rank: int, size: int) -> None:
    states = ((LanesState(lanes=8, error_feedback=True), lanes_hook), (CodecState("rotated:8"), codec_hook))
    for state, hook in states:
        model = DistributedDataParallel(nn.Linear(40, 40, device="cpu", dtype=torch.float32))
        model.register_comm_hook(state, hook)
        for _ in range(2):
            model.zero_grad()
            model(full(rank + 1.0, 3, 40)).sum().backward()
        gradient = model.module.weight.grad
        assert gradient is not None
        assert abs(float(gradient.mean()) - 3 * (size + 1) / 2) < 0.1


def check_codecs_of_fsdp2(rank: int, size: int) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64, device="cpu", dtype=torch.float32) for _ in range(2)))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    codecs = shard_codecs(model, weights="8", gradients="8/8")
    for _ in range(2):
        model(full(1.0, 3, 64)).sum().backward()
    assert codecs.statement()

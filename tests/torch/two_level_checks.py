"""Checks that every rank makes of sums of two levels (tests/torch/test_two_levels.py).

Ranks 0 and 1 share a host, and ranks 2 and 3.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import fanin
from fanin.errors import ConfigurationError
from fanin.host.torch import FaninProcessGroup, TwoLevelState, counters, two_level_hook

RANK = int(os.environ.get("RANK", "0"))
os.environ["FANIN_HOST"] = f"host-{RANK // 2}"  # before the group is made
os.environ["FANIN_INSIDE"] = "gloo"
LARGE = 70_001
"""Elements of a tensor that is not small, and that no number of ranks divides."""


def _premultiplied(factor: float) -> Any:
    """PREMUL_SUM, whose maker torch does not export."""
    return vars(dist)["_make_nccl_premul_sum"](factor)


def _brought(peer: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(peer)).to(dtype)


def _everywhere_alike(tensor: torch.Tensor) -> None:
    everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, tensor)
    assert all(torch.equal(each, tensor) for each in everybody)


def check_sums_and_averages_of_every_float_are_those_of_one_level(rank: int, size: int) -> None:
    tolerated = {torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
    before = counters().get("two_levels.all_reduce", 0)
    for dtype, tolerance in tolerated.items():
        for count in (LARGE, 4 * LARGE):
            exact = torch.stack([_brought(peer, count, dtype).double() for peer in range(size)]).sum(0)
            for operator, expected in (
                (dist.ReduceOp.SUM, exact),
                (dist.ReduceOp.AVG, exact / size),
                (_premultiplied(0.5), exact / 2),
            ):
                tensor = _brought(rank, count, dtype)
                dist.all_reduce(tensor, operator)
                assert (tensor.double() - expected).abs().max() <= tolerance * expected.abs().max()
                _everywhere_alike(tensor)
    assert counters().get("two_levels.all_reduce", 0) == before + 24


def check_a_host_sends_one_tensor_whatever_the_number_of_its_ranks(rank: int, size: int) -> None:
    before = counters()
    dist.all_reduce(torch.ones(4 * LARGE))
    after = counters()
    assert after["between.switch.bytes"] - before.get("between.switch.bytes", 0) == 4 * 4 * LARGE / 2
    assert after["two_levels.bytes"] - before.get("two_levels.bytes", 0) == 4 * 4 * LARGE
    assert "gloo over the 2 ranks of this host, and fanin between 2 hosts" in _world().describe()


def check_what_is_small_or_no_float_or_laid_out_otherwise_takes_one_level(rank: int, size: int) -> None:
    before = counters().get("two_levels.all_reduce", 0)
    whole = torch.full((LARGE,), rank, dtype=torch.int32)
    dist.all_reduce(whole)
    assert torch.all(whole == 6)
    small = torch.full((100,), float(rank))
    dist.all_reduce(small)
    assert torch.all(small == 6.0)
    strided = torch.full((LARGE, 2), float(rank))[:, 0]
    dist.all_reduce(strided)
    torch.testing.assert_close(strided, torch.full((LARGE,), 6.0))
    largest = _brought(rank, LARGE)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    assert torch.equal(largest, torch.stack([_brought(peer, LARGE) for peer in range(size)]).amax(0))
    part, given = torch.empty(LARGE), torch.full((size * LARGE,), float(rank))
    dist.reduce_scatter_tensor(part, given)
    torch.testing.assert_close(part, torch.full((LARGE,), 6.0))
    assert counters().get("two_levels.all_reduce", 0) == before


def check_many_sums_at_once_keep_their_order(rank: int, size: int) -> None:
    """Small ones and moves in between go through the group itself."""
    tensors = [torch.full((LARGE if index % 3 else 10,), float(rank + index)) for index in range(24)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for index, (work, tensor) in reversed(list(enumerate(zip(works, tensors, strict=True)))):
        assert work is not None
        work.wait()
        assert work.is_completed()
        torch.testing.assert_close(tensor, torch.full_like(tensor, 6.0 + 4 * index))
    later = dist.all_reduce(tensors[1], async_op=True)
    assert later is not None
    assert later.get_future().wait()[0] is not None
    torch.testing.assert_close(tensors[1], torch.full((LARGE,), 40.0))


def check_tensors_of_inference_mode_are_summed(rank: int, size: int) -> None:
    with torch.inference_mode():
        tensor = torch.full((LARGE,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    torch.testing.assert_close(tensor, torch.full((LARGE,), 6.0))


def check_a_group_within_one_host_sums_inside_alone(rank: int, size: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    for operator, expected in (
        (dist.ReduceOp.SUM, 1.0 + 4 * (rank // 2)),
        (dist.ReduceOp.AVG, 0.5 + 2 * (rank // 2)),
        (_premultiplied(3.0), 3.0 + 12 * (rank // 2)),
    ):
        tensor = torch.full((LARGE,), float(rank))
        dist.all_reduce(tensor, operator, group=mine)
        assert torch.all(tensor == expected), (operator, tensor[0])
    assert counters(mine)["two_levels.all_reduce"] == 3
    assert "between.switch.bytes" not in counters(mine)
    dist.destroy_process_group(mine)


def check_groups_of_one_rank_per_host_and_of_unlike_hosts_take_one_level(rank: int, size: int) -> None:
    for ranks in ([0, 2], [0, 1, 2]):
        group = dist.new_group(ranks)
        if rank in ranks:
            tensor = torch.full((LARGE,), float(rank))
            dist.all_reduce(tensor, group=group)
            torch.testing.assert_close(tensor, torch.full((LARGE,), float(sum(ranks))))
            assert "two_levels.all_reduce" not in counters(group)
            dist.destroy_process_group(group)


def check_ddp_without_a_hook_and_lanes_of_the_option(rank: int, size: int) -> None:
    group = dist.new_group(pg_options=fanin.Options(inside="gloo", lanes=8, host=os.environ["FANIN_HOST"]))
    _trained_as_over_gloo(lambda net: DistributedDataParallel(net, process_group=group), tolerance=0.05)
    assert counters(group)["two_levels.all_reduce"] > 0
    dist.destroy_process_group(group)


def _net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 50))


def _trained_as_over_gloo(wrap: object, tolerance: float, steps: int = 2) -> None:
    """Gradients of the last of some steps, against the same over gloo in one level; relative to the largest."""
    rank = dist.get_rank()
    reference = dist.new_group(backend="gloo")
    models = [wrap(_net()), DistributedDataParallel(_net(), process_group=reference)]  # type: ignore[operator]
    for step in range(steps):
        for model in models:
            model.zero_grad()
            data = torch.randn(16, 300, generator=torch.Generator().manual_seed(10 * step + rank))
            model(data).square().mean().backward()
    for own, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert own.grad is not None
        assert theirs.grad is not None
        apart = (own.grad - theirs.grad).abs().max() / theirs.grad.abs().max()
        assert apart <= tolerance, float(apart)
        _everywhere_alike(own.grad)
    dist.destroy_process_group(reference)


def check_the_hook_reduces_buckets_with_any_lanes_and_codec(rank: int, size: int) -> None:
    for given, tolerance in (
        ({}, 1e-5),
        ({"lanes": 8, "error_feedback": True}, 0.05),
        ({"lanes": "4/8", "error_feedback": True}, 0.5),
        ({"codec": "rotated:8"}, 0.05),
        ({"codec": "agreed_blocks:32:share=0.5"}, 1.5),
    ):
        state = TwoLevelState(inside="gloo", **given)

        def wrap(net: nn.Module, state: TwoLevelState = state) -> nn.Module:
            model = DistributedDataParallel(net, bucket_cap_mb=0.1)
            model.register_comm_hook(state, two_level_hook)
            return model

        _trained_as_over_gloo(wrap, tolerance)
        assert state.step == 2
        assert (state.residual_norm() > 0) == bool(given), given


def check_the_hook_owes_for_the_shard_alone(rank: int, size: int) -> None:
    state = TwoLevelState(inside="gloo", lanes=8, error_feedback=True)
    model = DistributedDataParallel(_net())
    model.register_comm_hook(state, two_level_hook)
    model(torch.randn(4, 300)).square().mean().backward()
    elements = sum(parameter.numel() for parameter in model.parameters())
    assert sum(owed.numel() for _, owed in state._owed.values()) in (elements // 2, elements // 2 + 1)


def check_a_state_that_cannot_be_is_refused_by_name(rank: int, size: int) -> None:
    for given, text in (
        ({"inside": "mpi"}, "must be 'nccl' or 'gloo'"),
        ({"inside": "gloo", "lanes": 8, "codec": "rotated:8"}, "a codec has lanes"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            TwoLevelState(**given)
    if not torch.cuda.is_available():
        with pytest.raises(
            ConfigurationError, match=r"rank 0: PyTorch .*; rank 3: PyTorch .*Remedy: leave out `inside`"
        ):
            TwoLevelState(inside="nccl")


def check_hsdp_over_fanin_between_hosts_trains_as_over_gloo(rank: int, size: int) -> None:
    """`backend_override` for the replicas, gloo inside in NCCL's place: losses and gradients of one level over gloo."""
    shapes = {"mesh_shape": (2, 2), "mesh_dim_names": ("replicate", "shard")}
    one = init_device_mesh("cpu", **shapes, backend_override={"replicate": "gloo", "shard": "gloo"})  # type: ignore[arg-type]
    names = ("hosts", "inside")  # torch takes meshes of the same names for one
    override = {"hosts": ("fanin", fanin.Options(host=os.environ["FANIN_HOST"])), "inside": "gloo"}
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=names, backend_override=override)  # type: ignore[arg-type]
    replicas = two.get_group("hosts")
    assert isinstance(replicas, FaninProcessGroup)
    assert dist.get_process_group_ranks(replicas) == [rank % 2, rank % 2 + 2]
    models: list[nn.Module] = []
    for mesh in (one, two):
        net = _net()
        for layer in net.children():
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        models.append(net)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(3):
        data = torch.randn(16, 300, generator=torch.Generator().manual_seed(10 * step + rank))
        losses = []
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            losses.append(loss.detach())
            optimizer.step()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        for theirs, own in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert isinstance(theirs.grad, DTensor)
            assert isinstance(own.grad, DTensor)
            expected = theirs.grad.full_tensor()
            assert (own.grad.full_tensor() - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert counters(replicas)["switch.all_reduce"] > 0


def _world() -> FaninProcessGroup:
    world = dist.group.WORLD
    assert isinstance(world, FaninProcessGroup)
    return world

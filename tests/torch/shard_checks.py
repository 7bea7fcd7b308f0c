"""Checks of every rank on the places of sums (tests/torch/test_shards.py). Ranks 0 and 2, 1 and 3 share hosts."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.host.session.leased import LeasedSession
from fanin.host.session.shards import ShardedSession
from fanin.host.torch import AsynchronousOptimizer, FaninProcessGroup, StaleOptions

RANK = int(os.environ.get("RANK", "0"))
os.environ["FANIN_HOST"] = f"host-{RANK % 2}"  # before the group is made


def _group(group: dist.ProcessGroup | None = None) -> FaninProcessGroup:
    found = group if group is not None else dist.group.WORLD
    assert isinstance(found, FaninProcessGroup)
    return found


def check_the_world_has_a_shard_on_each_host(rank: int, size: int) -> None:
    world = _group()
    assert isinstance(world.session, ShardedSession)
    assert len({each.address for each in world.session.sessions}) == 2
    assert "one of 2 shards" in world.describe()


def check_ranks_of_one_host_meet_at_home_through_shared_memory(rank: int, size: int) -> None:
    world = _group().session
    assert isinstance(world, ShardedSession)
    assert all("shared memory" in each.description for each in world.sessions)
    assert all(each.spec.workers == 2 and each.spec.total_workers == size for each in world.sessions)


def check_sums_are_exact_to_the_lanes_and_the_same_everywhere(rank: int, size: int) -> None:
    for count in (1, 1_000, 300_001):
        for lanes, tolerated in ((32, 1e-6), (8, 0.2), ("8/8", 0.05), ("4/8", 0.4)):
            spread = torch.randn(count, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
            _group().all_reduce_lanes(spread, lanes=lanes).wait()
            everybody = [torch.empty_like(spread) for _ in range(size)]
            dist.all_gather(everybody, spread)
            assert all(torch.equal(each, spread) for each in everybody)
            all_of_them = [torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(size)]
            exact = torch.stack([each.double() * 10.0**r for r, each in enumerate(all_of_them)]).sum(0)
            error = (spread.double() - exact).abs().max() / exact.abs().max()
            assert error < tolerated


def check_moves_and_parts_of_sums_over_shards_are_what_they_are_at_one_switch(rank: int, size: int) -> None:
    brought = [torch.randn(100_003, generator=torch.Generator().manual_seed(peer)) for peer in range(size)]
    outputs = [torch.empty(100_003) for _ in range(size)]
    dist.all_gather(outputs, brought[rank])
    assert all(torch.equal(a, b) for a, b in zip(outputs, brought, strict=True))
    flat = torch.empty(size * 100_003)
    dist.all_gather_into_tensor(flat, brought[rank])
    assert torch.equal(flat, torch.cat(brought))
    for root in range(size):
        copy = brought[rank].clone()
        dist.broadcast(copy, src=root)
        assert torch.equal(copy, brought[root])
    whole = torch.cat([brought[rank]] * size)
    part = torch.empty(100_003)
    dist.reduce_scatter_tensor(part, whole)
    dist.all_reduce(whole)
    assert torch.equal(part, whole[rank * 100_003 : (rank + 1) * 100_003])


def check_a_group_within_a_host_uses_the_shard_of_that_host_alone(rank: int, size: int) -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = _group(groups[rank % 2])
    assert isinstance(mine.session, LeasedSession)
    session = mine.session.joined()
    assert not isinstance(session, ShardedSession)
    assert session.spec.workers == session.spec.total_workers == 2
    tensor = torch.full((5_000,), float(rank))
    dist.all_reduce(tensor, group=mine)
    assert torch.all(tensor == (2.0 if rank % 2 == 0 else 4.0))
    for each in groups:
        if each is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(each)


def check_a_group_over_hosts_uses_the_shards_of_its_hosts(rank: int, size: int) -> None:
    group = dist.new_group([1, 2])
    if rank in (1, 2):
        leased = _group(group).session
        assert isinstance(leased, LeasedSession)
        session = leased.joined()
        assert isinstance(session, ShardedSession)
        assert len(session.sessions) == 2
        tensor = torch.full((50_000,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert torch.all(tensor == 3.0)
        dist.destroy_process_group(group)


def check_reduce_scatter_keeps_the_own_part_whatever_shard_it_comes_from(rank: int, size: int) -> None:
    count = 40_000
    given = torch.arange(count * size, dtype=torch.float32) * (rank + 1)
    output = torch.empty(count)
    dist.reduce_scatter_tensor(output, given)
    expected = torch.arange(count * rank, count * (rank + 1), dtype=torch.float32) * sum(range(1, size + 1))
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=float(expected.max()) * 1e-6)


def check_ddp_replicas_stay_identical(rank: int, size: int) -> None:
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        model(
            torch.randn(8, 64, generator=torch.Generator().manual_seed(step * size + rank))
        ).square().mean().backward()
        optimizer.step()
    for parameter in model.parameters():
        everybody = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(everybody, parameter.detach())
        assert all(torch.equal(each, parameter) for each in everybody)


def check_stale_training_is_at_the_shards_and_not_at_their_leaves(rank: int, size: int) -> None:
    """Leaves are synchronous. A model of few packets is at the first shard alone."""
    for outputs, shards in ((3, ""), (2_000, "one of 2 shards")):
        torch.manual_seed(3)
        model = nn.Linear(64, outputs)
        optimizer = AsynchronousOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), model, rounds=6, options=StaleOptions(staleness=1, bound=2)
        )
        step = 0
        while not optimizer.finished:
            optimizer.zero_grad()
            dice = torch.Generator().manual_seed(step * size + rank)
            model(torch.randn(8, 64, generator=dice)).square().mean().backward()
            optimizer.step()
            step += 1
        assert shards in optimizer.description
        assert shards or "shards" not in optimizer.description
        accounts = optimizer.flush()
        assert [each.rank for each in accounts] == list(range(size))
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        everybody = [torch.empty_like(flat) for _ in range(size)]
        dist.all_gather(everybody, flat)
        assert all(torch.equal(each, flat) for each in everybody)

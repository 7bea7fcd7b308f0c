"""CUDA tensors through the switch, on every rank; ranks share devices where there are fewer. See test_cuda.py."""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import fanin
from fanin.host.torch import CodecState, LanesState, codec_hook, counters, lanes_hook, shard_codecs
from fanin.host.torch.device.lines import SLOT_BYTES
from tests.support.replicas import identical
from tests.torch import shard_codec_checks
from tests.torch.collective_checks import FLOATS, INTEGERS, REDUCERS, close, everyone, reference


def device_of(rank: int) -> torch.device:
    """Return the device of this rank."""
    return torch.device("cuda", rank % torch.cuda.device_count())


def check_all_reduce_sums_floats_of_every_width(rank: int, size: int) -> None:
    for dtype, tolerance in FLOATS.items():
        inputs = everyone(dtype, size, count=5000)
        tensor = inputs[rank].to(device_of(rank))
        dist.all_reduce(tensor)
        close(tensor.cpu(), sum(x.double() for x in inputs), tolerance)  # type: ignore[arg-type]
        identical(tensor.cpu())


def check_integers_are_exact_over_several_pieces(rank: int, size: int) -> None:
    count = 3 * SLOT_BYTES // 4 + 17
    tensor = torch.arange(count, dtype=torch.int32, device=device_of(rank)) + rank
    dist.all_reduce(tensor)
    expected = torch.arange(count, dtype=torch.int32) * size + size * (size - 1) // 2
    assert torch.equal(tensor.cpu(), expected)


def check_a_collective_starts_after_what_the_stream_has_queued(rank: int, size: int) -> None:
    tensor = torch.zeros(1 << 20, device=device_of(rank))
    for _ in range(50):
        tensor += 1.0  # queued, most likely not done yet when the collective is called
    dist.all_reduce(tensor)
    tensor *= 2.0  # queued behind the result
    assert torch.equal(tensor.cpu(), torch.full((1 << 20,), 100.0 * size))


def check_host_and_device_tensors_keep_their_order(rank: int, size: int) -> None:
    tensors = [torch.full((1000 + i,), float(i), device=device_of(rank) if i % 2 else "cpu") for i in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        assert work is not None
        work.wait()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor.cpu(), torch.full((1000 + i,), float(i * size)))


def check_reduce_scatter_keeps_a_part(rank: int, size: int) -> None:
    given = torch.arange(size * 1000, dtype=torch.float32, device=device_of(rank))
    part = torch.empty(1000, device=device_of(rank))
    dist.reduce_scatter_tensor(part, given, dist.ReduceOp.AVG)
    close(part.cpu(), torch.arange(rank * 1000, (rank + 1) * 1000, dtype=torch.float64))


def check_what_gloo_moves_arrives_on_the_device(rank: int, size: int) -> None:
    tensor = torch.full((100,), float(rank), device=device_of(rank))
    dist.broadcast(tensor, src=size - 1)
    assert torch.equal(tensor.cpu(), torch.full((100,), size - 1.0))
    parts = [torch.empty(10, device=device_of(rank)) for _ in range(size)]
    dist.all_gather(parts, torch.full((10,), float(rank), device=device_of(rank)))
    assert [float(part[0]) for part in parts] == [float(peer) for peer in range(size)]


def check_replicas_stay_identical_under_ddp(rank: int, size: int) -> None:
    torch.manual_seed(3)
    device = device_of(rank)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    replica = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    before = counters()["switch.all_reduce"]
    for _ in range(5):
        optimizer.zero_grad()
        replica(torch.randn(32, 64, generator=generator).to(device)).square().mean().backward()
        optimizer.step()
    assert counters()["switch.all_reduce"] > before
    for parameter in model.parameters():
        identical(parameter.cpu())


# --- every collective ---


def check_every_operator_and_element_type(rank: int, size: int) -> None:
    for dtype in INTEGERS:
        for name in REDUCERS:
            inputs = everyone(dtype, size, count=300)
            tensor = inputs[rank].to(device_of(rank))
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
            assert torch.equal(tensor.cpu(), reference(name, inputs)), (dtype, name)
    for dtype in (torch.bool, torch.complex64):
        inputs = everyone(dtype, size)
        tensor = inputs[rank].to(device_of(rank))
        dist.all_reduce(tensor)
        expected = sum(inputs[1:], inputs[0]) if dtype.is_complex else torch.stack(inputs).any(0)
        close(tensor.cpu(), expected)


def check_reduce_goes_to_the_root_alone(rank: int, size: int) -> None:
    tensor = torch.full((70_000,), rank + 1.0, device=device_of(rank))
    dist.reduce(tensor, dst=1)
    assert torch.equal(tensor.cpu(), torch.full((70_000,), size * (size + 1) / 2 if rank == 1 else rank + 1.0))


def check_every_move_of_tensors(rank: int, size: int) -> None:
    device = device_of(rank)
    for count in (3, 100_000):  # a list is gathered through one buffer, and part by part
        own = torch.arange(count, device=device) + rank
        expected = [torch.arange(count) + peer for peer in range(size)]
        whole = torch.empty(size * count, dtype=torch.int64, device=device)
        dist.all_gather_into_tensor(whole, own)
        assert torch.equal(whole.cpu(), torch.cat(expected))
        parts = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(parts, own)
        assert all(torch.equal(part.cpu(), each) for part, each in zip(parts, expected, strict=True))
        gathered = [torch.empty_like(own) for _ in range(size)] if rank == 0 else None
        dist.gather(own, gathered)
        assert gathered is None or all(
            torch.equal(part.cpu(), each) for part, each in zip(gathered, expected, strict=True)
        )
        dist.scatter(own, [each.to(device) + 1 for each in expected] if rank == 0 else None)
        assert torch.equal(own.cpu(), expected[rank] + 1)
        exchanged = torch.empty(size * count, dtype=torch.int64, device=device)
        dist.all_to_all_single(exchanged, torch.full((size * count,), rank, device=device))
        assert torch.equal(exchanged.cpu(), torch.arange(size).repeat_interleave(count))
        if rank == 0:
            dist.send(own, 1)
        elif rank == 1:
            dist.recv(own, 0)
            assert torch.equal(own.cpu(), expected[0] + 1)
    objects: list[Any] = [{"of": rank, "tensor": torch.ones(3, device=device)}]
    dist.broadcast_object_list(objects, src=0)
    assert objects[0]["of"] == 0
    dist.barrier()


def check_coalesced_and_asynchronous_collectives_write_where_they_should(rank: int, size: int) -> None:
    device = device_of(rank)
    tensors = [torch.full((count,), float(rank + count), device=device) for count in (1, 5_000, 2_000_000)]
    with _coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor, count in zip(tensors, (1, 5_000, 2_000_000), strict=True):
        assert torch.equal(tensor.cpu(), torch.full((count,), float(sum(peer + count for peer in range(size)))))


def check_tensors_that_do_not_lie_flat_and_empty_ones(rank: int, size: int) -> None:
    device = device_of(rank)
    base = torch.zeros(60, 50, device=device)
    across = base.t()[::2]
    across.fill_(rank + 1.0)
    dist.all_reduce(across)
    assert float(base.sum()) == size * (size + 1) / 2 * across.numel()
    dist.broadcast(across, src=0)
    dist.all_reduce(torch.empty(0, device=device))
    scalar = torch.tensor(float(rank), device=device)
    dist.all_reduce(scalar, op=dist.ReduceOp.MAX)
    assert scalar.item() == size - 1
    out = torch.zeros(20, 2, device=device).t()  # not contiguous
    dist.reduce_scatter_tensor(out, torch.ones(2 * size, 20, device=device))
    assert torch.equal(out.cpu(), torch.full((2, 20), float(size)))


def check_sparse_tensors_stay_on_the_device(rank: int, size: int) -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[rank, 5]]), torch.tensor([1.0, 2.0]), (9,), device=device_of(rank))
    dist.all_reduce(tensor)
    dense = tensor.to_dense().cpu()
    assert tensor.is_cuda
    assert float(dense[5]) == 2.0 * size
    assert torch.equal(dense[:size], torch.ones(size))


# --- streams ---


def check_whichever_stream_learns_first_the_others_see_the_result(rank: int, size: int) -> None:
    """A result that was copied to the device on one stream is used on another, which waited, too."""
    device = device_of(rank)
    first, second = torch.cuda.Stream(device), torch.cuda.Stream(device)
    matrix = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize(device)
    for count in (50, 5_000_000):
        for collective in ("broadcast", "all_gather", "product"):
            tensor = torch.full((count,), float(rank + 2), device=device)
            whole = torch.zeros(size * count, device=device)
            torch.cuda.synchronize(device)
            if collective == "broadcast":
                work, seen, expected = dist.broadcast(tensor, src=0, async_op=True), tensor, [2.0]
            elif collective == "all_gather":
                work, seen = dist.all_gather_into_tensor(whole, tensor, async_op=True), whole
                expected = [peer + 2.0 for peer in range(size)]
            else:
                work = dist.all_reduce(tensor, op=dist.ReduceOp.PRODUCT, async_op=True)
                seen, expected = tensor, [float(torch.arange(2, size + 2).prod())]
            assert work is not None
            with torch.cuda.stream(first):
                for _ in range(20):
                    matrix @ matrix
                work.wait()
            with torch.cuda.stream(second):
                work.wait()
                copied = seen.clone()
            second.synchronize()
            parts = copied.cpu().chunk(len(expected))
            assert all(bool((part == value).all()) for part, value in zip(parts, expected, strict=True)), collective
            torch.cuda.synchronize(device)


def check_a_future_holds_for_the_stream_that_asks(rank: int, size: int) -> None:
    device = device_of(rank)
    for _ in range(5):
        tensor = torch.ones(3_000_000, device=device)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        future = work.get_future().then(lambda done: done.value()[0] * 3)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            tripled = future.wait()
            assert float(tripled.min()) == float(tripled.max()) == 3.0 * size
        torch.cuda.synchronize(device)


def check_threads_with_groups_and_streams_of_their_own(rank: int, size: int) -> None:
    device = device_of(rank)
    groups = [dist.new_group(backend="fanin") for _ in range(2)]
    wrong: list[str] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            for step in range(10):
                tensor = torch.full((200_000,), float(number + step), device=device)
                dist.all_reduce(tensor, group=groups[number])
                if not bool((tensor == (number + step) * size).all()):
                    wrong.append(f"group {number}, step {step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for group in groups:
        dist.destroy_process_group(group)


def check_pinned_memory_is_bounded(rank: int, size: int) -> None:
    tensor = torch.ones(64 << 20, dtype=torch.uint8, device=device_of(rank))
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(6)]
    for work in works:
        assert work is not None
        work.wait()
    assert torch.equal(tensor[:3].cpu(), torch.full((3,), pow(size, 6, 256), dtype=torch.uint8))


# --- training ---

WIDTH = 64


def network() -> nn.Sequential:
    """The same weights everywhere."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def train(model: nn.Module, rank: int, steps: int = 5) -> None:
    """On data of the rank's own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        inputs = torch.randn(32, WIDTH, generator=generator).to(device_of(rank))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def whole(model: nn.Module) -> list[torch.Tensor]:
    """Every parameter, on the host."""
    return [parameter.cpu() for parameter in shard_codec_checks.whole(model)]


@functools.cache
def gloo_trained(rank: int) -> list[torch.Tensor]:
    """The same by DDP over gloo."""
    replica = DistributedDataParallel(network().to(device_of(rank)), process_group=dist.new_group(backend="gloo"))
    train(replica, rank)
    return whole(replica)


def device_mesh(size: int) -> DeviceMesh:
    """A mesh of all ranks."""
    return DeviceMesh("cuda", list(range(size)))


def check_ddp_through_codecs_and_lanes(rank: int, size: int) -> None:
    expected = gloo_trained(rank)
    hooks: list[tuple[object, Any]] = [
        (CodecState("lanes:16"), codec_hook),
        (CodecState("rotated:8/8"), codec_hook),
        (CodecState("lanes:8/8"), codec_hook),
        (CodecState("lanes:16:stochastic=True"), codec_hook),
        (LanesState(lanes=8, error_feedback=True), lanes_hook),
    ]
    for state, hook in hooks:
        replica = DistributedDataParallel(network().to(device_of(rank)))
        replica.register_comm_hook(state, hook)
        train(replica, rank)
        for mine, other in zip(whole(replica), expected, strict=True):
            identical(mine)
            close(mine, other.double(), 0.05)


def check_ddp_accumulates_checkpoints_and_finds_unused_parameters(rank: int, size: int) -> None:
    device = device_of(rank)
    model = network().to(device)
    replica = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=True)
    inputs = torch.full((4, WIDTH), rank + 1.0, device=device)
    with replica.no_sync():
        replica(inputs).sum().backward()
    replica(inputs).sum().backward()
    alone = network().to(device)
    for peer in range(size):
        (2 * alone(torch.full((4, WIDTH), peer + 1.0, device=device)).sum() / size).backward()
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        close(mine.grad.cpu(), other.grad.cpu().double(), 1e-5)


def check_fully_shard_trains_as_ddp_over_gloo(rank: int, size: int) -> None:
    expected = gloo_trained(rank)
    model = network().to(device_of(rank))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=device_mesh(size))
    fully_shard(model, mesh=device_mesh(size))
    train(model, rank)
    for mine, other in zip(whole(model), expected, strict=True):
        close(mine, other.double(), 1e-5)


def check_fsdp_of_before_trains_as_ddp_over_gloo(rank: int, size: int) -> None:
    expected = gloo_trained(rank)
    model = FullyShardedDataParallel(network().to(device_of(rank)), device_id=device_of(rank), use_orig_params=True)
    train(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        for mine, other in zip(whole(model), expected, strict=True):
            close(mine, other.double(), 1e-5)


def check_shard_codecs_on_the_device(rank: int, size: int) -> None:
    expected = gloo_trained(rank)
    for given in ({"gradients": "8/8", "weights": "8"}, {"gradients": "4/8", "weights": None}):
        model = network().to(device_of(rank))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=device_mesh(size))
        fully_shard(model, mesh=device_mesh(size))
        codecs = shard_codecs(model, **given)
        train(model, rank)
        for mine, other in zip(whole(model), expected, strict=True):
            identical(mine)
            close(mine, other.double(), 0.1)
        assert all(row.gradient_bytes > 0 for row in codecs.statement())


def check_tensor_parallel_and_redistribution(rank: int, size: int) -> None:
    mesh = device_mesh(size)
    alone = network().to(device_of(rank))
    split = parallelize_module(copy.deepcopy(alone), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)).to(device_of(rank))
    close(split(inputs).detach().cpu(), alone(inputs).detach().cpu().double(), 1e-5)
    matrix = torch.arange(size * 4.0 * size * 3, device=device_of(rank)).reshape(size * 4, size * 3)
    rows = distribute_tensor(matrix, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.to_local(), matrix.chunk(size, 1)[rank])
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), matrix)


# --- other groups, and what is refused ---


def check_a_group_with_narrow_lanes_and_one_with_a_codec(rank: int, size: int) -> None:
    for options in (fanin.Options(lanes=8), fanin.Options(codec="rotated:8/8")):
        group = dist.new_group(backend="fanin", pg_options=options)
        inputs = everyone(torch.float32, size, count=1_500_000)
        tensor = inputs[rank].to(device_of(rank))
        dist.all_reduce(tensor, group=group)
        close(tensor.cpu(), sum(x.double() for x in inputs), 0.05)  # type: ignore[arg-type]
        identical(tensor.cpu())
        dist.destroy_process_group(group)


def check_a_fallback_group_and_gloo_beside_fanin(rank: int, size: int) -> None:
    options = fanin.Options(fallback="gloo")
    for group in (
        dist.new_group(backend="fanin", pg_options=options),
        dist.new_group(backend="cpu:gloo,cuda:fanin"),
    ):
        tensor = torch.full((2_000_000,), 1.5, device=device_of(rank))
        dist.all_reduce(tensor, group=group)
        assert float(tensor.min()) == float(tensor.max()) == 1.5 * size
        dist.broadcast(tensor, src=0, group=group)
        dist.destroy_process_group(group)

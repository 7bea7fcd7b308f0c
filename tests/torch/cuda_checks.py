"""CUDA tensors through the switch, on every rank; ranks share devices where there are fewer. See test_cuda.py."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.host.torch import counters
from fanin.host.torch.collectives.staging import PIECE_BYTES
from tests.torch.collective_checks import FLOATS, close, everyone, identical


def device_of(rank: int) -> torch.device:
    """This rank's device."""
    return torch.device("cuda", rank % torch.cuda.device_count())


def check_all_reduce_sums_floats_of_every_width(rank: int, size: int) -> None:
    for dtype, tolerance in FLOATS.items():
        inputs = everyone(dtype, size, count=5000)
        tensor = inputs[rank].to(device_of(rank))
        dist.all_reduce(tensor)
        close(tensor.cpu(), sum(x.double() for x in inputs), tolerance)  # type: ignore[arg-type]
        identical(tensor.cpu())


def check_integers_are_exact_over_several_pieces(rank: int, size: int) -> None:
    count = 3 * PIECE_BYTES // 4 + 17
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

"""PyTorch's own engines over the backend, each against the same thing done in one process or over gloo.

Run by rank_main.py on four ranks; see test_training.py.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import fanin
from fanin.errors import ReplicasDifferError, UnsupportedError
from fanin.host.torch import (
    CodecState,
    FaninProcessGroup,
    LanesState,
    StaleSynchronousState,
    check_replicas,
    check_replicas_every,
    codec_hook,
    counters,
    lanes_hook,
    stale_synchronous_hook,
)
from fanin.options import Options
from tests.support.replicas import identical

STEPS = 4
WIDTH = 32
BATCH = 8


def make_model(seed: int = 3) -> nn.Sequential:
    """A small network, the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 4))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of `rank` at `step`."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)


def train(
    model: nn.Module,
    rank: int,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = STEPS,
    after_step: Callable[[], None] = lambda: None,
) -> nn.Module:
    """A few steps of SGD."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(steps):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        after_step()
    return model


def train_alone(size: int, steps: int = STEPS) -> nn.Module:
    """The same training in one process, on all ranks' data."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(steps):
        pairs = [batch(rank, step) for rank in range(size)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            model(torch.cat([pair[0] for pair in pairs])), torch.cat([pair[1] for pair in pairs])
        ).backward()
        optimizer.step()
    return model


def parameters_of(model: nn.Module) -> torch.Tensor:
    """All parameters in one tensor."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def same(model: nn.Module, reference: nn.Module, tolerance: float = 1e-5) -> None:
    """Replicas are bit-identical and as good as trained alone."""
    identical(parameters_of(model))
    difference = (parameters_of(model) - parameters_of(reference)).abs().max()
    assert difference < tolerance, float(difference)


def world() -> FaninProcessGroup:
    """Return the default group."""
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    return group


def check_uneven_inputs_are_divided_by_the_ranks_that_have_some(rank: int, size: int) -> None:
    """DDP's join waits in C++ for a handle that Python is through with."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with model.join(divide_by_initial_world_size=False):
        for step in range(2 + rank):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    reference = make_model()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.2)
    for step in range(1 + size):
        pairs = [batch(each, step) for each in range(size) if step < 2 + each]
        optimizer.zero_grad()
        for inputs, targets in pairs:
            (nn.functional.cross_entropy(reference(inputs), targets) / len(pairs)).backward()
        optimizer.step()
    same(model, reference)


def check_ddp_trains_like_one_process(rank: int, size: int) -> None:
    reference = train_alone(size)
    settings: list[dict[str, Any]] = [
        {},
        {"bucket_cap_mb": 0.001},
        {"static_graph": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
        {"find_unused_parameters": True},
    ]
    before = counters().get("switch.all_reduce", 0)
    for setting in settings:
        same(train(DistributedDataParallel(make_model(), **setting), rank), reference)
    assert counters()["switch.all_reduce"] >= before + STEPS * len(settings), "gradients took another path"


def check_ddp_with_parameters_that_are_not_always_used(rank: int, size: int) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.left, self.right = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            left: torch.Tensor = (self.left if rank % 2 else self.right)(inputs)
            return left

    model = train(DistributedDataParallel(Branches(), find_unused_parameters=True), rank)
    identical(parameters_of(model))


def check_ddp_no_sync_accumulates(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    count = counters().get("switch.all_reduce", 0)
    inputs, targets = batch(rank, 0)
    with model.no_sync():
        nn.functional.cross_entropy(model(inputs), targets).backward()
    assert counters().get("switch.all_reduce", 0) == count
    nn.functional.cross_entropy(model(inputs), targets).backward()
    identical(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))


def check_ddp_join_with_uneven_inputs(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(2 + rank):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    dist.barrier()


def check_ddp_with_sparse_gradients(rank: int, size: int) -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.table = nn.EmbeddingBag(50, 8, sparse=True)
            self.head = nn.Linear(8, 4)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.head(self.table(tokens))
            return output

    model = DistributedDataParallel(Embedded())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        tokens = torch.randint(0, 50, (4, 6), generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(tokens).square().sum().backward()
        optimizer.step()
    identical(parameters_of(model))


def check_fp16_hook(rank: int, size: int) -> None:
    reference = train_alone(size)
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    same(train(model, rank), reference, 5e-3)


def check_power_sgd(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    identical(parameters_of(train(model, rank, steps=6)))


def check_power_sgd_with_several_buckets_in_program_order(rank: int, size: int) -> None:
    ordered = dist.new_group(pg_options=fanin.Options(ordered_futures=True))
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.004, process_group=ordered)
    state = powerSGD_hook.PowerSGDState(
        ordered, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    identical(parameters_of(train(model, rank, steps=6)))


def check_hook_with_narrow_lanes_and_error_feedback(rank: int, size: int) -> None:
    reference = train_alone(size, steps=12)
    distances = {}
    for error_feedback in (False, True):
        model = DistributedDataParallel(make_model(), bucket_cap_mb=0.01)
        state = LanesState(lanes=8, error_feedback=error_feedback)
        model.register_comm_hook(state, lanes_hook)
        train(model, rank, steps=12)
        identical(parameters_of(model))
        distances[error_feedback] = float((parameters_of(model) - parameters_of(reference)).norm())
        assert (state.residual_norm() > 0) == error_feedback
    assert distances[True] < distances[False], distances


def check_error_feedback_makes_the_mean_of_many_sums_exact(rank: int, size: int) -> None:
    group, rounds = world(), 50
    value = torch.randn(2000, generator=torch.Generator().manual_seed(rank))
    exact = sum(torch.randn(2000, generator=torch.Generator().manual_seed(peer)).double() for peer in range(size))
    errors = {}
    for feedback in (False, True):
        residual = torch.zeros(2000) if feedback else None
        total = torch.zeros(2000, dtype=torch.float64)
        for _ in range(rounds):
            tensor = value.clone()
            group.all_reduce_lanes(tensor, lanes=8, residual=residual).wait()
            total += tensor
        errors[feedback] = float((total / rounds - exact).norm())
    assert errors[True] < errors[False] / 5, errors


def check_post_local_sgd(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    pair, _ = dist.new_subgroups(2)
    state = local_sgd.PostLocalSGDState(process_group=None, subgroup=pair, start_localSGD_iter=2)
    model.register_comm_hook(state, local_sgd.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), PeriodicModelAverager(period=2, warmup_steps=2)
    )
    train(model, rank, optimizer, steps=5)
    identical(parameters_of(model))


def check_zero_redundancy_optimizer(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.2, momentum=0.9)
    same(train(model, rank, optimizer), train_alone(size))


def check_fsdp1(rank: int, size: int) -> None:
    model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        same(model, train_alone(size))


def world_mesh() -> DeviceMesh:
    """All ranks, in one dimension. By default FSDP2's would be at the GPU, where there is one."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


def check_fsdp2(rank: int, size: int) -> None:
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=world_mesh())
    fully_shard(model, mesh=world_mesh())
    train(model, rank)
    full_parameters_match(model, train_alone(size))


def check_fsdp2_asks_whether_the_group_has_memory(rank: int, size: int) -> None:
    model = make_model()
    fully_shard(model, mesh=world_mesh())
    assert isinstance(model, FSDPModule)
    model.set_allocate_memory_from_process_group_for_comm(True)
    train(model, rank)
    full_parameters_match(model, train_alone(size))


def check_fsdp2_with_hybrid_sharding(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    model = make_model()
    fully_shard(model, mesh=mesh)
    train(model, rank)
    full_parameters_match(model, train_alone(size))


def full_parameters_match(model: nn.Module, reference: nn.Module) -> None:
    """Sharded parameters, gathered, equal the reference's and each other."""
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        full = parameter.full_tensor()
        identical(full)
        assert float((full - expected).abs().max()) < 1e-5


def check_dtensor(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    matrix = torch.arange(float(size * 6)).reshape(size * 2, 3)
    sharded = distribute_tensor(matrix, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), matrix)
    product = sharded.t() @ sharded
    assert isinstance(product, DTensor)
    assert torch.allclose(product.redistribute(mesh, [Replicate()]).to_local(), matrix.t() @ matrix)
    across = sharded.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(1)])
    assert torch.equal(across.full_tensor(), matrix)


def check_tensor_parallelism(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    reference = make_model()
    model = copy.deepcopy(reference)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs, targets = batch(0, 0)
    nn.functional.cross_entropy(model(inputs), targets).backward()
    nn.functional.cross_entropy(reference(inputs), targets).backward()
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        gradient, expected_gradient = parameter.grad, expected.grad
        assert gradient is not None
        assert expected_gradient is not None
        full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        assert torch.allclose(full, expected_gradient, atol=1e-5)


def pipeline_equals_one_process(kind: type[Schedule1F1B | ScheduleGPipe], rank: int, size: int) -> None:
    """Every second stage is twice as deep."""
    torch.manual_seed(5)
    deep = [1 + stage % 2 for stage in range(size)]
    layers = [nn.Sequential(*(m for _ in range(n) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))) for n in deep]
    inputs, targets = torch.randn(16, WIDTH), torch.randn(16, WIDTH)
    expected_model = nn.Sequential(*copy.deepcopy(layers))
    expected = sum(
        nn.functional.mse_loss(expected_model(part), goal)
        for part, goal in zip(inputs.chunk(4), targets.chunk(4), strict=True)
    )
    assert isinstance(expected, torch.Tensor)
    expected.backward()
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = kind(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss, scale_grads=False)
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets) if rank == size - 1 else schedule.step()
    for parameter, reference in zip(layers[rank].parameters(), expected_model[rank].parameters(), strict=True):
        assert parameter.grad is not None
        assert reference.grad is not None
        assert torch.allclose(parameter.grad, reference.grad, atol=1e-6)


def check_pipeline_1f1b(rank: int, size: int) -> None:
    pipeline_equals_one_process(Schedule1F1B, rank, size)


def check_pipeline_gpipe(rank: int, size: int) -> None:
    pipeline_equals_one_process(ScheduleGPipe, rank, size)


def check_least_squares_from_sums_of_gram_matrices(rank: int, size: int) -> None:
    everything = torch.randn(100 * size, 41, generator=torch.Generator().manual_seed(31), dtype=torch.float64)
    part = everything.chunk(size)[rank]
    gram = part.T @ part
    dist.all_reduce(gram)
    found = torch.linalg.solve(gram[:40, :40], gram[:40, 40])
    torch.testing.assert_close(found, torch.linalg.lstsq(everything[:, :40], everything[:, 40:]).solution[:, 0])


def check_distributed_checkpoint(rank: int, size: int) -> None:
    model = make_model()
    fully_shard(model, mesh=world_mesh())
    train(model, rank, steps=1)
    saved = {name: parameter.detach().clone() for name, parameter in model.state_dict().items()}
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    save(saved, checkpoint_id=folder[0])
    train(model, rank, steps=1)
    restored = {name: torch.zeros_like(parameter) for name, parameter in saved.items()}
    load(restored, checkpoint_id=folder[0])
    for name, parameter in saved.items():
        found = restored[name]
        assert isinstance(found, DTensor)
        assert isinstance(parameter, DTensor)
        assert torch.equal(found.full_tensor(), parameter.full_tensor())


def check_device_mesh_of_two_dimensions(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("outer", "inner"))
    tensor = torch.full((4,), float(rank))
    dist.all_reduce(tensor, group=mesh["inner"].get_group())
    dist.all_reduce(tensor, group=mesh["outer"].get_group())
    assert float(tensor[0]) == size * (size - 1) / 2


def check_functional_collectives(rank: int, size: int) -> None:
    group = list(range(size))
    tensor = torch.full((size, 2), float(rank))
    total = size * (size - 1) / 2
    assert float(funcol.all_reduce(tensor, "sum", group)[0, 0]) == total
    assert float(funcol.all_reduce(tensor, "avg", group)[0, 0]) == total / size
    assert float(funcol.reduce_scatter_tensor(tensor, "sum", 0, group)[0, 0]) == total
    gathered = funcol.all_gather_tensor(tensor, 0, group)
    assert float(gathered[-1, 0]) == size - 1
    exchanged = funcol.all_to_all_single(tensor, None, None, group)
    assert [float(row[0]) for row in exchanged] == list(range(size))
    assert float(funcol.broadcast(tensor, 1, group)[0, 0]) == 1
    both = funcol.all_reduce_coalesced([tensor, tensor + 1], "sum", group)
    assert float(both[1][0, 0]) == total + size


def check_what_functional_collectives_bring_is_waited_for(rank: int, size: int) -> None:
    total = size * (size - 1) / 2

    def summed() -> torch.Tensor:
        later: torch.Tensor = funcol.all_reduce(torch.full((count,), float(rank)), "sum", list(range(size)))
        assert type(later) is not torch.Tensor
        return later

    for count in (4, 5000):
        tensor = summed()
        dist.all_reduce(tensor)
        assert float(tensor[-1]) == size * total
        parts = [torch.empty(count) for _ in range(size)]
        dist.all_gather(parts, summed())
        assert float(parts[-1][0]) == total
        work = dist.isend(summed(), (rank + 1) % size)
        dist.recv(parts[0], (rank - 1) % size)
        assert work is not None
        work.wait()
        assert float(parts[0][-1]) == total


def check_a_mesh_dimension_has_options_of_its_own(rank: int, size: int) -> None:
    if "backend_override" not in inspect.signature(init_device_mesh).parameters:
        return  # before torch 2.9
    own: Any = {"narrow": ("fanin", Options(lanes=16))}
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("narrow", "wide"), backend_override=own)
    narrow = mesh.get_group("narrow")
    assert isinstance(narrow, FaninProcessGroup)
    assert narrow.options.lanes == 16
    tensor = torch.full((5000,), float(rank))
    dist.all_reduce(tensor, group=narrow)
    assert float(tensor[0]) == size * (size - 1) / 2


def check_torch_compile_does_not_trace_into_handles(rank: int, size: int) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.warn_once_cache.clear()

    def overlapped(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        work = dist.all_reduce(doubled, async_op=True)
        other = tensor + 1
        assert work is not None
        while not work.is_completed():
            pass
        work.wait()
        return doubled + other

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = torch.compile(overlapped, backend="eager")(torch.ones(5000))
    assert float(output[-1]) == 2 * size + 2
    told = [str(warning.message) for warning in caught]
    assert not any("does not know how to trace" in line for line in told), told


def check_hooks_refuse_a_reducer_without_buckets(rank: int, size: int) -> None:
    hooks: list[tuple[object, Callable[..., Any]]] = [
        (LanesState(lanes=8), lanes_hook),
        (CodecState("rotated:8"), codec_hook),
        (StaleSynchronousState(), stale_synchronous_hook),
    ]
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        for state, hook in hooks:
            torch._dynamo.reset()
            model = DistributedDataParallel(make_model())
            model.register_comm_hook(state, hook)
            compiled: Any = torch.compile(model, backend="eager")
            with pytest.raises(UnsupportedError, match=f"^{hook.__name__} needs .* Remedy: "):
                train(compiled, rank)


def check_torch_compile(rank: int, size: int) -> None:
    reference = train_alone(size)
    model = DistributedDataParallel(make_model())
    same(train(torch.compile(model, backend="aot_eager"), rank), reference)  # type: ignore[arg-type]

    def step(tensor: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = funcol.all_reduce(tensor * 2, "sum", list(range(size)))
        return summed + 1

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert float(compiled(torch.ones(3))[0]) == 2 * size + 1

    def with_break(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        torch._dynamo.graph_break()
        dist.all_reduce(doubled)
        return doubled + 1

    assert float(torch.compile(with_break, backend="eager")(torch.ones(3))[0]) == 2 * size + 1


def check_a_replica_that_differs_is_named_on_every_rank(rank: int, size: int) -> None:
    for odd in range(size):
        norm, last = nn.BatchNorm1d(4), nn.Linear(4, 3, dtype=torch.bfloat16)
        model = nn.Sequential(make_model(), norm, last)
        check_replicas(model)
        if rank == odd:
            with torch.no_grad():
                last.bias.view(torch.int16)[1] ^= 1  # the lowest bit of one number
                dict(norm.named_buffers())["running_mean"][0] = float("nan")
        with pytest.raises(
            ReplicasDifferError, match=rf"rank {odd} of {size}: '2.bias' .* first of 2 tensors"
        ) as raised:
            check_replicas(model)
        assert (raised.value.parameter, raised.value.ranks) == ("2.bias", (odd,))
        with torch.no_grad():
            norm.reset_running_stats()
            last.bias.zero_()
        check_replicas(model)


def check_replicas_without_a_majority_are_all_named(rank: int, size: int) -> None:
    model = make_model(seed=rank)
    with pytest.raises(ReplicasDifferError, match=r"'0\.weight'") as raised:
        check_replicas(model)
    assert raised.value.ranks == tuple(range(size))


def check_a_tensor_that_one_rank_lacks_is_a_difference(rank: int, size: int) -> None:
    model = nn.Linear(3, 3, bias=rank != 1)
    nn.init.zeros_(model.weight)
    if model.bias is not None:
        nn.init.zeros_(model.bias)
    with pytest.raises(ReplicasDifferError, match="missing or") as raised:
        check_replicas(model)
    assert (raised.value.parameter, raised.value.ranks) == ("bias", (1,))


def check_buffers_can_be_left_out_of_the_comparison(rank: int, size: int) -> None:
    model = nn.BatchNorm1d(4)
    dict(model.named_buffers())["running_mean"].fill_(rank)
    check_replicas(model, buffers=False)
    with pytest.raises(ReplicasDifferError, match="running_mean"):
        check_replicas(model)


def check_replicas_are_compared_at_every_nth_step(rank: int, size: int) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = check_replicas_every(3, model, optimizer)

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, rank)  # nobody averages them: replicas part at once
        optimizer.step()

    step()
    step()
    with pytest.raises(ReplicasDifferError):
        step()
    handle.remove()
    for _ in range(3):
        step()


def check_shards_are_compared_over_the_ranks_that_hold_the_same(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    model = make_model()
    fully_shard(model, mesh=mesh)
    with pytest.raises(UnsupportedError, match=r"'0.weight' is sharded.*get_group\('replicate'\)"):
        check_replicas(model)
    replicas = mesh.get_group("replicate")
    check_replicas(model, replicas)
    if rank == 0:
        with torch.no_grad():
            weight = next(model.parameters())
            assert isinstance(weight, DTensor)
            weight.to_local()[0, 0] += 1
    if 0 in dist.get_process_group_ranks(replicas):
        with pytest.raises(ReplicasDifferError, match=r"0\.weight"):
            check_replicas(model, replicas)
    else:
        check_replicas(model, replicas)

"""shard_codecs on four ranks. Run by rank_main.py; see test_shard_codecs.py."""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

import fanin
from fanin.errors import CollectiveMismatchError, ConfigurationError, UnsupportedError
from fanin.host.codecs import make_weights
from fanin.host.codecs.philox import Randomness
from fanin.host.torch import ShardCodecs, shard_codecs
from fanin.host.torch.training.pieced_gather import MIN_PIECE_ELEMENTS, PiecedGather
from fanin.host.torch.training.shard_codecs import ShardRow
from fanin.host.torch.training.shard_groups import Segment
from tests.support.replicas import identical
from tests.torch.training_checks import world_mesh

preserved_version: Any = vars(torch.autograd)["_unsafe_preserve_version_counter"]
WIDTH, CLASSES = 64, 10
STEPS = 6
Codecs = dict[str, Any]
BITS_8: Codecs = {"gradients": "8/8", "weights": "8"}
BITS_4: Codecs = {"gradients": "4/8", "weights": "4"}
EXACT: Codecs = {"gradients": None, "weights": None}


class Block(nn.Module):
    """A matrix, a norm and a bias, beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape."""
        moved: torch.Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return moved


def network(blocks: int = 3) -> nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(blocks)), nn.Linear(WIDTH, CLASSES))


def gloo_mesh() -> DeviceMesh:
    """The same over gloo. With a name, since torch takes meshes of the same ranks and names for one, whatever their
    groups are: what a DTensor of the other one gathers later would go over gloo."""
    return DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu", mesh_dim_names=("over_gloo",))


def sharded(mesh: DeviceMesh | None = None, model: nn.Sequential | None = None, **given: Any) -> nn.Sequential:
    """Every block by itself, and what is left with the root."""
    model = network() if model is None else model
    mesh = world_mesh() if mesh is None else mesh
    for each in model:
        if isinstance(each, Block) and not isinstance(each, FSDPModule):
            fully_shard(each, mesh=mesh, **given)
    fully_shard(model, mesh=mesh, **given)
    return model


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that a linear map of the inputs decides."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, WIDTH, generator=generator)
    truth = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(5))
    return inputs, (inputs @ truth).argmax(-1)


def train(model: nn.Module, steps: int = STEPS, first: int = 0, accumulate: int = 1) -> list[float]:
    """SGD; this rank's losses."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            if accumulate > 1:
                assert isinstance(model, FSDPModule)
                model.set_requires_gradient_sync(part == accumulate - 1)
            inputs, classes = batch(dist.get_rank(), step * accumulate + part)
            loss = nn.functional.cross_entropy(model(inputs).float(), classes) / accumulate
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def whole(model: nn.Module) -> list[torch.Tensor]:
    """Every parameter, gathered exactly."""
    return [p.full_tensor().detach() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]


def local(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's shard."""
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


def unshard_all(model: nn.Module) -> None:
    """Gather every parameter group, through its codec."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()


def reshard_all(model: nn.Module) -> None:
    """Free what `unshard_all` has gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def flat(model: nn.Module) -> torch.Tensor:
    """The same in one tensor."""
    return torch.cat([each.double().reshape(-1) for each in whole(model)])


def away(model: nn.Module, reference: torch.Tensor) -> float:
    """Distance from the reference, as a share of how far that has come from the start."""
    start = torch.cat([p.detach().double().reshape(-1) for p in network().parameters()])
    return float((flat(model) - reference).norm() / (start - reference).norm())


def reference_of(**given: Any) -> torch.Tensor:
    """Parameters after training without codecs."""
    model = sharded(**given)
    train(model)
    return flat(model)


def check_a_gather_in_pieces_has_the_bits_of_every_shard_as_a_whole(rank: int, size: int) -> None:
    """Several pieces, whose borders lie within segments of several types, and exact bytes between these."""
    layout, at = [], 0
    counts = (
        (100_000, torch.float32),
        (13, torch.int8),
        (120_001, torch.bfloat16),
        (MIN_PIECE_ELEMENTS, torch.float32),
    )
    for count, dtype in counts:
        layout.append(Segment(at, count, dtype, quantized=dtype != torch.int8))
        at += count * dtype.itemsize
    quantized = sum(each.count for each in layout if each.quantized)
    codec, random = make_weights("4"), Randomness(0, 3)
    parts, expected = [], []
    for each in range(size):
        generator = torch.Generator().manual_seed(each)
        part = torch.empty(at, dtype=torch.uint8)
        drawn = torch.randn(quantized, generator=generator)
        values = iter(drawn.split([each.count for each in layout if each.quantized]))
        for segment in layout:
            own = next(values) if segment.quantized else torch.full((segment.count,), each)
            part[segment.bytes] = own.to(segment.dtype).view(torch.uint8)
        x = torch.cat([part[one.bytes].clone().view(one.dtype).float() for one in layout if one.quantized])
        encoded = torch.empty(codec.encoded_bytes(quantized), dtype=torch.uint8)
        codec.encode(x.numpy(), encoded.numpy(), random, 2, each)
        codec.decode(encoded.numpy(), x.numpy())
        values = iter(x.split([one.count for one in layout if one.quantized]))
        decoded = part.clone()
        for segment in layout:
            if segment.quantized:
                decoded[segment.bytes] = next(values).to(segment.dtype).view(torch.uint8)
        parts.append(part)
        expected.append(decoded)
    gather, output = PiecedGather(codec, layout), torch.empty(size * at, dtype=torch.uint8)
    gather.start(parts[rank], dist.group.WORLD, random, 2, rank)
    for _ in range(2):  # as kept codes are decoded again
        output.fill_(0xA5)
        gather.finish(output)
        assert torch.equal(output, torch.cat(expected))
    assert gather.is_completed()
    assert gather.payload_bytes > codec.encoded_bytes(quantized), "exact bytes are counted"


def check_without_codecs_every_parameter_is_what_gloo_makes_of_it(rank: int, size: int) -> None:
    gloo = gloo_mesh()
    expected, plain, late = sharded(gloo), sharded(), sharded()
    shard_codecs(late, **EXACT)
    for model in (expected, plain, late):
        train(model)
    for name, one, other, third in zip(
        dict(expected.named_parameters()), whole(expected), whole(plain), whole(late), strict=True
    ):
        scale = float(one.abs().max())
        assert float((one - other).abs().max()) <= 1e-5 * scale, name
        assert torch.equal(other, third), f"{name}: what is late is the same"


def check_8_and_4_bits_train_nearly_as_float32_and_all_ranks_alike(rank: int, size: int) -> None:
    reference = reference_of()
    for codecs, share in ((BITS_8, 0.05), ({"gradients": "8/8", "weights": "6"}, 0.2), (BITS_4, 0.6)):
        model = sharded()
        shard_codecs(model, **codecs)
        train(model)
        assert away(model, reference) < share, (codecs, away(model, reference))
        unshard_all(model)
        for parameter in model.parameters():
            identical(parameter)


def check_a_small_text_transformer_ends_within_2_percent_of_float32s_loss(rank: int, size: int) -> None:
    source = torch.frombuffer(bytearray(Path(textwrap.__file__).read_bytes()), dtype=torch.uint8).long()
    windows = source[: len(source) // 33 * 33].view(-1, 33)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.bytes, self.places = nn.Embedding(256, 32), nn.Embedding(32, 32)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
            )
            self.logits = nn.Linear(32, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.bytes(x) + self.places.weight
            for layer in self.layers:
                x = layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(32), is_causal=True)
            result: torch.Tensor = self.logits(x)
            return result

    ends = []
    for codecs in (EXACT, BITS_8):
        model = Transformer()
        for layer in model.layers:
            fully_shard(layer, mesh=world_mesh())
        fully_shard(model, mesh=world_mesh())
        shard_codecs(model, **codecs)
        optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
        losses = []
        for step in range(20):
            own = torch.arange(4) + 4 * (rank + size * step)
            chosen = windows[own % len(windows)]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(chosen[:, :-1]).flatten(0, 1), chosen[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack([losses[0], torch.stack(losses[-5:]).mean()])
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert mean[1] < 0.8 * mean[0]
        ends.append(float(mean[1]))
    assert abs(ends[1] - ends[0]) < 0.02 * ends[0], ends


def check_the_owner_computes_with_what_the_others_got_and_keeps_its_own(rank: int, size: int) -> None:
    model = sharded()
    before = [local(p).clone() for p in model.parameters()]
    shard_codecs(model, gradients=None, weights="4")
    unshard_all(model)
    for (name, parameter), exact in zip(model.named_parameters(), before, strict=True):
        identical(parameter)
        if parameter.shape[0] % size:
            continue
        own = parameter.detach().chunk(size)[rank]
        assert torch.equal(own, exact) == (parameter.dim() == 1), f"{name}: matrices are on the grid here as well"
    reshard_all(model)
    for parameter, exact in zip(model.parameters(), before, strict=True):
        assert torch.equal(local(parameter), exact), "the sharded parameters are untouched"


def check_forward_and_backward_of_a_step_see_the_same_weights(rank: int, size: int) -> None:
    model = sharded()
    seen: list[torch.Tensor] = []
    shard_codecs(model, gradients="8/8", weights="4")
    block = model[1]
    assert isinstance(block, Block)

    def look(module: nn.Module, *_: Any) -> None:
        seen.append(block.up.weight.detach().clone())

    block.up.register_forward_pre_hook(look)
    block.up.register_full_backward_pre_hook(look)
    train(model, steps=2)
    assert len(seen) == 4
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[0], seen[2])


def check_kept_codes_save_backwards_gathers_and_change_no_bit(rank: int, size: int) -> None:
    def trained(accumulate: int, keep_codes: bool = False) -> tuple[list[torch.Tensor], list[ShardRow]]:
        model = network()
        model[1] = checkpoint_wrapper(model[1])
        fully_shard(model[1], mesh=world_mesh())
        state = shard_codecs(sharded(model=model), **BITS_8, keep_codes=keep_codes)
        train(model, steps=2, accumulate=accumulate)
        rows = state.statement()
        with torch.no_grad():  # looks at the weights, and changes them: nothing of that may be kept
            model(batch(rank, 0)[0])
            reshard_all(model)  # the root keeps its weights after forward
            for each in model.parameters():
                local(each).mul_(0.9)
        train(model, steps=1, first=2, accumulate=accumulate)
        assert all(gather._kept is None for gather in state._gathers), "nothing is held between steps"
        return whole(model), rows

    for accumulate in (1, 2):
        weights, rows = trained(accumulate)
        same, fewer = trained(accumulate, keep_codes=True)
        assert all(torch.equal(one, other) for one, other in zip(weights, same, strict=True))
        for row, kept in zip(rows, fewer, strict=True):
            assert row.gathers == kept.gathers
            asked_again = 2 if row.gathers == 2 * accumulate else 1  # the root keeps its weights after forward
            assert kept.weight_bytes * asked_again == row.weight_bytes


def check_8_bits_take_at_most_27_percent_of_float32s_bytes(rank: int, size: int) -> None:
    def moved(codecs: Codecs) -> tuple[float, float]:
        """Bytes that were sent once, at least, and all bytes: a busy machine sends some again."""
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(3)))  # small parts would fill packets with others'
        for each in model:
            fully_shard(each, mesh=world_mesh())
        fully_shard(model, mesh=world_mesh())
        state = shard_codecs(model, **codecs)
        for _ in range(3):
            model(torch.randn(4, 1024)).square().mean().backward()
        counted = state.traffic()
        rows = state.statement()
        assert sum(row.gathers for row in rows) == 6
        if codecs["weights"] is not None:
            assert all(row.weight_bytes <= 0.27 * row.plain_weight_bytes for row in rows)
            assert all(row.gradient_bytes <= 0.27 * row.plain_gradient_bytes for row in rows)
            assert all(0 < row.weight_nmse < 1e-3 and 0 < row.gradient_nmse < 0.01 for row in rows)
            assert all(row.residual_norm > 0 for row in rows)
        sessions = [group.session for group in state._fanin_groups()]
        largest = max(session.spec.packet_bytes for session in sessions if session is not None)
        sent = counted["engine.bytes_out"] + counted.get("gloo.bytes", 0)
        return sent - counted["engine.retransmissions"] * largest, sent

    assert moved(BITS_8)[0] <= 0.27 * moved(EXACT)[1]


def check_hybrid_shards_narrow_the_sum_over_replicas_as_well(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    reference = reference_of()
    model = sharded(mesh)
    state = shard_codecs(model, **BITS_8)
    train(model)
    assert away(model, reference) < 0.05
    assert sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor)) < len(reference)
    replicas = mesh.get_group("replicate")
    for each in model.parameters():
        assert isinstance(each, DTensor)
        other = each.to_local().clone()
        dist.broadcast(other, src=dist.get_global_rank(replicas, 0), group=replicas)
        assert torch.equal(other, each.to_local()), "replicas of a shard have the same bits"
    owed = [each["owed_by_replicas"] for each in state.state_dict()["groups"].values()]
    assert all(each is not None and bool(each.any()) for each in owed)


def check_a_secondary_partition_is_gathered_exactly(rank: int, size: int) -> None:
    for after_forward in (2, False):
        model = network()
        fully_shard(model[1], mesh=world_mesh(), reshard_after_forward=after_forward)  # each such call makes groups
        sharded(model=model)
        state = shard_codecs(model, **BITS_8)
        train(model)
        assert away(model, reference_of()) < 0.05
        block = state.statement()[1]
        assert block.gathers == (2 if after_forward else 1)
        if after_forward:
            assert 0.5 * block.plain_weight_bytes < block.weight_bytes < block.plain_weight_bytes


def check_accumulation_checkpoints_and_a_late_sum_on_a_gradient_that_is_there(rank: int, size: int) -> None:
    expected = sharded()
    train(expected, accumulate=2)
    model = network()
    for index in range(1, 4):
        model[index] = checkpoint_wrapper(model[index])
    for each in model:
        fully_shard(each, mesh=world_mesh())
    fully_shard(model, mesh=world_mesh())
    state = shard_codecs(model, **BITS_8)
    train(model, accumulate=2)
    assert away(model, flat(expected)) < 0.05
    assert all(group["step"] == STEPS for group in state.state_dict()["groups"].values()), "one reduction per step"
    summed = [sharded(), sharded()]
    shard_codecs(summed[1], **EXACT)
    for network_of_one in summed:
        for step in range(3):
            inputs, classes = batch(rank, step)
            nn.functional.cross_entropy(network_of_one(inputs), classes).backward()
    for one, other in zip(*(each.parameters() for each in summed), strict=True):
        assert isinstance(one.grad, DTensor)
        assert isinstance(other.grad, DTensor)
        assert torch.equal(one.grad.to_local(), other.grad.to_local())


def check_mixed_precision_and_bfloat16_parameters(rank: int, size: int) -> None:
    reference = reference_of()
    for policy in (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16),
    ):
        model = sharded(mp_policy=policy)
        state = shard_codecs(model, **BITS_8)
        train(model)
        assert away(model, reference) < 0.25, (policy, away(model, reference))
        assert state.statement()[1].weight_bytes < 0.6 * state.statement()[1].plain_weight_bytes
    model = sharded(model=network().to(torch.bfloat16))
    shard_codecs(model, **BITS_8)
    inputs, classes = batch(rank, 0)
    nn.functional.cross_entropy(model(inputs.bfloat16()).float(), classes).backward()
    for each in model.parameters():
        assert each.grad is not None
        assert each.grad.dtype == torch.bfloat16


def check_frozen_unlike_and_uneven_parameters(rank: int, size: int) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.uneven, self.few = nn.Linear(7, 5), nn.Linear(5, 2)
            self.frozen = nn.Parameter(torch.randn(33, 7), requires_grad=False)
            self.rounded = nn.Parameter(torch.randn(3, 7, dtype=torch.bfloat16), requires_grad=False)
            self.exact = nn.Parameter(torch.randn(3, 7, dtype=torch.float64), requires_grad=False)
            self.unused = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + (x @ self.frozen.T @ self.frozen) * 0.01 + self.rounded.float().sum(0) + self.exact.float().sum(0)
            result: torch.Tensor = self.few(self.uneven(x))
            return result

    results = []
    for codecs in (EXACT, {"gradients": "8/8", "weights": "8"}):
        model = Odd()
        fully_shard(model, mesh=world_mesh())
        state = shard_codecs(model, **codecs)
        unshard_all(model)
        identical(model.frozen)
        identical(model.rounded)
        assert torch.equal(model.exact, Odd().exact), "what no codec is for travels exactly"
        reshard_all(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            inputs = torch.randn(8, 7, generator=torch.Generator().manual_seed(step * size + rank))
            model(inputs).square().mean().backward()
            optimizer.step()
        results.append(flat(model))
        assert next(iter(state.state_dict()["groups"].values()))["owed"] is None, "not all of them got a gradient"
    assert float((results[0] - results[1]).norm() / results[0].norm()) < 0.02


def check_a_restart_goes_on_to_the_same_bits(rank: int, size: int) -> None:
    model = sharded()
    state = shard_codecs(model, **BITS_4)
    train(model, steps=3)
    kept, owed = copy.deepcopy(model.state_dict()), copy.deepcopy(state.state_dict())
    assert [(name, each.shape, each.dtype) for name, each in kept.items()] == [
        (name, each.shape, each.dtype) for name, each in sharded().state_dict().items()
    ]
    train(model, steps=3, first=3)
    again = sharded()
    again.load_state_dict(kept)
    restored = shard_codecs(again, **BITS_4)
    restored.load_state_dict(owed)
    assert restored.residual_norm() > 0
    train(again, steps=3, first=3)
    assert torch.equal(flat(model), flat(again))
    with pytest.raises(ConfigurationError, match=r"not of '.*lanes:4/8"):
        restored.load_state_dict({**owed, "gradients": "lanes:8/8"})
    with pytest.raises(ConfigurationError, match="other names or shapes"):
        restored.load_state_dict({**owed, "groups": {}})
    restored.remove()
    train(again, steps=1)
    shard_codecs(again, **BITS_8).remove()


def check_a_state_that_does_not_fit_changes_nothing(rank: int, size: int) -> None:
    model = sharded()
    state = shard_codecs(model, **BITS_8)
    train(model, steps=2)
    taken = copy.deepcopy(state.state_dict())
    train(model, steps=1)
    owed = state.residual_norm()
    *_, last = taken["groups"]
    short = {**taken["groups"], last: {**taken["groups"][last], "owed": torch.zeros(3)}}
    for wrong, words in (
        ({}, "no gradients and no weights and no groups"),
        (None, "is a NoneType, not a dict"),
        ({**taken, "groups": []}, "'groups' .* is a list"),
        ({**taken, "groups": {**taken["groups"], last: None}}, "is a NoneType, not a dict"),
        ({**taken, "groups": {**taken["groups"], last: {**taken["groups"][last], "owed": 3}}}, "'owed' of .* is a int"),
        ({**taken, "groups": short}, "owes 3 elements"),
        ({**taken, "groups": {**taken["groups"], last: {"shapes": taken["groups"][last]["shapes"]}}}, "has no step"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            state.load_state_dict(wrong)  # type: ignore[arg-type]
    assert state.residual_norm() == owed
    assert {each["step"] for each in state.state_dict()["groups"].values()} == {3}


class Pair(nn.Module):
    """Two matrices of one size, of which a step may use either."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(19)
        self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, used: tuple[str, ...]) -> torch.Tensor:
        """Return the sum of the used layers."""
        result: torch.Tensor = sum(getattr(self, name)(x) for name in used)
        return result


def owed_by(state: ShardCodecs) -> dict[str, Any]:
    """Residuals of the only group."""
    (of_group,) = state.state_dict()["groups"].values()
    return {name: of_group[name] for name in ("owed", "owed_by_replicas")}


def check_what_is_owed_is_never_added_to_other_parameters(rank: int, size: int) -> None:
    inputs = batch(rank, 0)[0]
    model = Pair()
    fully_shard(model, mesh=world_mesh())
    state = shard_codecs(model, **BITS_4)
    model.second.weight.requires_grad_(False)
    model(inputs, ("first", "second")).square().mean().backward()
    first = owed_by(state)["owed"]
    assert bool(first.any())
    model.first.weight.requires_grad_(False)
    model.second.weight.requires_grad_(True)
    model.zero_grad()
    model(inputs * 1e-6, ("first", "second")).square().mean().mul(0.0).backward()
    assert model.second.weight.grad is not None
    assert isinstance(model.second.weight.grad, DTensor)
    assert not bool(model.second.weight.grad.full_tensor().any()), "what the first owes is not the second's"


def check_replicas_owe_nothing_in_steps_that_use_a_part(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    inputs = batch(rank, 0)[0]
    model = Pair()
    fully_shard(model, mesh=mesh)
    state = shard_codecs(model, **BITS_4)
    for used in (("first",), ("second",)):
        model.zero_grad()
        model(inputs, used).square().mean().backward()
        assert owed_by(state) == {"owed": None, "owed_by_replicas": None}, used
    model(inputs, ("first", "second")).square().mean().backward()
    assert all(bool(each.any()) for each in owed_by(state).values())


def check_a_pipelines_schedule_reduces_after_its_backward_passes(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "stage"))
    stage, replica = mesh.get_local_rank("stage"), mesh.get_local_rank("data")
    results = []
    for codecs in (None, EXACT, {"gradients": "8/8", "weights": None}):
        model = nn.Sequential(*list(network())[1 + stage :: 2][:1])
        fully_shard(model, mesh=mesh["data"], reshard_after_forward=False)
        if codecs is not None:
            shard_codecs(model, **codecs)
        place = PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh.get_group("stage"))
        schedule = Schedule1F1B(place, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        for step in range(2):
            inputs = batch(replica, step)[0]
            model.zero_grad()
            schedule.step(inputs) if stage == 0 else schedule.step(target=inputs)
        gradients = [p.grad for p in model.parameters()]
        results.append(torch.cat([each.full_tensor().flatten() for each in gradients if isinstance(each, DTensor)]))
    assert torch.equal(results[0], results[1]), "as with torch's own moves"
    assert float((results[0] - results[2]).norm() / results[0].norm()) < 0.05


def check_a_backward_that_fails_leaves_the_next_one_whole(rank: int, size: int) -> None:
    models = [sharded(), sharded()]
    shard_codecs(models[1], **EXACT)

    def fail(gradient: torch.Tensor) -> None:
        raise RuntimeError("on purpose")

    def spoil(module: nn.Module, given: Any, output: torch.Tensor) -> None:
        output.register_hook(fail)

    inputs, classes = batch(rank, 0)
    for model in models:
        handle = model[1].register_forward_hook(spoil)
        with pytest.raises(RuntimeError, match="on purpose"):
            nn.functional.cross_entropy(model(inputs), classes).backward()
        handle.remove()
        assert isinstance(model, FSDPModule)
        model.reset_iter_state()
        train(model, steps=2)
    assert torch.equal(flat(models[0]), flat(models[1])), "as with torch's own moves"


def refused(model: nn.Module, error: type[Exception], words: str, **codecs: Any) -> None:
    """One line that names the remedy."""
    with pytest.raises(error, match=words) as raised:
        shard_codecs(model, **codecs)
    assert "\n" not in str(raised.value)


class Float8Weight(torch.Tensor):
    """A weight that travels in 8 bits of its own, as torchao's do: float8 with a scale that all ranks know."""

    SCALE = 64.0
    TRAVELS_AS = torch.float8_e4m3fn

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Any:
        """Make a weight that shares the elements of `data`."""
        return torch.Tensor._make_subclass(cls, data.detach())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Keep results that are views or copies of a weight as weights; other operators compute as with any tensor."""
        plain, rest = tree_map_only(cls, lambda each: each._plain(), (args, kwargs or {}))
        made = func(*plain, **rest)
        keeps = func in (torch.ops.aten.detach.default, torch.ops.aten.split.Tensor, torch.ops.aten.slice.Tensor)
        keeps |= func in (torch.ops.aten.view.default, torch.ops.aten.as_strided.default, torch.ops.aten.clone.default)
        keeps |= func in (torch.ops.aten.new_zeros.default, torch.ops.aten.empty_like.default)
        return tree_map_only(torch.Tensor, cls, made) if keeps else made

    def _plain(self) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
            return torch.Tensor._make_subclass(torch.Tensor, self)

    def fsdp_pre_all_gather(self, mesh: DeviceMesh) -> Any:
        """The bytes that travel."""
        return ((self._plain() * self.SCALE).to(self.TRAVELS_AS),), None

    def fsdp_post_all_gather(self, outputs: Any, metadata: Any, dtype: torch.dtype, *, out: Any = None) -> Any:
        """The weights that are computed with."""
        (gathered,) = outputs
        values = gathered.to(dtype) / self.SCALE
        if out is not None:
            with torch.no_grad(), preserved_version(out):
                out.copy_(values)
            return None
        return values, (values,)


def check_weights_with_an_all_gather_of_their_own_travel_as_they_say(rank: int, size: int) -> None:
    for weights in ("8", None):
        model = network(blocks=1)
        block: Any = model[1]
        block.up.weight = nn.Parameter(Float8Weight(block.up.weight))
        state = shard_codecs(sharded(model=model), gradients="8/8", weights=weights)
        assert all(map(math.isfinite, train(model)))
        row = next(each for each in state.statement() if each.group == "1")
        own, down = 2 * WIDTH * WIDTH // size, 2 * WIDTH * WIDTH // size
        assert row.weight_bytes < row.gathers * (own + (1.2 if weights else 4.2) * down + 2000)
        for each in model.parameters():
            assert isinstance(each, DTensor)
            identical(each.full_tensor())


class HalfWeight(Float8Weight):
    """A weight that travels in 16 bits of its own."""

    TRAVELS_AS = torch.float16


class WholeWeight(Float8Weight):
    """A weight that travels in 32 bits of its own."""

    TRAVELS_AS = torch.float32


class Between(nn.Module):
    """A weight that a codec takes between two that travel as they say, the second half as large in four times the bits.

    Together these have as many bytes as if both travelled in 16 bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.own = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, 2 * WIDTH, bias=False)
        self.last = nn.Linear(2 * WIDTH, WIDTH // 2, bias=False)
        self.first.weight = nn.Parameter(Float8Weight(self.first.weight))
        self.last.weight = nn.Parameter(WholeWeight(self.last.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return half as many features."""
        found: torch.Tensor = self.last(self.own(self.first(x)))
        return found


def check_weights_in_unlike_types_are_refused_before_use_where_their_bytes_seem_alike(rank: int, size: int) -> None:
    model = Between()
    fully_shard(model, mesh=world_mesh())
    shard_codecs(model, **BITS_8)
    with pytest.raises(UnsupportedError, match=r"Float8Weight, WholeWeight bring all-gathers.*unlike types\. Remedy"):
        model(batch(rank, 0)[0])


def check_weights_that_travel_in_unlike_types_of_their_own_are_refused_unless_apart(rank: int, size: int) -> None:
    def unlike() -> tuple[nn.Sequential, Any]:
        model = network(blocks=1)
        block: Any = model[1]
        block.up.weight = nn.Parameter(Float8Weight(block.up.weight))
        block.down.weight = nn.Parameter(HalfWeight(block.down.weight))
        return model, block

    model, _ = unlike()
    shard_codecs(sharded(model=model), **BITS_8)
    with pytest.raises(UnsupportedError) as raised:
        train(model)
    told = str(raised.value)
    assert told.startswith("'1': Float8Weight, HalfWeight bring all-gathers of their own (fsdp_pre_all_gather) of ")
    assert told.endswith("so of unlike types. Remedy: weights=None, or fully_shard them by themselves")
    for weights, apart in ((None, False), ("8", True)):
        model, block = unlike()
        if apart:
            fully_shard(block.down, mesh=world_mesh())
        shard_codecs(sharded(model=model), gradients="8/8", weights=weights)
        assert all(map(math.isfinite, train(model, steps=2)))


def check_what_cannot_be_is_refused_with_a_remedy(rank: int, size: int) -> None:
    refused(network(), ConfigurationError, "fully_shard\\(model\\) before")
    refused(DistributedDataParallel(network()), ConfigurationError, "codec_hook")
    refused(FullyShardedDataParallel(network(), device_id=torch.device("cpu")), ConfigurationError, "FSDP1")
    refused(sharded(gloo_mesh()), ConfigurationError, "backend 'gloo'.*needs 'fanin'")
    model = sharded()
    refused(model, ConfigurationError, "there is no 'none'", gradients="none")
    refused(model, ConfigurationError, "through lanes alone", gradients="rotated:4/8")
    refused(model, ConfigurationError, "bits up / bits down", gradients="3/8")
    refused(model, ConfigurationError, "stochastic rounding takes two", gradients="lanes:4/8:stochastic=True")
    blocks: Any = list(model)
    refused(blocks, ConfigurationError, "the module that fully_shard was given, not a list")
    refused(model, ConfigurationError, "8, 6, 4 bits", weights=5)
    refused(model, ConfigurationError, "reshard_after_forward=False", weights=None, keep_codes=True)
    shard_codecs(model, **BITS_8)
    refused(model, ConfigurationError, r"called once.*remove\(\)")
    refused(
        sharded(model=network().double()), UnsupportedError, "'0.weight' is torch.float64|'weight' is torch.float64"
    )
    ones = init_device_mesh("cpu", (size, 1), mesh_dim_names=("replicate", "shard"))
    refused(sharded(ones), ConfigurationError, "nothing is gathered")
    continues = dist.new_group(backend="fanin", pg_options=fanin.Options(on_worker_loss="continue"))
    refused(sharded(DeviceMesh.from_group(continues, "cpu")), ConfigurationError, "on_worker_loss='raise'")


def check_ranks_with_unlike_codecs_are_told(rank: int, size: int) -> None:
    makers: list[Callable[[], ShardCodecs]] = [
        lambda: shard_codecs(sharded(), weights=(8, 6)[rank % 2]),
        lambda: shard_codecs(sharded(), gradients=("8/8", "4/8")[rank % 2]),
        lambda: shard_codecs(sharded(), weights=f"shifted:8:seed={rank}"),
    ]
    for make in makers:
        with pytest.raises(CollectiveMismatchError, match="another rank something else"):
            make()


def check_a_rank_that_differs_is_told_to_ranks_that_share_no_group_with_it(rank: int, size: int) -> None:
    """In a mesh of 2 x 2, ranks 0 and 3 share neither shards nor replicas: else rank 0 would train, and wait."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    with pytest.raises(CollectiveMismatchError, match="another rank something else"):
        shard_codecs(sharded(mesh), weights=f"shifted:8:seed={int(rank == 3)}")
    with pytest.MonkeyPatch.context() as patched:
        if rank == 3:
            patched.setattr(ShardCodecs, "_lacks_accumulators", staticmethod(lambda group: True))
        with pytest.raises(ConfigurationError, match="packed lanes only"):
            shard_codecs(sharded(mesh))
    train(sharded(mesh), steps=1)


KEPT = "sketched:8:share=0.2"
"""The share that TAGC keeps in its paper."""


def check_sketches_under_shards_are_those_of_whole_gradients(rank: int, size: int) -> None:
    """Everything kept is float32's training but for rounding; a fifth of it owes the rest, and a restart goes on."""
    reference, exact, kept, again = sharded(), sharded(), sharded(), sharded()
    train(reference, 4)
    shard_codecs(exact, weights=None, gradients="sketched:8:share=1.0")
    train(exact, 4)
    assert away(exact, flat(reference)) < 1e-4
    codecs = shard_codecs(kept, weights=None, gradients=KEPT)
    train(kept, 2)
    rows = codecs.statement()
    assert all(0 < row.gradient_nmse < 0.6 and row.residual_norm > 0 for row in rows)
    state = copy.deepcopy(codecs.state_dict())
    for own, other in zip(again.parameters(), kept.parameters(), strict=True):
        local(own).data.copy_(local(other))
    resumed = shard_codecs(again, weights=None, gradients=KEPT)
    spoiled = copy.deepcopy(state)
    next(iter(spoiled["groups"].values()))["encoder"]["owed"] = torch.zeros(3)
    with pytest.raises(ConfigurationError, match="another number of elements"):
        resumed.load_state_dict(spoiled)
    resumed.load_state_dict(state)
    train(kept, 2, first=2)
    train(again, 2, first=2)
    assert torch.equal(flat(again), flat(kept))
    identical(flat(kept))
    assert away(kept, flat(reference)) < 0.7


def check_sketches_of_a_fifth_send_more_bytes_than_8_bit_lanes(rank: int, size: int) -> None:
    """The union of what four ranks keep is sketched in 32-bit cells: most of an exact sum, and three of lanes."""
    sent = {}
    for gradients in (KEPT, "8/8"):
        model = sharded()
        codecs = shard_codecs(model, weights=None, gradients=gradients)
        train(model, 2)
        sent[gradients] = sum(row.gradient_bytes for row in codecs.statement())
    assert 2 * sent["8/8"] < sent[KEPT] < 4.5 * sent["8/8"]


def check_a_gradient_that_is_not_finite_reaches_all_shards_through_a_sketch(rank: int, size: int) -> None:
    model = sharded()
    shard_codecs(model, weights=None, gradients=KEPT)
    inputs, classes = batch(rank, 0)
    nn.functional.cross_entropy(model(inputs * (math.nan if rank == 1 else 1.0)), classes).backward()
    assert all(bool(p.grad.to_local().isnan().all()) for p in model.parameters() if p.grad is not None)  # type: ignore[attr-defined]

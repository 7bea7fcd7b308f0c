"""Codecs on four ranks: in DDP's hook, and as a group's option. Run by rank_main.py; see test_codecs.py."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import fanin
from fanin.errors import ArgumentError, CollectiveMismatchError, ConfigurationError
from fanin.host.codecs import make, table
from fanin.host.codecs.codec import Place
from fanin.host.torch import CodecState, LanesState, codec_hook, counters, lanes_hook
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training import codec_buckets
from tests.support.replicas import identical
from tests.torch.training_checks import WIDTH, batch, make_model, parameters_of, train, train_alone


def with_codec(codec: str, rank: int, steps: int) -> tuple[DistributedDataParallel, CodecState]:
    """A model that was trained through a codec."""
    wrapped = DistributedDataParallel(make_model(), bucket_cap_mb=0.01)
    state = CodecState(codec)
    wrapped.register_comm_hook(state, codec_hook)
    train(wrapped, rank, steps=steps)
    return wrapped, state


def check_every_codec_keeps_the_replicas_alike_and_accounts_for_what_it_does(rank: int, size: int) -> None:
    for name in table():
        model, state = with_codec(name, rank, 4)
        identical(parameters_of(model))
        rows = state.statement()
        assert sum(row.elements for row in rows) == sum(p.numel() for p in model.parameters())
        assert all(row.payload_bytes > 0 and row.encode_ms > 0 and row.nmse >= 0 for row in rows)
        assert len(rows) > 1
        assert state.step == 4


def check_wide_sums_in_the_hook_and_by_call_and_lanes_hook(rank: int, size: int) -> None:
    reference, start = parameters_of(train_alone(size, steps=12)), parameters_of(make_model())
    for codec, share in (("lanes:8/8", 0.1), ("rotated:8/8", 0.1), ("rotated:4/8", 0.4), ("rotated:4/4", 0.8)):
        model, _ = with_codec(codec, rank, 12)
        identical(parameters_of(model))
        assert float((parameters_of(model) - reference).norm() / (start - reference).norm()) < share, codec
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    assert "accumulators for wide sums" in group.describe()
    for lanes, error in (("8", 0.05), ("4/8", 0.2), ("4", 0.6)):
        values = torch.linspace(-1, 1, 5000) * (rank + 1)
        group.all_reduce_lanes(values, lanes=lanes).wait()
        identical(values)
        assert float((values - torch.linspace(-1, 1, 5000) * 10).abs().max()) < error * 10, lanes
    exact = torch.arange(5000, dtype=torch.int32)
    group.all_reduce_lanes(exact, lanes="4/8").wait()
    assert torch.equal(exact, torch.arange(5000, dtype=torch.int32) * size)
    wrapped = DistributedDataParallel(make_model())
    wrapped.register_comm_hook(LanesState(lanes="4/8", error_feedback=True), lanes_hook)
    train(wrapped, rank, steps=3)
    identical(parameters_of(wrapped))
    for wrong in ("8/4", "16/16", "3"):
        with pytest.raises(ConfigurationError, match="bits up / bits down"):
            LanesState(lanes=wrong)
        with pytest.raises(ConfigurationError, match="bits up / bits down"):
            group.all_reduce_lanes(torch.ones(3), lanes=wrong)


def check_codecs_train_as_well_as_float32_does(rank: int, size: int) -> None:
    reference = parameters_of(train_alone(size, steps=12))
    start = parameters_of(make_model())
    for codec, share in (("lanes:16", 0.01), ("rotated:16", 0.01), ("lanes:8", 0.3), ("rotated:8", 0.3)):
        model, _ = with_codec(codec, rank, 12)
        assert float((parameters_of(model) - reference).norm() / (start - reference).norm()) < share, codec


def steps_of(model: nn.Module, rank: int, steps: range) -> None:
    """Steps without an optimizer's memory, each on data of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in steps:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def check_a_restarted_run_has_the_bits_of_one_that_went_on(rank: int, size: int) -> None:
    """Residuals, subspaces, widths and the step are in the state, and DDP's new buckets of the first step cost none."""
    for name in (*table(), "by_layer:4/8:rules=0.*=>low_rank,16,rank=2;dims<2=>lanes,32;*=>adaptive"):
        restarts_with_the_same_bits(name, rank)


def check_large_buckets_go_through_encoders_in_pieces(rank: int, size: int) -> None:
    """With pieces of 1,100 elements the replicas stay alike, every element is trained, and restarts have their bits."""
    kept, codec_buckets.PIECE = codec_buckets.PIECE, 1100
    try:
        reference, start = parameters_of(train_alone(size, steps=12)), parameters_of(make_model())
        model, state = with_codec("rotated:16", rank, 12)
        identical(parameters_of(model))
        assert float((parameters_of(model) - reference).norm() / (start - reference).norm()) < 0.01
        assert sum(row.elements for row in state.statement()) == sum(p.numel() for p in model.parameters())
        assert any("2/owed" in each["state"] for each in state.state_dict()["buckets"].values())
        for name in ("rotated:4/8", "lanes:8", "random_coordinates:32:share=0.5"):
            restarts_with_the_same_bits(name, rank)
    finally:
        codec_buckets.PIECE = kept


def restarts_with_the_same_bits(name: str, rank: int) -> None:
    """Six steps, and three more by a run that went on and by one that was restarted."""
    model = make_model()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.01)
    state = CodecState(name, model=model)
    wrapped.register_comm_hook(state, codec_hook)
    steps_of(wrapped, rank, range(6))
    saved = copy.deepcopy((state.state_dict(), model.state_dict()))
    assert len(saved[0]["buckets"]) > 1
    steps_of(wrapped, rank, range(6, 9))

    again = make_model(seed=4)
    again.load_state_dict(saved[1])
    resumed = DistributedDataParallel(again, bucket_cap_mb=0.01)
    restored = CodecState(name, model=again)
    restored.load_state_dict(saved[0])
    resumed.register_comm_hook(restored, codec_hook)
    steps_of(resumed, rank, range(6, 9))
    assert restored.step == state.step == 9
    assert torch.equal(parameters_of(again), parameters_of(model)), name
    went_on, restarted = state.state_dict(), restored.state_dict()
    for index, each in went_on["buckets"].items():
        for key, tensor in each["state"].items():
            assert torch.equal(tensor, restarted["buckets"][index]["state"][key]), (name, key)


def check_a_state_of_another_model_is_dropped_with_a_warning(rank: int, size: int) -> None:
    _, state = with_codec("lanes:8", rank, 3)
    model = DistributedDataParallel(nn.Linear(WIDTH, 4))
    other = CodecState("lanes:8")
    other.load_state_dict(state.state_dict())
    model.register_comm_hook(other, codec_hook)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fanin").addHandler(handler)
    try:
        steps_of(model, rank, range(2))
    finally:
        logging.getLogger("fanin").removeHandler(handler)
    assert len([text for text in said if "what it owed is dropped" in text]) == 1
    identical(parameters_of(model))
    with pytest.raises(ConfigurationError, match="the state is of codec"):
        CodecState("rotated:8").load_state_dict(state.state_dict())
    whole = state.state_dict()
    bucket = whole["buckets"][0]
    for wrong, words in (
        ({}, "has no 'codec'"),
        ([], "is a list, not a dict"),
        ({**whole, "step": None}, "'step' of the state of a CodecState is a NoneType"),
        ({**whole, "buckets": {0: {}}}, "bucket 0 .* has no 'parameters'"),
        ({**whole, "buckets": {"0": bucket}}, "the index of bucket '0'"),
        ({**whole, "buckets": {0: {**bucket, "shapes": []}}}, "'shapes' of bucket 0"),
        ({**whole, "buckets": {0: {**bucket, "state": {"owed": 3}}}}, "'owed' of 'state' of bucket 0"),
    ):
        with pytest.raises(ConfigurationError, match=f"{words}.*Remedy: "):
            state.load_state_dict(wrong)  # type: ignore[arg-type]
    assert state.state_dict()["step"] == whole["step"]
    assert state.state_dict()["buckets"].keys() == whole["buckets"].keys()


def check_names_choose_a_codec_and_the_statement_has_them(rank: int, size: int) -> None:
    model = make_model()
    text = "by_layer:8:rules=*.bias=>lanes,32;0.*=>adaptive;*=>rotated"
    with pytest.raises(ConfigurationError, match="model=model"):
        CodecState(text)
    wrapped = DistributedDataParallel(model)
    state = CodecState(text, model=wrapped)
    wrapped.register_comm_hook(state, codec_hook)
    train(wrapped, rank, steps=6)
    identical(parameters_of(wrapped))
    parts = {part.names: part for row in state.statement() for part in row.parts}
    assert parts["0.weight",].codec == "adaptive:8"
    assert {name for names in parts for name in names} == {name for name, _ in model.named_parameters()}
    assert all(part.nmse < 1e-9 for names, part in parts.items() if names[0].endswith("bias"))
    assert 1e-5 < parts["0.weight",].nmse < 0.1
    stranger = DistributedDataParallel(make_model())
    stranger.register_comm_hook(CodecState(text, model=model), codec_hook)
    with pytest.raises(ConfigurationError, match="the model that DDP wraps"):
        train(stranger, rank, steps=1)


def check_ranks_with_unlike_batches_are_weighted_by_them(rank: int, size: int) -> None:
    """The mean over all samples, as one process with all of them would have it."""
    counts = [1, 5, 0, 10]
    for name, close in (
        ("lanes:32", 1e-5),
        ("agreed_blocks:32:share=1", 1e-5),
        ("rotated:16", 1e-2),
        ("by_layer:16", 1e-2),
    ):
        alone = nn.Linear(6, 50)
        wrapped = DistributedDataParallel(copy.deepcopy(alone))
        with torch.no_grad():
            alone.load_state_dict(wrapped.module.state_dict())
        state = CodecState(name, weighted=True)
        wrapped.register_comm_hook(state, codec_hook)
        samples = [torch.randn(count, 6, generator=torch.Generator().manual_seed(r)) for r, count in enumerate(counts)]
        for _ in range(2):
            state.weight = counts[rank]
            wrapped.zero_grad()
            (wrapped(samples[rank]).square().sum() / max(counts[rank], 1)).backward()
        (alone(torch.cat(samples)).square().sum() / sum(counts)).backward()
        own, whole = (torch.cat([each.grad.reshape(-1) for each in model.parameters() if each.grad is not None])
                      for model in (wrapped, alone))  # fmt: skip
        identical(own)
        assert float((own - whole).norm() / whole.norm()) < close, name


def check_weights_without_a_mean_are_an_error_on_every_rank(rank: int, size: int) -> None:
    state = CodecState("lanes:8", weighted=True)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match="weight = "):
            state.weight = wrong
    with pytest.raises(ConfigurationError, match="weighted=True"):
        CodecState("lanes:8").weight = 2.0
    state.weight = 0.0
    layer = DistributedDataParallel(nn.Linear(64, 64))
    layer.register_comm_hook(state, codec_hook)
    with pytest.raises(RuntimeError, match="the weights of all ranks are 0"):
        layer(torch.ones(1, 64)).sum().backward()
    unlike = CodecState("lanes:8", weighted=rank == 0)
    layer = DistributedDataParallel(nn.Linear(64, 64))
    layer.register_comm_hook(unlike, codec_hook)
    with pytest.raises(CollectiveMismatchError):
        layer(torch.ones(1, 64)).sum().backward()


class Branches(nn.Module):
    """Two branches, of which a step uses one: `branch` says which."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right, self.head = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, 4)
        self.branch = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of the inputs."""
        logits: torch.Tensor = self.head(torch.tanh((self.left, self.right)[self.branch](inputs)))
        return logits


Wrap = Callable[..., DistributedDataParallel]


def backward(model: Callable[[torch.Tensor], torch.Tensor], rank: int, step: int) -> None:
    """Compute the gradients of one batch."""
    inputs, targets = batch(rank, step)
    nn.functional.cross_entropy(model(inputs), targets).backward()


def stepwise(models: Sequence[nn.Module], steps: int, gradients: Callable[[int], None]) -> None:
    """SGD after what `gradients` does in each step."""
    own = [each for model in models for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(own, lr=0.2)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=False)
        gradients(step)
        nn.utils.clip_grad_norm_(own, 1.0)
        optimizer.step()


def accumulated(wrap: Wrap, rank: int) -> list[nn.Module]:
    """Two of three micro-batches in no_sync, on gradients that are views of buckets."""
    model = wrap(make_model(), gradient_as_bucket_view=True)

    def gradients(step: int) -> None:
        with model.no_sync():
            backward(model, rank, 10 * step)
            backward(model, rank, 10 * step + 1)
        backward(model, rank, 10 * step + 2)

    stepwise([model], 4, gradients)
    return [model]


def branching(wrap: Wrap, rank: int) -> list[nn.Module]:
    """Ranks that use other branches than their neighbours, then all of them the same."""
    model = wrap(Branches(), find_unused_parameters=True)

    def gradients(step: int) -> None:
        model.module.branch = (rank + step) % 2 if step < 3 else step % 2
        backward(model, rank, step)

    stepwise([model], 6, gradients)
    return [model]


def static(wrap: Wrap, rank: int) -> list[nn.Module]:
    """A graph that is declared static, of which a part is never used."""
    model = wrap(Branches(), static_graph=True)
    stepwise([model], 4, lambda step: backward(model, rank, step))
    return [model]


def thawed(wrap: Wrap, rank: int) -> list[nn.Module]:
    """A layer that is frozen for three steps, and wrapped again with the same state when it is not."""
    layers = make_model()
    for frozen in (True, False):
        layers[0].requires_grad_(not frozen)
        model = wrap(layers)
        stepwise([model], 3, lambda step: backward(model, rank, step + 3 * (not frozen)))  # noqa: B023
    return [model]


def frozen_later(wrap: Wrap, rank: int) -> list[nn.Module]:
    """A layer that stops being trained under DDP, which goes on with what it had."""
    model = wrap(make_model(), find_unused_parameters=True)
    stepwise([model], 3, lambda step: backward(model, rank, step))
    model.module[0].requires_grad_(False)
    stepwise([model], 3, lambda step: backward(model, rank, step + 3))
    return [model]


def twice(wrap: Wrap, rank: int) -> list[nn.Module]:
    """Two backward passes for one step of the optimizer."""
    model = wrap(make_model())

    def gradients(step: int) -> None:
        backward(model, rank, 2 * step)
        backward(model, rank, 2 * step + 1)

    stepwise([model], 3, gradients)
    return [model]


def two_at_once(wrap: Wrap, rank: int) -> list[nn.Module]:
    """One backward pass through two models, each with buckets of its own."""
    models = [wrap(make_model(seed)) for seed in (1, 2)]

    def gradients(step: int) -> None:
        inputs, targets = batch(rank, step)
        sum(nn.functional.cross_entropy(model(inputs), targets) for model in models).backward()  # type: ignore[union-attr]

    stepwise(models, 4, gradients)
    return list(models)


def compiled(wrap: Wrap, rank: int) -> list[nn.Module]:
    """torch.compile outside of DDP, which splits the graph at DDP's buckets."""
    model = wrap(make_model(), bucket_cap_mb=25)
    outer = torch.compile(model, backend="eager")
    stepwise([model], 3, lambda step: backward(outer, rank, step))
    return [model]


PROGRAMS = (accumulated, branching, static, thawed, frozen_later, twice, two_at_once, compiled)


def check_whatever_ddp_can_do_it_does_through_a_codec(rank: int, size: int) -> None:
    """Lanes of 32 bits end where DDP without a hook does; codecs of two stages and fewer bits near it, all alike."""

    def ended(program: Callable[[Wrap, int], list[nn.Module]], codec: str | None) -> torch.Tensor:
        states: dict[int, CodecState] = {}

        def wrap(module: nn.Module, **given: Any) -> DistributedDataParallel:
            model = DistributedDataParallel(module, **{"bucket_cap_mb": 0.01, **given})
            if codec is not None:
                state = states.setdefault(id(module), CodecState(codec, model=module))
                model.register_comm_hook(state, codec_hook)
            return model

        found = torch.cat([parameters_of(each) for each in program(wrap, rank)])
        identical(found)
        return found

    for program in PROGRAMS:
        plain = ended(program, None)
        for codec, most in (("lanes:32", 1e-6), ("low_rank:32", 0.1), ("by_layer:8/8", 0.01), ("adaptive:4/8", 0.1)):
            apart = float((ended(program, codec) - plain).norm() / plain.norm())
            assert apart < most, (program.__name__, codec, apart)


def check_ranks_that_have_run_out_of_inputs_weigh_nothing(rank: int, size: int) -> None:
    """DDP's join divides by the ranks that have inputs only where there is no hook: weights say it to a hook."""
    ended = []
    for codec in (None, "lanes:32", "low_rank:32:rank=64"):
        model = DistributedDataParallel(make_model())
        state = None if codec is None else CodecState(codec, weighted=True)
        if state is not None:
            model.register_comm_hook(state, codec_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with model.join(divide_by_initial_world_size=False):
            for step in range(2 + rank):
                optimizer.zero_grad()
                backward(model, rank, step)
                optimizer.step()
            if state is not None:
                state.weight = 0.0
        identical(parameters_of(model))
        ended.append(parameters_of(model))
    for each in ended[1:]:
        assert float((each - ended[0]).abs().max()) < 1e-5


def check_layers_that_change_shape_start_anew(rank: int, size: int) -> None:
    """A residual of other parameters means nothing: two models after each other through one state."""
    for name in ("adaptive", "by_layer", "rotated"):
        state = CodecState(name)
        for width in (WIDTH, 7):
            layer = DistributedDataParallel(nn.Linear(width, 64))
            layer.register_comm_hook(state, codec_hook)
            layer(torch.ones(2, width) * (rank + 1)).sum().backward()
            expected = torch.full((64, width), 2 * 2.5)
            found = layer.module.weight.grad
            assert found is not None
            assert float((found - expected).norm() / expected.norm()) < 0.05, name


def check_half_precision_gradients_go_through_a_codec(rank: int, size: int) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        layer = DistributedDataParallel(nn.Linear(64, 64).to(dtype))
        layer.register_comm_hook(CodecState("rotated:16"), codec_hook)
        layer(torch.full((4, 64), rank + 1.0, dtype=dtype)).sum().backward()
        expected = torch.full((64, 64), 4 * 2.5, dtype=dtype)
        torch.testing.assert_close(layer.module.weight.grad, expected, rtol=0.02, atol=0)


def check_ranks_with_unlike_codecs_are_told(rank: int, size: int) -> None:
    rules = ("*=>rotated", "dims<2=>lanes,32;*=>rotated")
    for codec in (
        f"rotated:8:seed={rank % 2}",
        ("lanes:8", "rotated:8")[rank % 2],
        f"by_layer:8:rules={rules[rank % 2]}",
        f"adaptive:8:alpha={1 + rank % 2}",
    ):
        layer = DistributedDataParallel(nn.Linear(64, 64))
        layer.register_comm_hook(CodecState(codec), codec_hook)
        with pytest.raises(CollectiveMismatchError, match="another rank something else"):
            layer(torch.ones(1, 64)).sum().backward()


def check_a_group_with_a_codec_sums_through_it(rank: int, size: int) -> None:
    group = dist.new_group(backend="fanin", pg_options=fanin.Options(codec="rotated:8"))
    generator = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(40_000, generator=generator) for _ in range(3)]
    totals = [tensor.double() for tensor in tensors]
    for total in totals:
        dist.all_reduce(total)
    dist.barrier(group)  # joins its job
    before = counters(group)
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work, tensor, total in zip(works, tensors, totals, strict=True):
        work.wait()
        assert float((tensor - total).norm() / total.norm()) < 0.08
        identical(tensor)
    after = counters(group)
    sent, again = (after[name] - before[name] for name in ("engine.bytes_out", "engine.retransmissions"))
    assert isinstance(group, FaninProcessGroup)
    assert group.session is not None
    assert sent - again * group.session.spec.packet_bytes < 3 * 40_000 * 4 / 2, "without what a busy machine sent again"
    mean = torch.full((4000,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
    assert float((mean - 1.5).norm() / mean.norm()) < 0.08
    small = torch.full((10,), 1 / 3)
    dist.all_reduce(small, group=group)
    torch.testing.assert_close(small, torch.full((10,), 4 / 3), rtol=1e-6, atol=0)
    largest = torch.full((5000,), float(rank))
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    assert float(largest.min()) == size - 1
    dist.destroy_process_group(group)


def check_a_group_with_a_codec_takes_and_refuses_what_others_do(rank: int, size: int) -> None:
    group = dist.new_group(backend="fanin", pg_options=fanin.Options(codec="lanes:16"))
    parameter = torch.ones(5000, requires_grad=True)
    dist.all_reduce(parameter, group=group)
    torch.testing.assert_close(parameter.detach(), torch.full((5000,), float(size)))
    dist.all_reduce(torch.empty(5000, device="meta"), group=group)
    with pytest.raises(ArgumentError, match="share memory"):
        dist.all_reduce(torch.ones(1).expand(5000), group=group)
    dist.destroy_process_group(group)


def check_a_group_may_have_wide_sums_as_its_option(rank: int, size: int) -> None:
    for options, error in (
        (fanin.Options(codec="rotated:4/8"), 0.02),
        (fanin.Options(lanes="8"), 0.001),
        (fanin.Options(lanes="4/8"), 0.1),
    ):
        group = dist.new_group(backend="fanin", pg_options=options)
        values = torch.randn(40_000, generator=torch.Generator().manual_seed(rank))
        exact = values.double()
        dist.all_reduce(exact)
        dist.all_reduce(values, group=group)
        identical(values)
        assert float((values - exact).square().sum() / exact.square().sum()) < error, options
        dist.destroy_process_group(group)


def check_a_group_refuses_codecs_that_it_cannot_use(rank: int, size: int) -> None:
    for codec, wrong in (
        ("low_rank", "several stages"),
        ("by_layer:8", "chooses by parameter"),
        ("adaptive", "chooses by parameter"),
        ("none", "there is no"),
        ("rotated:8/4", "bits up / bits down"),
    ):
        with pytest.raises(ConfigurationError, match=wrong):
            dist.new_group(backend="fanin", pg_options=fanin.Options(codec=codec))


def check_a_job_that_goes_on_without_lost_ranks_takes_no_codec_in_its_hook(rank: int, size: int) -> None:
    group = dist.new_group(backend="fanin", pg_options=fanin.Options(on_worker_loss="continue"))
    with pytest.raises(ConfigurationError, match="lanes_hook"):
        CodecState("rotated:8", group=group)
    dist.destroy_process_group(group)


def check_low_rank_is_torchs_power_sgd_from_the_same_subspace(rank: int, size: int) -> None:
    """One bucket, two plain steps as torch has them, then four in which all that differs is rounding.

    Further steps multiply what rounding left, by some 50 each, over gloo as over fanin.
    """
    columns, plain_steps, count = 3, 2, 6
    codec = CodecState(f"low_rank:32:rank={columns}")
    steps: list[list[tuple[int, ...]]] = []
    world = dist.group.WORLD
    assert world is not None

    def hook(bucket: c10d.GradBucket) -> torch.futures.Future[torch.Tensor]:
        assert bucket.is_last()
        steps.append([tuple(each.shape) for each in bucket.parameters()])
        plain = len(steps) <= plain_steps
        return default_hooks.allreduce_hook(world, bucket) if plain else codec_hook(codec, bucket)

    ours = DistributedDataParallel(make_model())
    ours.register_comm_hook(None, lambda _, bucket: hook(bucket))  # DDP refuses annotations that are texts
    train(ours, rank, steps=count)
    identical(parameters_of(ours))

    start = make(str(codec.codec)).encoder(Place(rank, size, tuple(steps[-1]))).state()
    drawn = [torch.from_numpy(each).flatten() for name, each in start.items() if name.startswith("q")]
    assert len(drawn) == 3
    matrices = [shape for shape in steps[-1] if len(shape) == 2]
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=columns, start_powerSGD_iter=plain_steps, min_compression_rate=1
    )
    state.q_memory_dict[0] = torch.cat(drawn)  # torch draws its own where it finds none
    state.p_memory_dict[0] = torch.empty(sum(rows for rows, _ in matrices) * columns)
    theirs = DistributedDataParallel(make_model())
    theirs.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(theirs, rank, steps=count)
    assert len(state.error_dict) == 1
    assert float((parameters_of(ours) - parameters_of(theirs)).abs().max()) < 1e-4
    assert float((parameters_of(ours) - parameters_of(train_alone(size, steps=count))).abs().max()) > 1e-3

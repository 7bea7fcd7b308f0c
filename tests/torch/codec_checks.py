"""Codecs on four ranks: in DDP's hook, and as a group's option. Run by rank_main.py; see test_codecs.py."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fanin
from fanin.errors import CollectiveMismatchError, ConfigurationError
from fanin.host.codecs import table
from fanin.host.torch import CodecState, LanesState, codec_hook, counters, lanes_hook
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from tests.torch.training_checks import identical, make_model, parameters_of, train, train_alone


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


def check_a_codecs_state_is_taken_up_by_the_buckets_that_it_is_of(rank: int, size: int) -> None:
    for name in ("rotated", "low_rank", "agreed_blocks", "lanes"):
        _, state = with_codec(name, rank, 3)
        saved = copy.deepcopy(state.state_dict())
        resumed = DistributedDataParallel(make_model(), bucket_cap_mb=0.01)
        restored = CodecState(name)
        restored.load_state_dict(saved)
        resumed.register_comm_hook(restored, codec_hook)
        optimizer = torch.optim.SGD(resumed.parameters(), lr=0.0)
        train(resumed, rank, optimizer, steps=1)
        assert restored.step == 4
        assert any(
            each["shapes"] != restored.state_dict()["buckets"][i]["shapes"] for i, each in saved["buckets"].items()
        )
        before = {index: each["state"] for index, each in saved["buckets"].items()}
        train(resumed, rank, optimizer, steps=1)
        after = restored.state_dict()
        assert {index: each["shapes"] for index, each in after["buckets"].items()} == {
            index: each["shapes"] for index, each in saved["buckets"].items()
        }
        assert not restored._loaded, "every bucket has taken its part"
        assert all(before[index].keys() == each["state"].keys() for index, each in after["buckets"].items())


def check_half_precision_gradients_go_through_a_codec(rank: int, size: int) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        layer = DistributedDataParallel(nn.Linear(64, 64).to(dtype))
        layer.register_comm_hook(CodecState("rotated:16"), codec_hook)
        layer(torch.full((4, 64), rank + 1.0, dtype=dtype)).sum().backward()
        expected = torch.full((64, 64), 4 * 2.5, dtype=dtype)
        torch.testing.assert_close(layer.module.weight.grad, expected, rtol=0.02, atol=0)


def check_ranks_with_unlike_codecs_are_told(rank: int, size: int) -> None:
    for codec in (f"rotated:8:seed={rank % 2}", ("lanes:8", "rotated:8")[rank % 2]):
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
    before = counters(group)["engine.bytes_out"]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work, tensor, total in zip(works, tensors, totals, strict=True):
        work.wait()
        assert float((tensor - total).norm() / total.norm()) < 0.08
        identical(tensor)
    assert counters(group)["engine.bytes_out"] - before < 3 * 40_000 * 4 / 2
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

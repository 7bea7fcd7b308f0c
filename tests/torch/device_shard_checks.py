"""FSDP2 and GradScaler through shard_codecs, where host memory stands for a device. Run by rank_main.py.

`pretend` is in force from the import on. The same training without it is the oracle: `on_host_memory`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fanin.host.torch import shard_codecs
from fanin.host.torch.collectives.group_resources import GroupResources
from fanin.host.torch.handles.call import Call
from fanin.host.torch.training import shard_gather
from fanin.host.torch.training.shard_codecs import ShardCodecs
from fanin.host.torch.training.shard_gather import Gathering
from tests.support.host_device import TensorWeights, pretend
from tests.support.replicas import identical
from tests.torch.shard_codec_checks import BITS_8, STEPS, Block, batch, local, sharded, train

_DEVICE_OF_HOST = vars(Call)["device"]
pretend()

AHEAD = 2
"""Blocks that are gathered before they are needed."""


@contextlib.contextmanager
def on_host_memory() -> Iterator[None]:
    """Meanwhile host memory stands for nothing but itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "device", _DEVICE_OF_HOST)
        patch.setattr(GroupResources, "arithmetic_on", lambda _resources, _device: None)
        yield


def shards_of(model: nn.Module) -> list[torch.Tensor]:
    """This rank's own shards, by their bits."""
    return [local(each).detach().clone().view(torch.uint8) for each in model.parameters()]


def both_ways(act: Callable[[], Any]) -> tuple[Any, Any]:
    """Results of the act on the device's way, and on the host's."""
    there = act()
    with on_host_memory():
        return there, act()


def coders_of(codecs: ShardCodecs) -> list[object]:
    """The coders of each group's weights on its device; None where the host encodes."""
    return [gather._on_device and gather._on_device[0] for _, gather, _ in codecs._parts()]


def check_describe_says_what_stands_for_the_device(rank: int, size: int) -> None:
    group: Any = dist.group.WORLD
    group.all_reduce_lanes(torch.ones(20_000), lanes=8).wait()
    told = group.describe()
    assert (
        "cuda:0: streams wait by 'block' (wait() blocks the calling thread; host memory stands for a device)" in told
    ), told
    assert told.endswith("quantized on the device"), told


def check_fsdp2_prefetches_weights_that_are_encoded_on_the_device(rank: int, size: int) -> None:
    def trained(ahead: int) -> tuple[list[torch.Tensor], list[float], int, list[object]]:
        model = sharded()
        blocks: list[Any] = [each for each in model if isinstance(each, Block)]
        for number, each in enumerate(blocks if ahead else []):
            each.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
            each.set_modules_to_backward_prefetch(blocks[max(number - ahead, 0) : number][::-1])
        codecs = shard_codecs(model, **BITS_8)
        under_way: set[int] = set()
        most = 0

        class Counted(Gathering):
            """A gather that counts itself while it is under way."""

            def __init__(self, *given: Any) -> None:
                nonlocal most
                super().__init__(*given)
                under_way.add(id(self))
                most = max(most, len(under_way))

            def wait(self, *given: Any) -> bool:
                under_way.discard(id(self))
                return super().wait(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard_gather, "Gathering", Counted)
            losses = train(model)
        return shards_of(model), losses, most, coders_of(codecs)

    (shards, losses, most, coders), (host_shards, host_losses, _, host_coders) = both_ways(lambda: trained(AHEAD))
    *_, without, _ = trained(0)
    assert (without, most) == (1, AHEAD), "nothing was gathered ahead"
    assert all(isinstance(each, TensorWeights) for each in coders)
    assert not any(host_coders)
    assert losses == host_losses
    assert losses[-1] < losses[0]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(shards, host_shards, strict=True))


def check_a_grad_scaler_leaves_out_the_step_of_all_shards_that_one_rank_has_spoiled(rank: int, size: int) -> None:
    def trained() -> tuple[list[torch.Tensor], list[float], list[bool]]:
        model = sharded()
        codecs = shard_codecs(model, **BITS_8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
        scales, moved = [], []
        for step in range(STEPS):
            before = shards_of(model)
            inputs, classes = batch(rank, step)
            loss = nn.functional.cross_entropy(model(inputs), classes)
            if step == 1 and rank == 0:
                loss = loss * torch.inf  # of one rank alone
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            moved.append(not all(torch.equal(a, b) for a, b in zip(before, shards_of(model), strict=True)))
        assert all(each.residual_norm < float("inf") for each in codecs.statement())
        return shards_of(model), scales, moved

    (shards, scales, moved), (host_shards, host_scales, _) = both_ways(trained)
    assert scales == host_scales == [256.0] + [128.0] * (STEPS - 1)
    assert moved == [step != 1 for step in range(STEPS)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(shards, host_shards, strict=True))
    identical(torch.tensor(scales))

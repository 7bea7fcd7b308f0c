"""Codecs of DDP's gradients on a device, on host memory: bits and states are those of the host's encoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from fanin.host.torch import CodecState, LanesState, codec_hook, lanes_hook
from fanin.host.torch.training.codec_buckets import PIECE
from tests.support.host_device import TensorArithmetic
from tests.torch.groups import SIZE, Groups, groups_of, on_every_rank
from tests.torch.test_device_reducer import reducers_of

SMALL = 700
"""Elements whose sum is exact."""
STEPS = 3


class Bucket:
    """What a hook asks of DDP's."""

    def __init__(self, parameter: torch.Tensor, gradients: torch.Tensor, index: int = 0, last: bool = True) -> None:
        self._parameter, self._gradients, self._index, self._last = parameter, gradients, index, last

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._gradients

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]

    def gradients(self) -> list[torch.Tensor]:
        return [self._gradients]


@contextmanager
def groups_with_devices() -> Iterator[Groups]:
    """Groups that take the host's memory for a device's."""
    with reducers_of() as (groups, reducers):
        for group, reducer in zip(groups, reducers, strict=True):
            group._reduce_collectives._submit = reducer.submit
            resources: Any = group._resources
            resources.arithmetic_on = lambda _device: TensorArithmetic()
        yield groups


def gradients_of(rank: int, step: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.randn(count, generator=torch.Generator().manual_seed(100 * rank + step)) ** 3
    if step == 1 and rank == 0:
        made[count // 2] = float("inf")
    return made.to(dtype)


def bits(tensor: torch.Tensor) -> Any:
    """Of numbers; those of NaN are nobody's."""
    return torch.where(tensor.isnan(), torch.zeros_like(tensor), tensor).view(torch.uint8).numpy()


def steps(
    state: CodecState | LanesState, rank: int, count: int, dtype: torch.dtype, last: int = STEPS
) -> Iterator[Any]:
    parameter = torch.zeros(count)
    for step in range(state.step if isinstance(state, CodecState) else 0, last):
        gradients = gradients_of(rank, step, count, dtype)
        hook: Any = codec_hook if isinstance(state, CodecState) else lanes_hook
        averaged = hook(state, Bucket(parameter, gradients)).wait()
        yield averaged.clone()


CASES = [
    ("lanes:8", 50_001, torch.float32), ("lanes:4", PIECE + 50_001, torch.float32),
    ("lanes:16", 50_001, torch.bfloat16), ("lanes:8:feedback=False", 50_001, torch.float16),
    ("lanes:8", SMALL, torch.float16),
    ("rotated:8", 50_001, torch.float32), ("rotated:4", PIECE + 50_001, torch.float32),
    ("rotated:8", 50_001, torch.bfloat16), ("rotated:8:feedback=False", 50_001, torch.float32),
    ("rotated:8", SMALL, torch.float32), ("rotated:32", 50_001, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "count", "dtype"), CASES)
def test_averages_residuals_and_states_have_the_bits_of_the_hosts_encoders(
    codec: str, count: int, dtype: torch.dtype
) -> None:
    def act(rank: int) -> list[Any]:
        state = CodecState(codec, group=groups[rank])
        averaged = list(steps(state, rank, count, dtype))
        owed = state.state_dict()["buckets"][0]["state"]
        (row,) = state.statement()
        return [*map(bits, averaged), *(owed[name].numpy().view(np.uint8) for name in sorted(owed)), sorted(owed), row]

    with groups_with_devices() as groups:
        on_device: list[Any] = on_every_rank(act)

    with groups_of(None) as groups:
        on_host: list[Any] = on_every_rank(act)
    for mine, theirs in zip(on_device, on_host, strict=True):
        assert mine[-2] == theirs[-2]
        assert all(np.array_equal(a, b) for a, b in zip(mine[:-2], theirs[:-2], strict=True))
        assert mine[-1].payload_bytes == theirs[-1].payload_bytes
        assert mine[-1].residual_norm == pytest.approx(theirs[-1].residual_norm, rel=1e-5)
        if codec != "lanes:8:feedback=False":
            assert mine[-1].nmse == pytest.approx(theirs[-1].nmse, rel=1e-4 if "rotated" in codec else 0.5, abs=1e-12)


def test_a_state_goes_on_where_the_other_kind_of_memory_left_it() -> None:
    count = 50_001
    saved: dict[int, Any] = {}
    later: dict[int, Any] = {}

    def begin(rank: int) -> None:
        state = CodecState("rotated:8", group=groups[rank])
        averaged = steps(state, rank, count, torch.float32, 2 * STEPS)
        for _ in range(STEPS):
            next(averaged)
        saved[rank] = state.state_dict()
        later[rank] = [bits(each) for each in averaged]

    def go_on(rank: int) -> None:
        state = CodecState("rotated:8", group=groups[rank])
        state.load_state_dict(saved[rank])
        averaged = [bits(each) for each in steps(state, rank, count, torch.float32, 2 * STEPS)]
        assert all(np.array_equal(a, b) for a, b in zip(averaged, later[rank], strict=True))

    with groups_of(None) as groups:
        on_every_rank(begin)
    with groups_with_devices() as groups:
        on_every_rank(go_on)


def test_lanes_with_error_feedback_keep_their_residual_where_words_are_made() -> None:
    count = 50_001

    def act(rank: int) -> list[Any]:
        state = LanesState(lanes=8, error_feedback=True, group=groups[rank])
        averaged = [bits(each) for each in steps(state, rank, count, torch.float32)]
        return [*averaged, state.residual_norm()]

    with groups_with_devices() as groups:
        on_device: list[Any] = on_every_rank(act)

    with groups_of(None) as groups:
        on_host: list[Any] = on_every_rank(act)
    assert len(on_device) == SIZE
    for mine, theirs in zip(on_device, on_host, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))

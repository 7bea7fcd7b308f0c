"""The hash by which `check_replicas` compares tensors; its collectives are in training_checks.py, on four ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fanin.errors import ArgumentError
from fanin.host.torch import check_replicas_every
from fanin.host.torch.training import replicas

DTYPES = [torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.complex64]


def some(dtype: torch.dtype, count: int) -> torch.Tensor:
    return (torch.arange(count) % 97 - 48).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128], ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 64, 1000])
def test_any_two_chunk_sizes_give_the_same_hash(
    dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replicas._hash(some(dtype, count))
    monkeypatch.setattr(replicas, "_CHUNK_WORDS_ON_CPU", 4)
    assert replicas._hash(some(dtype, count)) == whole


@given(count=st.integers(1, 300), where=st.data())
def test_every_single_bit_counts(count: int, where: st.DataObject) -> None:
    value = torch.arange(count, dtype=torch.float32)
    before = replicas._hash(value)
    position, bit = where.draw(st.integers(0, count - 1)), where.draw(st.integers(0, 31))
    value.view(torch.int32)[position] ^= -(1 << 31) if bit == 31 else 1 << bit
    assert replicas._hash(value) != before


def test_signs_that_flip_in_pairs_and_exchanged_words_count() -> None:
    value = torch.arange(1, 65, dtype=torch.float32)
    flipped, exchanged = value.clone(), value.clone()
    flipped[[1, 3]] *= -1  # the top bits of two words: a sum of products would lose both
    exchanged[[0, 1, 2, 3]] = value[[2, 3, 0, 1]]
    assert len({replicas._hash(each) for each in (value, flipped, exchanged)}) == 3


def test_memory_that_is_not_contiguous_or_not_aligned_is_taken() -> None:
    base = torch.arange(65, dtype=torch.int8)
    assert replicas._hash(base[1:]) == replicas._hash(base[1:].clone())
    square = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    assert replicas._hash(square.t()) == replicas._hash(square.t().contiguous())


def test_the_mixing_is_splitmix64s() -> None:
    """The first outputs of SplitMix64 with seed 0: an index is a state, and a word of 0 adds nothing to it."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    mixed = replicas._mix(torch.zeros(3, dtype=torch.int64), 0)
    assert [int(word) & (1 << 64) - 1 for word in mixed] == outputs


def test_no_steps_are_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match="0 steps"):
        check_replicas_every(0, model, torch.optim.SGD(model.parameters(), lr=0.1))

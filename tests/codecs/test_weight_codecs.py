"""The contract of weight codecs, over every one in the table: a new file in host/codecs with one is under it."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.host.codecs import make_weights, weights_table
from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.weight_codec import Floats, Loss, WeightCodec

NAMES = sorted(weights_table())
JUNK = 0xA5


def normal(count: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def gathered(codec: WeightCodec, shards: list[Floats], step: int = 0) -> tuple[list[Floats], list[Loss]]:
    """A rank's values of all shards after an all-gather, and each owner's loss."""
    values, losses = [], []
    for rank, shard in enumerate(shards):
        encoded = np.full(codec.encoded_bytes(len(shard)), JUNK, np.uint8)
        losses.append(codec.encode(shard, encoded, Randomness(codec.seed, 2), step, rank))
        decoded = np.full(len(shard), np.float32(7))
        codec.decode(encoded, decoded)
        values.append(decoded)
    return values, losses


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 1023, 1025, 3001])
def test_any_count_is_gathered_within_the_stated_loss_and_fewer_bytes(name: str, count: int) -> None:
    codec, shards = make_weights(name), [normal(count, 1), normal(count, 2)]
    before = [shard.copy() for shard in shards]
    for shard, source, decoded, loss in zip(shards, before, *gathered(codec, shards), strict=True):
        assert np.array_equal(shard, source), "a shard is only read"
        assert np.isfinite(decoded).all()
        error, energy = float(np.square(decoded - shard).sum()), float(np.square(shard).sum())
        assert loss.lost == pytest.approx(error, rel=1e-3, abs=1e-9 * energy)
        assert loss.energy == pytest.approx(energy, rel=1e-4)
        assert loss.nmse < 0.05
    assert count < 64 or codec.encoded_bytes(count) < 4 * count


@pytest.mark.parametrize("name", NAMES)
def test_seed_step_and_owner_alone_decide_what_is_drawn(name: str) -> None:
    codec, x = make_weights(name), normal(2000)
    first, again = (gathered(codec, [x, x], step=3)[0] for _ in range(2))
    assert all(one.tobytes() == other.tobytes() for one, other in zip(first, again, strict=True))
    assert first[0].tobytes() != first[1].tobytes(), "owners draw numbers of their own"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_every_rank_and_is_no_loss(name: str, bad: float) -> None:
    x = normal(3000)
    x[1500] = bad
    (decoded,), (loss,) = gathered(make_weights(name), [x])
    assert np.isnan(decoded[1500])
    assert loss == Loss()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [8, 6, 4])
def test_any_part_can_be_decoded_alone(name: str, bits: int) -> None:
    codec, x = make_weights(f"{name}:{bits}"), normal(2500)
    encoded = np.empty(codec.encoded_bytes(len(x)), np.uint8)
    codec.encode(x, encoded, Randomness(codec.seed, 2), 0, 0)
    whole = np.empty(len(x), np.float32)
    codec.decode(encoded, whole)
    for first, stop in ((0, 0), (0, 1), (7, 1030), (1023, 1025), (1024, 2048), (2499, 2500), (2500, 2500), (3, 2500)):
        part = np.full(stop - first, np.float32(7))
        codec.decode(encoded, part, first=first, count=len(x))
        assert part.tobytes() == whole[first:stop].tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize("count", [0, 1, 2500])
def test_rows_of_all_ranks_are_decoded_where_they_lie(name: str, bits: int, count: int) -> None:
    codec, ranks, before, behind = make_weights(f"{name}:{bits}"), 3, 5, 9
    shards = [normal(count, seed) for seed in range(ranks)]
    codes = np.full((ranks, before + codec.encoded_bytes(count)), JUNK, np.uint8)
    for rank, shard in enumerate(shards):
        codec.encode(shard, codes[rank, before:], Randomness(codec.seed, 2), 0, rank)
    wholes, _ = gathered(codec, shards)
    for first, stop in ((0, count), (count // 3, count // 2)):
        values = np.full((ranks, count + behind), np.float32(7))
        codec.decode_rows(codes[:, before:], values[:, first:stop], first=first, count=count)
        for row, whole in zip(values, wholes, strict=True):
            assert row[first:stop].tobytes() == whole[first:stop].tobytes()
        values[:, first:stop] = 7
        assert (values == 7).all(), "nothing is written beside the rows"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [8, 6, 4])
def test_a_shard_that_is_encoded_in_parts_has_the_bits_of_the_whole(name: str, bits: int) -> None:
    codec = make_weights(f"{name}:{bits}")
    x = normal(2 * codec.block + 452)
    (whole,), (loss,) = gathered(codec, [x], step=3)
    for blocks in (1, 2):
        parts, lost = np.full(len(x), np.float32(7)), Loss()
        for first in range(0, len(x), blocks * codec.block):
            part = x[first : first + blocks * codec.block]
            encoded = np.full(codec.encoded_bytes(len(part)), JUNK, np.uint8)
            lost.add(codec.encode(part, encoded, Randomness(codec.seed, 2), 3, 0, first=first))
            codec.decode(encoded, parts[first : first + len(part)])
        assert parts.tobytes() == whole.tobytes()
        assert lost.nmse == pytest.approx(loss.nmse)


@pytest.mark.parametrize("name", NAMES)
def test_a_codecs_text_makes_it_again(name: str) -> None:
    codec = make_weights(f"{name}:seed=5")
    assert codec.seed == 5
    assert make_weights(str(codec)) == codec

"""Scale epochs: what the tally says, and that all workers change the scale in the same round to the same bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.host.session.shards import deal
from fanin.host.stale.layout import Layout
from fanin.host.stale.scale import (
    MAX_POWER,
    MIN_POWER,
    TALLY_BINS,
    ScaleEpochs,
    code_of,
    first_power,
    power_of,
    read_tally,
    write_tally,
)
from fanin.numerics.fixed_point import Codec
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.spread import MIN_PACKETS_PER_SHARD


@given(st.floats(2.0**MIN_POWER, 2.0**MAX_POWER, allow_nan=False))
def test_the_power_is_the_least_that_holds_the_value(value: float) -> None:
    power = power_of(value)
    assert value <= 2.0**power
    assert power == MIN_POWER or 2.0 ** (power - 1) < value


@given(st.integers(MIN_POWER, MAX_POWER))
def test_a_code_stands_for_its_power(power: int) -> None:
    bound = np.array([2.0**power], np.float32)
    assert int(Codec(Element.FLOAT32).codes(bound, 1)[0]) == code_of(power)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_no_scale_holds_what_is_not_finite(value: float) -> None:
    with pytest.raises(ConfigurationError, match="no finite scale"):
        power_of(value)


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=8), st.integers(-4, 4))
def test_a_sum_of_tallies_names_the_largest(largest: list[float], power: int) -> None:
    total = np.zeros(TALLY_BINS, np.float32)
    for value in largest:
        tally = np.empty(TALLY_BINS, np.float32)
        write_tally(tally, value, power)
        total += tally
    assert read_tally(total, power) == max(map(power_of, largest))


def test_an_empty_round_says_nothing() -> None:
    tally = np.ones(TALLY_BINS, np.float32)
    write_tally(tally, 0.0, 0)
    assert read_tally(tally, 0) is None


def run(epochs: ScaleEpochs, rounds: int, largest: float) -> list[int]:
    """The power in force before each round."""
    powers = []
    for index in range(rounds):
        powers.append(epochs.power)
        tally = np.zeros(TALLY_BINS, np.float32)
        if not epochs.drains(index):
            write_tally(tally, largest, epochs.power)
        epochs.applied(index, tally)
    return powers


def test_the_bound_follows_the_largest_contribution_after_the_drain() -> None:
    powers = run(ScaleEpochs(staleness=2, epoch_rounds=6, power=0), 16, largest=8.0)
    assert powers == [0] * 8 + [4] * 8


def test_an_element_far_above_the_bound_ends_the_epoch_with_the_next_base() -> None:
    epochs = ScaleEpochs(staleness=2, epoch_rounds=1024, power=0)
    assert run(epochs, 8, largest=100.0) == [0] * 3 + [8] * 5
    assert epochs.changes == 1


def test_any_first_gradients_lead_to_the_bound_of_the_later_ones_within_few_rounds() -> None:
    """Zero, far too small and far too large ones: a warm-up, a loss scaled by a schedule, a first batch of outliers."""
    for first in (0.0, 1e-30, 1e-9, 1e9, 1e12):
        epochs = ScaleEpochs(staleness=4, epoch_rounds=1024, power=first_power(first))
        assert run(epochs, 200, largest=0.1)[-1] == power_of(0.1) + 1, first


def test_epochs_are_short_at_first_and_after_one_that_was_exceeded() -> None:
    epochs = ScaleEpochs(staleness=1, epoch_rounds=200, power=power_of(1.0))
    began = []
    for index in range(800):
        seen = None if epochs.drains(index) else power_of(1.0) + (20 if index == 600 else 0)
        epochs.noted(index, seen)
        if epochs.began == index + 1:
            began.append(epochs.began)
    assert began == [17, 81, 281, 481, 602, 618, 682], "16, 64, 200, 200, then exceeded; 16, 64"


@given(
    staleness=st.integers(0, 6), epoch=st.integers(7, 90),
    sizes=st.lists(st.one_of(st.none(), st.integers(-30, 30)), max_size=250),
)  # fmt: skip
def test_contributions_that_may_meet_in_a_round_have_one_scale(
    staleness: int, epoch: int, sizes: list[int | None]
) -> None:
    """A contribution of base b lands in a round from b to b + S, so two meet if their bases are S apart at most."""
    epochs = ScaleEpochs(staleness, epoch, power=0)
    powers: dict[int, int] = {}
    for base, seen in enumerate(sizes):
        if not epochs.drains(base):
            powers[base] = epochs.power_at(base)
        epochs.noted(base, None if epochs.drains(base) else seen)
    for base, power in powers.items():
        assert {powers.get(other, power) for other in range(base, base + staleness + 1)} == {power}


@given(staleness=st.integers(0, 4), sizes=st.lists(st.integers(-9, 9), min_size=60, max_size=60), at=st.integers(0, 59))
def test_a_newcomer_that_is_given_the_state_changes_the_scale_as_the_others_do(
    staleness: int, sizes: list[int], at: int
) -> None:
    peer = ScaleEpochs(staleness, 20, power=0)
    for index in range(at):
        peer.noted(index, sizes[index])
    newcomer = ScaleEpochs(staleness, 20, **peer.state())
    for index in range(at, 60):
        assert newcomer == peer
        for each in (peer, newcomer):
            each.noted(index, sizes[index])
    assert newcomer == peer


def test_the_bound_shrinks_as_well() -> None:
    powers = run(ScaleEpochs(staleness=0, epoch_rounds=4, power=10), 6, largest=0.25)
    assert powers == [10] * 4 + [-1] * 2


def test_an_epoch_without_contributions_keeps_its_bound() -> None:
    assert run(ScaleEpochs(staleness=1, epoch_rounds=3, power=5), 9, largest=0.0) == [5] * 9


@pytest.mark.parametrize("value", [2.0**126, float(np.float32(3e38)), math.inf])
def test_a_contribution_above_every_bound_counts_as_the_largest(value: float) -> None:
    """An element that its residual takes beyond float32 is clipped like any other."""
    tally = np.empty(TALLY_BINS, np.float32)
    write_tally(tally, value, MAX_POWER - 3)
    assert read_tally(tally, MAX_POWER - 3) == MAX_POWER


def test_no_contribution_of_one_epoch_can_land_in_a_round_of_the_next() -> None:
    """The drain is as long as a contribution can be late."""
    epochs = ScaleEpochs(staleness=3, epoch_rounds=8, power=0)
    bases = [base for base in range(40) if not epochs.drains(base)]
    for base in bases:
        epoch = base // 8
        latest = base + 3
        first_of_next = (epoch + 1) * 8 + 3
        assert latest < first_of_next or base >= first_of_next


def test_an_epoch_shorter_than_its_drain_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="make it much longer"):
        ScaleEpochs(staleness=4, epoch_rounds=4, power=0)


@given(st.integers(1, 10_000), st.sampled_from([8, 64, 352]), st.integers(1, 5), st.sampled_from([32, 16, 8]))
def test_every_round_has_as_many_chunks_in_every_flow(elements: int, words: int, flows: int, lanes: int) -> None:
    layout = Layout(elements=elements, words_per_packet=words, flows=(flows,), lanes=lanes, workers=2, staleness=1)
    assert layout.padded == layout.slots[0] * flows * layout.chunk_elements
    assert TALLY_BINS + elements <= layout.padded < TALLY_BINS + elements + flows * layout.chunk_elements


@given(
    elements=st.integers(1, 100_000),
    shards=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=8),
    lanes=st.sampled_from([32, 8]),
)
def test_every_round_gives_each_shard_whole_flows_of_slots(
    elements: int, shards: list[tuple[int, int]], lanes: int
) -> None:
    flows, weights = (tuple(each) for each in zip(*shards, strict=True))
    layout = Layout(
        elements=elements, words_per_packet=64, flows=flows, weights=weights, lanes=lanes, workers=2, staleness=1
    )
    packets = -(-(TALLY_BINS + elements) // layout.chunk_elements)
    assert len(layout.slots) == (len(shards) if packets >= MIN_PACKETS_PER_SHARD * len(shards) else 1)
    everything = Reduction(source=4096, destination=8192, count=layout.padded, element=Element.FLOAT32, lanes=lanes)
    for turn in (1, 2):
        parts = dict(deal(everything, layout.chunk_elements, layout.spread, turn))
        chunks = [parts[shard].count // layout.chunk_elements for shard in range(len(parts))]
        assert chunks == [slots * flow for slots, flow in zip(layout.slots, flows, strict=False)]
    if len(layout.slots) > 1:
        for (_, weight), flow, slots in zip(shards, flows, layout.slots, strict=True):
            assert slots - 1 < packets * weight / sum(weights) / flow <= slots


def test_a_model_with_too_many_chunks_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="FANIN_WORDS_PER_PACKET"):
        Layout(elements=10_000_000, words_per_packet=8, flows=(1,))


def test_a_base_of_the_epoch_before_keeps_its_scale() -> None:
    """A newcomer that was given the scale in force passes for what lies before it under the one before."""
    epochs = ScaleEpochs(staleness=1, epoch_rounds=3, power=5)
    tally = np.zeros(TALLY_BINS, np.float32)
    for round_index in range(4):
        assert epochs.code_at(round_index) == code_of(5)
        write_tally(tally, 2.0, epochs.power)
        epochs.applied(round_index, tally)
    assert (epochs.began, epochs.power) == (4, 2)
    assert [epochs.code_at(base) for base in (3, 4)] == [code_of(5), code_of(2)]

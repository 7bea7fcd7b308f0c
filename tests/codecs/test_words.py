"""The contract of word codecs, over every one in the table: whoever adds a file to host/codecs/words is under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fanin import _native
from fanin.errors import ConfigurationError
from fanin.host.codecs.words import codec_for, table
from fanin.numerics.fixed_point import Array
from fanin.numerics.reduction import EXACT, Element, Operator
from tests.codecs.word_sums import by_hand, expect_shards_to_be_the_whole
from tests.numerics.codecs import assert_same_bits, random_array
from tests.support.cluster import Cluster, job, reduction
from tests.support.network import Link

TAKEN = [
    (each.name, element, number)
    for each in table().values()
    for element in sorted(each.elements)
    for number in each.numbers
]


def cases(wanted: Callable[[Element], bool] = lambda element: True) -> list[Any]:
    """Every codec, with every element type that it takes under every number, as far as wanted."""
    return [
        pytest.param(element, number, id=f"{name}-{element.name}-{number}")
        for name, element, number in TAKEN
        if wanted(element)
    ]


CASES = cases()
FLOATS = cases(lambda element: element.floating)
FEEDBACK = cases(lambda element: element.floating and element is not Element.FLOAT64)
COUNTS = (0, 1, 7, 211)
"""Nothing, one element, less than a packet, and a prime: several packets and a tail."""
HOSTILE = Link(loss=0.1, duplicate=0.1, reorder=0.2)


def arrays(element: Element, count: int, workers: int, style: str = "uniform") -> list[Array]:
    """Each worker's elements; signed integers small, so that narrow lanes hold them."""
    made = [random_array(element, count, style, 31 * worker + count) for worker in range(workers)]
    return made if element.floating else [(each % 3).astype(each.dtype) for each in made]


def test_both_engines_have_the_same_codecs() -> None:
    assert sorted(_native.word_codecs()) == sorted(table())


def test_no_two_codecs_take_the_same_reduction() -> None:
    taken = [(element, number) for _, element, number in TAKEN]
    assert len(taken) == len(set(taken))
    assert all(0 <= number <= 127 for _, number in taken), "the numbers from 128 on are operators of exact reductions"


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize(("element", "number"), CASES)
def test_all_workers_of_both_engines_get_what_the_codec_says(element: Element, number: int, link: Link | None) -> None:
    spec = job(workers=3, words_per_packet=32, accumulators=True)
    cluster = Cluster.joined("lockstep", spec=spec, link=link)
    for count in COUNTS:
        inputs = arrays(element, count, 3)
        expected = by_hand(spec, element, number, inputs)
        for result in cluster.all_reduce(inputs, element=element, lanes=number):
            assert_same_bits(result, expected)


@pytest.mark.parametrize(("element", "number"), FLOATS)
def test_means_are_by_who_contributed_in_both_engines(element: Element, number: int) -> None:
    spec = job(workers=3, words_per_packet=32, accumulators=True, on_worker_loss="continue")
    inputs = arrays(element, 40, 3)
    results = Cluster.joined("lockstep", spec=spec).all_reduce(inputs, element=element, lanes=number, divisor=0.0)
    for result in results:
        assert_same_bits(result, by_hand(spec, element, number, inputs, divisor=3.0))


@pytest.mark.parametrize(("element", "number"), FEEDBACK)
def test_the_residual_is_what_the_codec_says_was_lost(element: Element, number: int) -> None:
    spec = job(workers=2, words_per_packet=32, accumulators=True)
    inputs = arrays(element, 50, 2)
    codecs = [codec_for(element, number, 50, spec, place=place) for place in range(2)]
    residuals = [np.zeros(50, np.float32) for _ in inputs]
    cluster = Cluster.joined("lockstep", spec=spec)
    outputs = [np.array(x) for x in inputs]
    for worker, (x, residual) in enumerate(zip(inputs, residuals, strict=True)):
        cluster.submit(
            worker, reduction(x, outputs[worker], element=element, lanes=number, residual=residual, signature=9)
        )
    cluster.run()
    for packet in range(codecs[0].packets):
        start, count = codecs[0].span(packet)
        parts = [x[start : start + count] for x in inputs]
        codes = np.max([codecs[0].codes(part, 1.0, None) for part in parts], axis=0)
        for codec, part, residual in zip(codecs, parts, residuals, strict=True):
            expected = codec.residual_after(part, codes, 1.0, np.zeros(count, np.float32))
            assert_same_bits(residual[start : start + count], expected)


@pytest.mark.parametrize(("element", "number"), CASES)
def test_what_a_codec_calls_divisible_shards_sum_to_the_same_bits(element: Element, number: int) -> None:
    expect_shards_to_be_the_whole(element, number, arrays(element, 700, 2))


@pytest.mark.parametrize("kind", ["twin", "native"])
@pytest.mark.parametrize(
    ("element", "lanes"), [(Element.FLOAT32, 64 + 8), (Element.UINT8, 64 + 8), (Element.INT8, 127)]
)
def test_a_number_that_no_codec_has_is_refused_by_both_engines(kind: str, element: Element, lanes: int) -> None:
    array: Any = np.zeros(4, np.float32 if element.floating else np.uint8)
    cluster = Cluster.joined(kind, spec=job())
    with pytest.raises((ConfigurationError, ValueError), match="no codec"):
        cluster.submit(0, reduction(array, element=element, lanes=lanes))


def test_narrow_integers_beyond_the_bound_are_clipped_alike() -> None:
    spec = job(workers=3)
    inputs = [np.array([-128, 127, 21, -21, 22], np.int8)] * 3
    for result in Cluster.joined("lockstep", spec=spec).all_reduce(inputs, lanes=64 + 4, element=Element.INT8):
        assert result.tolist() == [-6, 6, 6, -6, 6]
    for result in Cluster.joined("lockstep", spec=spec).all_reduce(inputs, lanes=64 + 8, element=Element.INT8):
        assert result.tolist() == [-126, 126, 63, -63, 66]


@pytest.mark.parametrize("kind", ["twin", "native"])
def test_lanes_too_narrow_for_the_workers_are_refused(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=8))
    with pytest.raises((ConfigurationError, ValueError), match="4-bit lanes cannot hold"):
        cluster.submit(0, reduction(np.zeros(4, np.int8), element=Element.INT8, lanes=64 + 4))


@pytest.mark.parametrize("element", [Element.FLOAT64, Element.INT32])
def test_what_always_takes_32_bits_does_so_where_the_lanes_asked_for_would_hold_no_level(element: Element) -> None:
    spec = job(workers=8)
    inputs = arrays(element, 9, 8)
    for result in Cluster.joined("lockstep", spec=spec).all_reduce(inputs, element=element, lanes=4):
        assert_same_bits(result, by_hand(spec, element, 32, inputs))


def test_an_exact_codec_of_every_operator_has_a_number_of_its_own() -> None:
    numbers = {codec_for(Element.INT32, EXACT, 4, job(), operator=operator).number for operator in Operator}
    assert len(numbers) == len(Operator)
    assert min(numbers) > 127

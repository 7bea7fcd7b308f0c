"""Sums by word codecs alone, without a machine or a packet: what engines and worked examples are compared with."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fanin.emulation.simulator.oracle import summed
from fanin.host.codecs.words import codec_class, codec_for
from fanin.host.session.shards import deal, elements_per_packet
from fanin.numerics.fixed_point import Array
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.job import JobSpec
from fanin.protocol.spread import Spread
from tests.numerics.codecs import assert_same_bits
from tests.support.cluster import job


def by_hand(spec: JobSpec, element: Element, number: int, inputs: list[Array], divisor: float = 1.0) -> Array:
    """The result of every worker, from the codec alone: codes agreed, words added, no packet sent."""
    codecs = [codec_for(element, number, len(inputs[0]), spec, place=place) for place in range(len(inputs))]
    result = np.zeros_like(inputs[0])
    for packet in range(codecs[0].packets):
        start, count = codecs[0].span(packet)
        parts = [x[start : start + count] for x in inputs]
        codes = np.max([codecs[0].codes(part, 1.0, None) for part in parts], axis=0)
        words = [each.encode(packet, part, codes, 1.0, None) for each, part in zip(codecs, parts, strict=True)]
        assert all(len(each) == codecs[0].word_count(packet) for each in words)
        total, shift = summed(words, codecs[0].lanes, spec.accumulator_bytes)
        assert len(total) == codecs[0].result_word_count(packet)
        collected = codecs[0].collect(packet, total)
        if collected is not None:
            decoded = codecs[0].decode_narrowed(collected, count, codes, len(inputs), divisor, shift)
            result[start : start + count] = decoded
    return result


def expect_shards_to_be_the_whole(element: Element, number: int, inputs: list[Array]) -> None:
    """Expect the sums of three shards to be the whole sum, bit for bit, of a codec that calls itself divisible."""
    spec = job(workers=len(inputs), words_per_packet=16, accumulators=True)
    per_packet = elements_per_packet(spec, element, number)
    assert (per_packet > 0) is codec_class(element, number).divisible
    whole = by_hand(spec, element, number, inputs)
    asked = Reduction(source=4096, destination=8192, count=len(inputs[0]), element=element, lanes=number)
    ends = [0]
    for _, part in deal(asked, per_packet, Spread.evenly(3), 1):
        ends.append(ends[-1] + part.count)
    parts = [by_hand(spec, element, number, [x[a:b] for x in inputs]) for a, b in pairwise(ends)]
    assert_same_bits(np.concatenate(parts), whole)

"""Run a gradient codec at several workers in one process, with its stages summed as a switch sums them.

    team = Team(make("rotated:8"), workers=3, shapes=((40, 30), (40,)))
    means = team.step(inputs, step=0)  # every worker's mean, the same bits at all of them

So a codec's effect on gradients shows without a switch, a socket or a process; docs/extending.md has an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fanin.emulation.simulator.oracle import summed as summed_words
from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Sum, sums_of
from fanin.host.codecs.words import codec_for
from fanin.numerics.fixed_point import DTYPES
from fanin.numerics.reduction import Element
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import MAX_WORKERS

Summer = Callable[[Sequence[Sum]], None]
"""Replaces, in place, the values of every worker's stage by their sum; gets one `Sum` per worker."""


def element_of(asked: Sum) -> Element:
    return next(each for each, dtype in DTYPES.items() if np.dtype(dtype) == asked.values.dtype)


def fields_of(asked: Sum, workers: int) -> dict[str, Any]:
    """Keyword arguments of the `Reduction` that carries out this stage, without addresses and counts."""
    average = asked.average and element_of(asked).floating
    divisor = float(workers) if average else 1.0
    return {"lanes": asked.lanes, "operator": asked.operator, "divisor": divisor, "scale_code": asked.scale_code}


def by_arithmetic(workers: int, words_per_packet: int = 1024) -> Summer:
    """Return a function that sums as a switch does: encode by the word codec, add words, decode per worker."""
    here = min(workers, MAX_WORKERS)
    tree: dict[str, Any] = {} if workers == here else {"total_workers": workers, "places": tuple(range(here))}
    spec = JobSpec(
        job=1, generation=1, workers=here, quorum=here, slots=4, words_per_packet=words_per_packet,
        tokens=tuple(range(1, here + 1)), accumulators=True, **tree,
    )  # fmt: skip

    def summed(stages: Sequence[Sum]) -> None:
        asked = stages[0]
        given, element = fields_of(asked, workers), element_of(asked)
        codecs = [
            codec_for(element, asked.lanes, len(asked.values), spec, operator=asked.operator, place=rank)
            for rank in range(workers)
        ]
        for packet in range(codecs[0].packets):
            start, count = codecs[0].span(packet)
            here = slice(start, start + count)
            codes = np.max(
                [c.codes(s.values[here], 1.0, _part(s, here)) for c, s in zip(codecs, stages, strict=True)], 0
            )
            if asked.scale_code:
                codes = np.full_like(codes, asked.scale_code)
            words = []
            for codec, stage in zip(codecs, stages, strict=True):
                words.append(codec.encode(packet, stage.values[here], codes, 1.0, _part(stage, here)))
                if stage.residual is not None:
                    stage.residual[here] = codec.residual_after(stage.values[here], codes, 1.0, stage.residual[here])
            total, shift = summed_words(words, codecs[0].lanes, spec.accumulator_bytes)
            for codec, stage in zip(codecs, stages, strict=True):
                collected = codec.collect(packet, total)
                if collected is not None:
                    by = given["divisor"]
                    stage.values[here] = codec.decode_narrowed(collected, count, codes, workers, by, shift)

    return summed


def _part(stage: Sum, here: slice) -> Floats | None:
    return None if stage.residual is None else stage.residual[here]


@dataclass
class Team:
    """A codec's encoders at all workers, for one bucket."""

    codec: Codec
    workers: int
    shapes: tuple[tuple[int, ...], ...]
    bucket: int = 0
    summed: Summer | None = None
    encoders: list[Encoder] = field(init=False)

    def __post_init__(self) -> None:
        self.encoders = [
            self.codec.encoder(Place(rank, self.workers, self.shapes, self.bucket)) for rank in range(self.workers)
        ]
        if self.summed is None:
            self.summed = by_arithmetic(self.workers)

    def step(self, inputs: Sequence[Floats], step: int) -> list[Floats]:
        """Run one step and return every worker's mean; `inputs` holds one array per worker and is not changed."""
        assert self.summed is not None
        results = [np.array(x) for x in inputs]
        flights = [encoder.reduce(x, step) for encoder, x in zip(self.encoders, results, strict=True)]
        while True:
            stages = [sums_of(next(flight, None)) for flight in flights]
            if not any(stages):
                return results
            assert len({len(stage) for stage in stages}) == 1, "some workers have more sums than others"
            for asked in zip(*stages, strict=True):
                shapes = {
                    (s.lanes, s.operator, s.average, s.values.shape, s.values.dtype, s.residual is None, s.scale_code)
                    for s in asked
                }
                assert len(shapes) == 1, "workers sum different things"
                self.summed(asked)

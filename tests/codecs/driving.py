"""Running gradient codecs at several workers at once: their stages summed by a switch, or by its arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fanin.emulation.codec_team import Summer as Summer
from fanin.emulation.codec_team import Team as Team
from fanin.emulation.codec_team import by_arithmetic as by_arithmetic
from fanin.emulation.codec_team import element_of, fields_of
from fanin.host.codecs.codec import Floats, Sum
from tests.support.cluster import Cluster, reduction


def by_cluster(cluster: Cluster) -> Summer:
    """Through a switch in virtual time."""

    def summed(stages: Sequence[Sum]) -> None:
        for worker, asked in enumerate(stages):
            given = fields_of(asked, len(stages))
            cluster.submit(worker, reduction(asked.values, element=element_of(asked), residual=asked.residual, **given))
        cluster.run()

    return summed


def normal(workers: int, count: int, seed: int) -> list[Floats]:
    """Independent N(0, 1) at each worker."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=count).astype(np.float32) for _ in range(workers)]


def student(workers: int, count: int, seed: int) -> list[Floats]:
    """Independent Student t with 3 degrees of freedom: heavy tails."""
    generator = np.random.default_rng(seed)
    return [generator.standard_t(3, size=count).astype(np.float32) for _ in range(workers)]


def nmse(result: Floats, inputs: Sequence[Floats]) -> float:
    """Squared error of a mean relative to the exact mean's square."""
    mean = np.mean(np.asarray(inputs, np.float64), axis=0)
    return float(np.sum((result - mean) ** 2) / np.sum(mean**2))

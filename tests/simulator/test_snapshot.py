"""Goodput and retransmissions over loss, window and delay, as a table that is part of the repository.

Each line is SEEDS runs together: at the end of a transfer one lost packet more or less decides, and of one run luck.
A change of the protocol shows as a difference in `goodput.txt`. After one that is meant:
`python -m tests.simulator.test_snapshot` writes the table anew; look at the difference, and say why in the commit.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.support.cluster import WORKER_MACHINES, Cluster, job
from tests.support.network import Link

SNAPSHOT = Path(__file__).parent / "goodput.txt"
LOSSES = (0.0, 0.001, 0.01, 0.05, 0.1)
WINDOWS = (4, 32, 256)
DELAYS_S = (5e-6, 100e-6, 2e-3)
WORKERS, WORDS, CHUNKS = 3, 64, 600
BYTES_PER_S = 12.5e6
"""Rate of the link, 100 Mbit/s."""
SEEDS = range(7, 12)


def run(kind: str, loss: float, window: int, delay_s: float, seed: int) -> tuple[float, int]:
    """One all-reduce of int32: how long it took, and how often something was sent again."""
    spec = job(workers=WORKERS, slots=window, words_per_packet=WORDS)
    cluster = Cluster.joined(
        kind, spec=spec, switch=kind, seed=seed, link=Link(delay_s=delay_s, bytes_per_s=BYTES_PER_S)
    )
    cluster.network.link = Link(delay_s=delay_s, bytes_per_s=BYTES_PER_S, loss=loss)
    begun, before = cluster.network.now, cluster.total("retransmissions")
    cluster.all_reduce([np.ones(CHUNKS * WORDS, np.int32)] * WORKERS, limit_s=1000.0)
    return cluster.network.now - begun, cluster.total("retransmissions") - before


def cell(kind: str, loss: float, window: int, delay_s: float) -> str:
    """One line: what the runs come to."""
    took_s, again = zip(*(run(kind, loss, window, delay_s, seed) for seed in SEEDS), strict=True)
    goodput = len(SEEDS) * CHUNKS * WORDS * 4 * 8 / sum(took_s) / 1e6
    slowest = CHUNKS * WORDS * 4 * 8 / max(took_s) / 1e6
    return (
        f"{loss:8.1%} {window:8} {delay_s * 1e6:10.0f} {goodput:10.2f} {slowest:10.2f} {sum(again) / len(SEEDS):16.1f}"
    )


def table(kind: str) -> str:
    """All cells, with a heading."""
    head = (
        f"# One all-reduce of {CHUNKS} chunks of {WORDS} int32, {WORKERS} workers, {BYTES_PER_S * 8 / 1e6:g} Mbit/s, "
        f"{len(SEEDS)} seeds; virtual time.\n"
        f"#{'loss':>7} {'window':>8} {'delay_us':>10} {'Mbit/s':>10} {'slowest':>10} {'retransmissions':>16}\n"
    )
    return head + "".join(f"{cell(kind, *where)}\n" for where in itertools.product(LOSSES, WINDOWS, DELAYS_S))


def test_goodput_and_retransmissions_are_those_of_the_snapshot() -> None:
    if WORKER_MACHINES["native"] is None:
        pytest.skip("the native extension is not built")
    assert table("native").splitlines() == SNAPSHOT.read_text().splitlines()


@pytest.mark.parametrize("where", [(0.01, 32, 100e-6), (0.1, 4, 5e-6), (0.1, 32, 2e-3)], ids=str)
def test_the_twins_come_to_the_same(where: tuple[float, int, float]) -> None:
    if WORKER_MACHINES["native"] is None:
        pytest.skip("the native extension is not built")
    assert run("twin", *where, SEEDS[0]) == run("native", *where, SEEDS[0])


if __name__ == "__main__":
    SNAPSHOT.write_text(table("native"))

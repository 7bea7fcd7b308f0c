"""A job beside CUBIC flows behind one link, in virtual time: neither starves the other (docs/performance.md).

`python -m tests.simulator.test_beside_tcp` prints fair_shares.txt anew: rates, queues, round trips and workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.beside_tcp import Shares, shares
from tests.support.cluster import WORKER_MACHINES

pytestmark = pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")

TABLE = Path(__file__).with_name("fair_shares.txt")
SECONDS = {10: 12.0, 100: 5.0}
"""Measured, by Mbit/s: some cuts of each flow."""
ROUND_TRIPS_S = (2e-4, 2e-3, 2e-2)
QUEUES_KIB = (64, 256, 1024)
MAX_QUEUE_S = 0.3
"""Longer ones are left out: nobody waits for them, TCP's timers included."""
LEAST_PACKETS, MOST_PACKETS = 4, 180
"""Fair shares of queue and path, in packets, below or above which windows are as small, or pools as full, as can be."""


def cell(mbit_s: int, queue_kib: int, round_trip_s: float, workers: int, flows: int, seed: int = 1) -> Shares:
    return shares(
        workers=workers, flows=flows, seed=seed, bytes_per_s=mbit_s * 125e3, queue_bytes=queue_kib << 10,
        round_trip_s=round_trip_s, seconds=SECONDS[mbit_s],
    )  # fmt: skip


@pytest.mark.parametrize("flows", [1, 4])
def test_workers_and_cubic_flows_have_about_a_fair_share_each(flows: int) -> None:
    found = cell(100, 256, 2e-4, workers=2, flows=flows)
    assert 0.75 < found.worker < 1.25, found
    assert 0.65 < found.mean_tcp < 1.4, found
    assert found.together > 0.95


def rows() -> Iterator[str]:
    """The table, line by line: cells out of 0.5 to 1.5 are marked."""
    yield " Mbit/s queue KiB  trip ms workers flows  worker    TCP   all"
    cells = itertools.product(SECONDS, QUEUES_KIB, ROUND_TRIPS_S, (1, 2, 8), (1, 4))
    for mbit_s, queue_kib, round_trip_s, workers, flows in cells:
        held = (queue_kib << 10) + mbit_s * 125e3 * round_trip_s
        fair = held / (workers + flows) / 1480
        if queue_kib * 8.192 / mbit_s > MAX_QUEUE_S * 1000 or not LEAST_PACKETS <= fair <= MOST_PACKETS:
            continue
        found = cell(mbit_s, queue_kib, round_trip_s, workers, flows)
        ok = 0.5 <= found.worker <= 1.5 and 0.5 <= found.mean_tcp <= 1.5
        yield (
            f"{mbit_s:7} {queue_kib:9} {round_trip_s * 1e3:8.1f} {workers:7} {flows:5} {found.worker:7.2f} "
            f"{found.mean_tcp:6.2f} {found.together:5.2f}{'' if ok else '  <'}"
        )


if __name__ == "__main__":
    with TABLE.open("w") as table:
        for row in rows():
            print(row)
            table.write(row + "\n")
            table.flush()

"""The model of a thousand workers is the protocol: it ends when the real machines do, where both can be run."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.emulation.simulator.scale import Fabric, Transfer, aggregate, floor, halving_doubling, ring, table
from fanin.errors import ConfigurationError
from fanin.protocol.wire import OFFSET_KIND, Kind
from tests.support.cluster import WORKER_MACHINES, Cluster, job
from tests.support.network import Link
from tests.support.tree import Tree

DELAY_S, BYTES_PER_S = 5e-6, 1e8


def no_receipts(now: float, source: int, destination: int, data: bytes) -> bool:
    """Keeps receipts off the links: they measure the path, and the model leaves them out."""
    return data[OFFSET_KIND] != Kind.RECEIPT


def machines_s(kind: str, workers: int, window: int, dtype: type[np.generic], elements: int, words: int) -> float:
    """Virtual seconds that the machines take, packet by packet, from the submission to the last result."""
    spec = job(workers=workers, slots=window, words_per_packet=words)
    cluster = Cluster.joined(kind, spec=spec, switch=kind, link=Link(delay_s=DELAY_S, bytes_per_s=BYTES_PER_S))
    cluster.network.wiretap = no_receipts
    cluster.all_reduce([np.ones(8 * window * words, np.int32)] * workers)  # opens the congestion windows
    begun = cluster.network.now
    cluster.all_reduce([np.ones(elements, dtype)] * workers)
    assert cluster.total("retransmissions") == 0
    return cluster.network.now - begun


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize(("workers", "window"), [(2, 1), (2, 4), (4, 16), (8, 8), (8, 64)])
def test_the_model_ends_when_the_machines_do(workers: int, window: int, dtype: type[np.generic]) -> None:
    kind = "twin" if WORKER_MACHINES["native"] is None else "native"
    words, elements = 64, 64 * 50 + 24
    transfer = Transfer(
        tensor_bytes=elements * 4,
        words_per_packet=words,
        codes_per_packet=1 if dtype is np.float32 else 0,
        window=window,
        overhead_bytes=0,
    )
    fabric = Fabric(workers=workers, bytes_per_s=BYTES_PER_S, delay_s=DELAY_S, switch_s=0.0)
    assert aggregate(fabric, transfer) == pytest.approx(
        machines_s(kind, workers, window, dtype, elements, words), rel=1e-9
    )


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize(("leaves", "per_leaf", "window"), [(2, 2, 1), (2, 2, 8), (4, 4, 16), (3, 8, 32)])
def test_the_model_of_two_levels_ends_when_root_and_leaf_machines_do(
    leaves: int, per_leaf: int, window: int, dtype: type[np.generic]
) -> None:
    kind = "twin" if WORKER_MACHINES["native"] is None else "native"
    words, elements = 64, 64 * 50 + 24
    tree = Tree(
        root=kind,
        leaf=kind,
        worker=kind,
        leaves=leaves,
        per_leaf=per_leaf,
        slots=window,
        words_per_packet=words,
        link=Link(delay_s=DELAY_S, bytes_per_s=BYTES_PER_S),
    )
    tree.run_for(0.25)  # between two heartbeats
    tree.wiretap = no_receipts
    tree.all_reduce([np.ones(8 * window * words, np.int32)] * (leaves * per_leaf))  # opens the congestion windows
    begun = tree.now
    tree.all_reduce([np.ones(elements, dtype)] * (leaves * per_leaf))
    assert sum(worker.counters()["retransmissions"] for worker in tree.workers) == 0
    transfer = Transfer(
        tensor_bytes=elements * 4,
        words_per_packet=words,
        codes_per_packet=1 if dtype is np.float32 else 0,
        window=window,
        overhead_bytes=0,
    )
    fabric = Fabric(workers=leaves * per_leaf, ports=per_leaf, bytes_per_s=BYTES_PER_S, delay_s=DELAY_S, switch_s=0.0)
    assert aggregate(fabric, transfer) == pytest.approx(tree.now - begun, rel=1e-6)


def small(window: int = 32) -> Transfer:
    return Transfer.over(tensor_bytes=1 << 18, window=window)


@pytest.mark.parametrize("workers", [2, 32, 64, 1024])
def test_a_wide_window_reaches_the_floor_and_a_narrow_one_waits_for_round_trips(workers: int) -> None:
    fabric = Fabric(workers=workers)
    assert floor(fabric, small()) <= aggregate(fabric, small()) < 1.03 * floor(fabric, small())
    assert aggregate(fabric, small(window=1)) > 4 * floor(fabric, small(window=1))


def test_a_ring_sends_almost_everything_twice_and_pays_each_step() -> None:
    rows = {row.workers: row for row in table(small(), (8, 64, 256))}
    for row in rows.values():
        assert row.ring_s > 1.6 * row.aggregate_s
    assert rows[256].ring_s > rows[64].ring_s > rows[8].ring_s


def test_on_one_switch_halving_and_doubling_sends_what_a_ring_sends_in_fewer_steps() -> None:
    tiny = Transfer.over(tensor_bytes=4096)
    assert halving_doubling(Fabric(workers=32), tiny) < ring(Fabric(workers=32), tiny)


@pytest.mark.parametrize("workers", [1, 33, 100, 2048])
def test_what_does_not_fit_two_levels_is_refused(workers: int) -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        Fabric(workers=workers)


def test_halving_and_doubling_is_for_powers_of_two() -> None:
    with pytest.raises(ConfigurationError, match="powers of two"):
        halving_doubling(Fabric(workers=12), small())

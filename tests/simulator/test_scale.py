"""The model of ten thousand workers is the protocol: it ends when the real machines do, where both can be run."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fanin.emulation.simulator.scale import Fabric, Transfer, aggregate, floor, halving_doubling, ring, table
from fanin.emulation.simulator.scale_bounds import bounds
from fanin.errors import ConfigurationError
from fanin.protocol.wire import OFFSET_KIND, Kind
from tests.support.cluster import WORKER_MACHINES, Cluster, job
from tests.support.network import Link
from tests.support.tree import DeepTree, Tree

DELAY_S, BYTES_PER_S = 5e-6, 1e8
KIND = "twin" if WORKER_MACHINES["native"] is None else "native"
WORDS, ELEMENTS = 64, 64 * 50 + 24
"""Words of a packet, and elements of a reduction: 50 packets and a shorter one."""


def no_receipts(now: float, source: int, destination: int, data: bytes) -> bool:
    """Keeps receipts off the links: they measure the path, and the model leaves them out."""
    return data[OFFSET_KIND] != Kind.RECEIPT


def transfer_of(dtype: type[np.generic], window: int) -> Transfer:
    """The machines' reduction, in the model's terms."""
    return Transfer(
        tensor_bytes=ELEMENTS * 4,
        words_per_packet=WORDS,
        codes_per_packet=1 if dtype is np.float32 else 0,
        window=window,
        overhead_bytes=0,
    )


def machines_s(workers: int, window: int, dtype: type[np.generic]) -> float:
    """Virtual seconds that the machines take, packet by packet, from the submission to the last result."""
    spec = job(workers=workers, slots=window, words_per_packet=WORDS)
    cluster = Cluster.joined(KIND, spec=spec, switch=KIND, link=Link(delay_s=DELAY_S, bytes_per_s=BYTES_PER_S))
    cluster.network.wiretap = no_receipts
    cluster.all_reduce([np.ones(8 * window * WORDS, np.int32)] * workers)  # opens the congestion windows
    begun = cluster.network.now
    cluster.all_reduce([np.ones(ELEMENTS, dtype)] * workers)
    assert cluster.total("retransmissions") == 0
    return cluster.network.now - begun


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize(("workers", "window"), [(2, 1), (2, 4), (4, 16), (8, 8), (8, 64)])
def test_the_model_ends_when_the_machines_do(workers: int, window: int, dtype: type[np.generic]) -> None:
    transfer = transfer_of(dtype, window)
    fabric = Fabric(workers=workers, bytes_per_s=BYTES_PER_S, delay_s=DELAY_S, switch_s=0.0)
    assert aggregate(fabric, transfer) == pytest.approx(machines_s(workers, window, dtype), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize(("leaves", "per_leaf", "window"), [(2, 2, 1), (2, 2, 8), (4, 4, 16), (3, 8, 32)])
def test_the_model_of_two_levels_ends_when_root_and_leaf_machines_do(
    leaves: int, per_leaf: int, window: int, dtype: type[np.generic]
) -> None:
    tree = Tree(
        root=KIND,
        leaf=KIND,
        worker=KIND,
        leaves=leaves,
        per_leaf=per_leaf,
        slots=window,
        words_per_packet=WORDS,
        link=Link(delay_s=DELAY_S, bytes_per_s=BYTES_PER_S),
    )
    tree.run_for(0.25)  # between two heartbeats
    tree.wiretap = no_receipts
    tree.all_reduce([np.ones(8 * window * WORDS, np.int32)] * (leaves * per_leaf))  # opens the congestion windows
    begun = tree.now
    tree.all_reduce([np.ones(ELEMENTS, dtype)] * (leaves * per_leaf))
    assert sum(worker.counters()["retransmissions"] for worker in tree.workers) == 0
    transfer = transfer_of(dtype, window)
    fabric = Fabric(workers=leaves * per_leaf, ports=per_leaf, bytes_per_s=BYTES_PER_S, delay_s=DELAY_S, switch_s=0.0)
    assert aggregate(fabric, transfer) == pytest.approx(tree.now - begun, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize(("workers", "ports", "window"), [(8, 2, 1), (8, 2, 8), (10, 3, 16), (27, 3, 16)])
def test_the_model_of_three_levels_ends_when_root_middle_and_leaf_machines_do(
    workers: int, ports: int, window: int, dtype: type[np.generic]
) -> None:
    fabric = Fabric(workers=workers, ports=ports, bytes_per_s=BYTES_PER_S, delay_s=DELAY_S, switch_s=0.0)
    tree = DeepTree(
        KIND,
        [counts.tolist() for counts in fabric.children],
        slots=window,
        words_per_packet=WORDS,
        link=Link(delay_s=DELAY_S, bytes_per_s=BYTES_PER_S),
    )
    tree.run_for(0.25)  # between two heartbeats
    at_switch: Counter[int] = Counter()

    def tap(now: float, source: int, destination: int, data: bytes) -> bool:
        if data[OFFSET_KIND] == Kind.RECEIPT:
            return False
        at_switch.update({source, destination} & set(tree.switches))
        return True

    tree.wiretap = tap
    tree.all_reduce([np.ones(8 * window * WORDS, np.int32)] * workers)  # opens the congestion windows
    at_switch.clear()
    begun = tree.now
    results = tree.all_reduce([np.full(ELEMENTS, worker, dtype) for worker in range(workers)])
    assert all((result == workers * (workers - 1) / 2).all() for result in results)
    assert sum(worker.counters()["retransmissions"] for worker in tree.workers) == 0
    transfer = transfer_of(dtype, window)
    assert fabric.levels == 3
    assert aggregate(fabric, transfer) == pytest.approx(tree.now - begun, rel=1e-6)
    assert bounds(fabric, transfer).busiest_packets == max(at_switch.values())


def small(window: int = 32, bits: int = 18) -> Transfer:
    return Transfer.over(tensor_bytes=1 << bits, window=window)


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


def test_the_model_of_ten_thousand_workers_is_within_a_hundredth_of_the_floor() -> None:
    fabric = Fabric(workers=10_000)
    assert fabric.switches == (313, 10, 1)
    assert sum(fabric.children[0]) == 10_000
    assert max(map(max, fabric.children)) == 32
    assert floor(fabric, small(bits=21)) <= aggregate(fabric, small(bits=21)) < 1.01 * floor(fabric, small(bits=21))


@pytest.mark.parametrize("workers", [32, 1000, 2000])
def test_the_slots_that_a_tree_needs_fill_the_links_and_half_as_many_do_not(workers: int) -> None:
    fabric = Fabric(workers=workers)
    needed = bounds(fabric, small()).slots
    enough, halved = small(needed, bits=21), small(needed // 2, bits=21)
    assert aggregate(fabric, enough) < 1.02 * floor(fabric, enough)
    assert bounds(fabric, halved).bound_by == "slots"
    assert aggregate(fabric, halved) == pytest.approx(bounds(fabric, halved).window_s, rel=0.05)
    assert aggregate(fabric, halved) > 1.7 * floor(fabric, halved)


def test_each_level_costs_slots_and_each_doubling_a_bit_of_a_lane() -> None:
    rows = {workers: bounds(Fabric(workers=workers), Transfer.over()) for workers in (32, 1024, 2048, 10_000)}
    assert [row.slots for row in rows.values()] == [5, 9, 14, 14]
    assert [row.bits for row in rows.values()] == [25, 20, 19, 17]
    assert {row.bound_by for row in rows.values()} == {"links"}


@pytest.mark.parametrize("workers", [1, 32**3 + 1])
def test_what_does_not_fit_three_levels_is_refused(workers: int) -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        Fabric(workers=workers)


@pytest.mark.parametrize("fabric", [Fabric(workers=12), Fabric(workers=16, ports=3)])
def test_halving_and_doubling_is_for_powers_of_two(fabric: Fabric) -> None:
    with pytest.raises(ConfigurationError, match="powers of two"):
        halving_doubling(fabric, small())


def test_every_level_that_halving_and_doubling_crosses_is_shared_by_more_streams() -> None:
    seconds = [halving_doubling(Fabric(workers=8, ports=ports), small()) for ports in (8, 4, 2)]
    assert seconds[0] < seconds[1] < seconds[2]

"""The model of hosts with a shard each ends about when the real machines do, and says what the theorem says."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.emulation.simulator.scale import Fabric, Transfer
from fanin.emulation.simulator.scale_hosts import WINDOW, spread_over_hosts, table_over_hosts
from fanin.errors import ConfigurationError
from fanin.protocol.wire import OFFSET_KIND, Kind
from tests.support.machines import WORKER_MACHINES
from tests.support.many_to_many import ManyToMany
from tests.support.network import Link

DELAY_S, BYTES_PER_S, WORDS = 5e-6, 1e8, 64


def machines_s(hosts: int, slots: int, array: np.dtype[np.generic], elements: int) -> float:
    """Virtual seconds that the machines take over links that lose nothing, with windows that are open."""
    link = Link(delay_s=DELAY_S, bytes_per_s=BYTES_PER_S)
    cluster = ManyToMany(hosts, link, slots=slots, words_per_packet=WORDS)
    cluster.network.run_for(0.25)  # between two heartbeats
    cluster.network.wiretap = lambda now, source, destination, data: data[OFFSET_KIND] != Kind.RECEIPT
    cluster.all_reduce([np.ones(4 * slots * WORDS, np.int32)] * hosts)
    begun = cluster.network.now
    cluster.all_reduce([np.ones(elements, array)] * hosts)
    assert cluster.total("retransmissions") == 0
    return cluster.network.now - begun


@pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize(("hosts", "chunks"), [(4, 150), (6, 100)])
def test_the_model_ends_at_most_a_tenth_before_the_machines_do(
    hosts: int, chunks: int, dtype: type[np.generic]
) -> None:
    elements, slots = chunks * hosts * WORDS, 16 * hosts
    transfer = Transfer(
        tensor_bytes=4 * elements,
        words_per_packet=WORDS,
        codes_per_packet=1 if dtype is np.float32 else 0,
        window=slots,
        overhead_bytes=0,
    )
    fabric = Fabric(workers=hosts, ports=hosts, bytes_per_s=BYTES_PER_S, delay_s=DELAY_S, switch_s=0.0)
    measured = machines_s(hosts, slots, np.dtype(dtype), elements)
    assert 0.9 * measured < spread_over_hosts(fabric, transfer) < measured


@pytest.mark.parametrize("hosts", [8, 64, 1024])
def test_a_large_tensor_takes_a_tenth_more_than_the_theorem_says_at_most(hosts: int) -> None:
    (row,) = table_over_hosts(Transfer.over(tensor_bytes=16 << 20, window=WINDOW), (hosts,), largest_bytes=0)
    assert row.floor_s < row.spread_s < 1.1 * row.floor_s


def test_rivals_are_slower_up_to_a_size_that_grows_with_the_hosts_for_the_ring_alone() -> None:
    rows = table_over_hosts(Transfer.over(tensor_bytes=1 << 18, window=WINDOW), (8, 32), largest_bytes=1 << 22)
    assert rows[1].faster_than_ring_bytes > rows[0].faster_than_ring_bytes >= 1 << 17
    assert rows[1].faster_than_ring_bytes > rows[1].faster_than_halving_bytes


def test_what_is_too_small_for_all_shards_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="each of 64 shards"):
        spread_over_hosts(Fabric(workers=64, ports=64), Transfer.over(tensor_bytes=1 << 16))

"""Two levels of switches: the sum of sums is the sum, to the bit; what is lost is sent again; who dies is told.

What one leaf does packet by packet is test_leaf.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.numerics.reduction import EXACT, Element
from fanin.protocol.events import BranchNarrowed, PacketRefused, SwitchSilent, WorkersGone
from fanin.protocol.job import HEARTBEAT_INTERVAL_S, SUSPICION_TIMEOUT_S
from fanin.protocol.wire import Reason
from tests.support.bench import MACHINES, make_spec
from tests.support.builders import job_spec
from tests.support.cluster import expected
from tests.support.network import Link
from tests.support.tree import LEAF, ROOT, Tree

SUSPICION_S = HEARTBEAT_INTERVAL_S + SUSPICION_TIMEOUT_S
"""How long a suspected root may be silent."""
HOSTILE = Link(loss=0.1, duplicate=0.15, reorder=0.3)
KINDS = [("twin", "twin"), ("native", "native"), ("twin", "native"), ("native", "twin")]


@pytest.fixture(params=KINDS, ids=["-".join(kinds) for kinds in KINDS])
def kinds(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Machines of the root and of the leaves; the workers are of the leaves' kind."""
    if "native" in request.param and MACHINES["native"] is None:
        pytest.skip("the native extension is not built")
    root, leaf = request.param
    return {"root": root, "leaf": leaf, "worker": leaf}


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("lanes", [32, 8, EXACT])
def test_a_tree_computes_what_one_switch_computes_to_the_bit(
    kinds: dict[str, Any], lanes: int, link: Link | None
) -> None:
    tree = Tree(**kinds, link=link)
    random = np.random.default_rng(3)
    for _ in range(3):
        inputs = [random.normal(size=137).astype(np.float32) for _ in range(4)]
        results = tree.all_reduce(inputs, lanes=lanes)
        flat = job_spec(workers=4)  # one switch with all of them
        one_switch = expected(flat, inputs, Element.FLOAT32, lanes)
        for result in results:
            assert result.tobytes() == one_switch.tobytes()


def test_an_exact_sum_in_a_tree_takes_ranks_in_order_however_many_there_are(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds, leaves=3, per_leaf=4, words_per_packet=8)  # a packet has no word for every rank
    inputs = [np.array([1e30 * (-1) ** rank + rank, 2.0**-rank, -0.0], np.float64) for rank in range(12)]
    wanted = inputs[0]
    for each in inputs[1:]:
        wanted = wanted + each
    for result in tree.all_reduce(inputs, lanes=EXACT):
        assert result.tobytes() == wanted.tobytes()


def test_a_mean_divides_by_all_contributors(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds, leaves=3)
    inputs = [np.full(50, float(worker), np.float32) for worker in range(6)]
    assert [result.tolist() for result in tree.all_reduce(inputs, divisor=0.0)] == [[2.5] * 50] * 6


def test_a_leaf_of_one_worker_and_a_tree_of_one_leaf_are_trees(kinds: dict[str, Any]) -> None:
    for leaves, per_leaf in ((3, 1), (1, 3)):
        tree = Tree(**kinds, leaves=leaves, per_leaf=per_leaf)
        results = tree.all_reduce([np.arange(100, dtype=np.int32) * (1 + w) for w in range(3)])
        assert all(result.tolist() == (6 * np.arange(100)).tolist() for result in results)


# R-LEAF-10
@pytest.mark.parametrize("busy", [True, False], ids=["in mid collective", "idle"])
def test_when_a_leaf_dies_every_worker_knows_within_ten_seconds(kinds: dict[str, Any], busy: bool) -> None:
    tree = Tree(**kinds)
    tree.cut(LEAF + 1)
    for worker in range(4 if busy else 0):
        tree.submit(worker, np.ones(100, np.float32))
    tree.run_for(8.0)
    assert [tree.news(worker) for worker in (0, 1)] == [[PacketRefused(Reason.BRANCH_LOST)]] * 2
    assert all(isinstance(news, SwitchSilent) for worker in (2, 3) for news in tree.news(worker))
    assert all(worker.failed for worker in tree.workers)


def test_when_the_root_dies_every_worker_knows_within_ten_seconds(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.cut(0)
    tree.run_for(8.0)
    assert [tree.news(worker) for worker in range(4)] == [[PacketRefused(Reason.BRANCH_LOST)]] * 4


# R-MEMBER-7
@pytest.mark.parametrize("busy", [True, False], ids=["in mid collective", "idle"])
def test_when_a_suspected_root_is_dead_every_worker_knows_soon(kinds: dict[str, Any], busy: bool) -> None:
    tree = Tree(**kinds)
    tree.cut(ROOT)
    for worker in range(4 if busy else 0):
        tree.submit(worker, np.ones(100, np.float32))
    tree.suspect_root()
    tree.run_for(SUSPICION_S - 0.01)
    assert [tree.news(worker) for worker in range(4)] == [[]] * 4
    tree.run_for(HEARTBEAT_INTERVAL_S)
    assert [tree.news(worker) for worker in range(4)] == [[PacketRefused(Reason.BRANCH_LOST)]] * 4


# R-MEMBER-7
def test_a_suspected_root_that_lives_is_not_lost_although_heartbeats_are(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.cut(ROOT)
    tree.suspect_root()
    tree.run_for(SUSPICION_TIMEOUT_S)  # what is lost: the HELLO at once, and the one after a heartbeat interval
    tree.heal(ROOT)
    tree.run_for(8.0)
    assert [tree.news(worker) for worker in range(4)] == [[]] * 4
    tree.all_reduce([np.ones(60, np.float32)] * 4)
    tree.cut(ROOT)
    tree.run_for(2.0)
    assert [tree.news(worker) for worker in range(4)] == [[]] * 4, "the suspicion was withdrawn: silence is left"


def test_when_a_worker_dies_those_at_other_leaves_that_need_it_know_within_ten_seconds(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.cut(100)
    for worker in range(4):
        tree.submit(worker, np.ones(100, np.float32))
    tree.run_for(9.0)
    assert tree.news(1) == [WorkersGone(0b1, 0)], "its own leaf's workers know which one"
    assert [tree.news(worker) for worker in (2, 3)] == [[PacketRefused(Reason.BRANCH_LEFT)]] * 2


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
def test_a_job_that_ends_as_it_should_leaves_nobody_with_an_error(kinds: dict[str, Any], link: Link | None) -> None:
    tree = Tree(**kinds, link=link)
    tree.all_reduce([np.ones(60, np.float32)] * 4)
    for worker in (0, 1):
        tree.leave(worker)
    tree.run_for(3.0)
    assert not any(tree.workers[worker].failed for worker in (2, 3)), "they may be done as well"
    for worker in (2, 3):
        tree.leave(worker)
    tree.run_for(3.0)
    assert not any(worker.failed for worker in tree.workers)
    assert tree.root.members(9)[2] == 0b11, "both leaves have said BYE"


def test_leaves_whose_workers_call_different_collectives_are_told_so(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    for worker in range(4):
        tree.submit(worker, np.ones(100, np.float32), signature=1 + worker // 2)
    tree.run_for(2.0)
    told = [tree.news(worker) for worker in range(4)]
    assert [[PacketRefused(Reason.MISMATCH)]] * 2 in (told[:2], told[2:])


def test_lanes_are_sized_for_all_workers_of_the_tree_and_trees_are_synchronous() -> None:
    assert replace(make_spec(workers=2), total_workers=100).contributions == 100
    with pytest.raises(ConfigurationError, match="synchronous"):
        replace(make_spec(workers=2, quorum=1), total_workers=4)
    with pytest.raises(ConfigurationError, match="total_workers"):
        replace(make_spec(workers=3), total_workers=2)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_leaf_whose_long_packets_are_lost_tells_its_workers_and_its_controller(
    kinds: dict[str, Any], direction: str
) -> None:
    tree = Tree(**kinds, words_per_packet=256)
    passes_bytes = 600

    def narrow(_: float, source: int, destination: int, data: bytes) -> bool:
        ends = (source, destination) if direction == "up" else (destination, source)
        return len(data) <= passes_bytes or ends != (LEAF, ROOT)

    tree.wiretap = narrow
    for worker in range(4):
        tree.submit(worker, np.ones(1000, np.int32))
    tree.run_for(tree.root_spec.liveness_timeout_s + 3 * HEARTBEAT_INTERVAL_S)
    [told] = [event for event in tree.events[LEAF] if isinstance(event, BranchNarrowed)]
    assert passes_bytes - 8 <= told.passes_bytes <= passes_bytes < told.needed_bytes
    assert [tree.news(worker) for worker in (0, 1)] == [[PacketRefused(Reason.BRANCH_LOST)]] * 2


def test_a_leaf_that_waits_for_another_goes_on(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds, words_per_packet=16)  # as many as a Tofino parses
    for worker in (0, 1):
        tree.submit(worker, np.ones(1000, np.int32))
    tree.run_for(4 * tree.root_spec.liveness_timeout_s)
    for worker in (2, 3):
        tree.submit(worker, np.ones(1000, np.int32))
    tree.run_until(lambda: not any(each.outstanding() for each in tree.workers))
    assert [tree.news(worker) for worker in range(4)] == [[]] * 4

"""Trees with a P4 program at the root, at the leaves, or at both: the result is one switch's, to the bit.

What one leaf does packet by packet is among the scenarios of test_conformance.py.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from fanin.job import JobSpec
from fanin.reduction import Element
from fanin.wire import SWITCH_WORKER, Flag, Kind
from tests.support.cluster import SWITCH_MACHINES, expected
from tests.support.network import Link
from tests.support.tree import LEAF, Tree
from tests.switch.harness import address, words_of
from tests.switch.test_tree import HOSTILE, PARENT, Leaf, parent_packet

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.events import Refused, SwitchSilent
from fanin.wire import Packet, Reason
from tests.p4.conformance import paired
from tests.p4.emulated import P4Machine

KINDS = [("p4", "p4"), ("p4", "twin"), ("twin", "p4")]


@pytest.fixture(params=KINDS, ids=["-".join(kinds) for kinds in KINDS])
def kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Machines of the root and of the leaves."""
    monkeypatch.setitem(SWITCH_MACHINES, "p4", P4Machine)
    root, leaf = request.param
    return {"root": root, "leaf": leaf, "worker": "twin"}


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("lanes", [32, 8])
def test_a_tree_computes_what_one_switch_computes_to_the_bit(
    kinds: dict[str, Any], lanes: int, link: Link | None
) -> None:
    tree = Tree(**kinds, link=link)
    random = np.random.default_rng(3)
    inputs = [random.normal(size=137).astype(np.float32) for _ in range(4)]
    flat = JobSpec(job=1, generation=1, workers=4, quorum=4, slots=4, words_per_packet=16, tokens=(0, 1, 2, 3))
    one_switch = expected(flat, inputs, Element.FLOAT32, lanes)
    for result in tree.all_reduce(inputs, lanes=lanes):
        assert result.tobytes() == one_switch.tobytes()


def test_a_mean_divides_by_all_contributors(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds, leaves=3)
    inputs = [np.full(50, float(worker), np.float32) for worker in range(6)]
    assert [result.tolist() for result in tree.all_reduce(inputs, divisor=0.0)] == [[2.5] * 50] * 6


def test_when_a_leaf_dies_every_worker_knows_within_ten_seconds(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.cut(LEAF + 1)
    for worker in range(4):
        tree.submit(worker, np.ones(100, np.float32))
    tree.run_for(8.0)
    assert [tree.news(worker) for worker in (0, 1)] == [[Refused(Reason.BRANCH_LOST)]] * 2
    assert all(isinstance(news, SwitchSilent) for worker in (2, 3) for news in tree.news(worker))


def test_when_the_root_dies_every_worker_knows_within_ten_seconds(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.cut(0)
    tree.run_for(8.0)
    assert [tree.news(worker) for worker in range(4)] == [[Refused(Reason.BRANCH_LOST)]] * 4


def test_a_job_that_ends_as_it_should_leaves_nobody_with_an_error(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.all_reduce([np.ones(60, np.float32)] * 4)
    for worker in range(4):
        tree.leave(worker)
    tree.run_for(3.0)
    assert not any(worker.failed for worker in tree.workers)
    assert tree.root.members(9)[2] == 0b11, "both leaves have said BYE"


@pytest.mark.parametrize("seed", range(12))
def test_any_history_of_a_leaf_is_the_twins(seed: int) -> None:
    """Contributions and passes of two workers, results and worse from the parent: the same packets, byte for byte."""
    random = Random(seed)
    leaf = Leaf(paired("p4"))
    closed, ascents = [0, 0], 0
    for _ in range(120):
        slot = random.randrange(2)
        if random.random() < 0.6:
            base = max(0, closed[slot] - random.choice([0, 0, 0, 0, 1]))
            flags = random.choice([Flag(0)] * 5 + [Flag.PASS])
            words = words_of() if flags else words_of(random.getrandbits(32), 1)
            packet = Packet(
                kind=Kind.CONTRIBUTION, job=leaf.spec.job, worker=random.randrange(2), flags=flags,
                generation=leaf.spec.generation, slot=slot, base=base, signature=5, codes=(3,) * len(words[:1]),
                words=words,
            )  # fmt: skip
            sent = leaf.say(packet, address(packet.worker))
        else:
            data = parent_packet(random, closed[slot])
            if data[3] in (Kind.NOTICE, Kind.BYE) or data[7] & Flag.CHECKSUM:
                continue  # they end the job; and checksums are refused
            sent = leaf.say(data, PARENT)
        for each, _ in sent:
            ascents += each.kind is Kind.CONTRIBUTION
            if each.kind is Kind.RESULT:
                assert each.worker == SWITCH_WORKER
                closed[each.slot] = each.base + 1
    assert ascents
    assert sum(closed)

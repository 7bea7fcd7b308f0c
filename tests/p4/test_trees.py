"""Trees with a P4 program at the root, at the leaves, or at both: the scenarios of tests/switch/test_tree.py.

The Tofino program's controls can be a leaf, and no root.

What one leaf does packet by packet is among the scenarios of test_conformance.py; here are histories of one.
"""

from __future__ import annotations

import inspect
from random import Random
from typing import Any

import numpy as np
import pytest

from fanin.numerics.reduction import COPIED
from fanin.protocol.wire import OFFSET_FLAGS, OFFSET_KIND, Flag, Kind
from tests.support.cluster import SWITCH_MACHINES
from tests.support.leaf import Leaf, LeafHistory
from tests.support.tree import LEAF, ROOT, Tree
from tests.switch import test_tree
from tests.switch.test_tree import HOSTILE

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from tests.p4.conformance import paired
from tests.p4.emulated import P4Machine
from tests.p4.tofino import tofino_leaf

KINDS = [("p4", "p4"), ("p4", "twin"), ("twin", "p4"), ("twin", "tofino"), ("p4", "tofino")]


@pytest.fixture(params=KINDS, ids=["-".join(kinds) for kinds in KINDS])
def kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Machines of the root and of the leaves."""
    monkeypatch.setitem(SWITCH_MACHINES, "p4", P4Machine)
    monkeypatch.setitem(SWITCH_MACHINES, "tofino", tofino_leaf)
    root, leaf = request.param
    return {"root": root, "leaf": leaf, "worker": "twin"}


TAKEN = {
    name: each
    for name, each in vars(test_tree).items()
    if name.startswith("test_") and "kinds" in inspect.signature(each).parameters
}
NARROWED = TAKEN.pop("test_a_leaf_whose_long_packets_are_lost_tells_its_workers_and_its_controller")
globals().update(TAKEN)


def test_there_are_scenarios_to_take() -> None:
    assert len(TAKEN) >= 8


@pytest.mark.parametrize("kinds", [("p4", "twin")], ids=["p4-twin"], indirect=True)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_root_answers_a_leaf_that_asks_whether_long_packets_pass(kinds: dict[str, Any], direction: str) -> None:
    """A leaf in a pipeline does not ask: its controller does not see which rounds wait (UplinkPresence.packets_due)."""
    NARROWED(kinds, direction)


def broadcast(tree: Tree, source: int, given: np.ndarray) -> list[np.ndarray]:
    """Submit one of worker `source`, the only one that contributes; what everybody will have."""
    arrays = [np.array(given) if worker == source else np.zeros_like(given) for worker in range(len(tree.workers))]
    for worker, array in enumerate(arrays):
        tree.submit(worker, array, lanes=COPIED, own_count=len(given) if worker == source else 0)
    return arrays


def test_a_leaf_all_of_whose_workers_passed_gets_a_result_that_was_lost(kinds: dict[str, Any]) -> None:
    """A parent may answer what it passes again without the result; what the leaf says then must get it."""
    tree = Tree(**kinds)
    given = np.arange(64, dtype=np.uint8)  # one packet
    lost: list[bytes] = []
    up: list[bytes] = []
    down: list[bytes] = []

    def tap(now: float, source: int, destination: int, data: bytes) -> bool:
        ends = {source, destination}
        if ends != {ROOT, LEAF} or data[OFFSET_KIND] not in (Kind.CONTRIBUTION, Kind.RESULT, Kind.ANSWER):
            return True
        (up if source == LEAF else down).append(data)
        assert len(up) <= 6, "a pass, its repetitions by two workers, and a question for each answer"
        if data[OFFSET_KIND] == Kind.RESULT and not lost:
            lost.append(data)
            return False
        return True

    tree.wiretap = tap
    arrays = broadcast(tree, 3, given)
    tree.run_until(lambda: not any(each.outstanding() for each in tree.workers), limit_s=2.0)
    assert all(array.tolist() == given.tolist() for array in arrays)
    assert len(lost) == 1
    assert len(down) <= 6


@pytest.mark.parametrize("seed", range(4))
def test_broadcasts_from_any_worker_arrive_in_a_hostile_network(kinds: dict[str, Any], seed: int) -> None:
    """The leaves without the source pass, and ask for what the network loses."""
    random = Random(seed)
    tree = Tree(**kinds, link=HOSTILE, seed=seed)
    sent = 0

    def tap(now: float, source: int, destination: int, data: bytes) -> bool:
        nonlocal sent
        sent += 1
        assert sent < 4000
        return True

    tree.wiretap = tap
    for _ in range(6):
        given = np.frombuffer(random.randbytes(random.randrange(1, 900)), np.uint8)
        arrays = broadcast(tree, random.randrange(4), given)
        tree.run_until(lambda: not any(each.outstanding() for each in tree.workers), limit_s=10.0)
        assert all(array.tobytes() == given.tobytes() for array in arrays)


@pytest.mark.parametrize("seed", range(12))
def test_any_history_of_a_leaf_is_the_twins(seed: int) -> None:
    """Contributions and passes of two workers, results and worse from the parent: the same packets, byte for byte."""
    random = Random(seed)
    leaf = Leaf(paired("p4"))
    history, ascents = LeafHistory(leaf, random), 0
    for _ in range(120):
        data, source = history.datagram()
        if data[OFFSET_KIND] in (Kind.NOTICE, Kind.BYE) or data[OFFSET_FLAGS] & Flag.CHECKSUM:
            continue  # they end the job; and checksums are refused
        sent = [packet.to_bytes() for packet, _ in leaf.say(data, source)]
        ascents += sum(each[OFFSET_KIND] == Kind.CONTRIBUTION for each in sent)
        history.sent(sent)
    assert ascents
    assert history.rounds

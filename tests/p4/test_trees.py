"""Trees with a P4 program at the root, at the leaves, or at both: the scenarios of tests/switch/test_tree.py.

The Tofino program's controls can be a leaf, and no root.

What one leaf does packet by packet is among the scenarios of test_conformance.py; here are histories of one.
"""

from __future__ import annotations

import inspect
from random import Random
from typing import Any

import pytest

from fanin.protocol.wire import OFFSET_FLAGS, OFFSET_KIND, Flag, Kind
from tests.support.cluster import SWITCH_MACHINES
from tests.support.leaf import Leaf, LeafHistory
from tests.switch import test_tree

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
globals().update(TAKEN)


def test_there_are_scenarios_to_take() -> None:
    assert len(TAKEN) >= 8


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

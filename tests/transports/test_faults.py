"""The fault grammar, and the transport that carries it out."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.faults import EXAMPLE, FaultPlan
from fanin.host.transports import FaultyTransport
from fanin.transports.transport import SWITCH
from tests.transports.rigs import memory_rig

COUNT = 2000


def test_the_example_in_the_documentation_is_read() -> None:
    plan = FaultPlan.parse(EXAMPLE)
    assert plan == FaultPlan(drop=0.01, duplicate=0.005, reorder=0.02, corrupt=0.0001, seed=7)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", FaultPlan()),
        ("drop=20%", FaultPlan(drop=0.2)),
        (" drop = 0.25 , dup=1 @ seed = 3 ", FaultPlan(drop=0.25, duplicate=1.0, seed=3)),
        ("@seed=9", FaultPlan(seed=9)),
    ],
)
def test_parts_left_out_are_zero_and_spaces_do_not_matter(text: str, plan: FaultPlan) -> None:
    assert FaultPlan.parse(text) == plan


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("drop", "no probability"),
        ("drop=1%%", "no probability"),
        ("drop=101%", "0..1"),
        ("drop=-1%", "0..1"),
        ("drop=nan", "0..1"),
        ("loss=1%", "none of drop, dup, reorder, corrupt"),
        ("drop=1%,drop=2%", "twice"),
        ("drop=1%@7", "@seed=NUMBER"),
        ("drop=1%@seed=x", "@seed=NUMBER"),
        ("drop=1%@seed=-1", "@seed=NUMBER"),
    ],
)
def test_a_wrong_part_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        FaultPlan.parse(text)


@given(st.text("drop=1%,u@se.-cé \n", max_size=40))
def test_no_text_raises_anything_but_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        FaultPlan.parse(text)


def _through(plan: FaultPlan, stream: str = "") -> list[bytes]:
    """The survivors of COUNT distinct datagrams, sent one by one and then flushed by silence."""
    rig = memory_rig()
    worker = FaultyTransport(rig.worker(), plan, stream)
    for index in range(COUNT):
        rig.switch.send([(b"%06d" % index, 0)])
    arrived = [data for _ in range(COUNT) for data, _ in worker.receive(0.0)]
    rig.close()
    return arrived


def test_without_faults_everything_passes_in_order() -> None:
    assert _through(FaultPlan(seed=1)) == [b"%06d" % index for index in range(COUNT)]


def test_the_same_seed_strikes_the_same_datagrams_and_another_stream_others() -> None:
    plan = FaultPlan.parse("drop=10%,dup=10%,reorder=10%,corrupt=10%@seed=5")
    assert _through(plan, "0/0") == _through(plan, "0/0")
    assert _through(plan, "0/0") != _through(plan, "1/0")


def test_drops_and_duplicates_strike_as_often_as_asked() -> None:
    lost = COUNT - len(_through(FaultPlan(drop=0.2, seed=2)))
    assert 0.15 * COUNT < lost < 0.25 * COUNT
    copies = Counter(_through(FaultPlan(duplicate=0.2, seed=2)))
    assert len(copies) == COUNT
    assert 0.15 * COUNT < sum(count == 2 for count in copies.values()) < 0.25 * COUNT


def test_reordering_loses_nothing_and_moves_a_datagram_a_few_places() -> None:
    arrived = _through(FaultPlan(reorder=0.1, seed=3))
    assert sorted(arrived) == [b"%06d" % index for index in range(COUNT)]
    places = [int(data) - place for place, data in enumerate(arrived)]
    assert any(places)
    assert max(map(abs, places)) < 30


def test_corruption_changes_or_shortens_and_never_lengthens() -> None:
    arrived = _through(FaultPlan(corrupt=1.0, seed=4))
    assert len(arrived) == COUNT
    assert all(len(data) <= 6 for data in arrived)
    changed = sum(data != b"%06d" % index for index, data in enumerate(arrived))
    assert changed > 0.95 * COUNT


def test_what_is_sent_suffers_too() -> None:
    rig = memory_rig()
    worker = FaultyTransport(rig.worker(), FaultPlan(drop=1.0))
    worker.send([(b"lost", SWITCH)])
    assert rig.switch.receive(0.0) == []
    rig.close()

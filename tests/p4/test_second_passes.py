"""The metadata and the length of second passes, clones and replicas, as BMv2's simple_switch has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from fanin.errors import PacketError
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.replication import MirrorSession, Replica
from fanin.switch.p4.v1model import EGRESS_CLONE, INGRESS_CLONE, MAX_PASSES, NORMAL, REPLICATED
from tests.p4.bmv2 import ALIASES, STANDARD_METADATA, action, call, extract, field, number, program, start, state, table
from tests.p4.bmv2 import to_port as to

MARKED = call("assign", field("m", "x"), number(1))
STANDARD = [*STANDARD_METADATA, ["ingress_global_timestamp", 48]]
STAMPED = [["intrinsic_metadata.ingress_global_timestamp", ["standard_metadata", "ingress_global_timestamp"]]]
SHOWN = {
    "port": "ingress_port",
    "kind": "instance_type",
    "length": "packet_length",
    "stamp": "ingress_global_timestamp",
}
OVERWRITTEN = (
    field("standard_metadata", "instance_type"),
    field("standard_metadata", "packet_length"),
    field("m", "x"),
)
CUT = call("truncate", number(3))
PAYLOAD = b"PAYLOAD"
LENGTH = 19 + len(PAYLOAD)
NOW_S = 7.0


class Seen(NamedTuple):
    """A packet's metadata, as egress has written it into the header that leaves."""

    at: int
    port: int
    kind: int
    length: int
    stamp: int
    parsed: int
    x: int
    first_kind: int
    bytes: int


def acting(*first: Any, egress: tuple[Any, ...] = (), kept: tuple[Any, ...] = (field("m", "x"),)) -> V1Switch:
    """Does `first` in ingress while m.x is 0, and then nothing; egress writes its metadata and does `egress`.

    The parser sets m.parsed to 7; ingress notes in m.first_kind what instance_type was there.
    """
    noted = call("assign", field("m", "first_kind"), field("standard_metadata", "instance_type"))
    fields = [*(call("assign", field("h", ours), field("standard_metadata", theirs)) for ours, theirs in SHOWN.items())]
    fields += [call("assign", field("h", name), field("m", name)) for name in ("parsed", "x", "first_kind")]
    fresh = {"match_type": "exact", "key": "0x00"}
    entry = {"match_key": [fresh], "action_entry": {"action_id": 0, "action_data": []}, "priority": 1}
    document = program(
        types={
            "h_t": [
                ["port", 16],
                ["kind", 8],
                ["length", 16],
                ["stamp", 64],
                ["parsed", 8],
                ["x", 8],
                ["first_kind", 40],
            ],
            "m_t": [["x", 8], ["parsed", 8], ["first_kind", 40]],
        },
        headers={"h": "h_t", "m": "m_t"},
        metadata=["m"],
        states=[state("start", [extract("h"), call("set", field("m", "parsed"), number(7))])],
        actions=[action("first", noted, *first), action("later", noted, to(9)), action("show", *fields, *egress)],
        ingress=[table("t", ["first", "later"], [("exact", "m", "x")], default=(1, ()), entries=[entry])],
        egress=[table("e", ["show"], default=(2, ()))],
        emitted=["h"],
        field_lists=[{"id": 1, "name": "kept", "elements": list(kept)}],
    )
    document["header_types"][0]["fields"] = STANDARD
    document["field_aliases"] = ALIASES + STAMPED
    return start(document)


def seen(switch: V1Switch) -> list[Seen]:
    """The packets that leave after one has come in through port 3."""
    switch.mirrors[5] = MirrorSession((Replica(4, 0),))
    switch.groups[7] = Replica(1, 1), Replica(2, 2)
    return [read(port, data) for port, data in switch.process(3, bytes(19) + PAYLOAD, NOW_S)]


def read(port: int, data: bytes) -> Seen:
    places = (2, 1, 2, 8, 1, 1, 5)
    starts = [sum(places[:at]) for at in range(len(places))]
    values = [
        int.from_bytes(data[at : at + size].ljust(size, b"\0"), "big") for at, size in zip(starts, places, strict=True)
    ]
    return Seen._make((port, *values, len(data)))


def test_a_resubmitted_packet_has_its_own_type_and_length_whatever_the_list_says() -> None:
    (left,) = seen(acting(MARKED, call("resubmit", number(1)), kept=OVERWRITTEN))
    assert left == Seen(9, 0, NORMAL, LENGTH, 0, 7, 1, 6, LENGTH)


def test_a_recirculated_packet_has_its_own_type_and_length_whatever_the_list_says() -> None:
    (left,) = seen(acting(MARKED, to(9), call("recirculate", number(1)), kept=OVERWRITTEN))
    assert left == Seen(9, 0, NORMAL, LENGTH, 0, 7, 1, 4, LENGTH)


@pytest.mark.parametrize("again", ["resubmit", "recirculate"])
def test_the_ingress_port_and_the_time_stamp_come_along_only_in_the_list(again: str) -> None:
    kept = (
        field("m", "x"),
        *(field("standard_metadata", name) for name in ("ingress_port", "ingress_global_timestamp")),
    )
    (without,) = seen(acting(MARKED, to(9), call(again, number(1))))
    (with_them,) = seen(acting(MARKED, to(9), call(again, number(1)), kept=kept))
    assert (without.port, without.stamp) == (0, 0)
    assert (with_them.port, with_them.stamp) == (3, int(NOW_S * 1e6))


def test_an_ingress_clone_loses_all_metadata_that_its_second_parse_set() -> None:
    clone = seen(acting(MARKED, call("clone_ingress_pkt_to_egress", number(5), number(0)), to(9)))[0]
    assert clone == Seen(4, 0, INGRESS_CLONE, LENGTH, 0, 0, 0, 0, LENGTH)


def test_an_ingress_clone_keeps_the_fields_of_its_list() -> None:
    clone = seen(acting(MARKED, call("clone_ingress_pkt_to_egress", number(5), number(1)), to(9)))[0]
    assert (clone.kind, clone.x, clone.parsed) == (INGRESS_CLONE, 1, 0)


def test_an_egress_clone_has_its_type_after_the_list() -> None:
    once = call("_jump_if_zero", field("m", "x"), number(9))
    kept = (field("standard_metadata", "instance_type"),)
    switch = acting(MARKED, to(9), egress=(once, call("clone_egress_pkt_to_egress", number(5), number(1))), kept=kept)
    clone = next(each for each in seen(switch) if each.at == 4)
    assert (clone.port, clone.kind, clone.x, clone.stamp) == (0, EGRESS_CLONE, 0, 0)


def test_replicas_of_a_truncated_packet_are_whole() -> None:
    group = call("assign", field("standard_metadata", "mcast_grp"), number(7))
    left = seen(acting(CUT, group))
    assert [(each.at, each.kind, each.bytes) for each in left] == [(1, REPLICATED, LENGTH), (2, REPLICATED, LENGTH)]


def test_a_replica_that_egress_truncates_is_cut() -> None:
    group = call("assign", field("standard_metadata", "mcast_grp"), number(7))
    assert [each.bytes for each in seen(acting(group, egress=(CUT,)))] == [3, 3]


def test_a_truncated_packet_that_recirculates_or_resubmits_is_whole() -> None:
    for again in ("recirculate", "resubmit"):
        (left,) = seen(acting(MARKED, CUT, to(9), call(again, number(1))))
        assert (left.length, left.bytes) == (LENGTH, LENGTH)


def test_clones_of_a_truncated_packet_are_whole_and_the_packet_is_cut() -> None:
    cut = seen(acting(CUT, call("clone_ingress_pkt_to_egress", number(5), number(0)), to(9)))
    assert sorted((each.at, each.bytes) for each in cut) == [(4, LENGTH), (9, 3)]


def test_a_program_that_resubmits_for_ever_is_counted_by_name_and_the_switch_goes_on() -> None:
    switch = acting(call("resubmit", number(1)), kept=())
    for count in (1, 2):
        with pytest.raises(PacketError, match=f"more than {MAX_PASSES} passes"):
            seen(switch)
        assert (switch.tally.failed, switch.tally.endless) == (count, count)

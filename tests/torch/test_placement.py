"""Places of a group's sums: rank 0's decision, and that every rank comes to the same switches."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")

from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError, JoinTimeoutError, SwitchUnreachableError, WorkerLostError
from fanin.host.torch.meeting import placement, rendezvous
from fanin.host.torch.meeting.meeting import Meeting
from fanin.host.torch.meeting.network_interfaces import NetworkCard
from fanin.host.torch.meeting.placement import Hosts, hosts_of, where_to_sum
from fanin.host.torch.meeting.rendezvous import meet
from fanin.host.torch.meeting.started_switches import STARTED
from fanin.host.torch.meeting.versions import Versions, own_versions
from fanin.interface_list import InterfaceList
from fanin.options import Options, SwitchAddress

SIZE = 4
TIMEOUT = timedelta(seconds=60)
A, B, C = (f"udp://10.0.0.{last}:4919" for last in (1, 2, 3))


@pytest.fixture(autouse=True)
def _no_switch_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start of a switch is a new address."""
    numbers = itertools.count(1)
    monkeypatch.setattr(
        STARTED,
        "start",
        lambda options, secret, hosts, rank: tuple(
            SwitchAddress("udp", host, next(numbers)) for host in hosts or ("10.9.9.9",)
        ),
    )
    monkeypatch.setattr(STARTED, "release", lambda secret: None)
    monkeypatch.setattr(
        STARTED,
        "start_leaves",
        lambda shards, options, secret, rank: [SwitchAddress("udp", "10.8.8.8", next(numbers)) for _ in shards],
    )
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


def met(options: list[Options], size: int = SIZE, ranks: list[int] | None = None) -> list[Meeting]:
    """The meeting of every rank, each with options of its own."""
    store = c10d.HashStore()
    store.set_timeout(TIMEOUT)

    def of(rank: int) -> Meeting:
        return meet(store, rank, size, "j", options[rank], TIMEOUT, ranks or [])

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(of, range(size)))


def on_hosts(*names: str, **given: object) -> list[Options]:
    return [Options(host=name, **given) for name in names]  # type: ignore[arg-type]


def test_ranks_of_one_machine_use_a_switch_beside_rank_0() -> None:
    found = met([Options()] * SIZE)
    assert len({each.switches for each in found}) == 1
    assert len(found[0].switches) == 1
    assert [each.holds_switch for each in found] == [True, False, False, False]
    assert {each.local for each in found} == {frozenset(found[0].switches)}


def test_every_host_has_a_shard_started_by_its_lowest_rank() -> None:
    found = met(on_hosts("a", "b", "c", "d"))
    assert len({each.switches for each in found}) == 1
    assert len(found[0].switches) == SIZE
    assert all(each.holds_switch for each in found)
    assert [each.local for each in found] == [frozenset({found[0].switches[rank]}) for rank in range(SIZE)]


def test_ranks_of_one_host_meet_at_its_leaves_of_all_shards() -> None:
    found = met(on_hosts("a", "b", "a", "b"))
    assert len({each.shards for each in found}) == 1
    assert len(found[0].shards) == 2
    assert [each.holds_switch for each in found] == [True, True, False, False]
    assert [each.switches for each in found] == [found[rank % 2].leaves for rank in range(SIZE)]
    assert not set(found[0].leaves) & {*found[1].leaves, *found[0].shards}
    assert [each.local for each in found] == [frozenset(each.leaves) for each in found]


def test_rank0_keeps_one_switch_and_tells_hosts_apart() -> None:
    found = met(on_hosts("a", "b", "a", "b", switch="rank0"))
    assert {each.switches for each in found} == {found[0].switches}
    assert [len(each.local) for each in found] == [1, 0, 1, 0], "no shared memory between hosts"


def test_one_host_by_name_is_one_switch() -> None:
    found = met(on_hosts("a", "a", "a", "a"))
    assert len(found[0].switches) == 1


def test_addresses_are_used_as_they_are_told() -> None:
    expected = (SwitchAddress.parse(A), SwitchAddress.parse(B))
    found = met([Options(switch=f"{A}, {B}")] * SIZE)
    assert {each.switches for each in found} == {expected}
    found = met([Options(switch=f"{A},{B}"), *[Options()] * 3])
    assert {each.switches for each in found} == {expected}, "ranks without any use rank 0's"
    found = met([Options(switch=A), Options(switch=C), Options(switch=A), Options(switch=A)])
    assert [str(each.address) for each in found] == [A, C, A, A], "a rank may reach the same switch by another address"


def test_spare_switches_stand_beside_the_hosts_own_shards_with_the_theorems_parts() -> None:
    found = met(on_hosts("a", "b", "c", "d", switch=f"hosts,{A},{B}"))
    first = found[0]
    assert len({each.switches for each in found}) == 1
    assert [str(each) for each in first.shards[4:]] == [A, B]
    divisor = 4 * 4 + 2 * 4 - 2 * 2
    expected = [(4 - 2) / divisor] * 4 + [2 * 3 / divisor] * 2
    assert [first.spread.part(shard) for shard in range(6)] == pytest.approx(expected, abs=1e-4)
    assert {each.weights for each in found} == {first.weights}
    assert all(each.holds_switch and each.discloses for each in found), "a spare switch must be told the key"
    assert [each.local for each in found] == [frozenset({first.shards[rank]}) for rank in range(SIZE)]


def test_as_many_spare_switches_as_hosts_sum_everything() -> None:
    found = met(on_hosts("a", "a", "b", "b", switch=f"hosts,{A},{B}"))
    assert [str(each) for each in found[0].shards] == [A, B]
    assert [each.holds_switch for each in found] == [True, False, True, False], "for the hosts' leaves"
    assert found[0].leaves == found[1].leaves != found[2].leaves


def test_weights_are_rates_of_links() -> None:
    found = met([Options(switch=f"{A}=3, {B}")] * SIZE)
    assert found[3].spread.part(0) == pytest.approx(3 / 4, abs=1e-4)
    fast = met([*on_hosts("a", "b", "c"), Options(host="d", link=2)])
    parts = [fast[0].spread.part(shard) for shard in range(4)]
    assert parts[:3] == [parts[0]] * 3
    assert 1 + 2 * parts[0] == pytest.approx((1 + 2 * parts[3]) / 2, rel=1e-3), "equally long on every link"


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"host": "d", "switch": A}, f"rank 3 was given FANIN_SWITCH={A}, and rank 0 FANIN_SWITCH=hosts,{A},{B}"),
        ({"host": "d", "rack": "r"}, "ranks 0, 1, 2 were given no FANIN_RACK"),
        ({"host": "a", "rack": "r"}, "ranks 0 and 3 are on one host, and were given FANIN_RACK=None and r"),
        ({"host": "a", "link": 2.0}, "ranks 0 and 3 are on one host, and were given FANIN_LINK=None and 2.0"),
    ],
)
def test_ranks_that_were_told_different_things_are_named_to_all(others: dict[str, object], said: str) -> None:
    options = [*on_hosts("a", "b", "c", switch=f"hosts,{A},{B}"), Options(**others)]  # type: ignore[arg-type]
    store, told = c10d.HashStore(), []

    def of(rank: int) -> None:
        with pytest.raises(ConfigurationError) as caught:  # with fallback="gloo", no reason to fall back
            meet(store, rank, SIZE, "j", options[rank], TIMEOUT)
        told.append(str(caught.value))

    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(of, range(SIZE)))
    assert all(said in text for text in told)


def test_a_rank_with_other_options_is_named_on_all_and_none_waits_for_it() -> None:
    for switch in (None, A, "hosts"):
        options = on_hosts("a", "b", "c", "d", switch=switch)
        options[2] = dataclasses.replace(options[2], fallback="gloo")
        store, said = c10d.HashStore(), "rank 2 was given fallback='gloo'"

        def of(rank: int) -> str:
            try:
                meeting = meet(store, rank, SIZE, "j", options[rank], TIMEOUT)  # noqa: B023
                rendezvous.wait_for_all(store, meeting, rank, SIZE, TIMEOUT)  # noqa: B023
            except ConfigurationError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(SIZE) as pool:
            assert all(said in told for told in pool.map(of, range(SIZE)))


def test_racks_beside_addresses_are_refused() -> None:
    store = c10d.HashStore()
    options = in_racks("a1", "a2", "b1", "b2", switch=f"hosts,{A}")

    def of(rank: int) -> None:
        with pytest.raises(ConfigurationError, match="leave out the addresses, or FANIN_RACK"):
            meet(store, rank, SIZE, "j", options[rank], TIMEOUT)

    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(of, range(SIZE)))


def test_a_group_within_the_world_keeps_the_spare_switches() -> None:
    world = met(on_hosts("a", "b", "c", "d", switch=f"hosts,{A},{B}"))
    across = in_the_world(world, [1, 3])
    assert {each.shards for each in across} == {(*world[0].shards[1:4:2], *world[0].shards[4:])}
    assert {each.weights for each in across} == {(*world[0].weights[1:4:2], *world[0].weights[4:])}
    assert [each.homes for each in across] == [(0,), (1,)]
    spread = in_the_world(world, [0, 1, 2, 3])
    assert {each.shards for each in spread} == {world[0].shards}


CARDS = {
    "eth0,eth1": (NetworkCard("eth0", "10.0.0.1", None, 10_000), NetworkCard("eth1", "10.1.0.1", None, 25_000)),
    "eth2,eth3": (NetworkCard("eth2", "10.0.0.2", None, 10_000), NetworkCard("eth3", "10.1.0.2", None, 25_000)),
    "veth0,veth1": (NetworkCard("veth0", "10.0.0.3"), NetworkCard("veth1", "10.1.0.3")),
    "eth0=1,eth1=3": (NetworkCard("eth0", "10.0.0.1", 1.0, 10_000), NetworkCard("eth1", "10.1.0.1", 3.0, 25_000)),
    "one": (NetworkCard("one", "10.0.0.9", None, 10_000),),
    "one,lo": (NetworkCard("one", "10.0.0.9"), NetworkCard("lo", "127.0.0.1")),
    "^one": (NetworkCard("lo6", "::1"),),
}


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text of FANIN_INTERFACES is that of a host with these network cards."""

    def found(chosen: InterfaceList, text: str, like: str) -> tuple[NetworkCard, ...]:
        if text not in CARDS:
            raise ConfigurationError(f"FANIN_INTERFACES={text}: this machine has no interface {text}")
        return CARDS[text]

    monkeypatch.setattr(placement, "network_cards", found)


def with_cards(*hosts: tuple[str, str | None], **given: Any) -> list[Options]:
    return [Options(host=host, interfaces=interfaces, **given) for host, interfaces in hosts]


@pytest.mark.usefixtures("cards")
def test_a_host_has_a_shard_at_each_of_its_cards_and_they_sum_as_they_are_fast() -> None:
    meetings = met(with_cards(("left", "eth0,eth1"), ("right", "eth2,eth3")), size=2)
    for meeting in meetings:
        assert [shard.host for shard in meeting.shards] == ["10.0.0.1", "10.1.0.1", "10.0.0.2", "10.1.0.2"]
        assert meeting.leaders == (0, 0, 1, 1)
        assert [round(meeting.spread.part(shard), 3) for shard in range(4)] == [0.143, 0.357, 0.143, 0.357]
    assert [meeting.homes for meeting in meetings] == [(0, 1), (2, 3)]
    assert [sorted(each.host for each in meeting.local) for meeting in meetings] == [
        ["10.0.0.1", "10.1.0.1"],
        ["10.0.0.2", "10.1.0.2"],
    ]


@pytest.mark.usefixtures("cards")
def test_cards_whose_rates_nobody_knows_sum_alike_and_a_host_without_any_counts_as_one() -> None:
    (one, *_) = met(with_cards(("left", "eth0,eth1"), ("right", "veth0,veth1"), ("other", None)), size=3)
    assert [shard.host for shard in one.shards] == ["10.0.0.1", "10.1.0.1", "10.0.0.3", "10.1.0.3"]
    assert len(set(one.spread.weights)) == 1, "the third host's link is busy with its own contributions"


@pytest.mark.usefixtures("cards")
def test_rates_that_are_given_come_before_those_of_the_drivers() -> None:
    (one, _) = met(with_cards(("left", "eth0=1,eth1=3"), ("right", "eth0=1,eth1=3")), size=2)
    assert [round(one.spread.part(shard), 3) for shard in range(4)] == [0.125, 0.375, 0.125, 0.375]


@pytest.mark.usefixtures("cards")
def test_ranks_of_a_host_meet_at_its_leaves_of_all_cards() -> None:
    meetings = met(
        with_cards(("left", "eth0,eth1"), ("left", "eth0,eth1"), ("right", "eth2,eth3"), ("right", "eth2,eth3"))
    )
    assert all(len(meeting.leaves) == len(meeting.shards) == 4 for meeting in meetings)
    assert meetings[0].leaves == meetings[1].leaves != meetings[2].leaves


@pytest.mark.usefixtures("cards")
def test_a_group_within_one_host_uses_the_shards_of_its_cards() -> None:
    world = met(
        with_cards(("left", "eth0,eth1"), ("left", "eth0,eth1"), ("right", "eth2,eth3"), ("right", "eth2,eth3"))
    )
    right = in_the_world(world, [2, 3])
    assert [shard.host for shard in right[0].shards] == ["10.0.0.2", "10.1.0.2"]
    assert right[0].homes == (0, 1)


def test_ways_to_all_shards_through_one_card_are_warned_of_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    shards = (SwitchAddress.parse("udp://127.0.0.1:4001"), SwitchAddress.parse("udp://127.0.0.1:4002"))
    meeting = Meeting("job", "secret", discloses=True, shards=shards)
    assert not meeting.ways.several
    meeting.warn_of_one_card(3)
    assert "rank 3 reaches udp://127.0.0.1:4001, udp://127.0.0.1:4002 through one network card, lo (127" in caplog.text
    assert "Remedy: FANIN_INTERFACES with several" in caplog.text


@pytest.mark.usefixtures("cards")
def test_one_switch_beside_rank_0_is_at_its_first_card() -> None:
    (one, _) = met(with_cards(("left", "eth0,eth1"), ("right", "eth2,eth3"), switch="rank0"), size=2)
    assert [shard.host for shard in one.shards] == ["10.0.0.1"]


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (with_cards(("left", "eth0,eth1"), ("right", "none0")), "rank 1: FANIN_INTERFACES=none0: this machine has no"),
        (with_cards(("left", "eth0,eth1"), ("left", "one"), ("right", "one")), "FANIN_INTERFACES=eth0,eth1 and one"),
        (with_cards(("left", "eth0=1,eth1=3"), ("right", "eth2,eth3")), "rates on all hosts, or on none"),
        (
            [
                Options(host="left", rack="a", interfaces="eth0,eth1"),
                Options(host="right", rack="b", interfaces="one"),
            ],
            "one interface, or no FANIN_RACK",
        ),
    ],
    ids=["not there", "unlike on a host", "rates on some", "racks"],
)
def test_interfaces_that_cannot_be_used_are_every_ranks_error(options: list[Options], said: str) -> None:
    store = c10d.HashStore()
    store.set_timeout(TIMEOUT)

    def of(rank: int) -> str:
        with pytest.raises(ConfigurationError) as raised:
            meet(store, rank, len(options), "j", options[rank], TIMEOUT, [])
        return str(raised.value)

    with ThreadPoolExecutor(len(options)) as pool:
        assert all(said in text for text in pool.map(of, range(len(options))))


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(("interfaces", "name"), [("one,lo", "lo"), ("^one", "lo6")])
def test_loopback_is_no_card_between_machines(monkeypatch: pytest.MonkeyPatch, interfaces: str, name: str) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(placement, "network_identity", lambda: f"network {next(numbers)}")
    store = c10d.HashStore()
    store.set_timeout(TIMEOUT)
    options = with_cards(("left", "one"), ("right", interfaces))

    def of(rank: int) -> str:
        with pytest.raises(ConfigurationError) as raised:
            meet(store, rank, 2, "j", options[rank], TIMEOUT, [])
        return str(raised.value)

    said = f"rank 1 was given FANIN_INTERFACES={interfaces}, and rank 0 on another machine cannot reach the loopback "
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(of, range(2)))
    assert told[0].startswith(f"{said}interface {name}. Remedy: ")
    assert told[1] == f"rank 0 reports: {told[0]}"


@pytest.mark.usefixtures("cards")
def test_loopback_is_a_card_where_hosts_stand_for_machines_in_one_network() -> None:
    meetings = met(with_cards(("left", "one"), ("right", "one,lo")), size=2)
    assert {meeting.shards for meeting in meetings} == {meetings[0].shards}
    assert [shard.host for shard in meetings[0].shards] == ["10.0.0.9", "10.0.0.9", "127.0.0.1"]


def in_racks(*names: str, **given: object) -> list[Options]:
    """A host for each, in the rack of its first letter."""
    return [Options(host=name, rack=name[0], **given) for name in names]  # type: ignore[arg-type]


def test_ranks_in_racks_meet_at_leaves_on_their_racks_hosts() -> None:
    found = met(in_racks("a1", "a2", "b1", "b2"))
    assert len({each.shards for each in found}) == 1
    assert [len(each.switches) for each in found] == [2] * SIZE
    assert found[0].switches == found[1].switches != found[2].switches == found[3].switches
    assert not set(found[0].switches) & set(found[2].switches)
    assert set(found[0].shards) == {found[0].own[0], found[0].own[2]}, "one root in each rack"
    assert [each.local for each in found] == [frozenset({found[rank].leaves[rank % 2]}) for rank in (0, 1, 3, 2)]
    assert all(each.holds_switch for each in found)


def test_groups_within_a_rack_use_its_hosts_and_others_the_tree() -> None:
    world = met(in_racks("a1", "a2", "b1", "b2", "a1", "b2"), size=6)
    within = in_the_world(world, [0, 1])
    assert {each.switches for each in within} == {world[0].own[:2]}
    assert [each.local for each in within] == [frozenset({world[0].own[rank]}) for rank in (0, 1)]
    at_home = in_the_world(world, [0, 4])
    assert {each.switches for each in at_home} == {world[0].own[:1]}
    across = in_the_world(world, [1, 3])
    assert [each.switches for each in across] == [world[1].leaves, world[3].leaves]
    assert across[0].job_name == across[1].job_name != world[0].job_name
    assert not any(each.holds_switch for each in (*within, *across))


def test_racks_that_make_no_difference_are_left_alone() -> None:
    one = met(in_racks("a1", "a2", "a3", "a4"))
    assert (len(one[0].shards), one[0].leaves) == (SIZE, ())
    apart = met(in_racks("a", "b", "c", "d"))
    assert (len(apart[0].shards), apart[0].leaves) == (SIZE, ())


def test_racks_and_survival_exclude_each_other_loudly(caplog: pytest.LogCaptureFixture) -> None:
    found = met(in_racks("a1", "a2", "b1", "b2", on_worker_loss="continue"))
    assert (len(found[0].shards), found[0].leaves) == (SIZE, ())
    assert "FANIN_RACK has no effect" in caplog.text


def in_the_world(world: list[Meeting], ranks: list[int]) -> list[Meeting]:
    """The meeting of ranks of the world in a group of theirs."""
    store, found = c10d.HashStore(), []
    store.set_timeout(TIMEOUT)
    for rank, member in enumerate(ranks):  # one after the other, since each is a process with a world of its own
        found.append(meet(store, rank, len(ranks), "j", Options(host="any"), TIMEOUT, ranks, world[member]))
    return found


@pytest.mark.parametrize("crowded", [False, True], ids=["one rank a host", "leaves"])
def test_a_group_within_the_world_uses_the_shards_of_its_hosts(crowded: bool) -> None:
    world = met(on_hosts("a", "b", "b", "c") if crowded else on_hosts("a", "b", "c", "d"))
    across = in_the_world(world, [1, 3])
    last = world[0].shards[2 if crowded else 3]
    assert {each.shards for each in across} == {(world[0].shards[1], last)}
    assert [each.homes for each in across] == [(0,), (1,)]
    assert not any(each.holds_switch for each in across)
    assert {each.secret for each in across} == {world[0].secret}, "the world's switches serve no other"
    if crowded:
        assert [each.switches for each in across] == [world[1].leaves[1:], world[3].leaves[1:]]
        within = in_the_world(world, [1, 2])
        assert {each.switches for each in within} == {world[0].shards[1:2]}, "all at home: no leaf is needed"
    else:
        assert {each.switches for each in across} == {across[0].shards}


def test_a_group_made_after_a_shard_was_lost_does_without_it() -> None:
    world = met(on_hosts("a", "b", "b", "c", on_worker_loss="continue"))
    for each in world:
        each.lost = frozenset({1})
    across = in_the_world(world, [0, 1])
    assert {each.shards for each in across} == {world[0].shards[:1]}
    assert [each.local for each in across] == [frozenset(world[0].shards[:1]), frozenset()]
    within = in_the_world(world, [1, 2])
    assert {each.shards for each in within} == {world[0].shards[:1]}
    assert not any(each.local for each in within), "no shared memory with another host's shard"


def test_what_must_survive_has_shards_and_no_leaves() -> None:
    """A leaf would end with the first of its ranks."""
    found = met(on_hosts("a", "b", "a", "b", on_worker_loss="continue"))
    assert len(found[0].shards) == 2
    assert {each.switches for each in found} == {found[0].shards}
    assert [each.local for each in found] == [frozenset({found[0].shards[rank % 2]}) for rank in range(SIZE)]
    given = Options(switch="hosts", on_worker_loss="continue")
    assert where_to_sum(given, one_machine=False) == "hosts"
    assert where_to_sum(Options(switch="hosts", fallback="gloo"), one_machine=False) == "hosts"


def test_who_may_go_on_in_two_ways_stays_at_one_switch_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    found = met(on_hosts("a", "b", "a", "b", on_worker_loss="continue", fallback="gloo"))
    assert len(found[0].switches) == 1
    assert not found[0].leaves
    assert "keep all sums at rank 0's switch" in caplog.text
    with pytest.raises(ConfigurationError, match="FANIN_SWITCH=rank0"):
        where_to_sum(Options(switch="hosts", on_worker_loss="continue", fallback="gloo"), one_machine=False)


def test_a_shard_that_does_not_start_is_every_ranks_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(options: Options, secret: str, hosts: Sequence[str], rank: int) -> tuple[SwitchAddress, ...]:
        raise SwitchUnreachableError("", "no port is free")

    monkeypatch.setattr(STARTED, "start", start)
    store = c10d.HashStore()
    told = []

    def of(rank: int) -> None:
        with pytest.raises(SwitchUnreachableError) as caught:
            meet(store, rank, 2, "j", on_hosts("a", "b")[rank], TIMEOUT)
        told.append(str(caught.value))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(of, range(2)))
    assert all("no port is free" in text for text in told)


def test_a_switch_that_one_rank_cannot_reach_is_told_to_all_others_with_the_pair() -> None:
    store = c10d.HashStore()
    meeting = Meeting("j", "secret", True, (SwitchAddress.parse(A), SwitchAddress.parse(B)))
    rendezvous.raise_if_refused(store, meeting, 0)
    rendezvous.tell_refusal(store, meeting, 2, SwitchUnreachableError(B, "nothing answers there"))
    with pytest.raises(SwitchUnreachableError, match=f"rank 2 cannot reach switch {B}: nothing answers") as caught:
        rendezvous.raise_if_refused(store, meeting, 0)
    assert caught.value.address == B
    rendezvous.raise_if_refused(store, meeting, 2)


def test_nobody_joins_on_when_the_store_has_ended() -> None:
    serving = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = c10d.TCPStore("127.0.0.1", serving.port, is_master=False)
    meeting = Meeting("j", "secret", True, (SwitchAddress.parse(A),))
    rendezvous.raise_if_refused(store, meeting, 1)
    del serving
    with pytest.raises(WorkerLostError, match=rf"rank 1 joins job 'j' at {A}.*see the output of rank 0"):
        rendezvous.raise_if_refused(store, meeting, 1)


def test_a_job_at_the_shards_themselves_uses_the_shared_memory_of_its_own_host_alone() -> None:
    """A stale job is at a shard beside the group's leaves; namespaces that stand for hosts share /dev/shm."""
    shards, leaf = (SwitchAddress.parse(A), SwitchAddress.parse(B)), (SwitchAddress.parse(C),)
    hosts = Hosts(((0, 1), (2, 3)))
    with_leaves = Meeting("j", "secret", True, shards, hosts=hosts, homes=(1,), leaves=leaf)
    assert [with_leaves.is_local(shard) for shard in shards] == [False, True]
    assert with_leaves.local == frozenset(leaf)
    spare = Meeting("j", "secret", True, shards, hosts=hosts)
    assert not any(map(spare.is_local, shards))
    together = Meeting("j", "secret", True, shards, hosts=Hosts(((0, 1),)))
    assert all(map(together.is_local, shards))
    assert together.local == frozenset(shards)


def test_ranks_that_do_not_come_are_named() -> None:
    store = c10d.HashStore()
    store.set_timeout(TIMEOUT)
    store.set("fanin/host/2", "b")
    with pytest.raises(JoinTimeoutError, match="ranks 1, 3 have not come") as caught:
        meet(store, 0, SIZE, "j", Options(host="a"), timedelta(milliseconds=20))
    assert caught.value.missing == (1, 3)
    with pytest.raises(JoinTimeoutError, match="ranks 1, 3") as caught:
        rendezvous.hear(store, Options(), TIMEOUT, 2)
    assert caught.value.missing == (1, 3)


def test_a_secret_that_was_given_stays_out_of_the_store_and_one_that_was_drawn_is_shared() -> None:
    given = met([Options(secret="a secret of sixteen")] * SIZE)
    assert {each.secret for each in given} == {"a secret of sixteen"}
    drawn = met(on_hosts("a", "b", "c", "d"))
    assert len({each.secret for each in drawn}) == 1
    assert not any(each.credentials.discloses for each in drawn), "the shards have it from who started them"


def test_hosts_come_in_the_order_of_their_lowest_ranks() -> None:
    hosts = hosts_of(["b", "a", "a", "b", "c"])
    assert hosts == Hosts(((0, 3), (1, 2), (4,)))
    assert hosts.leaders == (0, 1, 4)
    assert [hosts.of(rank) for rank in range(5)] == [0, 1, 1, 0, 2]


@pytest.mark.parametrize(
    ("switch", "said"),
    [
        ("udp://a:1,udp://a:1", "names an address twice: udp://a:1"),
        ("udp://a:1,udp://a:1=2", "names an address twice: udp://a:1"),
        ("udp://a:1,", "switch address ''"),
        ("somewhere", "switch address 'somewhere'"),
        ("udp://a:1 udp://b:2", "switch address"),
        ("hosts,hosts", "says hosts twice"),
        ("hosts=2,udp://a:1,hosts", "says hosts twice"),
        ("rank0,udp://a:1", "rank0 stands alone"),
        ("rank0=2", "rank0 stands alone"),
        ("hosts,udp://a:1=0", "'0' is no weight"),
        ("hosts,udp://a:1=-2", "'-2' is no weight"),
        ("hosts=,udp://a:1", "'' is no weight"),
        ("udp://a:1=fast", "'fast' is no weight"),
        ("udp://a:1=nan", "'nan' is no weight"),
        ("udp://a:1=inf", "'inf' is no weight"),
        (",".join(f"udp://a:{port}" for port in range(1, 66)), "names 65 addresses; at most 64"),
    ],
)
def test_addresses_and_weights_that_make_no_sense_are_refused_in_one_line(switch: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        Options(switch=switch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("link", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_no_link_has_are_refused(link: float) -> None:
    with pytest.raises(ConfigurationError, match=r"link = .*; expected the rate"):
        Options(link=link)


def test_rank_0_waits_until_the_others_have_read_why_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may serve the store, and end."""
    monkeypatch.setattr(rendezvous, "READ_TIMEOUT_S", TIMEOUT.total_seconds())
    store, size = c10d.HashStore(), 3

    def refuse(*_: object) -> None:
        raise ConfigurationError("refused")

    monkeypatch.setattr(rendezvous, "_decided", refuse)

    def of(rank: int) -> int:
        with pytest.raises(ConfigurationError, match="refused"):
            meet(store, rank, size, "j", Options(), TIMEOUT)
        return int(store.add(f"{rendezvous.KEY}/read", 0))

    with ThreadPoolExecutor(size) as pool:
        assert next(iter(pool.map(of, range(size)))) == size - 1


def test_rank_0_waits_until_the_others_have_heard_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "READ_TIMEOUT_S", TIMEOUT.total_seconds())
    store, size = c10d.HashStore(), 4
    meeting = Meeting("j", "secret", True, (SwitchAddress.parse(A),))
    rendezvous.tell_refusal(store, meeting, 2, SwitchUnreachableError(A, "nothing answers there"))

    def of(rank: int) -> int:
        with pytest.raises(SwitchUnreachableError, match="rank 2 cannot reach"):
            rendezvous.raise_if_refused(store, meeting, rank, size)
        return int(store.add(f"{rendezvous._refusal_key(meeting)}/read", 0))

    with ThreadPoolExecutor(size) as pool:
        assert next(iter(pool.map(of, (0, 1, 3)))) == size - 1


def test_rank_0_waits_no_longer_for_ranks_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "READ_TIMEOUT_S", 0.01)
    meeting = Meeting("j", "secret", True, (SwitchAddress.parse(A),))
    rendezvous.wait_until_heard(c10d.HashStore(), meeting, 2)


@pytest.mark.parametrize("other", [{"meeting": 0}, {"wire": 99}, {"control": 1}, None], ids=str)
def test_a_rank_of_another_version_is_refused_with_both_versions(other: dict[str, object] | None) -> None:
    """None: of a version from before ranks said theirs."""
    store = c10d.HashStore()
    said = Versions(store, 1)
    said.check({0: "came0", 1: "came1"})  # nobody has come
    if other is not None:
        store.set("fanin/version/0", json.dumps(own_versions() | {"fanin": "9.9"} | other))
    store.set("came0", "")
    which = "9.9" if other is not None else "of an earlier version"
    with pytest.raises(
        ConfigurationError, match=f"rank 0 runs fanin {which}, rank 1 fanin .* Remedy: install the same"
    ):
        said.check({0: "came0", 1: "came1"})


def test_another_version_of_fanin_that_speaks_alike_is_welcome() -> None:
    store = c10d.HashStore()
    store.set("fanin/version/0", json.dumps(own_versions() | {"fanin": "9.9"}))
    store.set("came0", "")
    Versions(store, 1).check({0: "came0"})


def test_a_rank_hears_that_rank_0_has_another_version_before_it_reads_what_that_says() -> None:
    store = c10d.HashStore()
    store.set(rendezvous.HERE_KEY, "")
    store.set(rendezvous.KEY, json.dumps({"of another": "form"}))
    with pytest.raises(ConfigurationError, match="rank 0 runs fanin of an earlier version"):
        meet(store, 1, 2, "j", Options(), TIMEOUT)


def test_a_rank_of_another_version_is_named_on_all_ranks_before_rank_0_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "READ_TIMEOUT_S", TIMEOUT.total_seconds())
    store, size = c10d.HashStore(), 4
    meeting = Meeting("j", "secret", True, (SwitchAddress.parse(A),))
    store.set(rendezvous._host_key(3), "")  # it has come, and says no version

    def of(rank: int) -> int:
        with pytest.raises(ConfigurationError, match="rank 3 runs fanin of an earlier version"):
            rendezvous.raise_if_unlike(store, meeting, rank, size, Versions(store, rank))
        return int(store.add(f"{rendezvous._refusal_key(meeting)}/read", 0))

    with ThreadPoolExecutor(size) as pool:
        assert next(iter(pool.map(of, range(3)))) == 2

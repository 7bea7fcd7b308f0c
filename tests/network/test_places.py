"""Places of the switch of an emulated cluster: shapes, the ranks' variables, and the bytes of the links."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanin.benchmarks import processor
from fanin.benchmarks.ideal import ETHERNET_IP_UDP_BYTES, ideal_s
from fanin.benchmarks.processor import ProcessorMeter
from fanin.benchmarks.rivals import Rival
from fanin.emulation.network.scenario import LinkTable, uplink
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.errors import ConfigurationError
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import HEADER_BYTES, WORD_BYTES, codes_bytes
from fanin.records.record import Row

HOSTS, RANK0 = SwitchPlace.parse("hosts"), SwitchPlace.parse("rank0")
SIZE = 4 << 20


@pytest.mark.parametrize("text", ["own", "rank0", "hosts", "spare:1", "spare-only:32"])
def test_a_place_is_said_as_it_is_read(text: str) -> None:
    assert str(SwitchPlace.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "Hosts", "spare", "spare:", "spare:0", "spare:33", "spare:-1", "own:1", "spare:1 ", "only:1"]
)
def test_what_is_no_place_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"own, rank0, hosts, spare:1 to spare:32, or spare-only:1 to"):
        SwitchPlace.parse(text)


def test_ranks_with_successive_numbers_share_a_host_and_know_it() -> None:
    topology = Topology(workers=6, ranks_per_host=3, switch_at=HOSTS)
    assert topology.hosts == 2
    told = [topology.rank_environment(rank) for rank in range(6)]
    assert [each["FANIN_HOST"] for each in told] == ["host 0"] * 3 + ["host 1"] * 3
    assert [each["LOCAL_RANK"] for each in told] == ["0", "1", "2"] * 2
    assert {each["LOCAL_WORLD_SIZE"] for each in told} == {"3"}
    assert {each["FANIN_SWITCH"] for each in told} == {"hosts"}
    assert topology.worker_address(0) != topology.worker_address(3) == topology.worker_address(5)


def test_ranks_are_told_the_addresses_of_switches_that_are_there() -> None:
    spares = Topology(workers=4, switch_at=SwitchPlace.parse("spare-only:2")).rank_environment(3)["FANIN_SWITCH"]
    both = Topology(workers=4, switch_at=SwitchPlace.parse("spare:2")).rank_environment(3)["FANIN_SWITCH"]
    assert both == f"hosts,{spares}"
    assert [each.partition("://")[0] for each in spares.split(",")] == ["udp", "udp"]
    assert len(set(spares.split(","))) == 2
    tree = Topology(workers=4, racks=2)
    assert "FANIN_RACK" not in tree.rank_environment(0), "racks have switches of their own"
    racks = [Topology(workers=4, racks=2, switch_at=HOSTS).rank_environment(rank)["FANIN_RACK"] for rank in range(4)]
    assert racks == ["rack 0"] * 2 + ["rack 1"] * 2
    assert tree.rank_environment(0)["FANIN_SWITCH"] != tree.rank_environment(3)["FANIN_SWITCH"]
    beside = Topology(workers=4, switch_at=RANK0).rank_environment(1)
    assert (beside["FANIN_SWITCH"], beside["FANIN_SHARED_MEMORY"]) == ("rank0", "0"), "memory would go past the links"


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"workers": 4, "ranks_per_host": 3}, "ranks_per_host = 3; must divide"),
        ({"workers": 4, "ranks_per_host": 0}, r"ranks_per_host = 0; must be in 1\.\.32"),
        ({"workers": 33, "switch_at": RANK0}, r"workers = 33; must be in 1\.\.32"),
        ({"workers": 64, "switch_at": HOSTS}, "64 hosts"),
        ({"workers": 8, "ranks_per_host": 4, "racks": 3}, "number of hosts, 2"),
        ({"workers": 8, "ranks_per_host": 4, "links": {2: Link()}}, "no host 2"),
    ],
)
def test_shapes_that_cannot_be_are_refused_by_name(shape: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Topology(**shape)  # type: ignore[arg-type]


def test_more_ranks_than_one_switch_takes_meet_on_their_hosts() -> None:
    assert Topology(workers=64, ranks_per_host=4, switch_at=HOSTS).hosts == 16


def test_an_uplink_is_a_rate_or_a_table() -> None:
    assert uplink("100mbit") == LinkTable(rate="100mbit")
    assert uplink("rate=1gbit,delay=1ms") == LinkTable(rate="1gbit", delay="1ms")
    with pytest.raises(ConfigurationError, match="--uplink 'speed=3'"):
        uplink("speed=3")


OURS = Rival("fanin")


def ideal(rival: Rival = OURS, **shape: object) -> float:
    """In tensors over a link of the rate that takes a second for one through a switch of its own."""
    link = Link(rate_bit_s=1e8)
    found = ideal_s(Topology(link=link, uplink=link, **shape), rival, SIZE)  # type: ignore[arg-type]
    one = ideal_s(Topology(workers=2, link=link), rival, SIZE)
    assert found is not None
    assert one is not None
    return found / one


def test_the_ideal_is_what_the_busiest_link_carries() -> None:
    assert ideal(workers=8) == pytest.approx(1)
    assert ideal(workers=8, ranks_per_host=4) == pytest.approx(4), "four streams leave a host"
    assert ideal(workers=8, switch_at=RANK0) == pytest.approx(7), "everybody's at rank 0's link"
    assert ideal(workers=8, ranks_per_host=4, switch_at=RANK0) == pytest.approx(4)
    assert ideal(workers=8, switch_at=HOSTS) == pytest.approx(2 * 7 / 8)
    assert ideal(workers=8, ranks_per_host=2, switch_at=HOSTS) == pytest.approx(2 * 3 / 4), "ranks meet at home first"
    assert ideal(workers=8, switch_at=SwitchPlace.parse("spare-only:4")) == pytest.approx(2)
    assert ideal(workers=8, switch_at=SwitchPlace.parse("spare:4")) == pytest.approx(2 * 8 * 7 / (64 + 32 - 8))
    assert ideal(workers=16, ranks_per_host=2, switch_at=SwitchPlace.parse("spare:4")) == pytest.approx(112 / 88)
    assert ideal(workers=8, switch_at=SwitchPlace.parse("spare:8")) == pytest.approx(1)
    assert ideal(workers=8, racks=2) == pytest.approx(1), "a rack's switch sends one stream up"
    assert ideal(workers=8, racks=2, switch_at=HOSTS) == pytest.approx(2 * 3 / 4 + 1 / 4), "hosts' links; uplinks: 1"
    assert ideal(workers=2, racks=2, switch_at=HOSTS) == pytest.approx(1)
    assert ideal(workers=8, racks=2, switch_at=SwitchPlace.parse("spare:8")) == pytest.approx(4)
    assert ideal(workers=8, racks=2, switch_at=SwitchPlace.parse("spare:4")) == pytest.approx(4, rel=0.01)


def test_contributions_and_results_of_unlike_widths_share_the_links_of_shards() -> None:
    half_up, narrow = Rival("fanin", "4/8"), Rival("fanin", "8/8")
    words, codes = packet_shape(1500)
    headers = ETHERNET_IP_UDP_BYTES + HEADER_BYTES + codes_bytes(codes)
    wanted = (headers + 0.75 * words * WORD_BYTES) / (headers + words * WORD_BYTES)
    at_hosts = [ideal(rival, workers=8, switch_at=HOSTS) for rival in (half_up, narrow)]
    assert at_hosts[0] == pytest.approx(wanted * at_hosts[1])
    for where in (RANK0, SwitchPlace.parse("own"), SwitchPlace.parse("spare-only:4")):
        same = ideal(half_up, workers=8, switch_at=where), ideal(narrow, workers=8, switch_at=where)
        assert same[0] == same[1], "one direction has nothing but results"
    racks = [ideal(rival, workers=8, racks=2, switch_at=HOSTS) for rival in (half_up, narrow)]
    assert wanted < racks[0] / racks[1] < 1, "what racks exchange is as wide as a result"


def test_a_ring_needs_the_same_wherever_our_switch_is() -> None:
    gloo = Rival("gloo")
    one = ideal(gloo, workers=8)
    assert one == pytest.approx(2 * 7 / 8)
    assert ideal(gloo, workers=8, switch_at=HOSTS) == ideal(gloo, workers=8, ranks_per_host=4) == one
    assert ideal_s(Topology(workers=8), gloo, SIZE) is None, "links without a rate"


def row(processors: float | None, ideal_share: float | None) -> Row:
    return Row(
        backend="fanin",
        lanes=32,
        workers=8,
        bytes=SIZE,
        rate_bit_s=1e9,
        measures="allreduce",
        median_s=1.0,
        fastest_s=1.0,
        slowest_s=1.0,
        samples=5,
        ideal_s=ideal_share,
        ratio_to_gloo=1.0,
        max_error=0.0,
        processor=processors,
    )


@pytest.mark.parametrize(
    ("processors", "ideal_share", "bound"),
    [(0.95, 0.5, True), (0.95, 0.95, False), (0.5, 0.5, False), (0.95, None, True), (None, 0.5, False)],
)
def test_a_row_is_bound_by_processors_that_are_busy_while_links_are_not(
    processors: float | None, ideal_share: float | None, bound: bool
) -> None:
    assert row(processors, ideal_share).processor_bound is bound


def test_processors_are_metered_over_several_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stat"
    monkeypatch.setattr(processor, "STATISTICS", file)

    def says(user: int, idle: int, iowait: int = 0, steal: int = 0, guest: int = 0) -> None:
        file.write_text(f"cpu  {user} 0 0 {idle} {iowait} 0 0 {steal} {guest} 0\ncpu0 1 2 3\n")

    meter = ProcessorMeter()
    assert meter.share is None
    says(0, 0)
    meter.start()
    says(30, 60, 10, guest=25)
    meter.stop()
    assert meter.share == pytest.approx(0.3)
    says(1000, 1000, 10)
    meter.start()
    says(1050, 1000, 10, 50)
    meter.stop()
    assert meter.share == pytest.approx(0.65)
    file.unlink()
    meter.start()
    meter.stop()
    assert meter.share is not None

"""Conclusions of `fanin advise` from measurements: racks that are there and no others, and the quicker place."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")
from torch._C import _distributed_c10d as c10d

from fanin import cli
from fanin.advice import advising as advice
from fanin.advice.advice_plan import Plan
from fanin.advice.advising import give_gloo_an_interface, profile_of
from fanin.advice.forecasts import (
    GLOO,
    LEAST_FREE_CORES,
    Choice,
    Forecast,
    Network,
    Profile,
    choices,
    find_racks,
    forecasts,
    link_copies,
    recommended,
    settings,
    spare_weight,
    step_s,
    sum_s,
    sum_times,
    with_mtu,
)
from fanin.advice.jumbo_notes import jumbo_notes
from fanin.advice.link_probes import Listener, interface_mtu, round_trip_s, send_datagrams, stream
from fanin.advice.load_notes import load_notes
from fanin.advice.meeting_point import GIVE_UP_AFTER_S, PATIENCE_S, missing
from fanin.advice.own_processors import core_limit, core_speed, idle_share, own_core_limit
from fanin.cli.advise import _explain, without_hosts
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.scenario import Scenario, uplink
from fanin.emulation.processes import free_port
from fanin.errors import ConfigurationError, FaninError
from fanin.layouts.cluster import read_measured
from fanin.processor_prices import FANIN as PRICES
from fanin.processor_prices import GLOO_ON_LOOPBACK, hosts_price, price
from fanin.settings import fields_of
from tests.support.forks import fork_advisers
from tests.support.processes import DEADLINE_S, files_left, has_ended, noticed, until

SIZE = 25 << 20
LANES = (32, 16, 8)


def network(hosts: int = 8, rate: float = 1e8, **given: object) -> Network:
    shape: dict[str, object] = {
        "ranks": (1,) * hosts, "rates": (rate,) * hosts, "cores": (8.0,) * hosts, "round_trip_s": 1e-4,
    }  # fmt: skip
    return Network(**{**shape, **given})  # type: ignore[arg-type]


def in_racks(uplink: float, rate: float = 1e9) -> Network:
    return network(8, rate, racks=((0, 1, 2, 3), (4, 5, 6, 7)), uplinks=(uplink, uplink))


def together(racks: list[list[int]], rate: float, uplink: float, noise: random.Random) -> dict[tuple[int, int], float]:
    """Rates while all hosts send to all: streams between racks share uplinks, others what is left of hosts' links."""
    rack_of = {host: number for number, rack in enumerate(racks) for host in rack}
    hosts = len(rack_of)
    found = {}
    for one in rack_of:
        mine = len(racks[rack_of[one]])
        across = min(rate / (hosts - 1), uplink / max(1, mine * (hosts - mine)))
        within = (rate - across * (hosts - mine)) / max(1, mine - 1)
        for two in rack_of:
            if one != two:
                found[one, two] = (within if rack_of[one] == rack_of[two] else across) * noise.uniform(0.85, 1.15)
    return found


@given(
    sizes=st.lists(st.integers(2, 5), min_size=2, max_size=4),
    trunk=st.sampled_from([1e8, 1e9]),
    seed=st.integers(0, 1 << 16),
)
def test_hosts_behind_one_uplink_are_found_whatever_their_numbers_are(
    sizes: list[int], trunk: float, seed: int
) -> None:
    dice = random.Random(seed)
    hosts = list(range(sum(sizes)))
    dice.shuffle(hosts)
    racks = [sorted(hosts.pop() for _ in range(size)) for size in sizes]
    if trunk > 0.5e9 and min(sizes) < 3:
        return  # one host of two alone nearly fills it: pairs hardly differ
    found = find_racks(together(racks, 1e9, trunk, dice), sum(sizes))
    assert sorted(map(list, found)) == sorted(racks)


@given(hosts=st.integers(2, 12), seed=st.integers(0, 1 << 16))
def test_where_no_uplink_is_shared_no_racks_are_found(hosts: int, seed: int) -> None:
    assert find_racks(together([list(range(hosts))], 1e9, 1e9, random.Random(seed)), hosts) == ()


def test_a_slow_host_is_no_rack() -> None:
    slow = {(one, two): 1e6 if 3 in (one, two) else 1e8 for one in range(6) for two in range(6) if one != two}
    assert find_racks(slow, 6) == ()


def test_a_star_of_equal_links_is_predicted_as_its_links_say() -> None:
    star = network()
    gloo, hosts = sum_s(star, GLOO, SIZE), sum_s(star, Choice("hosts"), SIZE)
    assert gloo == pytest.approx(2 * 7 / 8 * SIZE * 8 / 1e8, rel=0.01)
    assert hosts == pytest.approx(gloo, rel=0.05), "a ring's bytes"
    assert sum_s(star, Choice("hosts", 8), SIZE) == pytest.approx(hosts / 4, rel=0.02)
    assert sum_s(star, Choice("rank0"), SIZE) == pytest.approx(4 * hosts, rel=0.02)
    best = forecasts(star, LANES, Profile(((0.0, SIZE),)))[0]
    assert best.choice == Choice("hosts", 8)


def test_racks_are_worth_it_where_uplinks_are_narrow() -> None:
    narrow = in_racks(1e8)
    assert sum_s(narrow, GLOO, SIZE) / sum_s(narrow, Choice("racks"), SIZE) == pytest.approx(1.75, rel=0.05)
    assert sum_s(narrow, Choice("hosts"), SIZE) > 3.9 * sum_s(narrow, Choice("racks"), SIZE)
    assert forecasts(narrow, LANES, Profile(((0.0, SIZE),)))[0].choice == Choice("racks", 8)


def test_spare_switches_are_among_the_choices_and_their_links_count() -> None:
    spare = network(spares=4)
    assert {choice.place for choice in choices(spare, [32])} == {"", "rank0", "hosts", "spares", "switch"}
    loads = [copies for copies, _ in link_copies(spare, Choice("spares"))]
    assert loads == pytest.approx([112 / 88] * 12)
    addresses = ["udp://a:1", "udp://b:1"]
    assert settings(Choice("spares", 8), spare, addresses) == {
        "FANIN_SWITCH": "hosts,udp://a:1,udp://b:1", "FANIN_LANES": "8",
    }  # fmt: skip
    assert settings(Choice("racks"), spare, ()) == {"FANIN_SWITCH": "hosts"}


def test_a_switch_with_faster_links_takes_more_or_all() -> None:
    """Such a switch has a port for each host, which a sum at it alone shows."""
    alone_s = sum_s(network(4, spares=1, spare_weight=4.0), Choice("switch"), SIZE)
    assert alone_s == pytest.approx(sum_s(network(4), GLOO, SIZE) / 1.5, rel=0.05), "a link carries one tensor"
    assert spare_weight(network(4, spares=1), SIZE, alone_s) == pytest.approx(4, rel=0.01)
    quicker = network(4, spares=1, spare_weight=2.0)
    assert sum_s(quicker, Choice("spares"), SIZE) < sum_s(quicker, Choice("hosts"), SIZE)
    assert settings(Choice("spares"), quicker, ["udp://a:1"]) == {"FANIN_SWITCH": "hosts,udp://a:1=2"}
    assert settings(Choice("switch"), quicker, ["udp://a:1"]) == {"FANIN_SWITCH": "udp://a:1"}


def test_processors_bound_what_links_do_not() -> None:
    quick = network(4, 1e11, cores=(0.5,) * 4)
    cost = price(32, 1500)
    ours = sum_times(quick, Choice("hosts"), SIZE)
    assert ours.processors == pytest.approx(SIZE * (cost.inside + 1.5 * cost.crossing) / 0.5), (
        "2 (n - 1) / n of a tensor"
    )
    assert ours.bound == "processors"
    assert sum_s(quick, GLOO, SIZE) < ours.whole
    assert [each.bound for each in forecasts(quick, LANES, Profile(((0.0, SIZE),)))] == ["processors"] * 7
    assert {each.bound for each in forecasts(network(4), LANES, Profile(((0.0, SIZE),)))} == {"links"}
    assert sum_times(network(4, round_trip_s=0.01), Choice("hosts"), 4096).bound == "round trips"


@given(idle=st.floats(0, 1), speed=st.floats(0.1, 10), place=st.sampled_from(["", "hosts", "rank0"]))
def test_busy_and_slow_processors_take_longer_by_as_much(idle: float, speed: float, place: str) -> None:
    quick, choice = network(4, 1e12), Choice(place)
    other = dataclasses.replace(quick, idle=(1.0, idle, 1.0, 1.0), core_speeds=(1.0, speed, 1.0, 1.0))
    assert other.capacities[1] == pytest.approx(max(8 * idle, LEAST_FREE_CORES) * speed)
    one, two = (sum_times(each, choice, SIZE).processors for each in (quick, other))
    assert min(one, one * 8 / other.capacities[1]) <= two * 1.0001 <= max(one, one * 8 / other.capacities[1]) * 1.001


def test_on_one_host_nothing_crosses_a_link_but_a_ring_uses_sockets() -> None:
    alone = network(1, ranks=(4,), rates=(0.0,), cores=(4.0,))
    assert sum_times(alone, Choice("rank0"), SIZE).processors == pytest.approx(SIZE * price(32, 1500).inside)
    ring = GLOO_ON_LOOPBACK
    assert sum_times(alone, GLOO, SIZE).processors == pytest.approx(SIZE * (ring.inside + 1.5 * ring.crossing))


@pytest.mark.parametrize("lanes", [*LANES, 4])
def test_prices_fall_with_the_number_of_packets(lanes: int) -> None:
    found = [price(lanes, mtu) for mtu in (576, 1500, 4000, 9000, 65_536)]
    for many, few in itertools.pairwise(found):
        assert many.crossing >= few.crossing > 0
        assert many.inside > 0
    assert (found[1], found[3]) == PRICES[lanes]


def test_jumbo_frames_are_advised_by_what_they_gain() -> None:
    bound_by_processors = network(2, 1e11, cores=(1.0,) * 2, interface_mtus=(9000, 1500))
    (told,) = jumbo_notes(bound_by_processors, ("a", "b"), Choice("hosts"), Profile(((0.0, SIZE),)))
    gain = hosts_price(32, 1500) / hosts_price(32, 9000)
    assert f"{gain:.2f} times as fast" in told
    assert "MTU 9000 at the interfaces of b, and at every switch between the hosts" in told
    same = dataclasses.replace(bound_by_processors, interface_mtus=(9000, 9000))
    (told,) = jumbo_notes(same, ("a", "b"), Choice("hosts"), Profile(((0.0, SIZE),)))
    assert "a switch between the hosts does not" in told
    hidden = Profile(((0.0, 4096),), compute_s=5.0)
    (told,) = jumbo_notes(same, ("a", "b"), Choice("hosts"), hidden)
    assert "less than 2%" in told
    assert jumbo_notes(dataclasses.replace(same, mtu=9000), ("a", "b"), Choice("hosts"), hidden) == []
    assert jumbo_notes(network(1), ("a",), Choice("rank0"), hidden) == []


def test_hosts_that_are_busy_with_other_work_are_named() -> None:
    (told,) = load_notes(network(3, idle=(0.9, 0.25, 0.0)), ("a", "b", "c"))
    assert "busy: b (75%), c (100%);" in told
    assert load_notes(network(2, idle=(0.9, 0.5)), ("a", "b")) == []
    assert load_notes(network(2), ("a", "b")) == [], "not measured"


def test_a_longer_mtu_carries_more_payload_over_the_same_wire() -> None:
    longer = with_mtu(network(4), 9000)
    assert longer.rates[0] / 1e8 == pytest.approx((8948 / 9014) / (1448 / 1514), rel=0.001), "headers of TCP"
    ours = sum_s(network(4), Choice("hosts"), SIZE) / sum_s(longer, Choice("hosts"), SIZE)
    assert 1.02 < ours < 1.06


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("150000 100000", 1.5), ("1600000 100000", 8), ("", 8), ("x y", 8), ("5 0", 8)],
)
def test_a_container_has_as_many_cores_as_its_quota(limit: str, cores: float) -> None:
    assert core_limit(8, limit) == cores


def test_own_processors_are_measured() -> None:
    assert 0 <= idle_share(0.05) <= 1
    assert 0.01 < core_speed() < 100
    assert 0 < own_core_limit(4) <= 4


def test_sums_that_are_hidden_behind_computing_cost_a_step_nothing() -> None:
    profile = Profile(((0.1, 1 << 20), (5.0, 1 << 20)), compute_s=5.0)
    alone = sum_s(network(), GLOO, 1 << 20)
    assert step_s(network(), GLOO, profile) == pytest.approx(5.0 + alone)
    assert profile.bytes == 2 << 20


def test_what_is_not_faster_by_a_twentieth_is_not_recommended() -> None:
    def measured(place: str, took_s: float) -> Forecast:
        return Forecast(Choice(place), 1.0, took_s, 1.0)

    gloo = Forecast(GLOO, 1.0, 1.0)
    assert recommended([measured("hosts", 0.97), gloo]) is None
    assert recommended([measured("hosts", 0.8), measured("racks", 0.7), gloo]) == measured("racks", 0.7)
    slow = [Forecast(GLOO, 1.0, 1.0), Forecast(Choice("hosts"), 1.1)]
    assert recommended(slow) is None, "predicted to be slower, and not measured"
    assert recommended([Forecast(Choice("hosts"), 0.5), Forecast(GLOO, 1.0)]) == Forecast(Choice("hosts"), 0.5)


def test_the_last_whole_step_of_a_timeline_is_the_profile() -> None:
    records = [{"kind": "start", "time": 0.0}]
    for step in (1, 2, 3):
        records.append({"kind": "step", "time": float(step), "step": step})
        records += [
            {"kind": "reduction", "submitted": step + offset, "done": step + 0.5, "bytes": size, "step": step}
            for offset, size in ((0.2, 400), (0.1, 800))
        ]
    lines = [*map(json.dumps, records), '{"kind": "st']
    found = profile_of(lines)
    assert found is not None
    assert [size for _, size in found.buckets] == [800, 400]
    assert [*(ready for ready, _ in found.buckets), found.compute_s] == pytest.approx([0.1, 0.2, 0.2])
    assert profile_of(lines[:3]) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_links_are_probed_over_sockets(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with Listener(0) as one, Listener(1) as two:
        there = (host, two.port)
        assert interface_mtu(there) > 9000
        assert 0 < round_trip_s(there, 0) < 10
        stream([there], 0, 0.3)
        rates = two.rates()
        assert list(rates) == [0]
        assert rates[0] > 1e6
        assert two.rates() == {}, "each phase has its own"
        send_datagrams([there], 0)
        until(lambda: two.datagrams().get(0) is not None and two.datagrams()[0].mtu == 9000 and two.datagrams()[0].ecn)
        assert one.datagrams() == {}


def test_a_number_that_another_program_has_for_datagrams_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system chooses a port for connections without a look at datagrams."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", free_port(socket.SOCK_DGRAM)))
        serve, chosen = socket.create_server, [taken.getsockname()[1]]
        monkeypatch.setattr(
            socket, "create_server", lambda address, **given: serve(("", chosen.pop() if chosen else 0), **given)
        )
        with Listener(0) as host:
            assert not chosen
            assert host.port != taken.getsockname()[1]
            assert 0 < round_trip_s(("127.0.0.1", host.port), 1) < 10


def test_a_host_that_had_no_files_left_for_a_while_is_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    with Listener(0) as host, socket.socket() as other:
        paused = noticed(host._closing, monkeypatch)
        with files_left(0):
            other.connect(("127.0.0.1", host.port))
            assert paused.wait(DEADLINE_S), "it has given up"
        assert 0 < round_trip_s(("127.0.0.1", host.port), 1) < 10


def test_a_stream_that_breaks_has_no_rate_and_leaves_nothing_behind() -> None:
    listener = Listener(0)
    with listener:
        port = listener.port
    begun = time.monotonic()
    stream([("127.0.0.1", port)], 1, 30.0)
    assert time.monotonic() - begun < 20
    assert listener.rates() == {}


@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
def test_a_rank_that_does_not_come_is_named(names: tuple[str, ...]) -> None:
    store, said, patience_s = c10d.HashStore(), list[str](), [each / 1000 for each in PATIENCE_S]
    store.set("rank 0", "")

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            store.set("rank 1", "")

    told = missing(store, 3, names, say, patience_s)
    one, two = ("rank 1 (b)", "rank 2 (c)") if names else ("rank 1", "rank 2")
    assert said[0] == f"waiting for {one}, {two}", "after five seconds, and after ten"
    assert said[0] == said[1]
    assert said[2:] == [f"waiting for {two}"] * 3, "after 20, 40 and 80"
    assert told.startswith(f"{two}: not there after {GIVE_UP_AFTER_S / 1000:g} s. Remedy: ")
    store.set("rank 2", "")
    assert missing(store, 3, names, said.append) == ""


def test_the_launcher_keeps_to_itself_what_it_alone_is_told() -> None:
    line = ["advise", "--hosts", "a,b", "--via=ssh -q", "--lanes", "8", "--master", "a", "--", "x", "--hosts", "c"]
    assert without_hosts(line) == ["advise", "--lanes", "8", "--", "x", "--hosts", "c"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "a"], "expected two or more different names"),
        (["--hosts", "a,a"], "expected two or more different names"),
        (["--hosts", "a,b", "--via", ""], "--via is empty"),
        (["--hosts", "a,b", "--via", "/no/such/program"], "--via /no/such/program: No such file"),
        ([], "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set"),
        (["--lanes", "wide"], "--lanes 'wide': expected widths"),
        (["--lanes", "7"], "lanes"),
        (["--switch", "udp://a:1=0"], "'0' is no weight"),
        (["--bytes", "3"], "--bytes 3: must be in"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(arguments: list[str], said: str) -> None:
    if arguments and arguments[0] != "--hosts":  # read in this process, which is quicker
        field = {"--lanes": "lanes", "--switch": "switches", "--bytes": "bytes"}[arguments[0]]
        with pytest.raises(ConfigurationError) as caught:
            Plan(**fields_of(Plan, {field: int(arguments[1]) if field == "bytes" else arguments[1]}))
        assert said in str(caught.value)
        return
    ended = subprocess.run(
        [sys.executable, "-m", "fanin", "advise", *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_plan_takes_what_an_option_takes() -> None:
    assert Plan(switches=("udp://a:1",), lanes=(16,)).bytes == SIZE


def test_fanin_plan_reads_what_advise_prints_as_json() -> None:
    measured = network(4, racks=((0, 1), (2, 3)), uplinks=(1e7, 1e7))
    profile = Profile(((0.1, 3 << 20), (0.2, 1 << 20)), compute_s=0.5)
    found = advice.Advice(
        network=measured, hosts=("a", "b", "c", "d"), ecn=True, profile=profile, found=(), best=None, settings={},
        racks=(),
    )  # fmt: skip
    read = read_measured(json.dumps(dataclasses.asdict(found)), "advice.json")
    assert (read.gradient_bytes, read.compute_s) == (4 << 20, 2.0)
    assert (read.cluster.ranks, read.cluster.rates, read.cluster.racks) == (
        measured.ranks,
        measured.rates,
        measured.racks,
    )
    assert read.cluster.uplinks == measured.uplinks


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_racks_of_namespaces_are_found_and_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(workers=4, racks=2, uplink=uplink("50mbit"), rate="500mbit", switch_at="hosts")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", WORKER_DEVICE)
    with Fabric(scenario.topology) as fabric, (tmp_path / "advice.json").open("wb") as output:
        fork_advisers(monkeypatch, output)
        arguments = [
            "advise", "--via", "ip netns exec", "--no-measure", "--json",
            "--hosts", ",".join(fabric.host_namespace(host) for host in range(4)),
            "--master", scenario.topology.host_address(0), "--lanes", "32",
        ]  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["fanin", *arguments])  # the launcher passes it on
        assert cli.run(arguments) == 0
    advice = json.loads((tmp_path / "advice.json").read_text())
    assert advice["network"]["racks"] == [[0, 1], [2, 3]]
    assert advice["best"]["choice"] == {"place": "racks", "lanes": 32}
    assert advice["racks"] == ["rack0", "rack0", "rack1", "rack1"]
    assert advice["settings"] == {"FANIN_SWITCH": "hosts"}
    assert all(3e7 < rate < 6e7 for rate in advice["network"]["uplinks"])


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_ends_the_launcher_ends_ranks_and_their_programs(number: signal.Signals, tmp_path: Path) -> None:
    runner = tmp_path / "runner"
    runner.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    runner.chmod(0o700)
    program = "import os, pathlib, signal; pathlib.Path(f'pid{os.environ[\"RANK\"]}').write_text(f'{os.getpid()} '); "
    launcher = subprocess.Popen(
        [
            sys.executable, "-m", "fanin", "advise", "--hosts", "a,b", "--via", runner, "--master", "127.0.0.1",
            "--master-port", str(free_port()), "--", sys.executable, "-c", program + "signal.pause()",
        ],
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    until(lambda: all(file.exists() and file.read_text().endswith(" ") for file in files))
    programs = [os.pidfd_open(int(file.read_text())) for file in files]
    launcher.send_signal(number)
    assert launcher.wait(DEADLINE_S) == (130 if number is signal.SIGTERM else -number)
    assert all(has_ended(each) for each in programs)
    for each in programs:
        os.close(each)
    if number is signal.SIGTERM:
        assert not list(tmp_path.glob("fanin-advise-*"))


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ((255, 255, 0), "ssh could not reach a, b. Remedy: `ssh -p 22 HOST true` is"),
        ((0, 127, 126), "could be started on b, c. Remedy: install"),
    ],
)
def test_hosts_whose_rank_never_began_are_named_with_what_to_do(statuses: tuple[int, ...], told: str) -> None:
    with pytest.raises(FaninError, match=told):
        _explain(statuses, ("a", "b", "c"), ["ssh", "-p", "22"])


def test_of_a_rank_that_failed_by_itself_nothing_is_added() -> None:
    _explain((1, 2, -9), ("a", "b", "c"), ["ssh"])


def test_gloo_gets_the_interface_on_the_way_where_it_would_take_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.setattr(advice, "unlike_gloos_choice", lambda: "127.0.0.1")
    give_gloo_an_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "fast0")
    give_gloo_an_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "fast0"

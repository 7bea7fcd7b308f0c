"""Scenarios: read from files, overridden by options, refused where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanin.emulation.network.scenario import SHIPPED, Scenario, link, load, straggler
from fanin.emulation.network.switches import fabric_for
from fanin.emulation.network.topology import Topology
from fanin.errors import ConfigurationError, UnsupportedError


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.toml")))
def test_every_shipped_scenario_is_one(name: str) -> None:
    scenario = Scenario(**load(name))
    assert scenario.topology.workers >= 2
    assert scenario.settings()["name"] == name


def test_a_file_says_all_that_the_command_line_does(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'workers = 4\nrate = "1gbit"\nfaults = ["drop=1%@seed=3", "down=link:1@5s+2s"]\n'
        '[links.3]\nrate = "100mbit"\ndelay = "2ms"\n[stragglers]\n2 = "1.5x"\n'
    )
    scenario = Scenario(**load(str(path)))
    assert scenario.topology.link_of(3).rate_bit_s == 1e8
    assert scenario.topology.link_of(3).delay_s == pytest.approx(0.002)
    assert scenario.topology.link_of(0).rate_bit_s == 1e9
    assert scenario.slowdowns == {2: 1.5}
    assert scenario.schedule.for_workers(scenario.faults_text) == "drop=1%@seed=3"
    assert [each.index for each in scenario.schedule.happenings] == [1]


def test_options_are_read_as_pairs() -> None:
    assert straggler("3:2x") == ("3", "2x")
    assert link("3:rate=500mbit,delay=1ms") == ("3", {"rate": "500mbit", "delay": "1ms"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "asic"}, "target"),
        ({"workers": 33}, "workers"),
        ({"workers": 0}, "workers"),
        ({"racks": 5}, "racks"),
        ({"stragglers": {"4": "2x"}}, "no worker 4"),
        ({"stragglers": {"one": "2x"}}, "no rank"),
        ({"links": {"1": {"speed": "1gbit"}}}, "speed"),
        ({"faults": ("kill=worker:9@step:1",)}, "no worker 9"),
        ({"faults": ("drop=1%", "dup=1%")}, "twice"),
        ({"rate": "10"}, "rate"),
        ({"delay": "20s"}, "delay"),
        ({"mtu": 100}, "mtu"),
        ({"restarts": 99}, "restarts"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Scenario(**{"workers": 4, **fields})  # type: ignore[arg-type]


def test_a_file_that_is_wrong_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("workers = 4\ncolour = 'red'\n")
    with pytest.raises(ConfigurationError, match="colour"):
        load(str(path))
    path.write_text("workers = \n")
    with pytest.raises(ConfigurationError, match=r"mine\.toml"):
        load(str(path))
    with pytest.raises(ConfigurationError, match="shipped are"):
        load("no-such-scenario")


def test_a_target_that_cannot_be_run_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UnsupportedError, match=r"simple_switch_grpc.*--target p4"):
        fabric_for(Topology(workers=2), "bmv2")
    with pytest.raises(UnsupportedError, match="no two-level tree"):
        fabric_for(Topology(workers=2, racks=2), "p4")
    with pytest.raises(UnsupportedError, match="native, python, p4, bmv2"):
        fabric_for(Topology(workers=2), "tofino")

"""Scenarios: read from files, overridden by options, refused where they cannot be."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.emulation.network.scenario import SHIPPED, LinkTable, Scenario, compose, link, load, straggler
from fanin.emulation.network.switches import fabric_for
from fanin.emulation.network.topology import Topology
from fanin.errors import ConfigurationError


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
    assert [each.index for each in scenario.schedule.scheduled] == [1]


def test_options_are_read_as_pairs() -> None:
    assert straggler("3:2x") == ("3", "2x")
    assert link("3:rate=500mbit,delay=1ms") == ("3", LinkTable(rate="500mbit", delay="1ms"))
    assert link("3:mtu=9000") == ("3", LinkTable(mtu=9000))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "asic"}, "target"),
        ({"workers": 33}, "workers"),
        ({"workers": 0}, "workers"),
        ({"racks": 5}, "racks"),
        ({"stragglers": {"4": "2x"}}, "no worker 4"),
        ({"stragglers": {"one": "2x"}}, "no rank"),
        ({"links": {"1": LinkTable(rate="fast")}}, r"links\.1\.rate: 'fast'"),
        ({"links": {"4": LinkTable()}}, "no worker 4"),
        ({"uplink": LinkTable(rate="1gbit")}, "uplink"),
        ({"racks": 0}, r"racks = 0; must be in 1\.\.8"),
        ({"seed": -1}, "seed = -1"),
        ({"stragglers": {"1": "1e9x"}}, r"stragglers\.1"),
        ({"rate": "none", "faults": ("slow=link:1:2x@1s+1s",)}, "no rate"),
        ({"faults": ("kill=worker:1@step:0",)}, "counted from 1"),
        ({"faults": ("kill=worker:9@step:1",)}, "no worker 9"),
        ({"faults": ("drop=1%", "dup=1%")}, "twice"),
        ({"rate": "10"}, "rate"),
        ({"delay": "20s"}, "delay"),
        ({"mtu": 100}, "mtu"),
        ({"restarts": 99}, "restarts"),
        ({"restarts": 1, "ranks_per_host": 2}, "restarts: torchrun"),
        ({"ranks_per_host": 3}, "ranks_per_host = 3; must divide"),
        ({"switch_at": "moon"}, "switch_at: 'moon'"),
        ({"switch_at": "hosts", "fallback": "gloo"}, "fallback: .*rank0"),
        ({"switch_at": "rank0", "faults": ("kill=switch@1s",)}, "ranks start the switch"),
        ({"ranks_per_host": 2, "faults": ("down=link:2@1s+1s",)}, "no host 2"),
        ({"tcp_flows": 65}, r"tcp_flows = 65; must be in 0\.\.64"),
        ({"tcp_flows": 1, "ranks_per_host": 4}, "only one"),
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('workers = "two"', ["workers", "'two'", "expected a whole number"]),
        ("workers = true", ["workers", "True", "expected a whole number"]),
        ("workers = 2.0", ["workers", "2.0"]),
        ("links = 3", ["links", "3", "expected a table"]),
        ("[links]\n1 = 3", ["links.1", "3", "expected a table"]),
        ("[links.1]\nspeed = '1gbit'", ["links.1", "speed"]),
        ("[links.1]\nmtu = '9000'", ["links.1.mtu", "'9000'", "expected a whole number"]),
        ("[links.1]\nrate = 'fast'", ["links.1.rate", "'fast'", "100mbit"]),
        ("[links.01]\nmtu = 9000", ["links", "'01'", "expected 0, 1"]),
        ("uplink = '1gbit'", ["uplink", "'1gbit'", "expected a table"]),
        ("[uplink]\nrate = '1gbit'", ["uplink", "racks = 1", "expected racks = 2"]),
        ('stragglers = ["0:2x"]', ["stragglers", "expected a table"]),
        ("[stragglers]\n0 = 2", ["stragglers.0", "2", "expected a text"]),
        ('faults = "drop=1%"', ["faults", "'drop=1%'", "expected a list"]),
        ("faults = [1]", ["faults[0]", "1", "expected a text"]),
        ("rate = 100", ["rate", "100", "expected a text"]),
        ("rate = '100'", ["rate", "'100'", "100mbit"]),
        ("seed = -1", ["seed", "-1", "0..4294967295"]),
        ("workers = 1979-05-27", ["workers", "expected a whole number"]),
        ("a = " + "[" * 5000 + "]" * 5000, ["nested too deeply"]),
    ],
)
def test_an_error_names_file_key_value_and_what_was_expected(tmp_path: Path, text: str, said: list[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        compose(str(path), {})
    message = str(caught.value)
    assert "\n" not in message
    for part in ["mine.toml", *said]:
        assert part in message


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b'name = "caf\xe9"\n')
    with pytest.raises(ConfigurationError, match=r"mine\.toml.*byte 11 is not UTF-8"):
        load(str(path))


def test_an_option_in_place_of_a_wrong_key_makes_a_file_right_and_is_blamed_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('rate = "fast"\n[stragglers]\n5 = "2x"\n')
    assert compose(str(path), {"rate": "1gbit", "workers": 6}).slowdowns == {5: 2.0}
    with pytest.raises(ConfigurationError) as caught:
        compose(str(path), {"rate": "slow", "workers": 6})
    assert str(caught.value).startswith("rate: 'slow'")


KEYS = [field.name for field in dataclasses.fields(Scenario)]
LINK_KEYS = [field.name for field in dataclasses.fields(LinkTable)]
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["1gbit", "none", "50us", "1%", "2x", "1mib", "native", "gloo", "kill=worker:1@2s", "drop=1%", "9" * 5000 + "s"]
    ),
)
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), TEXTS, st.dates(), st.times(), st.datetimes()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["0", "1", "-1", *LINK_KEYS]), st.text(max_size=3)), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=400)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_any_value_at_any_key_makes_a_scenario_or_the_one_error(body: dict[str, object]) -> None:
    """The inputs are values that a TOML parser may return; hypothesis has no TOML writer, so the parser is replaced."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fanin.emulation.network.scenario.load_toml", lambda path, what: body)
        error: ConfigurationError | None = None
        try:
            assert compose("straggler", {}).settings().keys() >= {"workers", "rate"}
        except ConfigurationError as caught:
            error = caught
    assert error is None or "\n" not in str(error)


def test_a_target_that_cannot_be_run_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigurationError, match=r"simple_switch_grpc.*--target p4"):
        fabric_for(Topology(workers=2), "bmv2")
    with pytest.raises(ConfigurationError, match="no two-level tree"):
        fabric_for(Topology(workers=2, racks=2), "p4")
    with pytest.raises(ConfigurationError, match="native, python, p4, bmv2"):
        fabric_for(Topology(workers=2), "tofino")

"""The value of FANIN_INTERFACES: names, beginnings of names, exclusions and rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.interface_list import InterfaceList
from fanin.options import Options

UP = ("docker0", "eth0", "eth1", "eth10", "ib0", "veth1a2b")
PRESENT = ("lo", *UP, "eth2")
"""Interfaces of a host, of which the last has no cable."""


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("eth0,eth1", ["eth0", "eth1"]),
        ("eth1, eth0", ["eth1", "eth0"]),
        ("eth1", ["eth1"]),
        ("eth", ["eth0", "eth1", "eth10"]),
        ("eth,ib", ["eth0", "eth1", "eth10", "ib0"]),
        ("=eth1", ["eth1"]),
        ("=eth", ["eth"]),
        ("=eth0,=eth1", ["eth0", "eth1"]),
        ("^docker,veth", ["eth0", "eth1", "eth10", "ib0"]),
        ("^=eth1,=ib0", ["docker0", "eth0", "eth10", "veth1a2b"]),
        ("lo,eth2", ["lo", "eth2"]),
        ("missing0", ["missing0"]),
    ],
)
def test_names_choose_interfaces_as_they_do_for_nccl(text: str, chosen: list[str]) -> None:
    assert InterfaceList.parse(text).select(PRESENT, UP) == [(name, None) for name in chosen]


def test_each_interface_has_the_rate_of_its_name() -> None:
    assert InterfaceList.parse("eth=10,ib0=25").select(PRESENT, UP) == [
        ("eth0", 10.0), ("eth1", 10.0), ("eth10", 10.0), ("ib0", 25.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected names"),
        ("^", "expected names"),
        ("=", "expected names"),
        ("eth0,,eth1", "expected names"),
        ("eth0 eth1", "expected names"),
        ("eth0,eth0", "a name twice"),
        ("eth0=fast", "'fast' is no rate"),
        ("eth0=0", "'0' is no rate"),
        ("eth0=nan,eth1=1", "'nan' is no rate"),
        ("eth0=10,eth1", "a rate for each interface, or for none"),
        ("^docker0=10", "a rate for each interface, or for none"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        Options(interfaces=text)
    assert "\n" not in str(raised.value)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        chosen = InterfaceList.parse(text).select(PRESENT, UP)
    except ConfigurationError:
        return
    assert len({name for name, _ in chosen}) == len(chosen)


def test_interfaces_are_those_of_switches_that_hosts_start() -> None:
    with pytest.raises(ConfigurationError, match="leave out interfaces"):
        Options(interfaces="eth0,eth1", switch="udp://10.0.0.1:4919")
    Options(interfaces="eth0,eth1", switch="hosts,udp://10.0.0.9:4919")

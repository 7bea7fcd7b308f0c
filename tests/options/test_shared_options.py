"""Every option, and every variable, is either shared by the ranks of a group or declared to be each rank's own."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from fanin.options import Options
from fanin.shared_options import OWN, SHARED, SHARED_IN_PART, VARIABLES, shared_values, unlike
from fanin.variables import OTHERS

JOB = "world-0123456789ab"
SAMPLES: dict[str, tuple[Any, Any]] = {
    "switch": ("udp://10.0.0.1:4919", "hosts"),
    "host": ("one", "another"),
    "rack": ("left", "right"),
    "link": (1.0, 10.0),
    "interfaces": ("eth0,eth1", "ib0"),
    "lanes": (8, "8/8"),
    "codec": ("rotated:8", "lanes:16"),
    "exact_elements": (0, 256),
    "slots": (16, 32),
    "words_per_packet": (64, 128),
    "flows": (1, 2),
    "on_worker_loss": ("raise", "continue"),
    "on_nonfinite": ("warn", "skip"),
    "fallback": ("raise", "gloo"),
    "inside": ("gloo", "nccl"),
    "device_wait": ("auto", "block"),
    "ordered_futures": (False, True),
    "connect_timeout_s": (1.0, 2.0),
    "join_timeout_s": (1.0, 2.0),
    "idle_return_s": (0.0, 1.0),
    "liveness_timeout_s": (1.0, 2.0),
    "ports": ("5000-5063", "5064-5127"),
    "faults": ("drop=1%", "drop=2%"),
    "timeline": ("one", "another"),
    "flight_recorder": ("one", "another"),
    "otel": (False, True),
    "metrics": (":9465", ":9466"),
    "pcap": ("one", "another"),
    "trace": ("one", "another"),
    "secret": ("sixteen letters one", "sixteen letters two"),
    "curve_server_key": ("k" * 40, "l" * 40),
    "checksum": (False, True),
    "authenticate": (False, True),
    "tag": ("siphash", "gcm-siv"),
    "native": (False, True),
    "shared_memory": (False, True),
}
"""By option, two values that differ."""
NAMES = [each.name for each in dataclasses.fields(Options)]
HINTS = typing.get_type_hints(Options)


def differences(first: Options, other: Options, *, one_host: bool = False) -> list[str]:
    """Differences that rank 3, with `other`, is told where rank 0 was given `first`."""
    return unlike(shared_values(first, JOB), other, 3, JOB, one_host=one_host)


def test_every_option_and_variable_is_in_one_table() -> None:
    tables = [set(SHARED), set(SHARED_IN_PART), set(OWN)]
    assert sorted(NAMES) == sorted(name for table in tables for name in table)
    assert set(VARIABLES) == OTHERS
    assert all({**SHARED_IN_PART, **OWN, **VARIABLES}.values()), "each with its reason"
    assert set(SAMPLES) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_with_another_value_is_refused_unless_it_is_its_own(name: str) -> None:
    one, another = (Options(**{name: value}) for value in SAMPLES[name])
    told = differences(one, another, one_host=True)
    assert bool(told) is (name not in OWN), told
    if name not in OWN:
        assert "rank 3" in told[0]
        assert f"FANIN_{name.upper()}" in told[0]
    assert differences(one, one, one_host=True) == []


@pytest.mark.parametrize(
    "name", [name for name in NAMES if type(None) in typing.get_args(typing.get_type_hints(Options)[name])]
)
def test_a_rank_that_alone_has_a_value_or_none_is_refused_unless_it_is_its_own(name: str) -> None:
    given, none = Options(**{name: SAMPLES[name][0]}), Options()
    assert bool(differences(none, given, one_host=True)) is (name not in OWN)
    # Ranks without a switch of their own use rank 0's.
    assert bool(differences(given, none, one_host=True)) is (name not in OWN and name != "switch")


def test_hosts_may_differ_in_rack_and_link_and_leaves_in_address() -> None:
    for one, another in (
        (
            Options(rack="left", link=1.0, interfaces="eth0,eth1"),
            Options(rack="right", link=10.0, interfaces="ib0"),
        ),
        (Options(switch="udp://10.0.0.1:4919"), Options(switch="udp://10.0.0.2:4919")),
        (Options(switch="hosts=2,udp://10.0.0.1:4919"), Options(switch="hosts,udp://10.0.0.2:4919")),
    ):
        assert differences(one, another) == []


def test_a_secret_is_told_as_a_hash_that_is_of_use_in_one_job() -> None:
    options = Options(secret=SAMPLES["secret"][0])
    told = [shared_values(options, job)["secret"] for job in (JOB, JOB, "world-another")]
    assert told[0] == told[1] != told[2]
    assert str(options.secret) not in str(told)

"""No option that nothing reads, and no variable that is read and warned of."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.options import Options
from fanin.protocol.job import Asked
from fanin.variables import without_effect
from tests.support.repository import ROOT, repository_files

READERS = "\n".join(path.read_text() for path in repository_files("host/*.py", "host/**/*.py"))

THROUGH = {"exact_elements": "largest_exact", "ports": "port_range"}
"""Options that the host reads through a method or a property of theirs."""


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Options)])
def test_every_option_is_read_by_the_host(name: str) -> None:
    asked = name in {field.name for field in dataclasses.fields(Asked)} and "facts_of(options, Asked)" in READERS
    assert asked or f"options.{THROUGH.get(name, name)}" in READERS, f"{name} of {ROOT / 'fanin' / 'options.py'}"


SOURCES = ("setup.py", "benchmarks/*", "emulation/*", "examples/*", "fanin/*", "host/*", "native/*", "switch/*")
NAMED = re.compile(r'"(FANIN_[A-Z0-9_]+)"')


def test_no_variable_of_ours_is_said_to_have_no_effect() -> None:
    read = {name for path in repository_files(*SOURCES) for name in NAMED.findall(path.read_text(errors="replace"))}
    options = {f"FANIN_{each.name.upper()}" for each in dataclasses.fields(Options)}
    assert {"FANIN_KEY_FILE", "FANIN_KERNELS", "FANIN_JOB"} <= read
    assert list(without_effect(dict.fromkeys(read | options, "1"))) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FANIN_SWITCHES", "FANIN_SWITCH"),
        ("FANIN_Switch", "FANIN_SWITCH"),
        ("fanin_lanes", "FANIN_LANES"),
        ("FANIN_JOIN_TIMEOUT", "FANIN_JOIN_TIMEOUT_S"),
        ("FANIN_KEYFILE", "FANIN_KEY_FILE"),
        ("FANIN_BITS", "docs/torch.md"),
    ],
)
def test_a_misspelt_variable_is_told_with_the_one_that_was_meant(name: str, meant: str) -> None:
    (line,) = without_effect({name: "1", "PATH": "/bin", "FANIN_LANES": "16"})
    assert line.startswith(f"{name} has no effect")
    assert meant in line


@pytest.mark.parametrize("name", ["SERVICE_HOST", "PORT", "SWITCH_SERVICE_PORT_DATA", "SWITCH_PORT_4919_UDP_ADDR"])
def test_what_kubernetes_makes_of_a_service_is_nobodys_mistake(name: str) -> None:
    assert list(without_effect({f"FANIN_{name}": "1"})) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"native": "0"}, "True or False or None"),
        ({"shared_memory": "false"}, "True or False or None"),
        ({"ordered_futures": 1}, "True or False"),
        ({"lanes": 16.0}, "a whole number or a text"),
        ({"slots": 2.5}, "a whole number or None"),
        ({"join_timeout_s": "10"}, "a number"),
        ({"liveness_timeout_s": True}, "a number or None"),
        ({"switch": 5}, "a text or None"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_words(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=f"{next(iter(given))} = .*; expected {expected}\\. Remedy: correct {next(iter(given))}$",
    ):
        Options(**given)


def test_numbers_of_numpy_pass() -> None:
    assert Options(lanes=np.int64(16), link=np.float32(2.0)).lanes_number == 16  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("LANES", "junk", "lanes = 'junk'; must be one of"),
        ("SLOTS", "many", "FANIN_SLOTS='many'; expected a whole number, "),
        ("LIVENESS_TIMEOUT_S", "soon", "FANIN_LIVENESS_TIMEOUT_S='soon'; expected a number, in "),
        ("NATIVE", "maybe", "FANIN_NATIVE='maybe'; expected 1, true, 0 or false. Remedy"),
        ("OTEL", "2", "FANIN_OTEL='2'; expected 1, true, 0 or false. Remedy"),
        ("EXACT_ELEMENTS", "1e3", "FANIN_EXACT_ELEMENTS='1e3'; expected a whole number, "),
        ("ON_WORKER_LOSS", "junk", "on_worker_loss = 'junk'; must be 'raise' or 'continue'. Remedy"),
        ("FALLBACK", "card", "fallback = 'card'; must be 'raise', 'gloo' or 'cards'"),
        ("ON_NONFINITE", "junk", "on_nonfinite = 'junk'; must be 'warn', 'raise' or 'skip'. Remedy"),
        ("DEVICE_WAIT", "junk", "device_wait = 'junk'; must be one of auto, value, kernel, block. Remedy"),
        ("SECRET", "junk", "secret must have 16..512 characters. Remedy"),
        ("CONNECT_TIMEOUT_S", "1e9", "connect_timeout_s = 1000000000.0; must be in "),
        ("FAULTS", "kill=worker:1", "fault 'kill=worker:1': expected "),
        ("FAULTS", "drop=2", "faults: drop = 2.0; must be in 0..1"),
    ],
)
def test_junk_in_a_variable_is_told_with_what_is_legal_and_the_remedy(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Options.from_environment({"FANIN_HOST": "a", f"FANIN_{name}": text})
    assert str(refused.value).startswith(expected)
    assert str(refused.value).endswith(f". Remedy: correct FANIN_{name}, or unset it")


def test_a_job_goes_on_over_the_cards_that_are_left_or_without_lost_ranks() -> None:
    with pytest.raises(
        ConfigurationError, match=r"fallback = 'cards' with on_worker_loss = 'continue': .* Remedy: leave"
    ):
        Options(fallback="cards", on_worker_loss="continue")
    assert Options(fallback="cards").goes_on
    assert not Options(fallback="gloo").goes_on


def test_the_remedy_for_a_value_of_the_program_names_no_variable() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"on_worker_loss = 'junk'; must be 'raise' or 'continue'\. Remedy: correct on_worker_loss$",
    ):
        Options.from_environment({"FANIN_ON_WORKER_LOSS": "raise"}, on_worker_loss="junk")

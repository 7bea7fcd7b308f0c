"""Paths that change under a running job, by rules of a firewall: an MTU that falls, a control port that is rejected."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

from fanin.extension import native_extension
from fanin.protocol.wire import datagram_bytes
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]
LIMIT_S = 60.0


def became(case: str, mode: str) -> tuple[Any, str]:
    """Run a case of the program: the outcome that it reports, and its log."""
    if shutil.which("nft") is None or (mode.startswith("native") and native_extension(None) is None):
        pytest.skip("needs nft, and for the native engine the native extension")
    command = ["unshare", "--net", sys.executable, "-m", "tests.network.changing_paths_program", case, mode]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("mode", ["native-udp", "twin-udp"])
def test_a_path_that_became_narrower_is_named_with_what_still_passes(mode: str) -> None:
    told, log = became("narrower", mode)
    assert told["kind"] == "PathNarrowedError"
    assert "(127.0.0.1)" in told["text"]
    measured = re.search(r"was 1500 when this rank joined and is about (\d+) now", told["text"])
    assert measured is not None
    assert int(measured[1]) <= 628  # less where a loaded machine has answered late
    assert "FANIN_WORDS_PER_PACKET=" in told["text"]
    assert "the path has become narrower" in log


@pytest.mark.parametrize("mode", ["native-udp", "twin-udp"])
def test_a_path_that_is_too_narrow_to_join_is_named_with_what_passes(mode: str) -> None:
    told, _ = became("narrow", mode)
    assert told["kind"] == "SwitchUnreachableError"
    assert "answers packets of 548 bytes at its UDP port" in told["text"]
    words = re.search(r"set FANIN_WORDS_PER_PACKET=(\d+) on all ranks", told["text"])
    assert words is not None
    assert 0 < datagram_bytes(1, int(words[1])) <= 548


@pytest.mark.parametrize("mode", ["native-udp", "twin-udp"])
def test_a_control_port_that_is_rejected_costs_nothing_as_long_as_data_comes(mode: str) -> None:
    told, log = became("rejected", mode)
    assert told["lives"] == [True, True]
    assert log.count("refuses connections from here, while its data packets come") == 2, "once for each rank"
    assert told["kind"] == "SwitchLostError"
    assert "its control port had refused connections from here before" in told["text"]


def test_a_control_port_that_answers_nothing_costs_nothing_either() -> None:
    told, _ = became("dropped", "native-udp")
    assert told["lives"] == [True, True]
    assert told["kind"] == "SwitchLostError"
    assert "its control port does not answer either" in told["text"]

"""A script as a user writes it, under torchrun: no import of fanin, one word changed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fanin.emulation.processes import free_port
from fanin.host.session.control import ask
from fanin.protocol import control
from tests.support.processes import DEADLINE_S, a_switch
from tests.torch.job import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]
RANKS = 3


def torchrun(**variables: str) -> str:
    """What examples/minimal.py prints on three ranks of this machine."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={RANKS}",
        f"--master-port={free_port()}",
    ]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "minimal.py")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_script_that_names_only_the_backend_runs_with_a_switch_of_its_own() -> None:
    printed = torchrun()
    for rank in range(RANKS):
        assert f"rank {rank} of {RANKS}: the sum is 6" in printed


def test_the_same_script_uses_the_switch_that_the_environment_names() -> None:
    with a_switch("native-udp") as switch:
        printed = torchrun(FANIN_SWITCH=str(switch.address))
        assert printed.count("the sum is 6") == RANKS
        stats = ask(switch.address, control.Ask(), timeout_s=DEADLINE_S)
        assert isinstance(stats, control.Stats)
        assert sum(report.counters["packets_in"] for report in stats.data) > RANKS

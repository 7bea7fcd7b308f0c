"""A script as a user writes it, under torchrun: no import of fanin, one word changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fanin.emulation.processes import free_port
from fanin.host.session.control import ask
from fanin.protocol import control
from tests.support.processes import DEADLINE_S, a_switch
from tests.support.thorough import thorough
from tests.torch.rank_checks import ROOT, running

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
RANKS = 2
LIMIT_S = 240.0
"""Far more than three imports of torch take; only what hangs waits for it."""
SUMS_AT_ITS_END = """
import atexit

import torch
import torch.distributed as dist


def report() -> None:
    summed = torch.ones(3)
    dist.all_reduce(summed)
    print(f"at the end of rank {dist.get_rank()}: {summed.sum().item():g}", flush=True)


atexit.register(report)
dist.init_process_group("fanin")
"""


def test_a_script_that_names_only_the_backend_runs_with_a_switch_of_its_own() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, f"--master-port={free_port()}", str(ROOT / "examples" / "minimal.py")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(RANKS):
        assert f"rank {rank} of {RANKS}: the sum is 3" in done.stdout


def test_the_same_script_uses_the_switch_that_the_environment_names() -> None:
    """Forks in place of torchrun's ranks: the variables are what counts."""
    with a_switch("native-udp") as switch:
        with running(["examples.minimal"], RANKS, {"FANIN_SWITCH": str(switch.address)}) as job:
            assert job.wait(LIMIT_S) == [0] * RANKS, job.output(0)
            for rank in range(RANKS):
                assert f"rank {rank} of {RANKS}: the sum is 3" in job.output(rank)
        stats = ask(switch.address, control.Ask(), timeout_s=DEADLINE_S)
        assert isinstance(stats, control.Stats)
        assert sum(report.counters["packets_in"] for report in stats.data) > RANKS


def test_what_a_program_registers_with_atexit_before_it_has_a_group_may_use_the_group(tmp_path: Path) -> None:
    """A logger may add up its counts there, as it may over gloo; the session had been closed by then."""
    script = tmp_path / "sums_at_its_end.py"
    script.write_text(SUMS_AT_ITS_END)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, f"--master-port={free_port()}", str(script)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(RANKS):
        assert f"at the end of rank {rank}: 6" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("victim", [thorough(0), thorough(1)])
def test_elastic_agents_start_the_world_anew_when_a_host_dies_with_its_shard(victim: int, tmp_path: Path) -> None:
    """Ports and secrets are taken anew, on the same hosts; the agent of host 0 serves torch's store."""
    port = free_port()

    def agent(host: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=2",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic", "--local-addr=127.0.0.1",
            "--monitor-interval=0.2", "-m", "tests.torch.elastic_rank",
        ]  # fmt: skip
        given = {
            "FANIN_HOST": f"host-{host}", "DIES": f"host-{victim}", "BEEN_HERE": str(tmp_path / f"host-{host}"),
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with (tmp_path / f"{host}.txt").open("w") as output:
            return subprocess.Popen(command, env={**os.environ, **given}, stdout=output, stderr=subprocess.STDOUT)

    agents = [agent(host) for host in range(2)]
    try:
        codes = [each.wait(timeout=LIMIT_S) for each in agents]
        printed = "".join((tmp_path / f"{host}.txt").read_text() for host in range(2))
        assert codes == [0, 0], printed[-3000:]
        for world in range(2):
            for rank in range(2):
                assert f"world {world}: rank {rank} of 2: the sum is 3 over 2 shards" in printed
    finally:
        for each in agents:
            each.kill()
            each.wait()

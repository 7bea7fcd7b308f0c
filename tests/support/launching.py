"""Real launchers of ranks, as users start them: mpirun, and a cluster of Slurm's in one folder."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from fanin.emulation.processes import free_port
from tests.support.processes import until
from tests.support.repository import ROOT

EXAMPLES = ROOT / "examples" / "launchers"
TIMEOUT_S = 200
"""Time for a job of two ranks on a machine that does much else."""
PLACE = """
import os
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"
print("placed", *map(os.environ.get, names), flush=True)
"""
"""A rank's program that says where it is, without importing torch."""
SUM = """
import torch
import torch.distributed as dist
dist.init_process_group("fanin")
tensor = torch.full((50_000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {int(tensor[0])}", flush=True)
print(dist.group.WORLD.describe(), flush=True)
dist.destroy_process_group()
"""
"""A rank's program that sums."""
whole = pytest.mark.skipif(
    not os.environ.get("FANIN_TEST_LAUNCHERS"), reason="ranks that import torch take long: `make launchers` runs them"
)
"""Mark for tests whose ranks sum; the suite has those whose ranks only say where they are."""
CONFIGURATION = """
ClusterName=fanin
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={own} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=zz-other NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Two nodes on one machine, the first of which has the machine's own name, which resolves."""
PROLOG = "#!/bin/sh\necho export FANIN_HOST=$SLURMD_NODENAME\n"
"""Sets a variable of every task: the nodes are one machine, which fanin is to take for two."""


def environment(**given: str) -> dict[str, str]:
    """This process's, for programs of this interpreter's folder (fanin, python, torchrun), without ranks of its own."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**own, "PATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **given}


def fanin_rank(program: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`fanin rank PROGRAM` where a launcher has set these variables."""
    command = [sys.executable, "-m", "fanin", "rank", *program]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=False)


def run(command: Sequence[str | Path], given: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """Output of a launcher, which succeeds. `given`: variables of its environment."""
    done = subprocess.run(
        list(map(str, command)),
        env=environment(**(given or {})),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def require(*programs: str, package: str) -> None:
    """Skip, by name, where one of them is not installed."""
    for program in programs:
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            pytest.skip(f"{program} is not on PATH (apt-get install {package})")


@contextlib.contextmanager
def a_slurm_cluster() -> Iterator[dict[str, str]]:
    """Variables for clients of a cluster of two nodes on this machine: munged, slurmctld and two slurmd."""
    require("munged", "slurmctld", "slurmd", "srun", package="slurm-wlm munge")
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fanin-slurm-"))  # short: a socket's path has at most 107 characters
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        own = socket.gethostname()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        for name in ("state", f"spool.{own}", "spool.zz-other"):
            (folder / name).mkdir()
        (folder / "prolog").write_text(PROLOG)
        (folder / "prolog").chmod(0o755)
        configuration = folder / "slurm.conf"
        ports = [free_port() for _ in range(3)]
        configuration.write_text(CONFIGURATION.format(folder=folder, ports=ports, own=own, user=getpass.getuser()))
        variables = {"SLURM_CONF": str(configuration)}
        daemons = {
            "munged": [
                "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket",
                f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/seed",
            ],
            "slurmctld": ["-D"],
            "slurmd own": ["-D", "-N", own],
            "slurmd other": ["-D", "-N", "zz-other"],
        }  # fmt: skip
        for name, arguments in daemons.items():
            log = stack.enter_context((folder / f"{name}.txt").open("w"))
            given = environment(**variables)
            command = [shutil.which(name.split()[0], path=f"{given['PATH']}:/usr/sbin:/sbin") or name, *arguments]
            stack.callback(_end, subprocess.Popen(command, env=given, stdout=log, stderr=log))
            if name == "munged":
                until((folder / "munge.socket").exists)
        sinfo = ["sinfo", "--noheader", "--format=%T", "--Node"]

        def up() -> bool:
            asked = subprocess.run(sinfo, env=environment(**variables), capture_output=True, text=True, check=False)
            return asked.stdout.split() == ["idle", "idle"]

        try:
            until(up)
        except AssertionError:
            said = "".join(path.read_text() for path in sorted(folder.glob("slurm*.txt")))
            raise AssertionError(f"the cluster did not come up: {said[-3000:]}") from None
        yield variables


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

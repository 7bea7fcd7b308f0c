"""OpenMPI as a rival: a small C program, compiled by mpicc, and run by mpirun over TCP or over shared memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("mpi_allreduce.c")
BYTE_TRANSFER_LAYERS = {"tcp": "tcp,self", "shm": "^tcp"}
PROGRAM_VARIABLE = "FANIN_BENCH_MPI_PROGRAM"
"""Environment variable with the path of the compiled program, for the worker processes."""
AGENT_VARIABLE = "FANIN_BENCH_MPI_AGENT"
"""Variable with a program that runs a command on another host, given address and command. Unset: all ranks are here."""
HOSTS_VARIABLE = "FANIN_BENCH_MPI_HOSTS"
"""Variable with addresses by rank, separated by commas; needed with an agent. This process runs on the first host."""
DEVICE_VARIABLE = "FANIN_BENCH_MPI_DEVICE"
"""Variable with the network device to use; loopback if unset."""
RUN_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds per call, one value per sample, and the largest error relative to the largest contribution."""

    seconds: list[float]
    max_error: float

    def join(self, other: Result) -> Result:
        """The samples of both results, and the larger error."""
        return Result(self.seconds + other.seconds, max(self.max_error, other.max_error))


def missing() -> str | None:
    """Reason why OpenMPI cannot take part, or None."""
    absent = [tool for tool in ("mpicc", "mpirun") if shutil.which(tool) is None]
    if absent:
        return f"{' and '.join(absent)} not found"
    with tempfile.TemporaryDirectory() as folder:
        done = _compiled(os.path.join(folder, "mpi_allreduce"))
    if done.returncode == 0:
        return None
    said = done.stderr.splitlines() or [f"status {done.returncode}"]
    # Debian's openmpi-bin has mpicc, but no headers
    return f"mpicc cannot compile: {said[0]}. Remedy: Debian's libopenmpi-dev"


def compile_program(folder: str) -> str:
    """Compile the benchmark program in `folder`; returns its path."""
    program = os.path.join(folder, "mpi_allreduce")
    _compiled(program).check_returncode()
    return program


def _compiled(program: str) -> subprocess.CompletedProcess[str]:
    command = ["mpicc", "-O2", "-o", program, str(SOURCE), "-lm"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run(transport: str, workers: int, count: int, samples: int) -> Result:
    """Run mpirun once, for all samples; the ranks on this machine may outnumber its cores."""
    command = ["mpirun", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", BYTE_TRANSFER_LAYERS[transport]]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if transport == "tcp":
        command += ["--mca", "btl_tcp_if_include", os.environ.get(DEVICE_VARIABLE, "lo")]
    if AGENT_VARIABLE in os.environ:
        command += ["--mca", "plm_rsh_agent", os.environ[AGENT_VARIABLE], "--mca", "plm_rsh_no_tree_spawn", "1"]
        command += ["--mca", "oob_tcp_if_include", os.environ[DEVICE_VARIABLE]]
        command += ["--map-by", "node", "--host", os.environ[HOSTS_VARIABLE]]
    command += ["-np", str(workers), os.environ[PROGRAM_VARIABLE], str(count), str(samples)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    # for OpenMPI's session files, which need a short path, and are removed afterwards
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            env={**inherited, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_LIMIT_S,
        )
    *seconds, error = done.stdout.splitlines() or [""]
    if done.returncode != 0 or not error.startswith("error "):
        raise RuntimeError(f"mpirun over {transport} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return Result([float(line) for line in seconds], float(error.removeprefix("error ")))

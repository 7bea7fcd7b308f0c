"""Variables that torch.distributed wants, made of those that mpirun, MPICH's mpiexec and srun set.

`init_process_group` reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torch's `env://`), which only torchrun sets.
`fanin rank PROGRAM` starts a program with them; a script that is to do without sets them itself, before
`init_process_group`:

    os.environ.update(fanin.launch.torch_variables(os.environ))

Open MPI documents its variables in mpirun(1), Slurm in srun(1), MPICH's are those of its process manager, Hydra.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fanin.errors import ConfigurationError

Environment = Mapping[str, str]

FIRST_PORT, PORTS = 20_000, 10_000
"""MASTER_PORT is one of these, drawn from the job's name: below the ports that Linux gives out by itself (32768 on)."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that starts ranks, and the variables that it sets for each."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: Callable[[Environment], int]
    """The number of ranks on this rank's host."""
    first_host: Callable[[Environment], str | None]
    """A name of rank 0's host; None where the launcher does not tell it."""
    job: tuple[str, ...]
    """Variables that are alike on all ranks of a job, and unlike those of other jobs."""
    mark: str
    """The variable that only this launcher sets, and only for ranks."""
    remedy: str
    """How MASTER_ADDR is given to all ranks."""


def torch_variables(environment: Environment) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun would set them.

    Those that `environment` has stay as they are, all of them where RANK and WORLD_SIZE are there; one of these two
    alone is refused. MASTER_ADDR is the first host of the Slurm step, and loopback where all ranks are on one host;
    mpirun and mpiexec tell no host, so over several MASTER_ADDR must be given. Raises ConfigurationError where it is
    not, and where no launcher is found.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return {}
    for there, lacking in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if there in environment:  # left over from another program, and alike on all ranks
            raise ConfigurationError(f"{there} is set, and {lacking} is not. Remedy: set both, or neither")
    launcher = next((each for each in LAUNCHERS if each.mark in environment), None)
    if launcher is None:
        raise ConfigurationError(_none_found(environment))
    size, local_size = _number(environment, launcher, launcher.size), launcher.local_size(environment)
    found = {
        "RANK": str(_number(environment, launcher, launcher.rank)),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(_number(environment, launcher, launcher.local_rank)),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": LOOPBACK if local_size == size else launcher.first_host(environment),
        "MASTER_PORT": str(FIRST_PORT + zlib.crc32(_job(environment, launcher).encode()) % PORTS),
    }
    if found["MASTER_ADDR"] is None and "MASTER_ADDR" not in environment:
        raise ConfigurationError(
            f"{launcher.name} has started {size} ranks, {local_size} of them on this host, and does not tell which "
            f"host rank 0 is on. Remedy: {launcher.remedy}"
        )
    return {name: text for name, text in found.items() if text is not None and name not in environment}


def thread_variables(environment: Environment, cores_allowed: int, cores: int) -> dict[str, str]:
    """OMP_NUM_THREADS=1 for a rank that is not alone on its host and may run on all `cores` of it, as torchrun has it.

    `environment` has the variables of `torch_variables`. Empty where OMP_NUM_THREADS is set, and where the launcher has
    bound the rank to fewer cores, `cores_allowed`: torch then starts as many threads as the rank has cores. Ranks that
    each start a thread for every core of the host wait for threads that do not run.
    """
    if "OMP_NUM_THREADS" in environment or cores_allowed < cores:
        return {}
    return {"OMP_NUM_THREADS": "1"} if _said("LOCAL_WORLD_SIZE")(environment) > 1 else {}


def first_of(nodes: str) -> str:
    """The first host of a Slurm node list: `node07` of `node[07-09,12],other`."""
    found = re.match(r"([^,\[]*)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    assert found is not None
    return "".join(part or "" for part in found.groups())


def _job(environment: Environment, launcher: Launcher) -> str:
    return ".".join(environment.get(name, "") for name in launcher.job)


def _number(environment: Environment, launcher: Launcher, name: str) -> int:
    text = environment.get(name)
    if text is None or not (text.isascii() and text.isdigit()):
        found = "not set" if text is None else repr(text)
        raise ConfigurationError(
            f"{launcher.name} has set {launcher.mark}, but {name} is {found}. Remedy: set RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT yourself"
        )
    return int(text)


def _none_found(environment: Environment) -> str:
    if "SLURM_JOB_ID" in environment:
        return "this is a job of Slurm's, but no task of it. Remedy: `srun fanin rank ...` in its script"
    marks = ", ".join(f"{each.mark} ({each.name})" for each in LAUNCHERS)
    return f"no launcher has started this process: neither RANK (torchrun) is set, nor {marks}. Remedy: start it by one"


def _said(name: str) -> Callable[[Environment], int]:
    """The number that a variable has; 0 where it is not there, so that the ranks seem to be on several hosts."""
    return lambda environment: int(text) if (text := environment.get(name, "")).isdigit() else 0


def _tasks_here(environment: Environment) -> int:
    """The step's tasks on this node: `2(x3),1` is 2 on each of three nodes, and 1 on the next."""
    here = _said("SLURM_NODEID")(environment)
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        here -= int(nodes or "1")
        if here < 0:
            return int(tasks)
    return 0


def _first_node(environment: Environment) -> str | None:
    return first_of(environment.get("SLURM_STEP_NODELIST", "")) or None


LAUNCHERS = (
    Launcher(
        name="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size=_said("OMPI_COMM_WORLD_LOCAL_SIZE"),
        first_host=lambda environment: None,
        job=("PMIX_NAMESPACE",),
        mark="OMPI_COMM_WORLD_RANK",
        remedy="mpirun -x MASTER_ADDR=HOST, the first one that mpirun was given",
    ),
    Launcher(
        name="srun",
        rank="SLURM_PROCID",
        size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        local_size=_tasks_here,
        first_host=_first_node,
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        mark="SLURM_STEP_ID",
        remedy="export MASTER_ADDR=HOST before srun, the first one of its nodes",
    ),
    Launcher(
        name="mpiexec",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size=_said("MPI_LOCALNRANKS"),
        first_host=lambda environment: None,
        job=(),
        mark="PMI_RANK",
        remedy="mpiexec -genv MASTER_ADDR HOST, the first one that mpiexec was given",
    ),
)
"""All launchers, in the order in which they are looked for: ranks of mpirun inside an allocation have Slurm's variables
as well."""

"""Variables of mpirun, mpiexec and srun, as ranks of Open MPI 4.1.4, MPICH 4.0.2 and Slurm 22.05.8 have them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fanin.errors import ConfigurationError
from fanin.launch import FIRST_PORT, PORTS, first_of, thread_variables, torch_variables
from tests.support.launching import fanin_rank

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "1309868033",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NODELIST": "node[07-08]",
}  # fmt: skip
MPIEXEC = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def ranks(variables: dict[str, str]) -> tuple[str, ...]:
    return tuple(variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"))


def test_srun_tells_the_first_node_of_its_step() -> None:
    found = torch_variables(SRUN)
    assert ranks(found) == ("2", "3", "0", "1", "node07")
    assert FIRST_PORT <= int(found["MASTER_PORT"]) < FIRST_PORT + PORTS
    assert found["MASTER_PORT"] == torch_variables({**SRUN, "SLURM_PROCID": "0"})["MASTER_PORT"]
    assert found["MASTER_PORT"] != torch_variables({**SRUN, "SLURM_STEP_ID": "1"})["MASTER_PORT"]


@pytest.mark.parametrize(
    ("per_node", "node", "here"), [("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("4", 0, 4), ("1,3(x2)", 1, 3)]
)
def test_tasks_of_a_node_are_read_off_the_steps_list(per_node: str, node: int, here: int) -> None:
    given = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_NODEID": str(node)}
    assert torch_variables(given)["LOCAL_WORLD_SIZE"] == str(here)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("n[07-09,12],other", "n07"), ("n[3]", "n3"), ("r[1-2]-gpu,x", "r1-gpu"), ("", "")],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_of(nodes) == first


def test_mpirun_needs_a_master_only_over_several_hosts() -> None:
    with pytest.raises(ConfigurationError, match=r"mpirun has started 4 ranks, 2 of them on this host.*-x MASTER_ADDR"):
        torch_variables(MPIRUN)
    assert "MASTER_ADDR" not in torch_variables({**MPIRUN, "MASTER_ADDR": "node1"})
    alone = {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert ranks(torch_variables(alone)) == ("3", "4", "1", "4", "127.0.0.1")


def test_mpichs_ranks() -> None:
    assert ranks(torch_variables(MPIEXEC)) == ("1", "2", "1", "2", "127.0.0.1")


def test_mpiruns_ranks_inside_an_allocation_are_mpiruns() -> None:
    assert ranks(torch_variables({**SRUN, **MPIRUN, "MASTER_ADDR": "x", "SLURM_PROCID": "0"}) | {"MASTER_ADDR": "x"})[
        :2
    ] == ("3", "4")


def test_torchruns_ranks_and_own_settings_stay_as_they_are() -> None:
    assert torch_variables({**SRUN, "RANK": "0", "WORLD_SIZE": "1"}) == {}


@pytest.mark.parametrize(("there", "lacking"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_a_rank_or_a_size_alone_is_refused_for_it_would_be_alike_on_all_ranks(there: str, lacking: str) -> None:
    for launcher in (MPIRUN, SRUN, MPIEXEC, {}):
        with pytest.raises(ConfigurationError, match=f"{there} is set, and {lacking} is not. Remedy"):
            torch_variables({**launcher, there: "0"})
    assert torch_variables({**SRUN, "MASTER_PORT": "1"}).keys() == torch_variables(SRUN).keys() - {"MASTER_PORT"}


def test_without_a_launcher_the_remedy_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"neither RANK \(torchrun\) is set, nor OMPI_COMM_WORLD_RANK"):
        torch_variables({})
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    with pytest.raises(ConfigurationError, match=r"no task of it. Remedy: `srun fanin rank"):
        torch_variables(script)
    with pytest.raises(ConfigurationError, match="SLURM_PROCID is not set"):
        torch_variables({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("here", "given", "allowed", "set_to"),
    [("2", None, 8, "1"), ("1", None, 8, None), ("0", None, 8, None), ("2", "4", 8, None), ("2", None, 3, None)],
    ids=["shared host", "alone", "not told", "the user's", "bound by the launcher"],
)
def test_ranks_that_share_unbound_cores_have_one_thread(
    here: str, given: str | None, allowed: int, set_to: str | None
) -> None:
    environment = {"LOCAL_WORLD_SIZE": here} | ({} if given is None else {"OMP_NUM_THREADS": given})
    assert thread_variables(environment, allowed, 8).get("OMP_NUM_THREADS") == set_to


def test_fanin_rank_starts_its_program_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    bound = len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)
    done = fanin_rank([sys.executable, "-c", "import os; print(os.environ.get('OMP_NUM_THREADS'))"], MPIEXEC)
    assert done.stdout.strip() == ("None" if bound else "1"), done.stderr


def test_fanin_rank_becomes_the_program_with_all_of_its_arguments(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['RANK'], sys.argv[1:])"
    done = fanin_rank([sys.executable, "-c", program, "--epochs", "3", "--", "--help"], MPIEXEC)
    assert done.stdout == "1 ['--epochs', '3', '--', '--help']\n", done.stderr
    missing = fanin_rank([str(tmp_path / "nothing")], MPIEXEC)
    assert missing.returncode == 2
    assert "nothing: No such file or directory" in missing.stderr

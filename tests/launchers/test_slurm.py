"""A job of Slurm's, through real slurmctld, slurmd and munged on this machine."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.support.launching import EXAMPLES, PLACE, SUM, a_slurm_cluster, run, whole

pytestmark = pytest.mark.processes


def printed_by(text: str, folder: Path, **given: str) -> str:
    """Output of the example's job, a task on each of two nodes, with that program."""
    program, output = folder / "program.py", folder / "output.txt"
    program.write_text(text)
    with a_slurm_cluster() as variables:
        job: list[str | Path] = [
            "sbatch",
            "--wait",
            f"--output={output}",
            f"--chdir={folder}",
            EXAMPLES / "slurm.sh",
            program,
        ]
        run(job, {**given, **variables})
    return output.read_text()


def test_tasks_of_the_example_are_ranks_that_meet_at_the_first_node(tmp_path: Path) -> None:
    printed = printed_by(PLACE, tmp_path)
    assert sorted(printed.splitlines()) == [f"placed {rank} 2 0 1 {socket.gethostname()}" for rank in range(2)]


@whole
def test_the_example_sums_over_two_nodes_at_ports_of_its_range(tmp_path: Path) -> None:
    printed = printed_by(SUM, tmp_path, FANIN_PORTS="21000-21999")
    for rank in range(2):
        assert f"rank {rank} of 2: the sum is 3\n" in printed
    assert len(re.findall(r"one of 2 shards: udp://[^ ]+:21\d\d\d, udp://[^ ]+:21\d\d\d\n", printed)) == 2, printed

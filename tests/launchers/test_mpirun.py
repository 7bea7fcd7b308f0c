"""Ranks of a real mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import EXAMPLES, PLACE, SUM, require, run, whole

pytestmark = pytest.mark.processes


def printed_by(text: str, folder: Path) -> str:
    """Output of the example with two ranks of that program."""
    require("mpirun", package="openmpi-bin")
    program = folder / "program.py"
    program.write_text(text)
    # Open MPI refuses root, and more ranks than cores, unless it is told.
    allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe")
    return run([EXAMPLES / "mpirun.sh", "2", program], dict.fromkeys(allowed, "1"))


INTO_FILES = """
import os, sys
sys.stdout = open(f"{__file__}.{os.environ['RANK']}", "w")
"""
"""Before a program whose ranks print at once: mpirun may pass on a line of one in the midst of another's."""


def test_ranks_of_the_example_are_told_what_torch_wants(tmp_path: Path) -> None:
    printed_by(INTO_FILES + PLACE, tmp_path)
    for rank in range(2):
        assert (tmp_path / f"program.py.{rank}").read_text() == f"placed {rank} 2 {rank} 2 127.0.0.1\n"


@whole
def test_the_example_sums(tmp_path: Path) -> None:
    printed = printed_by(SUM, tmp_path)
    for rank in range(2):
        assert f"rank {rank} of 2: the sum is 3" in printed

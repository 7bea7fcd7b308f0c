"""`fanin rank`: a rank of mpirun's, mpiexec's or srun's, as torchrun would have started it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from fanin import files
from fanin.errors import ConfigurationError
from fanin.launch import thread_variables, torch_variables


def rank(
    program: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The rank's program and its arguments.")],
) -> None:
    """Start a rank with the variables that torch wants, made of those that mpirun, mpiexec or srun has set.

    mpirun -n 4 fanin rank python train.py
    """
    environment = {**os.environ, **torch_variables(os.environ)}
    # Before the program starts: OpenMP reads it once, when torch is imported.
    environment |= thread_variables(environment, len(os.sched_getaffinity(0)), os.cpu_count() or 1)
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise ConfigurationError(f"fanin rank: {program[0]}: {files.in_words(error)}") from None

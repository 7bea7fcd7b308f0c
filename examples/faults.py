"""`--fault` for scripts, as `fanin emulate` has it: the same clauses, as far as a worker can carry them out itself."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from fanin.errors import ConfigurationError
from fanin.options import Options

FAULTS_VARIABLE = "FANIN_FAULTS"


def add_fault_option(parser: argparse.ArgumentParser) -> None:
    """To be given to `inject` once it has been read."""
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="CLAUSE",
        help="drop=1%%,dup=0.5%%,reorder=2%%,corrupt=0.01%%@seed=7, or kill=worker:2@step:40; may be repeated",
    )


def joined(clauses: Sequence[str]) -> str:
    """Several options as one text of the grammar (fanin/faults.py). ConfigurationError for what is none."""
    text = ";".join(clauses)
    Options(faults=text)
    return text


def inject(parser: argparse.ArgumentParser, clauses: Sequence[str]) -> None:
    """Set FANIN_FAULTS before a process group reads it. Ends the program for a fault that a worker cannot inject."""
    if not clauses:
        return
    try:
        os.environ[FAULTS_VARIABLE] = joined(clauses)
    except ConfigurationError as error:
        parser.error(str(error))

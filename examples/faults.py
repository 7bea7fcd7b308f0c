"""`--fault` for scripts, with the clauses of `fanin emulate`, as far as a worker can inject the faults itself."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from fanin.errors import ConfigurationError
from fanin.options import Options

FAULTS_VARIABLE = "FANIN_FAULTS"


def add_fault_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--fault`, whose values are for `inject`."""
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="CLAUSE",
        help="drop=1%%,dup=0.5%%,reorder=2%%,corrupt=0.01%%@seed=7, or kill=worker:2@step:40; may be repeated",
    )


def joined(clauses: Sequence[str]) -> str:
    """Join clauses into one text of the grammar of fanin/faults.py. ConfigurationError for an illegal clause."""
    text = ";".join(clauses)
    Options(faults=text)
    return text


def inject(parser: argparse.ArgumentParser, clauses: Sequence[str]) -> None:
    """Set FANIN_FAULTS, before a process group reads it. Ends the program for a fault that no worker can inject."""
    if not clauses:
        return
    try:
        os.environ[FAULTS_VARIABLE] = joined(clauses)
    except ConfigurationError as error:
        parser.error(str(error))

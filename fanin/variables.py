"""Variables of the environment that look like fanin's and have no effect.

A misspelt FANIN_SWITCH is no error anywhere: the job runs, with a switch that nobody meant. So whoever reads the
environment for a job says which names nobody reads, and which ones may have been meant. It is a warning: others may
have variables that begin alike, and Kubernetes gives every container some where a service is called "fanin".
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping

from fanin.options import ENVIRONMENT_PREFIX, Options
from fanin.shared_options import VARIABLES

OTHERS = frozenset(VARIABLES)
"""Variables besides options: of commands, containers and the native kernels."""
DEVELOPERS = ("BENCH_MPI_", "BUILD_", "COMPOSE_CHECK", "FINSY_PYTHON", "FUZZ_", "P4_", "PARENT", "SANITIZE", "TEST_")
"""Beginnings of the names that set-up, tests and benchmarks use."""
SERVICE = re.compile(r"(.+_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)")
"""Variables that Kubernetes makes from the name of a service."""


def without_effect(environment: Mapping[str, str]) -> Iterator[str]:
    """A line for every variable that begins as ours do, has a value, and is read by nobody."""
    known = sorted({each.name.upper() for each in dataclasses.fields(Options)} | OTHERS)
    for name, text in sorted(environment.items()):
        own = name.upper().removeprefix(ENVIRONMENT_PREFIX)
        if text == "" or own == name.upper() or (name == ENVIRONMENT_PREFIX + own and own in known):
            continue
        if own.startswith(DEVELOPERS) or SERVICE.fullmatch(own):
            continue
        alike = difflib.get_close_matches(own, known, 1)
        meant = f"Did you mean {ENVIRONMENT_PREFIX}{alike[0]}?" if alike else "docs/torch.md, Options, names them"
        yield f"{name} has no effect: fanin has no such variable. {meant}"

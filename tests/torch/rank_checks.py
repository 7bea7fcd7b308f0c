"""Checks that run on every rank of a test job; the job itself is tests/support/ranks.py."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from typing import Any

from tests.support.ranks import ROOT as ROOT
from tests.support.ranks import Job as Job
from tests.support.ranks import running as running

LOADED_MACHINE_S = 5.0
"""Time that a machine that is busy with other tests may add to a promised time."""
PROMISED_S = 10.0 + LOADED_MACHINE_S
"""Until every survivor of a failure has raised: docs/errors.md."""


def run_checks(
    module: str, size: int, environment: Mapping[str, str] | None = None, timeout_s: float = 400.0
) -> Outcomes:
    """Run every check of a module, or of several with commas between, on `size` ranks; what each rank said of each."""
    command = ["tests.torch.rank_main", module, "out%r.json"]
    with running(
        command, size, environment, torn_down=()
    ) as job:  # nobody asks for the exit code of a rank that said ok
        codes = job.wait(timeout_s)
        said = []
        for rank in range(size):
            path = job.folder / f"out{rank}.json"
            said.append(json.loads(path.read_text()) if path.exists() else {})
        return Outcomes(said, [f"exit code {codes[rank]}:\n{job.output(rank)[-4000:]}" for rank in range(size)])


def play(
    scenario: str,
    size: int = 3,
    *,
    silent: tuple[int, ...] = (),
    environment: Mapping[str, str] | None = None,
    torn_down: Container[int] = (0,),
) -> list[dict[str, Any]]:
    """Reports of each rank but the silent ones on a scenario of tests/torch/failure_ranks.py. The silent ones are
    killed at the end; those of `torn_down` end as the interpreter ends.
    """
    with running(["tests.torch.failure_ranks", scenario, "out%r.json"], size, environment, torn_down) as job:
        ranks = [rank for rank in range(size) if rank not in silent]
        codes = job.wait(240.0, ranks)
        for rank, code in zip(ranks, codes, strict=True):
            assert code == 0, f"rank {rank}: exit code {code}\n{job.output(rank)[-3000:]}"
        return [
            json.loads((job.folder / f"out{rank}.json").read_text()) if rank in ranks else {} for rank in range(size)
        ]


class Outcomes:
    """Per check and rank: `ok` or a traceback."""

    def __init__(self, said: list[dict[str, str]], outputs: list[str]) -> None:
        self.said = said
        self.outputs = outputs

    def expect_ok(self, check: str) -> None:
        """Assert that the check passed on every rank."""
        for rank, of_rank in enumerate(self.said):
            told = of_rank.get(check, f"rank {rank} did not come to it; {self.outputs[rank]}")
            assert told == "ok", f"rank {rank}: {told}"


def checks_of(module: str) -> list[str]:
    """Names of the checks of a module, in order. Read, not imported: importing torch takes seconds."""
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    return re.findall(r"^def (check_\w+)", source, re.MULTILINE)

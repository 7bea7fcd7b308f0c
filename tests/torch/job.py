"""Checks that run on every rank of a test job; the job itself is tests/support/ranks.py."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tests.support.ranks import ROOT as ROOT
from tests.support.ranks import Job as Job
from tests.support.ranks import running as running


def run_checks(
    module: str, size: int, environment: Mapping[str, str] | None = None, timeout_s: float = 240.0
) -> Outcomes:
    """Run every check of a module on `size` ranks; what each rank said of each."""
    with running(["-m", "tests.torch.rank_main", module, "out%r.json"], size, environment) as job:
        codes = job.wait(timeout_s)
        said = []
        for rank in range(size):
            path = job.folder / f"out{rank}.json"
            said.append(json.loads(path.read_text()) if path.exists() else {})
        return Outcomes(said, [f"exit code {codes[rank]}:\n{job.output(rank)[-4000:]}" for rank in range(size)])


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

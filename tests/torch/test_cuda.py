"""CUDA tensors on two ranks, in one launch."""

from __future__ import annotations

import pytest
import torch

from tests.torch.rank_checks import PROMISED_S, Outcomes, checks_of, play, run_checks

pytestmark = [
    pytest.mark.processes,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device and a build of PyTorch for it"),
]
CHECKS = "tests.torch.cuda_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 2)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_cuda(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)


@pytest.mark.parametrize("scenario", ["rank_killed", "switch_killed"])
def test_who_waits_for_a_result_on_the_device_hears_of_a_failure_in_time(scenario: str) -> None:
    silent = (1,) if scenario == "rank_killed" else ()
    said = play(scenario, silent=silent, environment={"DEVICE": "cuda"})
    for rank, seen in enumerate(said):
        if rank not in silent:
            assert seen["error"] == ("SwitchLostError" if scenario == "switch_killed" else "WorkerLostError"), seen
            assert seen["seconds"] < PROMISED_S + 1

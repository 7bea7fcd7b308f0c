"""CUDA tensors on two ranks, in one launch."""

from __future__ import annotations

import pytest
import torch

from tests.torch.job import Outcomes, checks_of, run_checks

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

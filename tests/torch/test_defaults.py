"""A program's own defaults of torch (torch.set_default_device, set_default_dtype) do not reach fanin."""

from __future__ import annotations

import ast

import pytest

from tests.support.repository import repository_files
from tests.torch.rank_checks import Outcomes, checks_of, run_checks

CHECKS = "tests.torch.defaults_checks"
FACTORIES = {"arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros"}
"""Functions that make a tensor at the default device."""


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 3)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_another_default_device_and_element_type(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)


def test_every_tensor_of_ours_is_made_at_a_device_that_is_named() -> None:
    unnamed = []
    for path in repository_files("host/torch/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(called := node.func, ast.Attribute):
                continue
            of_torch = isinstance(called.value, ast.Name) and called.value.id == "torch"
            if of_torch and called.attr in FACTORIES and "device" not in {each.arg for each in node.keywords}:
                unnamed.append(f"{path.name}:{node.lineno}: torch.{called.attr}")
    assert unnamed == []

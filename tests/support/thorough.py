"""Cases of a parametrized test that `make test-thorough` runs, and `make test` does not."""

from __future__ import annotations

from typing import Any

import pytest


def thorough(*values: Any) -> Any:
    """Return a case for `pytest.mark.parametrize` that is marked thorough: the others show the same in less time."""
    return pytest.param(*values, marks=pytest.mark.thorough)

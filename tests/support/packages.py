"""Packages that tests need, found without importing them: ranks import them, and each worker of xdist collects all."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def require_package(name: str, reason: str) -> None:
    """Skip a file of tests where a package is not installed. Of importorskip, scikit-learn and scipy take 2.4 s."""
    if find_spec(name) is None:
        pytest.skip(reason, allow_module_level=True)

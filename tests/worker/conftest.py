"""Every test that takes `kind` runs with twins, with native machines, and, where several workers meet, with both."""

from __future__ import annotations

import pytest

from tests.support.cluster import WORKER_MACHINES


@pytest.fixture(params=["twin", "native"])
def kind(request: pytest.FixtureRequest) -> str:
    """One kind of machine for all workers."""
    return _built(request.param)


@pytest.fixture(params=["twin", "native", "mixed"])
def kinds(request: pytest.FixtureRequest) -> str:
    """One kind of machine for all workers, or the two in turn."""
    return _built(request.param)


def _built(kind: str) -> str:
    if kind != "twin" and WORKER_MACHINES["native"] is None:
        pytest.skip("the native extension is not built")
    return kind

"""Collection leaves out cases of the conformance suite that would go through P4Runtime for nothing."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of a scenario behind the first one for the served switch.

    It runs the program of the case `p4`, which has all of them: what P4Runtime and UDP add does not depend on the value
    that a case tries. The profile `soak` runs every case.
    """
    if os.environ.get("FANIN_TEST_PROFILE") == "soak":
        return
    first: dict[str, pytest.Item] = {}
    repeated = [item for item in items if _is_served(item) and first.setdefault(_scenario(item), item) is not item]
    config.hook.pytest_deselected(items=repeated)
    left_out = {id(item) for item in repeated}
    items[:] = [item for item in items if id(item) not in left_out]


def _is_served(item: pytest.Item) -> bool:
    return hasattr(item, "callspec") and item.callspec.params.get("machine_type") == "served"


def _scenario(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]

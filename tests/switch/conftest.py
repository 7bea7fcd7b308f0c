"""Every test that takes `machine_type` runs over the twin and over the native machine."""

from __future__ import annotations

import pytest

from tests.support.bench import MACHINES, MachineType


@pytest.fixture(params=sorted(MACHINES, reverse=True))
def machine_type(request: pytest.FixtureRequest) -> MachineType:
    machine = MACHINES[request.param]
    if machine is None:
        pytest.skip("the native extension is not built")
    return machine

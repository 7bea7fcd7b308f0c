"""Workers of a real Ray."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

from tests.support.launching import EXAMPLES, run, whole

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
PATIENCE = {"RAY_raylet_start_wait_time_s": "300", "RAY_USAGE_STATS_ENABLED": "0"}
"""Ray gives its own processes seconds to start, which a busy machine needs for their imports alone."""
NOT_STARTED = "timed out during startup"
"""Ray's words where that was not enough: other limits of its own are fixed."""


@whole
def test_the_example_trains() -> None:
    if importlib.util.find_spec("ray") is None:  # importing it warns
        pytest.skip("ray is not installed: pip install 'ray[train]'")
    try:
        printed = run([sys.executable, EXAMPLES / "ray_train.py", "2"], PATIENCE, timeout_s=800)
    except AssertionError as error:
        if NOT_STARTED in str(error):
            pytest.skip("Ray itself did not start within its own time limits: this machine is too busy")
        raise
    metrics = re.search(r"'loss': ([\d.e-]+), 'backend': '(\w+)'", printed)
    assert metrics, printed[-2000:]
    assert metrics[2] == "fanin"
    assert float(metrics[1]) < 8, "the loss begins near the 8 inputs' variance"

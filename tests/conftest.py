"""Settings of every test: one seeded hypothesis profile per way of running, process tests kept apart, namespaces.

`make test` runs on as many xdist workers as there are cores. Tests marked `processes` start workers, switches and
rivals of their own; those of a file share one xdist worker (tests/support/scheduling.py).
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import tempfile
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support")  # a helper's failed assertion shows its values too

from tests.documents.systems import refused_skip  # noqa: E402  (it may import helpers)

# A shell without job control starts what it puts into the background with SIGINT ignored, and that is inherited: the
# tests that press Ctrl-C would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Switches of tests have a key of their own, and leave the user's alone.
_STATE = tempfile.TemporaryDirectory(prefix="fanin-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name
atexit.register(_STATE.cleanup)

# Derandomized examples are the same ones each time: `soak` looks for new ones.
settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("sanitize", settings.get_profile("default"), max_examples=15)
settings.register_profile("soak", settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.load_profile(os.environ.get("FANIN_TEST_PROFILE", "default"))


def pytest_collection_finish() -> None:
    """Exempt ten thousand tests and what they import from garbage collection: each would walk through all of it."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of Python twins alone where a sanitizer watches: it sees native code only."""
    if os.environ.get("FANIN_TEST_PROFILE") != "sanitize":
        return
    config.hook.pytest_deselected(items=[item for item in items if _runs_a_twin_alone(item)])
    items[:] = [item for item in items if not _runs_a_twin_alone(item)]


def _runs_a_twin_alone(item: pytest.Item) -> bool:
    kinds = [str(value) for value in item.callspec.params.values()] if hasattr(item, "callspec") else []
    return "twin" in kinds and not any("native" in kind for kind in kinds)


@pytest.fixture(scope="session")
def ipv6_loopback() -> None:
    """Skip, naming what is missing, where nothing can listen at ::1."""
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error.strerror}")


@pytest.fixture
def namespaces() -> None:
    """Skip, naming what is missing, where network namespaces cannot be made."""
    from fanin.emulation.network.commands import require_privileges  # few tests need the emulation
    from fanin.errors import ConfigurationError

    try:
        require_privileges()
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file that starts processes on one worker of xdist: they share what they started."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.support.scheduling import FilesOfProcesses  # xdist need not be installed

    return FilesOfProcesses(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test on which docs/systems.md rests and that was skipped for anything but a missing optional tool."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if (refused := refused_skip(report.nodeid, reason)) is not None:
            report.outcome, report.longrepr = "failed", refused
    return report

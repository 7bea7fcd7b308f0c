"""Each test of the program runs on fanin's emulator and, where it is installed, on BMv2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanin.emulation.bmv2_process import missing
from tests.p4_programs import bmv2
from tests.p4_programs.subjects import Emulated, OpenSubject, Subject

BMV2_SKIP = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@pytest.fixture(params=["emulated", pytest.param("bmv2", marks=[BMV2_SKIP, pytest.mark.processes])])
def open_subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenSubject]:
    """Starts a subject with the configuration of that name; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def open_it(configuration: str) -> Subject:
            if request.param == "emulated":
                return Emulated(configuration)
            return stack.enter_context(bmv2.running(configuration, tmp_path))

        yield open_it


@pytest.fixture
def subject(open_subject: OpenSubject) -> Subject:
    """One with up to 64 words per packet."""
    return open_subject("v1model-64")

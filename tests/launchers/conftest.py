"""Tests of launchers on emulated hosts: namespaces need root."""

from __future__ import annotations

import pytest

from fanin.emulation.network.commands import require_privileges
from fanin.errors import UnsupportedError


@pytest.fixture
def namespaces() -> None:
    """Skip, naming what is missing, where namespaces cannot be made."""
    try:
        require_privileges()
    except UnsupportedError as error:
        pytest.skip(str(error))

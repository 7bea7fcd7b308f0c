"""No option that nothing reads."""

from __future__ import annotations

import dataclasses

import pytest

from fanin.options import Options
from tests.house.repository import ROOT, tracked

READERS = "\n".join(path.read_text() for path in tracked("host/*.py", "host/**/*.py"))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Options)])
def test_every_option_is_read_by_the_host(name: str) -> None:
    assert f"options.{name}" in READERS, f"{name} of {ROOT / 'fanin' / 'options.py'}"

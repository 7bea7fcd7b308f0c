"""Limits of open files, in a process that has little room under its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, resource
from fanin import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
open_files.make_room({count})
held = [os.open("/dev/null", os.O_RDONLY) for _ in range({opened})]
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], open_files.limit(32))
"""


@pytest.mark.parametrize(
    ("hard", "count", "least", "most"),
    [(512, 8, 64, 64), (512, 200, 200, 300), (100, 200, 100, 100)],
    ids=["there is room", "the limit is raised", "only so far"],
)
def test_room_is_made_where_there_is_none(hard: int, count: int, least: int, most: int) -> None:
    opened = min(count, hard // 2)
    program = PROGRAM.format(hard=hard, count=count, opened=opened)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    soft, told = map(int, done.stdout.split())
    assert least <= soft <= most
    assert told == soft

"""The tasks of docs/first-ten-minutes.md, typed as they are printed, in a folder that has the examples of a clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fanin.emulation.processes import free_port
from tests.support.repository import ROOT

PAGE = (ROOT / "docs/first-ten-minutes.md").read_text(encoding="utf-8")
TASKS = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
LIMIT_S = 540
"""Far more than a task takes: up to 60 s on two cores, ten times that on cores that do something else as well. Only one
that hangs waits for it."""
UNTIL_SEEN = 'until fanin top --once | grep -q "2 ranks"; do sleep 1; done'
"""Replaces the page's sleep, since nobody knows how long a busy machine takes to start ranks."""
SAYS = {
    # torchrun's ranks write a line and its end apart, so lines of several may run into each other.
    "Run": [r"rank 0 of 3: the sum is 6(?!\d)", r"rank 2 of 3: the sum is 6(?!\d)"],
    "Compare": [r"fanin +8 ", r"gloo +32 "],
    "See": [r"report: \S+/page\.html", r"packets"],
    "Break a link": [r"gloo .* identical", r"fanin, 32-bit lanes .* identical"],
    "Lose a rank": [r'(?s)"replica": "([0-9a-f]{64})".*"replica": "\1"'],
    "Narrow the lanes": [r'(?s)"replica": "([0-9a-f]{64})".*"replica": "\1"'],
    "Watch": [r"2 ranks", r"waited for"],
    "Ask advise": [r"gloo"],
    "Write a policy": [r"\d+ gradients of three workers"],
}
"""Patterns of what a task prints."""


def commands(text: str) -> list[str]:
    """Return the blocks of shell commands of a task that need no root: tests/network has those that do."""
    return [block for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "sudo" not in block]


def test_there_are_the_ten_tasks_of_a_first_visit() -> None:
    assert len(TASKS) == 10
    assert [name for name, text in TASKS.items() if name not in SAYS and commands(text)] == []


@pytest.mark.thorough
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("name", SAYS)
def test_a_task_goes_as_it_is_printed(name: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {each: value for each, value in os.environ.items() if not each.startswith("FANIN_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    environment["XDG_STATE_HOME"] = str(tmp_path / "state")  # `fanin top` finds this user's switches there: only ours
    typed = commands(TASKS[name])
    if name == "Write a policy":
        (code,) = re.findall(r"^```python\n(.*?)^```", TASKS[name], re.MULTILINE | re.DOTALL)
        (tmp_path / "newest.py").write_text(code)
        typed = ["python newest.py"]
    said = ""
    for block in typed:
        script = block.replace("29500", str(free_port())).replace("sleep 15", UNTIL_SEEN)
        limited = ["timeout", str(LIMIT_S), "bash", "-c", script]  # ends with it what the script has started
        ran = subprocess.run(limited, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"status {ran.returncode}: {said}{ran.stdout}{ran.stderr[-2000:]}"
        said += ran.stdout
    for pattern in SAYS[name]:
        assert re.search(pattern, said), said

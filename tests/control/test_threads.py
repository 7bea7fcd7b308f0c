"""Work of daemon threads at the end of a program (fanin/host/session/threads.py)."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fanin.host.session.threads import Work
from tests.support.processes import in_thread

PROGRAM = """
import sys, threading
from torch._C import _distributed_c10d as c10d
import fanin.host.torch.collectives.process_group
from fanin.host.session.threads import WORK

def ask():
    while True:
        with WORK:
            store.check(["a"])

store = c10d.TCPStore("127.0.0.1", 0, is_master=True)
for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
sys.exit(3)
"""


def test_the_end_waits_for_what_is_under_way_and_lets_no_more_begin() -> None:
    work, go_on, inside, begun = Work(), threading.Event(), threading.Event(), threading.Event()

    def long() -> None:
        with work, work:  # also within each other
            inside.set()
            go_on.wait()

    def late() -> None:
        with work:
            begun.set()

    first = in_thread(long)
    assert inside.wait(10.0)
    assert not work.end(0.0)
    threading.Thread(target=late, daemon=True).start()
    go_on.set()
    first.result(10.0)
    assert work.end(10.0)
    assert not begun.is_set()


def test_a_fork_within_work_ends_it_in_the_child() -> None:
    work = Work()
    with work:
        work.forget()
    assert work.end(0.0)


@pytest.mark.processes
def test_a_process_whose_threads_are_inside_torch_ends_with_its_own_status() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (3, "")

"""A worker process for tests of fanin.emulation.processes: `python -m tests.support.job_stub WHAT`."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

from fanin.emulation.parent_death import GLOO_THREAD
from fanin.emulation.process_log import MAX_LOG_BYTES

LEAVING = ("leave", "chatter")
PR_SET_NAME = 15  # linux/prctl.h


def main(what: str) -> None:
    """Report rank and world size, then do as told."""
    rank = int(os.environ["RANK"])
    print("not a report")
    print(json.dumps({"rank": rank, "workers": int(os.environ["WORLD_SIZE"])}), flush=True)
    if what == "fail" and rank == 1:
        raise ValueError("this worker\nhas had enough")
    if what == "chatter" and rank == 0:
        print("a line\n" * (MAX_LOG_BYTES // 4), file=sys.stderr)
    if what in LEAVING and rank == 0:  # the cause: it says so, stays a little, and sees its peer end before it does
        print("ValueError: the cause", file=sys.stderr, flush=True)
        print(json.dumps({"failed": True}), flush=True)
    if what in LEAVING and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        raise ConnectionError("the peer left")
    if what == "die" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "embed":  # a child of its own, which must not outlive the job either
        child = subprocess.Popen(["sleep", "1000"])
        print(json.dumps({"child": child.pid}), flush=True)
    if what == "gloo":
        leave_a_thread_of_gloo()
    elif what != "end":
        signal.pause()


def leave_a_thread_of_gloo() -> None:
    """Start a thread by the name of gloo's, for which the end of the interpreter would wait for ever."""
    named = threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, GLOO_THREAD.encode())
        named.set()
        threading.Event().wait()

    threading.Thread(target=run).start()
    named.wait()
    atexit.register(lambda: print(json.dumps({"left": True})))


if __name__ == "__main__":
    main(sys.argv[1])

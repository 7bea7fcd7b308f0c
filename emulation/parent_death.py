"""`python -m fanin.emulation.parent_death MODULE ARGUMENTS`: run a module, to be killed when its parent ends.

`python -m fanin.emulation.parent_death -- COMMAND...` runs any command so. FANIN_PARENT is the parent's process id.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
GLOO_THREAD = "pt_gloo_runloop"
"""Name of the threads of torch's gloo groups that carry collectives out."""


def main() -> None:
    """Arrange to be killed when the parent ends, then become the module."""
    die_with_parent(int(os.environ.pop("FANIN_PARENT")))
    del sys.argv[0]
    if sys.argv[0] == "--":
        os.execvp(sys.argv[1], sys.argv[1:])  # what prctl has arranged stays
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    if GLOO_THREAD in names_of_threads():
        end_without_interpreter()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, that process, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl
        sys.exit(1)


def names_of_threads() -> set[str]:
    """Names of this process's threads, as the kernel has them (proc_pid_comm(5))."""
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # of a thread that has ended since
            names.add(path.read_text().strip())
    return names


def end_without_interpreter() -> None:
    """End this process well, once everything has been done that its modules registered for its end.

    A gloo group outlives destroy_process_group where a DDP model was made over it. Its threads may drop the last tensor
    of a collective while the interpreter ends, and take the GIL for that: the process aborts ("terminate called without
    an active exception", github.com/pytorch/pytorch/issues/190489). Groups of fanin's have ended their gloo by then.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

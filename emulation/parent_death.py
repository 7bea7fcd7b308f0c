"""`python -m fanin.emulation.parent_death MODULE ARGUMENTS`: runs a module in this process, killed with its parent.

`python -m fanin.emulation.parent_death -- COMMAND...` does so for any command. FANIN_PARENT has the parent's process
id.
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
"""Name of the threads in which torch's gloo groups carry out collectives."""


def main() -> None:
    """Arrange to be killed when the parent ends, then run the module or the command in this process."""
    die_with_parent(int(os.environ.pop("FANIN_PARENT")))
    del sys.argv[0]
    if sys.argv[0] == "--":
        os.execvp(sys.argv[1], sys.argv[1:])  # prctl's setting survives execvp
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    if GLOO_THREAD in names_of_threads():
        end_without_interpreter()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, whose process id is `parent`, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        sys.exit(1)


def names_of_threads() -> set[str]:
    """Names of this process's threads, from the kernel (proc_pid_comm(5))."""
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            names.add(path.read_text().strip())
    return names


def end_without_interpreter() -> None:
    """Run this process's exit functions, then end it with status 0 without finalizing the interpreter.

    A gloo group outlives destroy_process_group if a DDP model was made over it. Its threads may release the last tensor
    of a collective while the interpreter is finalized, and take the GIL for that: the process aborts ("terminate called
    without an active exception", github.com/pytorch/pytorch/issues/190489). fanin's groups have ended their gloo by
    then.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

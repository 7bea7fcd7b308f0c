"""`python -m fanin.emulation.parent_death MODULE ARGUMENTS`: run a module, to be killed when its parent ends.

`python -m fanin.emulation.parent_death -- COMMAND...` runs any command so. FANIN_PARENT is the parent's process id.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Arrange to be killed when the parent ends, then become the module."""
    parent = int(os.environ.pop("FANIN_PARENT"))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl
        sys.exit(1)
    del sys.argv[0]
    if sys.argv[0] == "--":
        os.execvp(sys.argv[1], sys.argv[1:])  # what prctl has arranged stays
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

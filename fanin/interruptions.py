"""Telling an exception that interrupts a call of ours from one that the call raises.

Python runs signal handlers between any two instructions of the main thread. So an exception that a handler raises (a
time limit by SIGALRM, a handler of SIGTERM that saves a checkpoint) comes out of whatever waits, and must reach the
program as it is: same type, same instance.
"""

from __future__ import annotations

import sys

_OURS = sys.stdlib_module_names | {"fanin", "numpy", "zmq"}
"""Packages whose code runs within a call of ours. torch is none of them: what its Python code raises, as its handler of
SIGCHLD does when a worker of a DataLoader dies, means the program."""


def interrupts(error: BaseException) -> bool:
    """Whether code that is none of ours, as a signal handler's, has raised `error`, which a call of ours has caught.

    Decided by the frames between the caller, whose `except` has it, and the place where it was raised. What C++ raises
    has no frame of its own, and counts as its caller's.
    """
    if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit
        return True
    at = error.__traceback__
    while at is not None:
        if str(at.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _OURS:
            return True
        at = at.tb_next
    return False

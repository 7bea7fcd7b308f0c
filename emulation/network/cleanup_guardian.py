"""`python -m fanin.emulation.network.cleanup_guardian NAME`: cleans a run up when its owner ends, however it ends.

It reads from a pipe whose write end only the owner holds: the pipe closes when the owner exits, crashes or is killed by
SIGKILL. The guardian ignores signals from the owner's terminal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from fanin.emulation.network import ownership
from fanin.modules import running

CLOSE_TIMEOUT_S = 10.0


class CleanupGuardian:
    """A running guardian process, from the owner's side."""

    def __init__(self, run: ownership.Run) -> None:
        self._process = subprocess.Popen(
            running("fanin.emulation.network.cleanup_guardian", run.name),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        """Close the pipe, so that the guardian cleans up, and wait for it up to CLOSE_TIMEOUT_S."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # the owner has cleaned up already, so nothing is lost
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Wait for the end of the owner, then clean."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    for run in ownership.runs():
        if run.name == sys.argv[1]:
            for stuck in ownership.clean(run):
                print(f"fanin emulate: left behind {stuck}", file=sys.stderr)


if __name__ == "__main__":
    main()

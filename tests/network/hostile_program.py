"""Workers that do to `fanin emulate` what programs do: a command of several words, the first of which says what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

FAR = 3000.0
"""Seconds: longer than any test waits."""


def main() -> None:
    """Do the deed that the command line names."""
    rank = int(os.environ["RANK"])
    match sys.argv[1]:
        case "one-fails":
            if rank == 1:
                sys.exit(3)
            print("still here", flush=True)
            time.sleep(FAR)
        case "grandchild":
            subprocess.Popen(["sleep", str(FAR)], start_new_session=True)
            print("its parent ends", flush=True)
        case "strange-figures":
            print('{"epoch": NaN}\n{"epoch": 1e400, "loss": 0.5}\n{"loss": -Infinity}\n{"step_s": 1' + "0" * 400 + "}")
            print('{"loss":' + "[" * 100_000)
            print("[/bold] is no markup, and \\ud800 no letter")
        case "killed":
            if rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        case "markup":
            print("[/bold] of " + "x" * 300)
            sys.exit("ValueError: [/red] of '[/data]'")
        case what:
            raise ValueError(what)


if __name__ == "__main__":
    main()

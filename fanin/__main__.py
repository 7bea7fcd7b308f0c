"""`python -m fanin`, and the `fanin` script.

Ctrl-C ends the process at once while the command line is imported: an exception would be shown as a traceback of the
import, or lost in a callback of it.
"""

import os
import sys

INTERRUPTED = 130
"""Exit status of a program that Ctrl-C has ended: that of fanin/cli/ending.py, which takes a while to import."""


def main() -> None:
    """Run the command line; Ctrl-C ends it with a line and no traceback, even while modules are imported."""
    try:
        import signal

        own = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a background job of a shell ignores it
        if own:
            signal.signal(signal.SIGINT, _end)
        from fanin.cli import main as command

        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        _say()
        sys.exit(INTERRUPTED)


def _end(*_: object) -> None:
    _say()
    os._exit(INTERRUPTED)


def _say() -> None:
    try:  # noqa: SIM105 (the import of contextlib would be interrupted with a traceback)
        os.write(2, b"fanin: interrupted\n")
    except OSError:  # nobody can be told
        pass


if __name__ == "__main__":
    main()

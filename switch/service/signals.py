"""The signals that end a switch process."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from fanin.switch.service.service import SwitchService


@contextlib.contextmanager
def signals(service: SwitchService, embedded: bool) -> Iterator[None]:
    """End the switch on SIGTERM and, unless it is `embedded` in a rank's job, on SIGINT and SIGHUP.

    An embedded switch ignores the latter two, which the terminal also sends to the ranks.
    """

    def stop(number: int, frame: object) -> None:
        service.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN if embedded else stop)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN if embedded else stop)
    # A signal alone does not end a poll, which Python resumes (PEP 475); the byte that it writes here does.
    previous = signal.set_wakeup_fd(service.waker_fileno, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)

"""Runs a standalone P4 switch in the foreground, for `fanin p4 run` and for the script that replaces BMv2."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fanin.switch.p4runtime.standalone import RunOptions


def until_a_signal(options: RunOptions, *, quiet: bool = False, more: tuple[str, ...] = ()) -> None:
    """Run a switch until SIGTERM or SIGINT; `more` are lines that are printed after its description."""
    from fanin.switch.p4runtime.standalone import StandaloneSwitch

    ended = threading.Event()
    switch = StandaloneSwitch(options, ended.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with contextlib.closing(switch):
        if not quiet:
            print("\n".join([*switch.describe(), *more]), flush=True)
        ended.wait()
    if switch.failed is not None:
        raise switch.failed
    if not quiet:
        print(switch.summary(), flush=True)

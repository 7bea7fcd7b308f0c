"""A worker's activities in time, a JSON object per line; and the step at which it is to be killed, if any.

Options.timeline names the file. Times are CLOCK_MONOTONIC, in seconds, which all processes of a machine share.

    {"kind": "start", "time": t, "rank": r, "restart": n}
    {"kind": "reduction", "submitted": t, "done": t, "bytes": n, "packing_s": s, "sending_s": s, "step": k}
    {"kind": "step", "time": t, "step": k}
    {"kind": "end", "time": t, "counters": {...}}

A step is a call of any optimizer's `step`, which torch reports to hooks, so that programs need no change. `done` is
seen by a thread that waits for every reduction in turn: when the program looks does not matter. `packing_s` and
`sending_s` are processor time of the engine since the reduction before, where the native engine counts it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from fanin import files
from fanin.errors import ConfigurationError, FaninError
from fanin.faults import FaultSchedule
from fanin.numerics.reduction import Reduction

if TYPE_CHECKING:
    from fanin.host.session.interface import AnySession
    from fanin.options import Options

log = logging.getLogger("fanin")
RESTART_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started this worker anew; absent elsewhere."""
CLOSE_TIMEOUT_S = 2.0


def restarts() -> int:
    """How often the launcher has started this worker anew."""
    return int(os.environ.get(RESTART_VARIABLE, "0"))


class Timeline:
    """Writes the file for one session, and carries out what is to happen at a step."""

    def __init__(self, session: AnySession, options: Options) -> None:
        """ConfigurationError where the file cannot be written."""
        self._session = session
        self._steps = 0
        self._file = None
        schedule = FaultSchedule.parse(options.faults or "")
        mine = [each.at_step for each in schedule.scheduled if each.index == session.rank]
        self._dies_at = {step for step in mine if step is not None} if restarts() == 0 else set()
        self._submitted: SimpleQueue[tuple[int, float, int] | None] = SimpleQueue()
        self._watcher = threading.Thread(target=self._watch, name="fanin-timeline", daemon=True)
        if options.timeline is not None:
            path = Path(options.timeline.replace("%r", str(session.rank)))
            try:
                self._file = path.open("a", encoding="utf-8", buffering=1)
                start = {"kind": "start", "time": time.monotonic(), "rank": session.rank, "restart": restarts()}
                self._file.write(json.dumps(start) + "\n")
            except OSError as error:
                raise ConfigurationError(
                    f"rank {session.rank}: FANIN_TIMELINE={path} cannot be written: {files.in_words(error)}"
                ) from None
            session.observer = self._observe
            self._watcher.start()
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def close(self) -> None:
        """Stop; before the session is closed, whose counters are the last line. Idempotent, bounded."""
        self._hook.remove()
        if self._file is not None:
            self._session.observer = None
            self._submitted.put(None)
            self._watcher.join(CLOSE_TIMEOUT_S)
            self._write(kind="end", time=time.monotonic(), counters=self._session.counters())
            self._file.close()
            self._file = None

    def _stepped(self, optimizer: Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._steps += 1
        self._write(kind="step", time=time.monotonic(), step=self._steps)
        if self._steps in self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _observe(self, ticket: int, reduction: Reduction) -> None:
        self._submitted.put((ticket, time.monotonic(), reduction.count * reduction.element.bytes))

    def _watch(self) -> None:
        packing_us = sending_us = 0.0
        while (submitted := self._submitted.get()) is not None:
            ticket, began, size = submitted
            try:
                self._session.wait(ticket)
            except FaninError:
                return
            done = time.monotonic()
            counters = self._session.counters()
            packed_us, sent_us = counters.get("packing_us", 0), counters.get("socket_send_us", 0)
            self._write(
                kind="reduction",
                submitted=began,
                done=done,
                bytes=size,
                packing_s=(packed_us - packing_us) * 1e-6,
                sending_s=(sent_us - sending_us) * 1e-6,
                step=self._steps,
            )
            packing_us, sending_us = packed_us, sent_us

    def _write(self, **record: object) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record) + "\n")
        except OSError as error:  # training goes on, and the line that is half there is the last one
            file, self._file = self._file, None
            log.warning("timeline %s ends here: %s", file.name, files.in_words(error))
            with suppress(OSError):
                file.close()


def timeline_for(session: AnySession, options: Options) -> Timeline | None:
    """One, where the options ask for any of it."""
    scheduled = FaultSchedule.parse(options.faults or "").scheduled
    return Timeline(session, options) if options.timeline is not None or scheduled else None

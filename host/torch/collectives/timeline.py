"""A worker's activities in time, a JSON object per line; and the step at which it is to be killed, if any.

Options.timeline names the file. Times are CLOCK_MONOTONIC, in seconds, which all processes of a machine share.

    {"kind": "start", "time": t, "rank": r, "restart": n, "job": name, "size": n, "host": name, "clock": id,
     "unix_s": t}
    {"kind": "reduction", "submitted": t, "done": t, "bytes": n, "packing_s": s, "sending_s": s, "decoding_s": s,
     "step": k, "ticket": n}
    {"kind": "step", "time": t, "step": k}
    {"kind": "meeting", "number": n, "fragment": f, "launched": t, "submitted": t, "awaited": t, "landed": t}
    {"kind": "end", "time": t, "counters": {...}}

`clock` is the kernel's boot id: times of processes with the same one need no alignment. `unix_s` is the calendar's time
at `time`. `job` and `ticket` name a sum on all ranks alike, by which files of several machines are aligned
(emulation/tracing/clocks.py). `submitted` is when the call began, before which no rank can have the sum. Sums of groups
of new_group are in no file, since a rank may be in several. A world that has no session, since it is of one rank or
sums over gloo from its start, has no sums in its file and no name of a job: steps alone.

A meeting of local steps (docs/meetings.md) hands its sums in from `launched` to `submitted`; training waits for their
results, and decodes them, from `awaited` to `landed`.

A step is a call of any optimizer's `step`, which torch reports to hooks, so that programs need no change. `done` is
taken by a thread that waits for every reduction in turn, so it does not depend on when the program waits. `packing_s`,
`sending_s` and `decoding_s` are processor time of the engine since the reduction before, where the native engine counts
it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import socket
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
    from fanin.host.session.any_session import AnySession
    from fanin.options import Options

log = logging.getLogger("fanin")
RESTART_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started this worker anew; absent elsewhere."""
CLOSE_TIMEOUT_S = 2.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SPENT = (("packing_s", "packing_us"), ("sending_s", "socket_send_us"), ("decoding_s", "decoding_us"))
"""Fields of a reduction, and the counters of the engine that they are differences of."""


def restarts() -> int:
    """How often the launcher has started this worker anew."""
    return int(os.environ.get(RESTART_VARIABLE, "0"))


class Timeline:
    """Writes the file for one rank of a world, and kills the process at steps that `Options.faults` names for it."""

    def __init__(self, session: AnySession | None, options: Options, rank: int, size: int) -> None:
        """ConfigurationError where the file cannot be written. `session`: whose sums are written; None: no sums."""
        self._session, self._rank, self._size = session, rank, size
        self._steps = 0
        self._file = None
        schedule = FaultSchedule.parse(options.faults or "")
        mine = [each.at_step for each in schedule.scheduled if each.index == rank]
        self._dies_at = {step for step in mine if step is not None} if restarts() == 0 else set()
        self._submitted: SimpleQueue[tuple[int, float, int] | None] = SimpleQueue()
        self._watcher: threading.Thread | None = None
        if options.timeline is not None:
            path = Path(options.timeline.replace("%r", str(rank)))
            try:
                self._file = path.open("a", encoding="utf-8", buffering=1)
                self._warn_if_shared(path)
                self._file.write(json.dumps(self._start()) + "\n")
            except OSError as error:
                raise ConfigurationError(
                    f"rank {rank}: FANIN_TIMELINE={path} cannot be written: {files.in_words(error)}"
                ) from None
            if session is not None:
                session.observer = self._observe
                self._watcher = threading.Thread(
                    target=self._watch, args=(session,), name="fanin-timeline", daemon=True
                )
                self._watcher.start()
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def _warn_if_shared(self, path: Path) -> None:
        """Warn where another living process writes this file: nothing reads a file with lines of several ranks.

        A lock tells, and not the lack of `%r`: ranks of several hosts write files of their own under one name.
        """
        assert self._file is not None
        if self._size == 1:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning(
                "rank %d: another process writes FANIN_TIMELINE=%s as well, and `fanin trace` and `fanin report` "
                "refuse a file of several ranks. Remedy: put %%r, which becomes the rank, into its name",
                self._rank,
                files.name(path),
            )
        except OSError:
            pass  # a file system without locks

    def _start(self) -> dict[str, object]:
        return {
            "kind": "start",
            "time": time.monotonic(),
            "rank": self._rank,
            "restart": restarts(),
            "job": "" if self._session is None else self._session.job_name,
            "size": self._size,
            "host": socket.gethostname(),
            "clock": clock_id(),
            "unix_s": time.time(),
        }

    def close(self) -> None:
        """Write the last line and stop. Called before the session is closed, whose counters are in that line.

        Idempotent, bounded.
        """
        self._hook.remove()
        if self._session is not None and self._watcher is not None:
            self._session.observer = None
            self._submitted.put(None)
            self._watcher.join(CLOSE_TIMEOUT_S)
            self._watcher = None
        if self._file is not None:
            counters = {} if self._session is None else self._session.counters()
            self._write(kind="end", time=time.monotonic(), counters=counters)
        if self._file is not None:  # no write has failed
            self._file.close()
            self._file = None

    def _stepped(self, optimizer: Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._steps += 1
        self._write(kind="step", time=time.monotonic(), step=self._steps)
        if self._steps in self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def meeting(
        self, *, number: int, fragment: int, launched: float, submitted: float, awaited: float, landed: float
    ) -> None:
        """Write a meeting that has landed. Times in seconds, of time.monotonic."""
        self._write(
            kind="meeting", number=number, fragment=fragment, launched=launched, submitted=submitted, awaited=awaited,
            landed=landed,
        )  # fmt: skip

    def _observe(self, ticket: int, reduction: Reduction, began_s: float) -> None:
        self._submitted.put((ticket, began_s, reduction.count * reduction.element.bytes))

    def _watch(self, session: AnySession) -> None:
        before = dict.fromkeys((counter for _, counter in SPENT), 0.0)
        while (submitted := self._submitted.get()) is not None:
            ticket, began, size = submitted
            try:
                session.wait(ticket)
            except FaninError:
                return
            done = time.monotonic()
            counters = session.counters()
            now = {counter: counters.get(counter, 0) for _, counter in SPENT}
            spent = {name: (now[counter] - before[counter]) * 1e-6 for name, counter in SPENT}
            before = now
            self._write(
                kind="reduction", submitted=began, done=done, bytes=size, **spent, step=self._steps, ticket=ticket
            )

    def _write(self, **record: object) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record) + "\n")
        except OSError as error:  # training goes on; the half-written line is the last one
            file, self._file = self._file, None
            log.warning("timeline %s ends here: %s", file.name, files.in_words(error))
            with suppress(OSError):
                file.close()


def clock_id() -> str:
    """The kernel's boot id, the same for all processes that share CLOCK_MONOTONIC; empty where there is none."""
    with suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii").strip()
    return ""


def check_faults(options: Options, size: int) -> None:
    """Raise ConfigurationError, alike on every rank, for a fault at a rank that a world of `size` does not have.

    Workers that were started anew have no faults (`Timeline`), and their world may have shrunk.
    """
    if restarts() == 0:
        FaultSchedule.parse(options.faults or "").check_workers(size)


def timeline_for(session: AnySession | None, options: Options, rank: int, size: int) -> Timeline | None:
    """A timeline, where the options name a file or schedule faults; else None."""
    scheduled = FaultSchedule.parse(options.faults or "").scheduled
    return Timeline(session, options, rank, size) if options.timeline is not None or scheduled else None

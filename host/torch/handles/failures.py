"""Failures of a group, in words that name ranks, and the thread that notices them while nobody waits.

Rules
-----
* The session knows first who is gone: it hears from the switch, also while the group is idle or waits for gloo.
* gloo itself never notices a peer that is merely stopped. So when a session fails, the watch thread breaks the inner
  gloo group's connections, and every wait on them raises; what they raise is replaced by the session's failure.
* gloo notices a peer that died sooner than the switch does, but cannot name it: such an error waits for the name.
* Nothing is decided by the text of an error. gloo raises one type for everything, so a wait that has used up its time
  is told from a connection that broke by the clock.
* What a signal handler raises while a collective waits reaches the program as it is (fanin/interruptions.py).
* Texts keep the words that programs look for in torch's errors: `Timed out waiting`, `timed out after`, `timeout`,
  `Connection closed by peer`.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fanin.errors import (
    AdmissionError,
    CollectiveTimeoutError,
    FaninError,
    JoinTimeoutError,
    SwitchLostError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.torch.handles.nonfinite import NonFinite
from fanin.interruptions import interrupts
from fanin.protocol.job import HEARTBEAT_INTERVAL_S, SUSPICION_TIMEOUT_S

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession

log = logging.getLogger("fanin")

WATCH_INTERVAL_S = 0.25
"""How often the watch thread looks at every session; a failure reaches waits on gloo that much later."""
NAMING_GRACE_S = SUSPICION_TIMEOUT_S + 3 * HEARTBEAT_INTERVAL_S
"""How long an error of gloo's waits for the switch to say which rank is gone: gloo has seen it hang up, so the switch
suspects it."""
STOP_TIMEOUT_S = 5.0
"""Longest that the end of the program waits for a thread of ours to come out of a call."""
BREAK_TAG = 0x7FAA1900
"""Tag of the receive that never comes and whose timeout makes gloo close all connections of a group."""


class Failures:
    """The failures of one group: detection while waiting, and wording."""

    def __init__(
        self, group_name: str, rank: int, size: int, global_ranks: list[int], on_nonfinite: str = "warn"
    ) -> None:
        self.group_name = group_name
        self.rank = rank
        self.size = size
        self._is_world = not global_ranks
        self.global_ranks = global_ranks or list(range(size))
        self.session: AnySession | None = None
        self.nonfinite = NonFinite(on_nonfinite, rank)
        """Sums that NaN and infinities have reached."""
        self.survivable: Callable[[FaninError], bool] = lambda failure: False
        """Whether the group goes on after this failure of its session (fallback)."""
        self.on_error: Callable[[FaninError], None] = lambda error: None
        """Called with every error that a collective of the group is about to raise, and with every loss of ranks or the
        switch that the watch thread has seen, also one that the group survives; from any thread."""

    @property
    def failure(self) -> FaninError | None:
        """Why the group can do nothing any more, or None."""
        failure = self.session.failure if self.session is not None else None
        return None if failure is None or self.survivable(failure) else failure

    def wait_unless_failed(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for the event; False after `timeout_s` or when the group has failed."""
        deadline = time.monotonic() + timeout_s
        while not event.wait(min(WATCH_INTERVAL_S, max(0.0, deadline - time.monotonic()))):
            if self.failure is not None or time.monotonic() >= deadline:
                return event.is_set()
        return True

    def raise_explained(self, error: BaseException, name: str, timeout_s: float) -> NoReturn:
        """Raise the error of this group for `error`, which ended the collective `name`; an interruption as it is."""
        if interrupts(error) or getattr(error, "explained", False):
            raise error
        raise self.explain(error, name, timeout_s) from error

    def raise_of_gloo(self, error: BaseException, name: str, timeout_s: float, *, late: bool) -> NoReturn:
        """Raise the error of this group for one of gloo's, which all have one type; `late`: its time was used up."""
        if interrupts(error):
            raise error
        where = self._where(name)
        if late and self.failure is None:
            explained: FaninError = CollectiveTimeoutError(
                f"{where}: {_late(timeout_s)} ({error}). No rank is known to be gone; some have not called this "
                "collective, or are slow. Remedy: find them, or allow more time"
            )
        elif (cause := self.session_failure()) is not None:
            explained = self._because(cause, where)
        else:
            explained = WorkerLostError(
                (),
                f"{where}: Connection closed by peer: a rank has left or died, or called another collective, or one of "
                f"another size ({error}). Remedy: see the output of the other ranks, then start the job again",
            )
        raise self._told(explained) from error

    def closed(self, name: str) -> FaninError:
        """The error of a collective that had not ended when this rank destroyed its group."""
        return self._told(
            FaninError(
                f"{self._where(name)}: this rank has destroyed the group meanwhile. Remedy: wait for it before the "
                "group is destroyed"
            )
        )

    def explain(self, error: BaseException, name: str, timeout_s: float) -> FaninError:
        """The error to raise for `error`, which ended the collective `name`."""
        if getattr(error, "explained", False):
            assert isinstance(error, FaninError)
            return error
        where = self._where(name)
        if isinstance(error, CollectiveTimeoutError):
            explained: FaninError = CollectiveTimeoutError(f"{where}: {_late(timeout_s)}: {error}")
        elif (cause := error if isinstance(error, FaninError) else self.session_failure()) is not None:
            explained = self._because(cause, where)
        else:
            explained = FaninError(f"{where}: {error}. Remedy: see the log of this rank, then start the job again")
        return self._told(explained)

    def _told(self, explained: FaninError) -> FaninError:
        explained.explained = True  # type: ignore[attr-defined]
        self.on_error(explained)
        return explained

    def late(self, name: str, timeout_s: float) -> CollectiveTimeoutError:
        """The error of a wait that has used up its time, where nobody is known to be gone."""
        late = CollectiveTimeoutError(
            f"no result after {timeout_s:g} s. Remedy: find the rank that does not call this collective, or allow more "
            "time"
        )
        explained = self.explain(late, name, timeout_s)
        assert isinstance(explained, CollectiveTimeoutError)
        return explained

    def _where(self, name: str) -> str:
        return f"{name} on rank {self.rank} of {self._group()}"

    def _because(self, cause: FaninError, where: str) -> FaninError:
        if isinstance(cause, WorkerLostError):
            return WorkerLostError(cause.ranks, f"{where}: Connection closed by peer{self._globally(cause)}: {cause}")
        return _again(cause, f"{where}: {cause}")

    def session_failure(self) -> FaninError | None:
        """The group's failure; waits NAMING_GRACE_S for it, since the switch soon names a rank that gloo has lost."""
        deadline = time.monotonic() + NAMING_GRACE_S
        while self.session is not None and self.session.failure is None and time.monotonic() < deadline:
            time.sleep(WATCH_INTERVAL_S)
        return self.failure

    def _group(self) -> str:
        name = "the world" if self._is_world else f"group {self.group_name!r}"
        return f"{name} ({self.size} ranks)"

    def _globally(self, error: WorkerLostError) -> str:
        """The lost ranks in the world's numbers, where those differ from the group's."""
        lost = [rank for rank in error.ranks if rank < len(self.global_ranks)]
        world = [self.global_ranks[rank] for rank in lost]
        if lost == world:
            return ""
        if len(lost) == 1:
            return f" (rank {lost[0]} of this group is rank {world[0]} of the world)"
        here, there = (", ".join(map(str, ranks)) for ranks in (lost, world))
        return f" (ranks {here} of this group are ranks {there} of the world)"


def _late(timeout_s: float) -> str:
    """The end of a wait, in the words that gloo and torch's stores have for it."""
    return f"Timed out waiting for the result; timed out after {timeout_s * 1000:.0f}ms, the timeout of this wait"


def _again(error: FaninError, text: str) -> FaninError:
    """The same kind of error with the same facts, and another text."""
    if isinstance(error, (SwitchLostError, SwitchUnreachableError)):
        return type(error)(error.address, text)
    if isinstance(error, JoinTimeoutError):
        return JoinTimeoutError(error.missing, text)
    if isinstance(error, AdmissionError):
        return type(error)(text, error.code)
    return type(error)(text)


def break_connections(gloo: Any, rank: int, size: int) -> None:
    """Make every pending and later wait on this gloo group raise.

    gloo has no abort that does it; a receive that has timed out closes all connections. One from a peer that has left
    fails before it can time out and closes nothing, so every peer gets its turn; where all have left, nothing waits.
    """
    for distance in range(1, size):
        never = torch.zeros(1, device="cpu")
        try:
            gloo.recv([never], (rank + distance) % size, BREAK_TAG).wait(timedelta(milliseconds=1))
        except RuntimeError as error:  # the timeout, on which gloo has closed its connections
            if interrupts(error):
                raise


class Watch:
    """Calls back once for each session that fails; one thread, which runs while there are sessions."""

    def __init__(self) -> None:
        self._watched: dict[AnySession, tuple[Callable[[FaninError], None], Callable[[], None]]] = {}
        self._raising: weakref.WeakSet[AnySession] = weakref.WeakSet()
        """Sessions whose last turn has raised, which is logged once."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def add(
        self, session: AnySession, failed: Callable[[FaninError], None], otherwise: Callable[[], None] = lambda: None
    ) -> None:
        """Call `failed` once soon after the session has failed, and `otherwise` at every turn before.

        Where one of them raises, it is called again.
        """
        with self._lock:
            self._watched[session] = failed, otherwise
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fanin-watch", daemon=True)
                self._thread.start()

    def remove(self, session: AnySession) -> None:
        """Stop watching a session."""
        with self._lock:
            self._watched.pop(session, None)

    def stop(self) -> None:
        """End the thread and wait for it: one that is inside gloo when the interpreter ends aborts the process."""
        with self._lock:
            self._watched.clear()
            thread = self._thread
        if thread is not None:
            self._stopping.set()
            thread.join(STOP_TIMEOUT_S)

    def forget(self) -> None:
        """Begin anew in a child of fork(), which lacks the thread, and where the lock may be locked."""
        self._watched, self._raising = {}, weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()

    def _run(self) -> None:
        # No local outlives a turn: the last reference to a group, dropped here when `stop` no longer waits for this
        # thread, would have the interpreter's end interrupt gloo's destructor, which aborts the process.
        while self._call_back():
            self._stopping.wait(WATCH_INTERVAL_S)

    def _call_back(self) -> bool:
        """Call back for whatever has failed; False when nothing is left to watch."""
        with self._lock:
            if not self._watched:
                self._thread = None
                return False
            watched = list(self._watched.items())
        for session, (failed, otherwise) in watched:
            try:
                failure = session.failure
                if failure is None:
                    otherwise()
                else:
                    failed(failure)
                    self.remove(session)
                self._raising.discard(session)
            except Exception:  # one group's trouble (no thread can be started) must not leave the others unwatched
                if session not in self._raising:
                    log.exception("rank %d of job %r: tried again", session.rank, session.job_name)
                self._raising.add(session)
        return True


WATCH = Watch()
"""The watch of this process."""

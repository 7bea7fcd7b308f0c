"""Carries out stale rounds in the background of training: a thread, the memory of a round, and a session.

The thread follows the session. Training hands gradients in and goes on; results are given to `on_result` in the thread,
in order, one at a time: every worker gets the same ones with the same bits. A newcomer that has no weights yet keeps
the results, up to KEPT_BYTES of them, and applies them when it has. Rounds wait for it only beyond that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fanin.errors import CollectiveTimeoutError, FaninError
from fanin.host.stale.drops import DropWatch
from fanin.host.stale.layout import Layout
from fanin.host.stale.rounds import StaleRounds, Step
from fanin.host.stale.scale import TALLY_BINS, write_tally
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.events import ReductionDone, RoundHeard

FOLLOW_SLICE_S = 0.5
"""Longest wait of the thread for progress, after which it checks whether it is to end."""
STOP_TIMEOUT_S = 5.0
KEPT_BYTES = 256 << 20
"""Bytes of results that a newcomer keeps; at least one result."""

FLUSH_ALIKE = "call flush on every rank, after the same step"
"""Remedy of a flush that is not through."""

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
T = TypeVar("T")

log = logging.getLogger("fanin.stale")


class Session(Protocol):
    """The part of fanin.host.session.session.Session that is used here."""

    def submit(self, reduction: Reduction) -> int:
        """Start a reduction and return its ticket."""

    def follow(self) -> None:
        """Report progress by `next_progress` from now on."""

    def next_progress(self, timeout_s: float) -> ReductionDone | RoundHeard | None:
        """The next event, or None."""

    @property
    def path_trouble(self) -> str:
        """Trouble of the path to the switch, in words; empty for none."""

    def close(self, timeout_s: float = 10) -> None:
        """Leave the job and close."""


@dataclass(frozen=True, slots=True)
class Result:
    """One round's sum, the same at every worker. Views of memory that the next round overwrites."""

    index: int
    """Number of the round."""
    gradient: Floats
    """The sum of all contributions, shape (elements,)."""
    contributors: npt.NDArray[np.uint32]
    """By chunk, the first of which begins with the tally: how many contributions the sum holds, shape (chunks,)."""
    layout: Layout
    present: Flags
    """By flag of the layout: whether a contribution has set it, shape (flags,)."""

    @property
    def empty(self) -> bool:
        """Whether no worker contributed to any of it."""
        return not self.contributors.any()

    def mean(self, out: Floats) -> None:
        """Write the mean over the contributors, chunk by chunk (0 where there is none), to `out`, shape (elements,)."""
        divisors = np.repeat(np.maximum(self.contributors, 1).astype(np.float32), self.layout.chunk_elements)
        np.divide(self.gradient, divisors[self.layout.head : self.layout.head + len(out)], out=out)


class StaleRunner:
    """One worker's rounds under way. `hand_in`, `flush` and `close` are for one thread, the training's."""

    def __init__(
        self,
        session: Session,
        layout: Layout,
        rounds: StaleRounds,
        on_result: Callable[[Result], None],
        *,
        weigh: Callable[[int], float] = lambda _age: 1.0,
        patience_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`weigh`: factor of a gradient by its age, applied when it is sent (staleness rate, compensation).

        `patience_s`: how long `hand_in` and `flush` wait for others before they raise CollectiveTimeoutError."""
        self.layout = layout
        self._session = session
        self._rounds = rounds
        self._on_result = on_result
        self._weigh = weigh
        self._patience_s = patience_s
        self._clock = clock
        self._drops = DropWatch()
        self._pending, self._source, self._result, self._residual, self._folded = (
            np.zeros(layout.padded, np.float32) for _ in range(5)
        )
        """In this order: the next gradient, the contribution in flight, the sums, the residual, what is folded."""
        self._counts = np.zeros(layout.chunks, np.uint32)
        self._gradient = slice(layout.head, layout.head + layout.elements)
        self._last_bound = float("inf")
        """Bound of the last contribution, beyond which an element was clipped."""
        self._folds = False
        """Whether anything is folded: the model's elements are not read and cleared for nothing."""
        self._flags = slice(TALLY_BINS, layout.head)
        self._pending_flags, self._folded_flags = (np.zeros(layout.flags, np.bool_) for _ in range(2))
        self._changed = threading.Condition()
        """Guards the rounds, and is notified of every change."""
        self._failure: Exception | None = None
        self._closing = False
        self._applying = False
        """Whether a result is being applied, so that rounds and weights do not fit together."""
        self._kept: list[Result] = []
        """Results that a newcomer without weights has yet to apply."""
        self._arrived_version = 0
        """Version of the weights that a newcomer was given: results before it are in them."""
        self._keeps = max(KEPT_BYTES // self._result.nbytes, 1)
        session.follow()
        self._thread = threading.Thread(target=self._run, name="fanin-stale", daemon=True)
        self._thread.start()
        with self._changed:
            self._advance()

    # --- training's side ---

    @property
    def rounds(self) -> StaleRounds:
        """State of the rounds, only to be read."""
        return self._rounds

    def hand_in(self, write: Callable[[Floats], None], version: int, flags: Flags | None = None) -> None:
        """Contribute what `write` writes (all of an array of shape (elements,)), computed on this version.

        `flags`: those that the contribution sets, shape (flags,); None for none of them.
        Returns as soon as the gradient is taken over; waits until the one before it has been sent, dropped or folded. A
        gradient that is not finite is counted and not contributed; the worker passes a base in its place, so that no
        other one waits for it. Raises the session's failure.
        """
        self._wait_until(lambda: not self._rounds.ready, "the gradient before this one is not under way")
        write(self._pending[self._gradient])
        self._pending_flags[:] = False if flags is None else flags
        finite = bool(np.isfinite(self._pending[self._gradient]).all())
        with self._changed:
            if not finite:
                self._rounds.refuse("not finite")
                log.warning("rank %d: a gradient is not finite; it is not contributed", self._rounds.account.rank)
                self._clear_pending()
                self._rounds.pass_base()
                self._advance()
                return
            self._rounds.hand_in(version)
            self._watch_drops()
            self._advance()

    def pass_base(self) -> None:
        """Pass one of the next bases at once: training has nothing to contribute to it. For any thread."""
        with self._changed:
            self._rounds.pass_base()
            self._advance()

    @property
    def dropped_share(self) -> float:
        """Share of the last gradients that training handed in that were too old, 0..1."""
        return self._drops.share

    def between_rounds(self, base: int, look: Callable[[StaleRounds], T], timeout_s: float) -> T | None:
        """Return what `look` returns, called once all results before `base` are applied and none is being applied.

        None after `timeout_s`, or when the job is over. For any thread; rounds wait while `look` runs.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stands_at(base) or self._failure or self._closing, timeout_s)
            return look(self._rounds) if self._stands_at(base) else None

    def arrive(self, version: int) -> None:
        """A newcomer has the weights of this version, `known_from` or later: apply what came since, and join in.

        Waits until its own rounds have reached `version`: on a loaded machine they come later than at the peer that
        gave the weights, and results that the weights include must not be applied again. Raises as `hand_in` does.
        """
        with self._changed:
            self._arrived_version = version
            self._kept = [result for result in self._kept if result.index >= version]
            self._changed.notify_all()  # there may be room for results again
        self._wait_until(lambda: self._rounds.base >= version, f"the rounds before version {version} have not come")
        with self._changed:
            for result in self._kept:
                self._on_result(result)
            self._kept.clear()
            self._rounds.absent = False
            self._advance()
            self._changed.notify_all()

    def wait_for_results(self) -> None:
        """Return once the gradient handed in is contributed, its round's result applied, and no base is under way."""
        self._wait_until(lambda: self._rounds.rests, "the round's result has not come")

    @property
    def has_sent(self) -> bool:
        """Whether the gradient handed in is under way, dropped or folded, so that `hand_in` would take the next one at
        once. For any thread."""
        with self._changed:
            return not self._rounds.ready

    @property
    def has_results(self) -> bool:
        """Whether `wait_for_results` would return at once. For any thread."""
        with self._changed:
            return self._rounds.rests

    def flush(self, remedy: str = FLUSH_ALIKE) -> None:
        """Take no more gradients; return when everything late has landed and is applied.

        Every worker must call it, equally far or with the same end. Raises CollectiveTimeoutError when one does not,
        with this remedy.
        """
        with self._changed:
            if not self._rounds.ready:
                self._clear_pending()  # what was folded goes alone
            self._rounds.flush()
            self._advance()
        self._wait_until(
            lambda: self._rounds.done, f"the flush, of the rounds before {self._rounds.end}, is not through", remedy
        )
        self._rounds.account.check()
        self._warn_of_rest()

    def _warn_of_rest(self) -> None:
        """Say so where the last gradients exceeded the bound: no contribution carries the rest of them any more."""
        left = np.abs(self._residual[self._gradient])
        most, bound = float(left.max(initial=0.0)), self._last_bound
        if most > bound:
            log.warning(
                "rank %d: %d elements of its last gradients were above the scale's bound of %.3g, and the rest of "
                "them, up to %.3g each, has not landed. Remedy: end training with gradients of the usual size, or clip "
                "them",
                self._rounds.account.rank, np.count_nonzero(left > bound), bound, most,
            )  # fmt: skip

    def close(self, timeout_s: float = 10.0) -> None:
        """Leave the job, within `timeout_s` where the switch does not answer. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._session.close(timeout_s)
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT_S)

    def _stands_at(self, base: int) -> bool:
        return self._rounds.base >= base and not self._applying

    def _wait_until(
        self, holds: Callable[[], bool], otherwise: str, remedy: str = "find it, or take the policy `skip`"
    ) -> None:
        with self._changed:
            ok = self._changed.wait_for(lambda: holds() or self._failure or self._closing, self._patience_s)
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise FaninError("this stale job is closed. Remedy: hand in gradients before `close` or `flush`")
            if not ok:
                why = self._session.path_trouble or (
                    f"every rank is alive, so one of them contributes nothing and passes nothing. Remedy: {remedy}"
                )
                raise CollectiveTimeoutError(
                    f"Timed out: {otherwise} after {self._patience_s:g} s on rank {self._rounds.account.rank}, at base "
                    f"{self._rounds.base}; {why}"
                )

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self._closing:
                event = self._session.next_progress(FOLLOW_SLICE_S)
                if isinstance(event, RoundHeard):
                    with self._changed:
                        self._rounds.hear(event.base)
                        self._advance()
                elif event is not None:
                    self._round_over()
        except Exception as error:  # whatever it is, training must hear of it
            with self._changed:
                if not self._closing:
                    self._failure = error
                self._changed.notify_all()

    def _round_over(self) -> None:
        """Apply or keep the result of the base under way, which is in `_result`, and go on to the next base."""
        rounds = self._rounds
        self._residual[: self.layout.head] = 0.0  # tally and flags are not gradient, so they leave no residual
        present = self._result[self._flags] > 0.5 * 2.0 ** rounds.scale.power_at(rounds.base)
        result = Result(rounds.base, self._result[self._gradient], self._counts, self.layout, present)
        if rounds.base >= rounds.known_from:
            with self._changed:
                self._applying = True
                rounds.account.round_over(self._counts)
                kept = self._keep(result)
            if not kept:
                self._on_result(result)
            rounds.scale.applied(rounds.base, self._result[:TALLY_BINS])
        with self._changed:
            self._applying = False
            rounds.finished()
            self._advance()
            self._changed.notify_all()

    def _keep(self, result: Result) -> bool:
        """Put a result aside if this newcomer has no weights yet, and return whether it has none. Needs the lock."""
        self._changed.wait_for(lambda: not self._rounds.absent or len(self._kept) < self._keeps or self._closing)
        if self._rounds.absent and result.index >= self._arrived_version:
            self._kept.append(replace(result, gradient=result.gradient.copy(), contributors=result.contributors.copy()))
        return self._rounds.absent

    # --- what is sent; with the lock ---

    def _advance(self) -> None:
        while (step := self._rounds.next_action()) is not None:
            if step is Step.CONTRIBUTE:
                self._contribute()
            elif step is Step.PASS:
                self._session.submit(self._reduction(self._result, passes=True))
            elif step is Step.FOLD:
                self._weigh_pending()
                self._folded[self._gradient] += self._pending[self._gradient]
                self._folds = True
                self._folded_flags |= self._pending_flags
                self._clear_pending()
            self._changed.notify_all()

    def _contribute(self) -> None:
        self._weigh_pending()
        self._pending, self._source = self._source, self._pending
        gradient = self._source[self._gradient]
        if self._folds:
            gradient += self._folded[self._gradient]
            self._folded[:] = 0.0
            self._folds = False
        magnitudes = np.abs(gradient + self._residual[self._gradient])
        scale = self._rounds.scale
        self._rounds.account.clipped_elements += int(np.count_nonzero(magnitudes > 2.0**scale.power))
        write_tally(self._source[:TALLY_BINS], float(magnitudes.max()), scale.power)
        self._source[self._flags] = np.where(self._pending_flags | self._folded_flags, 2.0**scale.power, 0.0)
        self._folded_flags[:] = False
        self._last_bound = 2.0**scale.power
        self._session.submit(self._reduction(self._source, residual=self._residual))

    def _watch_drops(self) -> None:
        account = self._rounds.account
        if self._drops.handed_in(account.handed_in, account.dropped["too old"], self._clock()):
            log.warning(
                "rank %d drops %.0f %% of the gradients that it computes: they are older than %d rounds when they are "
                "ready, since rounds close without them. Remedy: a larger quorum (fanin tune JOB --quorum N, "
                "StaleOptions(quorum=N), or tune=SemiAsynchronousQuorum(...)), policy='fold', or synchronous training",
                account.rank,
                100 * self._drops.share,
                self._rounds.bound,
            )

    def _clear_pending(self) -> None:
        self._pending[self._gradient] = 0.0
        self._pending_flags[:] = False

    def _weigh_pending(self) -> None:
        self._pending[self._gradient] *= np.float32(self._weigh(self._rounds.age))

    def _reduction(self, source: Floats, *, residual: Floats | None = None, passes: bool = False) -> Reduction:
        code = self._rounds.scale.code_at(self._rounds.base)
        return Reduction(
            source=source.ctypes.data,
            destination=self._result.ctypes.data,
            count=self.layout.padded,
            element=Element.FLOAT32,
            lanes=self.layout.lanes,
            residual=0 if residual is None else residual.ctypes.data,
            signature=0x57A1_0000 | code,
            scale_code=code,
            passes=passes,
            counts=self._counts.ctypes.data,
            owner=(source, self._result, residual, self._counts),
        )

"""Inputs and results of a rank's reductions, kept so that they can go on elsewhere when a shard is lost.

Rules
-----
* The sum goes to memory of our own, and from there to the destination once it is whole. So the input stays as it was
  until the reduction is done here, and the result can be given to ranks that lack it.
* What is done here is kept until it is known to be done everywhere (reduction_log.py).
* A rank that hands its result on to the others may be lost meanwhile: then the shards go on without it, and the sum of
  the others' zeros is no result. So it sends a 1 beside every word. Where one is missing, all ranks see that alike, as
  they get the same bits; the reduction is *torn*, and nobody takes it for done or forgets what it has of it.
* A sum that lacks a rank may be in doubt (doubt.py). It is not done here while it is, nor while the ranks agree on how
  to go on; afterwards it is, if they found that some rank has done it.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fanin.host.session.doubt import Doubt
from fanin.host.session.finished import Counted, Ends
from fanin.host.session.reduction_log import ReductionLog
from fanin.numerics.reduction import Element, Reduction

Words = npt.NDArray[np.int32]
Counts = npt.NDArray[np.uint32]


class Summing(Counted, Protocol):
    """The part of a session that is needed here."""

    def done(self, ticket: int) -> bool:
        """Whether a reduction has ended, as `Session.done` says."""


Part = tuple[Summing, int]
"""A session and the ticket that it gave to a part."""
MAX_SPARE = 8
MIN_SPARE_WORDS = 1 << 14
"""From this size on, memory of results is used again; of the last MAX_SPARE such results."""
RESIDUAL_BYTES = 4
WORD_BYTES = 4


@dataclass(slots=True, eq=False)
class KeptReduction:
    """One submitted reduction, with all that is needed to sum it again, or to hand its result on."""

    ticket: int
    given: Reduction | None
    """The reduction as it was submitted; None once it is done here."""
    result: Words
    """All elements of the result, as words, of which the last may be beyond the last element."""
    counts: Counts | None = None
    """Number of contributors of each packet of the result; None: nobody has asked for it."""
    arrivals: Counts | None = None
    """Bitmap of the workers in each packet of the result; None: it is not known."""
    residual: bytes = b""
    """Copy of the residual from before the reduction."""
    doubt: Doubt | None = None
    """Doubts about sums that lack ranks, of the job that the parts were dealt out in; None: no sum lacks any."""
    parts: tuple[Part, ...] = ()
    ends: Ends = field(default_factory=dict)
    """Ends of the parts that were dealt out."""
    handed: Words | None = None
    """Destination of the sum that hands one rank's result on, each word followed by a 1; None: there is no such sum."""
    torn: bool = False
    """Whether the rank that handed its result on was lost meanwhile."""
    held_back: bool = False
    """Whether its sum had come, in doubt, when the ranks began to agree on how to go on."""

    @classmethod
    def of(cls, ticket: int, given: Reduction, result: Words, arrivals: Counts | None) -> KeptReduction:
        """The entry of a reduction that is not dealt out yet, with a copy of its residual.

        `result` and `arrivals`: room for its result, and for the bitmap of workers in each of its packets.
        """
        residual = ctypes.string_at(given.residual, given.count * RESIDUAL_BYTES) if given.residual else b""
        counts = np.zeros_like(arrivals) if given.counts and arrivals is not None else None
        return cls(ticket, given, result, counts, arrivals, residual)

    @property
    def is_done(self) -> bool:
        """Whether the result is in the reduction's destination."""
        return self.given is None

    @property
    def has_come(self) -> bool:
        """Whether it was dealt out, every shard has summed its part, and the sum is not in doubt."""
        return self.is_summed and not self.is_in_doubt

    @property
    def is_summed(self) -> bool:
        """Whether it was dealt out and every shard has summed its part."""
        return bool(self.parts) and all(session.done(ticket) for session, ticket in self.parts)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the sum, whose parts are there, is in doubt. A result that is handed on never is."""
        if self.doubt is None or self.handed is not None or self.torn:
            return False
        return self.doubt.about(None if self.arrivals is None else int(np.bitwise_and.reduce(self.arrivals)))

    @property
    def may_go(self) -> bool:
        """Whether this rank no longer needs the entry: it is done, and it is neither being handed on nor torn."""
        return self.is_done and self.handed is None and not self.torn

    def summed(self) -> Reduction:
        """The reduction to deal out, for the first time or again: from the original input into `result`."""
        given = self.given
        assert given is not None
        if self.residual:
            ctypes.memmove(given.residual, self.residual, len(self.residual))
        return dataclasses.replace(
            given, destination=self.result.ctypes.data, keep_first=0, keep_count=-1,
            counts=given.counts if self.counts is None else self.counts.ctypes.data,
            arrivals=0 if self.arrivals is None else self.arrivals.ctypes.data,
            owner=(given.owner, self.result, self.counts, self.arrivals),
        )  # fmt: skip

    def handed_on(self, *, holds: bool) -> Reduction:
        """The reduction to deal out where one rank has the result: its words, each with a 1, and zeros from others."""
        words, self.handed = (np.zeros(2 * len(self.result), np.int32) for _ in range(2))
        if holds:
            words[::2], words[1::2] = self.result, 1
        return Reduction(
            source=words.ctypes.data,
            destination=self.handed.ctypes.data,
            count=len(words),
            element=Element.INT32,
            owner=(words, self.handed),
        )

    def finish(self) -> None:
        """Take the sum that has come: unless it is torn, copy the elements that are kept to the destination."""
        given, handed, self.handed = self.given, self.handed, None
        if handed is not None:
            self.torn = not bool((handed[1::2] == 1).all())
            self.result = handed[::2].copy() if given is not None and not self.torn else self.result
        if given is None or self.torn:
            return
        size = given.element.bytes
        if given.kept:
            ctypes.memmove(given.destination, self.result.ctypes.data + given.keep_first * size, given.kept * size)
        if given.counts and self.counts is not None:
            ctypes.memmove(given.counts, self.counts.ctypes.data, self.counts.nbytes)
        self.given = None


class KeptReductions:
    """The kept reductions of one rank, in the order of their tickets."""

    def __init__(self) -> None:
        self._log: ReductionLog[KeptReduction] = ReductionLog()
        self._by_ticket: dict[int, KeptReduction] = {}
        self._spare: deque[Words] = deque(maxlen=MAX_SPARE)
        """Memory of large results that are done everywhere: new memory would cost a page fault per page."""
        self.restart((), None)

    def restart(self, sessions: Sequence[Summing], doubt: Doubt | None) -> None:
        """Deal parts to these sessions from now on; `doubt`: about sums there that lack ranks."""
        self._sessions, self._doubt = sessions, doubt
        self._log.restart(sessions)

    def __iter__(self) -> Iterator[KeptReduction]:
        return iter(self._log)

    def __len__(self) -> int:
        return len(self._log)

    def room_for(self, given: Reduction) -> Words:
        """Memory for that reduction's result, which may have been another's."""
        words = -(-given.count * given.element.bytes // WORD_BYTES)
        for number, room in enumerate(self._spare):
            if len(room) == words:
                del self._spare[number]
                return room
        return np.zeros(words, np.int32)

    def get(self, ticket: int) -> KeptReduction | None:
        """The reduction of that ticket; None if it is forgotten."""
        return self._by_ticket.get(ticket)

    def append(self, kept: KeptReduction) -> None:
        """Append a new reduction."""
        self._log.append(kept)
        self._by_ticket[kept.ticket] = kept

    def dealt(self, kept: KeptReduction, parts: Sequence[tuple[int, int, Reduction]]) -> None:
        """Note how a reduction was dealt out; each part: number of the session, its ticket, and what it sums."""
        kept.parts = tuple((self._sessions[number], ticket) for number, ticket, _ in parts)
        kept.doubt = self._doubt
        whole = parts[0][2]
        counts = ((number, part.count) for number, _, part in parts)
        self._log.dealt(kept, counts, whole.element, whole.lanes, whole.operator)

    def forget(self) -> None:
        """Finish what has come, whether or not anybody waits for it, and drop what is done everywhere."""
        for kept in self._log.take_come():
            kept.finish()
        for kept in self._log.forget():
            del self._by_ticket[kept.ticket]
            if len(kept.result) >= MIN_SPARE_WORDS:
                self._spare.append(kept.result)

    @property
    def handing(self) -> bool:
        """Whether some rank is handing its result of a reduction on to ranks that lack it."""
        return any(kept.handed is not None for kept in self)

    @property
    def torn(self) -> bool:
        """Whether a rank was lost while it handed its result of a reduction on."""
        return any(kept.torn for kept in self)

    def hold_back(self) -> None:
        """Mark the sums that are in doubt, as the ranks begin to agree on how to go on."""
        for kept in self:
            kept.held_back = not kept.is_done and kept.is_summed and kept.is_in_doubt

    def keep_only(self, tickets: Collection[int]) -> None:
        """Drop all but these, since every rank has them, and finish what was held back among the dropped; forget how
        those that stay were divided among sessions."""
        for kept in self:
            if kept.held_back and kept.ticket not in tickets:
                kept.finish()
        self._log.keep_only([kept for kept in self if kept.ticket in tickets])
        for kept in self:
            kept.parts, kept.ends, kept.handed, kept.torn, kept.held_back = (), {}, None, False, False
        self._by_ticket = {kept.ticket: kept for kept in self}

"""The meetings that one member of changing ones has landed, has under way, and has heard while it waits for a state.

Verbs
-----
`launched` and `landed` count this member's own meetings, `adopt` settles them when an epoch begins; `heard` and
`arrived` are those of a listener, whose state is on its way.

Rules
-----
* A meeting counts if the state of the next epoch has landed it, and then for everybody: whoever handed something in to
  it forgets that. Of any other meeting everything that was handed in is still to be handed in.
* A listener takes part in meetings with nothing of its own, and keeps the means of those that it hears. A state that
  arrives is brought up to date by them.
* A state that has landed a meeting which the listener has not heard waits for that: if the epoch breaks before, the
  meeting may count for nobody else.
* What a listener has heard ends with the epoch. It keeps its former state till then, which is a beginning of the same
  history.

The machine has no socket, clock or tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.host.torch.training.meetings.agreement import NOTHING, Notice, Record, Standing, settle

LARGEST_BACKLOG = 8
"""Meetings of each fragment that a listener keeps: so many copies of the model. Beyond it the others wait."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of an epoch's beginning at one member."""

    standing: Standing
    again: tuple[int, ...]
    """Meetings under way that count for nobody: the member hands in anew what it has handed in to them."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The outcome of a state's arrival at a listener."""

    apply: tuple[int, ...]
    """Meetings that were heard and that the state has not landed."""
    counted: tuple[int, ...]
    """Meetings that the state has landed, with what this member handed in, which it forgets now."""


class Ledger:
    """Meetings of one member."""

    def __init__(self, fragments: int = 1) -> None:
        self._most_heard = LARGEST_BACKLOG * fragments
        self.epoch = 0
        """Number of the record that was adopted last."""
        self.next = NOTHING
        """Meetings that this member's state has landed, which is the number of the next one; NOTHING without state."""
        self.listens = False
        """Whether this member's state is on its way."""
        self._under_way: list[int] = []
        self._first = 0
        """Number of the first meeting that a listener has heard, or is to hear."""
        self._heard = 0

    def notice(self, member: int, step: int, lost: tuple[int, ...]) -> Notice:
        """The notice by which this member asks for the next epoch."""
        return Notice(id=member, epoch=self.epoch, landed=self.next, step=step, lost=lost)

    def launched(self, number: int) -> None:
        """Note that this member has handed something in to a meeting."""
        self._under_way.append(number)

    def note_landed(self, number: int) -> None:
        """Note that this member has added a meeting's result to its state."""
        assert number == self.next
        assert not self.listens
        self._under_way = [each for each in self._under_way if each != number]
        self.next = number + 1

    def adopt(self, notice: Notice, record: Record) -> Settled:
        """Begin an epoch, and settle this member's meetings under way; `notice`: as it was posted."""
        standing = settle(notice, record)
        again = tuple(each for each in self._under_way if each >= record.landed)
        self.epoch = record.number
        self.listens = standing in ("behind", "new")
        self._first, self._heard = record.landed, 0
        if standing == "new":
            self.next, again = NOTHING, ()
        # Deltas that count are kept until the state is here: if that is lost, they are handed in after all.
        self._under_way = [each for each in self._under_way if standing == "behind" and each < record.landed]
        return Settled(standing, again)

    def founded(self) -> None:
        """Note that rank 0's weights have come, with which training begins."""
        self.next = 0

    @property
    def hears_next(self) -> int:
        """Number of the meeting that a listener takes part in next."""
        return self._first + self._heard

    @property
    def full(self) -> bool:
        """Whether a listener keeps as many meetings as it may."""
        return self._heard >= self._most_heard

    def heard(self, number: int) -> None:
        """Note that this listener has the mean of a meeting."""
        assert self.listens
        assert number == self.hears_next
        self._heard += 1

    def arrived(self, version: int) -> Arrived | None:
        """Take a state that has landed `version` meetings, and listen no more. None: the state is ahead of what was
        heard, and has to wait."""
        if version > self.hears_next:
            return None
        assert version >= self._first
        self.listens = False
        self.next = self.hears_next
        counted, self._under_way = tuple(self._under_way), []
        return Arrived(tuple(range(version, self.next)), counted)

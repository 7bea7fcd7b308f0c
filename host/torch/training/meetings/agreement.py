"""The agreement of members that come and go on those of the next meetings, through one register of a store.

A *record* names the members of an epoch. A process that wants the next epoch posts a notice, reads those of the others,
and asks an `Agreement` what to do. Records are replaced by compare-and-set alone, so there is one history of epochs,
and a half of the network that cannot reach the store makes none.

Verbs
-----
`Pulse.hear` takes the counts of beats; `Agreement.decide` says `Wait`, `Propose` or `Adopt`; `settle` says what a
member of the new epoch has.

Rules
-----
* A member of the present epoch that has posted for the next one is present, while its beats move. Any other whose
  beats move is waited for, by at most `longest_s`. Beats may be missing for `silent_s`, and for `lost_s` alone where a
  member has named it as lost.
* Only present members propose, the first of them at once, the next ones later each; newcomers never do.
* A newcomer is taken where its beats were heard to move, so that one which died is not waited for.
* The state of the next epoch is that of the present member which has landed most meetings. Members that have landed
  fewer hold a beginning of the same history; everybody else holds nothing that counts. Where all present members have
  landed fewer than this epoch began with, the others are waited for by `longest_s`, silent or not.
* In an epoch that founds the training nobody needs a state. Later somebody must have one, or nothing is proposed.

The machine has no socket and no clock: times, records, notices and beats are handed to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

NOTHING = -1
"""Value of `landed` for a process that holds no state."""
LEFT = -1
"""Count of beats that a process posts when it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The members of one epoch."""

    number: int
    """Number of the epoch, from 1; 0 before the first."""
    members: tuple[int, ...] = ()
    """Numbers of the processes, by rank."""
    holders: tuple[int, ...] = ()
    """Members that hold the newest state; in a founding epoch none needs to."""
    landed: int = 0
    """Meetings that the newest state has landed, which is the number of the next one."""
    step: int = 0
    """Local steps from which all members go on."""
    founding: bool = False
    """Whether nobody has trained: rank 0's weights are sent to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The wish of one process for the next epoch."""

    id: int
    epoch: int = 0
    """Number of the record that it has adopted last; 0: none."""
    landed: int = NOTHING
    """Meetings that its state has landed."""
    step: int = 0
    """Local steps that it has made."""
    lost: tuple[int, ...] = ()
    """Members that the switch has named to it as lost or gone."""
    asks: bool = True
    """Whether it wants the next epoch; False: it is in that one, and says so as soon as it has adopted it."""


BEGINNING = Record(number=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Times of an agreement, in seconds."""

    silent_s: float = 5.0
    """A member whose beats have not moved for so long is not waited for."""
    lost_s: float = 1.5
    """`silent_s` for a member that another has named as lost: a few beats, since the other may be the one cut off."""
    longest_s: float = 60.0
    """A member that is alive and has not come is waited for by at most this."""
    turn_s: float = 0.5
    """Each present member proposes this much later than the one before it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again later; `why` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Propose:
    """Replace the record by this one, if it is still the one that was read."""

    record: Record


@dataclass(frozen=True, slots=True)
class Adopt:
    """Adopt this record, since its epoch has begun with this process in it."""

    record: Record


Decision = Wait | Propose | Adopt
Standing = Literal["founds", "holds", "behind", "new"]


class Pulse:
    """Beats that were heard, and when they last moved."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._heard: dict[int, tuple[int, float, bool]] = {}

    def hear(self, now_s: float, beats: Mapping[int, int]) -> None:
        """Note counts of beats by id."""
        for member, count in beats.items():
            known = self._heard.get(member)
            if known is None or known[0] != count:
                self._heard[member] = (count, now_s, known is not None)

    def silent(self, member: int, now_s: float, within_s: float | None = None) -> bool:
        """Whether a process has left, or its beats have not moved for `silent_s`, or `within_s`. One that was never
        heard counts from the first call for it."""
        count, moved_s, _ = self._heard.setdefault(member, (0, now_s, False))
        return count == LEFT or now_s - moved_s >= (self._silent_s if within_s is None else within_s)

    def moves(self, member: int, now_s: float) -> bool:
        """Whether a process's beats were seen to move, and it is not silent since."""
        known = self._heard.get(member)
        return known is not None and known[2] and not self.silent(member, now_s)


class Agreement:
    """One process on its way into the next epoch."""

    def __init__(self, own: Notice, founders: int, least: int, patience: Patience, pulse: Pulse, now_s: float) -> None:
        """`own`: as it is posted. `founders`: processes that begin together. `least`: members that an epoch needs."""
        self._own, self._founders, self._least = own, founders, least
        self._patience, self._pulse = patience, pulse
        self._began_s = now_s
        self._complete_s: float | None = None

    def decide(self, now_s: float, record: Record, notices: Mapping[int, Notice]) -> Decision:
        """Decide by what was read last; `notices` by id, this process's own included."""
        own = self._own
        if record.number > own.epoch and own.id in record.members:
            return Adopt(record)
        if record.number == 0:
            return self._found(now_s, notices)
        if record.number != own.epoch:
            return Wait(f"epoch {record.number} runs without this process, and nobody has taken it in")
        missing = self._missing(now_s, record, notices)
        if missing and now_s - self._began_s < self._patience.longest_s:
            self._complete_s = None
            return Wait(f"members {_words(missing)} are alive and have not come to the meeting")
        present = self._present(now_s, record, notices)
        if self._complete_s is None:
            self._complete_s = now_s
        if now_s - self._complete_s < present.index(own.id) * self._patience.turn_s:
            return Wait(f"member {present[0]} has not proposed")
        return self._next(now_s, record, present, notices)

    def _found(self, now_s: float, notices: Mapping[int, Notice]) -> Decision:
        there = sorted(each for each in notices if notices[each].asks and not self._pulse.silent(each, now_s))
        if len(there) < max(self._founders, self._least):
            return Wait(f"{len(there)} of {max(self._founders, self._least)} processes have come")
        if there[0] != self._own.id:
            return Wait(f"process {there[0]} has not proposed")
        return Propose(Record(number=1, members=tuple(there), founding=True))

    def _missing(self, now_s: float, record: Record, notices: Mapping[int, Notice]) -> list[int]:
        present = self._present(now_s, record, notices)
        lost = {gone for each in present for gone in notices[each].lost}
        return [
            each
            for each in record.members
            if each not in present
            and not self._pulse.silent(each, now_s, self._patience.lost_s if each in lost else None)
        ]

    def _present(self, now_s: float, record: Record, notices: Mapping[int, Notice]) -> list[int]:
        return [
            each
            for each in record.members
            if each in notices
            and notices[each].asks
            and notices[each].epoch == record.number
            and (each == self._own.id or not self._pulse.silent(each, now_s))
        ]

    def _next(self, now_s: float, record: Record, present: list[int], notices: Mapping[int, Notice]) -> Decision:
        landed = max(notices[each].landed for each in present)
        founding = record.founding and landed == NOTHING
        if landed == NOTHING and not founding:
            return Wait("nobody who is left holds the weights")
        if landed < record.landed and now_s - self._began_s < self._patience.longest_s:
            return Wait(f"members {_words(list(record.holders))} hold newer weights and have not come")
        newcomers = [each for each in sorted(notices) if waits(notices[each], record, self._pulse, now_s)]
        members = (*present, *newcomers)
        if len(members) < self._least:
            return Wait(f"{len(members)} of at least {self._least} members are there")
        return Propose(
            Record(
                number=record.number + 1,
                members=members,
                holders=() if founding else tuple(each for each in present if notices[each].landed == landed),
                landed=max(landed, 0),
                step=max(notices[each].step for each in present),
                founding=founding,
            )
        )


def waits(said: Notice, record: Record, pulse: Pulse, now_s: float) -> bool:
    """Whether a process that is not a member of the epoch lives, and asks for the next one."""
    return said.id not in record.members and said.asks and said.epoch < record.number and pulse.moves(said.id, now_s)


def settle(own: Notice, record: Record) -> Standing:
    """Judge the state of a member of the new epoch, by the notice that it had posted.

    "founds": it needs nothing but rank 0's weights. "holds": the newest state. "behind": a beginning of it; what it
    handed in since has counted up to `record.landed`, and no further. "new": nothing that counts.
    """
    if record.founding:
        return "founds"
    if own.id in record.holders:
        return "holds"
    begun = own.epoch == record.number - 1 and NOTHING < own.landed <= record.landed
    return "behind" if begun else "new"


def to_text(thing: Record | Notice) -> str:
    """The text of a record or notice in the store."""
    return json.dumps(asdict(thing))


def record_of(text: bytes | str) -> Record:
    """Read what `to_text` wrote of a record."""
    said = json.loads(text)
    return Record(**said | {name: tuple(said[name]) for name in ("members", "holders")})


def notice_of(text: bytes | str) -> Notice:
    """Read what `to_text` wrote of a notice."""
    said = json.loads(text)
    return Notice(**said | {"lost": tuple(said["lost"])})


def _words(members: list[int]) -> str:
    return ", ".join(map(str, members))

"""The table of what a worker does with a result or an answer, as data that both machines read.

`ROWS` are the rules R-RESULT-1 to R-RESULT-11: docs/protocol.md (*A result, row by row*) and
native/machine/result_rows.hpp are generated from them (`make constants`). The first row that holds for the facts of a
packet decides. worker_machine.py and its native twin gather the facts, and carry out the deed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cache


class Fact(enum.IntFlag):
    """Facts about a packet, and about the item whose slot it names."""

    EARLIER = enum.auto()
    """Its base is before the slot's current item; no other fact is asked for."""
    AHEAD = enum.auto()
    """Its base is after the current item's, or the item was never sent; no other fact is asked for."""
    OTHER = enum.auto()
    """Its signature is not the item's."""
    PASSES_ALONE = enum.auto()
    """Nobody contributed to the round: no codes, no words, no contributors."""
    OWNED = enum.auto()
    """The item's elements have owners."""
    ACKNOWLEDGED = enum.auto()
    """This worker's bit is set."""
    BARE = enum.auto()
    """It is a bare ANSWER: it has no words, and may have neither codes nor a signature."""
    ENOUGH = enum.auto()
    """It has all that this worker keeps: codes, and no words."""
    ACCEPTED = enum.auto()
    """An earlier answer has said that the contribution is accepted."""
    MULTICAST = enum.auto()
    """It is a RESULT."""
    FITS = enum.auto()
    """It has the item's codes, words and lanes."""
    INCOMPLETE = enum.auto()
    """A worker of the job has no part in the round."""


class Deed(enum.IntEnum):
    """Reaction to a packet."""

    DUPLICATE = 0
    """Count it as a duplicate, and an ANSWER as spurious."""
    HEAR = 1
    """Count it as FUTURE; a RESULT shows that a round is over."""
    MISMATCH = 2
    """Count it as MISMATCH."""
    FAIL_UNOWNED = 3
    """Fail: the elements' owner did not contribute, so it calls another collective or names another root."""
    NOTHING_NEW = 4
    """Count it as a duplicate: it says nothing that was not known."""
    ASK = 5
    """Send the contribution again, as long as its result, at once."""
    LEAVE = 6
    """Do not store it; the answer to a retransmission will acknowledge the contribution first."""
    LENGTH = 7
    """Count it as LENGTH."""
    FAIL_INCOMPLETE = 8
    """Fail: the missing worker may be the owner."""
    STORE = 9
    """Store it, once; the slot goes on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: it holds if the packet has all facts of `has` and none of `lacks`."""

    title: str
    condition: str
    """The facts of `has` and `lacks` in words, for the documents."""
    done: str
    """Description of the deed, and its reason."""
    deed: Deed
    has: Fact = Fact(0)
    lacks: Fact = Fact(0)


ROWS = (
    Row(
        "duplicate",
        "its base is before the slot's current item",
        "counted: the RESULT and the ANSWER to a repetition may both come",
        Deed.DUPLICATE,
        has=Fact.EARLIER,
    ),
    Row(
        "heard of",
        "its base is after that, or the item was never sent",
        "counted (FUTURE); with a quorum below N rounds close without this worker, and a RESULT of one is news "
        "(RoundHeard)",
        Deed.HEAR,
        has=Fact.AHEAD,
    ),
    Row(
        "another collective",
        "another signature; not of bare answers and of rounds of passes alone, which may have none",
        "counted (MISMATCH)",
        Deed.MISMATCH,
        has=Fact.OTHER,
        lacks=Fact.PASSES_ALONE | Fact.BARE,
    ),
    Row(
        "nobody's element",
        "nobody contributed what has an owner, and this worker's pass is in",
        "the worker fails (MISMATCH): the owner calls another collective, or names another root",
        Deed.FAIL_UNOWNED,
        has=Fact.PASSES_ALONE | Fact.OWNED | Fact.ACKNOWLEDGED,
    ),
    Row(
        "not about this contribution",
        "a bare ANSWER without this worker's bit",
        "counted: it says where a newcomer stands, and was asked for before",
        Deed.NOTHING_NEW,
        has=Fact.BARE,
        lacks=Fact.ACKNOWLEDGED,
    ),
    Row(
        "accepted before",
        "a bare ANSWER that is not enough, and the contribution is known to be accepted",
        "counted: what was sent again since, or the timer, brings the result",
        Deed.NOTHING_NEW,
        has=Fact.BARE | Fact.ACCEPTED,
        lacks=Fact.ENOUGH,
    ),
    Row(
        "accepted",
        "a bare ANSWER that is not enough",
        "the contribution is known to be accepted; the result is longer than it was, so it is sent again as long as "
        "the result, with zero words, once at once and then by the timer",
        Deed.ASK,
        has=Fact.BARE,
        lacks=Fact.ENOUGH,
    ),
    Row(
        "acceptance not known",
        "a RESULT without this worker's bit, and no answer has said that the contribution is accepted",
        "left for the ANSWER that a retransmission brings: an in-place reduction that stored it would have nothing "
        "left to send again",
        Deed.LEAVE,
        has=Fact.MULTICAST,
        lacks=Fact.ACKNOWLEDGED | Fact.ACCEPTED,
    ),
    Row(
        "another shape",
        "other codes, words or lanes than the item has; not where none are needed or nobody contributed",
        "counted (LENGTH)",
        Deed.LENGTH,
        lacks=Fact.FITS | Fact.ENOUGH | Fact.PASSES_ALONE,
    ),
    Row(
        "an owner may be missing",
        "somebody is not in a round of elements with owners",
        "the worker fails (lost): the missing one may be the owner",
        Deed.FAIL_INCOMPLETE,
        has=Fact.OWNED | Fact.INCOMPLETE,
    ),
    Row(
        "stored",
        "otherwise",
        "stored, once; the slot goes on. So a stored result's contribution was accepted before",
        Deed.STORE,
    ),
)


@cache
def deed_for(facts: Fact) -> Deed:
    """The deed of the first row that holds for these facts."""
    return next(row.deed for row in ROWS if facts & row.has == row.has and not facts & row.lacks)

"""Reductions that every rank is known to have finished, judged by those that this rank has finished itself.

Rule
----
A worker sends item g of a flow only when result g - P has come (P: slots). So when the result of item g is here, every
rank has the results up to g - P. A rank that keeps inputs or results for the others (fallback.py, surviving.py) may
forget whatever lies that far back: a window of packets per flow is kept, beside the reductions in flight.

A reduction is known by its *ends*: for each flow that carries some of it, the number of items up to and including its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fanin.host.codecs.words import codec_for
from fanin.numerics.reduction import Element, Operator
from fanin.protocol.job import JobSpec


class Counted(Protocol):
    """The part of a session that is needed here."""

    @property
    def spec(self) -> JobSpec:
        """Facts of the job, as in `Session.spec`."""

    @property
    def flows(self) -> int:
        """Number of flows, as in `Session.flows`."""


Flow = tuple[int, int]
"""The number of a session, and of a flow there."""
Ends = dict[Flow, int]


class FinishedEverywhere:
    """Counts the items of one rank's reductions at its sessions. Not thread safe."""

    def __init__(self, sessions: Sequence[Counted]) -> None:
        self._sessions = sessions
        self._items: Ends = {}
        self._come: Ends = {}
        """By flow: the number of items, from the first one on, whose results have all come."""

    def dealt(self, parts: Iterable[tuple[int, int]], element: Element, lanes: int, operator: Operator) -> Ends:
        """Count the next reduction, whose parts are (number of a session, elements), and return its ends."""
        ends: Ends = {}
        for number, count in parts:
            session = self._sessions[number]
            codec = codec_for(element, lanes, count, session.spec, operator=operator)
            flows = 1 if codec.in_one_flow else session.flows
            for flow in range(min(flows, codec.packets)):
                items = -(-(codec.packets - flow) // flows)  # those that carry only codes come on top
                ends[number, flow] = self._items[number, flow] = self._items.get((number, flow), 0) + items
        return ends

    def come(self, ends: Ends) -> None:
        """Note that this rank has finished the reduction with these ends, and all reductions before it."""
        self._come |= ends

    def knows(self, ends: Ends) -> bool:
        """Whether every rank has finished the reduction with these ends."""
        return all(self._come.get(flow, 0) - end >= self._sessions[flow[0]].spec.slots for flow, end in ends.items())

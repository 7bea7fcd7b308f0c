"""Ranks that have spoiled a device's sum with NaN or infinities, for `on_nonfinite="raise"` and `"skip"`.

Codes travel with marks of every rank before them: the number of the rank's first code that says NaN or infinity
(`Arithmetic.mark`), which a maximum leaves as it is, since all other ranks have UNSPOILED there. So the host reads who
it was in the slot that the agreed codes come back in, and the device is asked nothing. Sums that travel as they are
are marked by the engine, as those of host memory are (fanin/numerics/spoilers.py).

A courier notes what it finds piece by piece; whoever waits for the sum reports it. `wait` blocks with these policies:
it could not raise, nor have the next step left out, before the marks have come.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fanin.host.session.spoilers import Spoiler
from fanin.host.torch.device.arithmetic import MARKS, UNSPOILED

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession

HALF_BITS = 15


class Blocks(NamedTuple):
    """Codes of one tensor among those of a call, and the elements that they are of."""

    first_code: int
    first_element: int
    elements: int
    block_elements: int


class Sight:
    """Record of the ranks that have spoiled one call; holds nothing of a device's."""

    def __init__(self, key: int) -> None:
        """`key`: of the call in the group's reports (handles/nonfinite.py)."""
        self.key = key
        self._of: dict[int, Spoiler] = {}

    @property
    def spoilers(self) -> list[Spoiler]:
        """The ranks found so far, in their order."""
        return sorted(self._of.values())

    def read_marks(self, blocks: Sequence[Blocks], ranks: int, ticket: int, address: int) -> None:
        """Note who has spoiled the call, by the marks that have come back to that address; for a courier."""
        count = MARKS * ranks
        marks = np.ctypeslib.as_array((ctypes.c_int16 * count).from_address(address)).reshape(ranks, MARKS)
        for rank in np.flatnonzero(marks[:, 0] != UNSPOILED).tolist():
            low, high = map(int, marks[rank])
            code = high << HALF_BITS | low
            own = next(each for each in reversed(blocks) if each.first_code <= code)
            at = (code - own.first_code) * own.block_elements
            within = min(own.block_elements, own.elements - at)
            self._note([Spoiler(rank, own.first_element + at, within)])

    def ask(self, session: AnySession, start: int, ticket: int, address: int) -> None:
        """Note who has spoiled a finished piece, which begins at element `start`, by the session; for a courier."""
        if session.spoiled:
            self._note(each._replace(first=start + each.first) for each in session.spoilers_of(ticket))

    def _note(self, spoilers: Iterable[Spoiler]) -> None:
        for each in spoilers:
            known = self._of.get(each.rank)
            if known is None or each.first < known.first:
                self._of[each.rank] = each

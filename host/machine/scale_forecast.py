"""Scale codes foreseen from an earlier reduction, which save a small one its first round trip.

R-WORKER-3 in docs/protocol.md:

* A reduction that fits into one packet sends its words along with its codes, quantized with the codes that were agreed
  on for the last reduction of the same shape: the forecast. If the codes that come back are exactly those, then the
  words that come back are to the bit what a second round would bring, and it is saved. If not, they are dropped, and
  go out again with the agreed codes. So a forecast decides how long a reduction takes, never what comes out.
* Workers need not have finished the same reductions when they send, so their forecasts may stem from different ones.
  Each says how many tickets ago its own was agreed on, its age a (0: it has none), in two more words: a and a^2. When c
  contributions add up to c a and c a^2, the ages vary by nothing, so they all are a; and codes that were agreed on at
  one ticket are the same everywhere.
* The sums must not wrap: 127 contributions (docs/numerics.md) of MAX_AGE^2 stay far below 2^32.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from fanin.numerics.fixed_point import Codes
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import Element

AGE_WORDS = 2
"""Additional words of a contribution with a forecast: a and a^2."""
MAX_AGE = 1024
"""Tickets after which codes are forgotten."""
MAX_SHAPES = 8
"""Shapes whose codes are remembered; the one that was longest without a reduction gives way."""

Shape = tuple[int, Element, int]
"""Elements, element type, lanes."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Codes that were agreed on `age` tickets ago."""

    age: int
    codes: Codes

    def age_words(self) -> Words:
        """The words that carry the age, shape (AGE_WORDS,)."""
        return np.array([self.age, self.age**2], np.uint32)

    def holds(self, agreed: Codes, age_sums: Words, contributors: int) -> bool:
        """Whether every contributor forecast from the same reduction as this worker, and rightly."""
        same = age_sums.tolist() == [contributors * self.age, contributors * self.age**2]
        # R-WORKER-3: ages that sum to c a and c a^2 vary by nothing, so all workers took the codes of one ticket.
        return self.age > 0 and same and np.array_equal(agreed, self.codes)


NO_FORECAST = Forecast(0, np.empty(0, np.uint16))


class ScaleForecast:
    """The codes that were agreed on last, by shape."""

    def __init__(self) -> None:
        self._last: OrderedDict[Shape, tuple[int, Codes]] = OrderedDict()

    def of(self, shape: Shape, ticket: int) -> Forecast:
        """The forecast for the reduction `ticket`."""
        known = self._last.get(shape)
        if known is None or not 0 < ticket - known[0] <= MAX_AGE:
            return NO_FORECAST
        return Forecast(ticket - known[0], known[1])

    def learn(self, shape: Shape, ticket: int, agreed: Codes) -> None:
        """These codes were agreed on; results may come in another order than tickets."""
        known = self._last.get(shape)
        if known is None or ticket > known[0]:  # an older ticket's codes must not replace a newer one's
            self._last[shape] = ticket, agreed
        self._last.move_to_end(shape)
        if len(self._last) > MAX_SHAPES:
            self._last.popitem(last=False)

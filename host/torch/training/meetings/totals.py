"""Counts of one rank's meetings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Sums over all meetings of this rank that have landed."""

    meetings: int = 0
    """Number of meetings, each of one fragment."""
    payload_bytes: int = 0
    """Bytes of the words that this rank contributed, without headers; it received about as many."""
    waited_s: float = 0.0
    """Seconds for which training waited for meetings."""
    left_out: int = 0
    """Meetings in which this rank's delta did not count, since it was not finite."""

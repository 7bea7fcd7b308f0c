"""Counters of a switch, per job and in all. `fanin stats` shows them; the native machine counts the same."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fanin.protocol.wire import Reason

DROPS = tuple(reason for reason in Reason if not Reason.WORKER_LOST <= reason <= Reason.BRANCH_LEFT)
"""Reasons for which a packet can be dropped; the others are news about workers."""


def _no_drops() -> dict[Reason, int]:
    return dict.fromkeys(DROPS, 0)


@dataclass(slots=True)
class Tally:
    """Plain counts, all of which only grow."""

    packets_in: int = 0
    packets_out: int = 0
    """A multicast counts once per worker that it goes to."""
    bytes_in: int = 0
    bytes_out: int = 0
    contributions: int = 0
    """Accepted and added to a round."""
    passes: int = 0
    """Number of accepted passes."""
    duplicates: int = 0
    """Contributions that were there already, whether they had to be answered or not."""
    answers: int = 0
    """Results sent to one worker: to a duplicate or a late contribution."""
    receipts: int = 0
    """RECEIPT packets sent: news for one worker of what has arrived and what has not."""
    rounds: int = 0
    """Number of closed rounds."""
    notices: int = 0
    """NOTICE packets sent; a multicast counts once per worker."""
    unsent: int = 0
    """Datagrams lost because the driver left more than SWITCH_QUEUE_DATAGRAMS or _BYTES waiting."""
    dropped: dict[Reason, int] = field(default_factory=_no_drops)

    def add(self, other: Tally) -> None:
        """Add another's counts to these."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason in DROPS:
            self.dropped[reason] += other.dropped[reason]

    def as_dict(self) -> dict[str, int]:
        """Counts by name, always the same names in the same order; drops as `dropped_<reason>`."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {f"dropped_{reason.name.lower()}": count for reason, count in self.dropped.items()}


COUNTS = tuple(each.name for each in fields(Tally) if each.name != "dropped")

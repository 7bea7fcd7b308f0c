"""Counters of a switch, per job and in total. `fanin stats` shows them; the native machine has the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fanin.protocol.wire import Reason

DROPS = tuple(reason for reason in Reason if not Reason.WORKER_LOST <= reason <= Reason.BRANCH_LEFT)
"""Reasons for which a packet can be dropped; the others are news about workers."""


def _no_drops() -> dict[Reason, int]:
    return dict.fromkeys(DROPS, 0)


@dataclass(slots=True)
class Tally:
    """Counts of packets, bytes and rounds, all of which only grow."""

    packets_in: int = 0
    packets_out: int = 0
    """Datagrams sent; a multicast counts once per worker."""
    bytes_in: int = 0
    bytes_out: int = 0
    contributions: int = 0
    """Contributions with words that were accepted and added to a round."""
    passes: int = 0
    """Number of accepted passes."""
    duplicates: int = 0
    """Contributions that had been accepted before, whether they were answered or not."""
    answers: int = 0
    """Results sent to one worker: to a duplicate or a late contribution."""
    receipts: int = 0
    """RECEIPT packets sent, which tell one worker which transmissions have arrived and which have not."""
    rounds: int = 0
    """Number of closed rounds."""
    notices: int = 0
    """NOTICE packets sent; a multicast counts once per worker."""
    unsent: int = 0
    """Datagrams lost because the driver left more than SWITCH_QUEUE_DATAGRAMS or _BYTES waiting."""
    dropped: dict[Reason, int] = field(default_factory=_no_drops)

    def add(self, other: Tally) -> None:
        """Add the counts of another tally to this one."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason in DROPS:
            self.dropped[reason] += other.dropped[reason]

    def as_dict(self) -> dict[str, int]:
        """Counts by name, always the same names in the same order; drops as `dropped_<reason>`."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {f"dropped_{reason.name.lower()}": count for reason, count in self.dropped.items()}


COUNTS = tuple(each.name for each in fields(Tally) if each.name != "dropped")

"""The account of one worker's stale rounds, and what must hold between those of all workers.

    handed in  =  contributed + dropped + in hand (0 after a flush)
    rounds     =  contributions + passes                                   (every base is one or the other)
    over the workers: contributions = over the rounds: contributors        (for every chunk)

The last line is the switch's side against the workers': each worker counts what it sent and was told is accepted, and
every worker reads from the results how many contributions each round holds. After a flush nothing is in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fanin.errors import FaninError

CONTRIBUTED, PASSED_LATE, PASSED_DRAIN, PASSED_FLUSH, PASSED_ABSENT, PASSED_IDLE = "C", "P", "D", "F", "A", "I"
"""Uses of a base: a letter each in `Account.bases`."""


class UnbalancedError(FaninError):
    """The accounts of a job's workers contradict each other: contributions were lost or counted twice."""


@dataclass(slots=True)
class Account:
    """Account of one worker, base by base."""

    rank: int
    chunks: int
    handed_in: int = 0
    """Gradients that training handed in."""
    contributed: int = 0
    """Gradients in accepted contributions (a contribution holds several when some were folded in)."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Gradients that were given up, by reason."""
    in_hand: int = 0
    """Gradients that are waiting or folded, to go with a later contribution."""
    folded: int = 0
    """How often a gradient was folded into a later one."""
    clipped_elements: int = 0
    """Elements beyond the bound, of all contributions. The parts cut off are in the error feedback."""
    ages: Counter[int] = field(default_factory=Counter)
    """Contributions by age: the base they were made for less the version that they were computed on."""
    bases: list[str] = field(default_factory=list)
    """By base: a letter of CONTRIBUTED, PASSED_LATE, PASSED_DRAIN, PASSED_FLUSH, PASSED_ABSENT (a newcomer's, before it
    had the weights), PASSED_IDLE (training asked for it)."""
    contributors: list[int] = field(default_factory=list)
    """By round: contributions in the first chunk's result."""
    accepted_chunks: npt.NDArray[np.int64] = field(init=False)
    """By chunk: contributors over all rounds so far, shape (chunks,)."""

    def __post_init__(self) -> None:
        self.accepted_chunks = np.zeros(self.chunks, np.int64)

    @property
    def contributions(self) -> int:
        """Bases that this worker contributed a gradient for."""
        return self.bases.count(CONTRIBUTED)

    @property
    def passes(self) -> int:
        """Bases that this worker passed."""
        return len(self.bases) - self.contributions

    def round_over(self, counts: npt.NDArray[np.uint32]) -> None:
        """The next round's result came, with this many contributors by chunk, shape (chunks,)."""
        self.contributors.append(int(counts[0]))
        self.accepted_chunks += counts

    def check(self) -> None:
        """UnbalancedError when this account contradicts itself."""
        told = self.contributed + sum(self.dropped.values()) + self.in_hand
        if self.handed_in != told:
            raise UnbalancedError(
                f"rank {self.rank} handed in {self.handed_in} gradients, but {self.contributed} are contributed, "
                f"{dict(self.dropped)} dropped and {self.in_hand} in hand"
            )

    def __str__(self) -> str:
        reasons = "".join(f", {count} {reason}" for reason, count in sorted(self.dropped.items()))
        return (
            f"rank {self.rank}: {self.handed_in} gradients handed in, {self.contributed} contributed{reasons}; "
            f"{len(self.bases)} bases, {self.contributions} contributions, {self.passes} passes "
            f"({self.bases.count(PASSED_LATE)} late, {self.bases.count(PASSED_DRAIN)} drains, "
            f"{self.bases.count(PASSED_FLUSH)} at the end, {self.bases.count(PASSED_ABSENT)} before it came, "
            f"{self.bases.count(PASSED_IDLE)} idle); "
            f"{self.clipped_elements} elements clipped"
        )


def check_balance(accounts: Sequence[Account], lost: int = 0) -> None:
    """Raise UnbalancedError unless the accounts of all workers of one job, taken after a flush, agree exactly.

    `lost`: processes that the job has lost, replaced or not, and whose accounts are missing. Contributions in the
    rounds beyond the accounts are theirs: at most one per lost process and round, and equally many in all chunks but
    for the round in which a process died.
    """
    for account in accounts:
        account.check()
        if account.in_hand:
            raise UnbalancedError(f"rank {account.rank} still has {account.in_hand} gradients in hand after the flush")
    first = accounts[0]
    for other in accounts[1:]:
        if other.contributors != first.contributors or (other.accepted_chunks != first.accepted_chunks).any():
            raise UnbalancedError(f"ranks {first.rank} and {other.rank} saw different rounds")
    made = sum(account.contributions for account in accounts)
    theirs = first.accepted_chunks - made
    least, most = int(theirs.min()), int(theirs.max())
    if least < 0 or most > least + lost or most > lost * len(first.contributors):
        raise UnbalancedError(
            f"the workers made {made} contributions, and the rounds hold {first.accepted_chunks.min()} to "
            f"{first.accepted_chunks.max()} by chunk"
        )

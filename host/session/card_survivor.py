"""Rules of a rank over shards on several networks, one of which may be lost (fallback="cards"): all go on without it.

Hosts have a network card, and a shard, on each of several networks. Where a card, a cable or a network dies, shards
there miss ranks and ranks miss shards, and every job there ends (on_worker_loss="raise"); those elsewhere go on. As
over shards that are lost (survivor.py), the ranks agree through a shard that is left, join a new job at the shards that
are left, and deal out there what is not done everywhere. The rules differ in this:

* The loss of a rank at a shard is the loss of that shard, like its silence: the rank may be alive and at other shards.
* The first loss at a shard is that of all shards on this rank's way through the same network card.
* Nobody is left out. A new job has all ranks or does not start, and no result lacks a contribution. So no part of a
  network can go on by itself, whichever shards it has, and no rank that hands a result on is lost unnoticed.
* Where every card is lost, the job ends: with the loss of a rank, if any shard has named one, else of a shard. A rank
  whose process or host has died is lost on every network, so it ends the job as it would without this.
* A rank that was told the decision no longer counts ranks that leave the present job: they are in the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fanin.errors import FaninError, JoinTimeoutError, SwitchLostError, WorkerLostError
from fanin.host.machine.shard_agreement import Agreement, Stage, Why
from fanin.host.session.shards import NAMING_GRACE_S
from fanin.host.session.survivor import Member, Survivor, SurvivorState
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.spread import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways of this rank to the shards of a job."""

    shards: tuple[SwitchAddress, ...]
    """Addresses of the shards, also where ranks join at leaves of them."""
    cards: tuple[str, ...]
    """By shard, the network card of this host on the way there, for people."""
    homes: tuple[int, ...]
    """The numbers of the shards on this host."""

    @property
    def several(self) -> bool:
        """Whether the ways lead through several network cards."""
        return len(set(self.cards)) > 1


class CardSurvivor(Survivor):
    """One rank's state and decisions: as Survivor, with the rules above."""

    settling_s = NAMING_GRACE_S
    losses = (SwitchLostError, WorkerLostError)
    leaves_out = False

    def __init__(
        self, job: str, rank: int, size: int, members: Sequence[Member], spread: Spread, names: Sequence[str],
        *, cards: Sequence[str],
    ) -> None:  # fmt: skip
        """`cards`: by shard, the network card on this rank's way to it, for people."""
        self._cards = tuple(cards)
        self._missed: set[int] = set()
        """Other ranks that shards have lost since the job was WHOLE."""
        self._named: WorkerLostError | None = None
        """The first loss that named ranks since then."""
        super().__init__(job, rank, size, members, spread, names)

    def lose(self, failures: Mapping[int, FaninError], now: float) -> None:
        """Take in failures of sessions, by shard, and all that follow from them."""
        if self.state is SurvivorState.OVER or not failures:
            return
        other = next((each for each in failures.values() if not isinstance(each, self.losses)), None)
        if other is not None:
            if self.state is SurvivorState.WHOLE:
                self.end(other)
            return
        if self.agreement is not None and self.agreement.stage is Stage.AGREED:
            self._lose_shards({at: each for at, each in failures.items() if isinstance(each, SwitchLostError)}, now)
            return
        for failure in failures.values():
            if isinstance(failure, WorkerLostError):
                self._named = self._named or failure
                self._missed.update(rank for rank in failure.ranks if rank != self.rank)
        first = next(iter(failures.values()))
        lost = self.lost_with({*self.lost, *failures}) - self.lost
        self._lose_shards({at: failures.get(at, first) for at in sorted(lost)}, now)
        if self._named is not None and self.lost.issuperset(self.shards):
            self.end(self._named)

    @property
    def _patience_s(self) -> float:
        """Time in which a shard loses this rank, but for AGREEMENT_GRACE_S: it ends for all then."""
        return self._liveness_timeout_s

    def lost_with(self, shards: set[int]) -> set[int]:
        """The shards of the present job whose card is that of any of `shards`."""
        cards = {self._cards[number] for number in shards}
        return {number for number in self.shards if self._cards[number] in cards}

    def joined(self, members: Mapping[int, Member], now: float) -> None:
        """Go over to the successor, as Survivor does."""
        super().joined(members, now)
        if self.state is SurvivorState.WHOLE:
            self._named, self._missed = None, set()

    def going_on(self, shards: Collection[int]) -> str:
        """News of this rank, for the log: it is about to go over to the successor, which it has joined at `shards`."""
        lost = set(self.shards).difference(shards)
        cards, left = ({self._cards[number]: None for number in sorted(some)} for some in (lost, set(shards)))
        missed = f"rank{'s' * (len(self._missed) > 1)} {', '.join(map(str, sorted(self._missed)))}"
        why = f"{missed} cannot be reached through it" if self._missed else "nothing comes through it"
        there = " and at the hosts of those ranks" if self._missed else ""
        return (
            f"rank {self.rank} goes on without network card {', '.join(cards)}, since {why} any more: "
            f"{self.shard_names(lost)} lost. No sum is; all go through {', '.join(left)} from here on, over "
            f"{len(shards)} shards. Remedy: look at that card and its cable here{there}, and start the job again to "
            "use them"
        )

    def cannot_join(self, error: FaninError) -> None:
        """End, since this rank cannot join the successor: a rank is lost, or another network is."""
        assert self.successor is not None
        gone = self.shard_names(set(self.shards).difference(self.successor.shards))
        if isinstance(error, WorkerLostError | JoinTimeoutError):
            ranks = error.ranks if isinstance(error, WorkerLostError) else error.missing
            self.end(
                WorkerLostError(ranks, f"rank {self.rank}: job {self.job!r} has lost {gone}, and then ranks: {error}")
            )
        else:
            super().cannot_join(error)

    def _stranded(self, agreement: Agreement) -> FaninError:
        refused = agreement.refused
        if agreement.why is Why.NONE_LEFT and self._reason is not None:
            return self._named or self._reason
        if agreement.why is Why.REFUSED and refused is not None and refused.code == control.Refusal.MEMBER_LOST.value:
            lost = self.shard_names(agreement.lost)
            return WorkerLostError(
                refused.ranks,
                f"rank {self.rank}: job {self.job!r} has lost {lost}, and then: {refused.reason}. Remedy: "
                f"{refused.remedy}",
            )
        return super()._stranded(agreement)

"""What stale training over torch has in common: its options, and how a group opens a second, stale job.

The group's own job stays synchronous. The stale job is another one at the same switch, with the same ranks, in which
each chunk of the model owns a slot (docs/staleness.md).
"""

from __future__ import annotations

import base64
import dataclasses
import pickle
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, ConfigurationError
from fanin.host.session import Session
from fanin.host.stale.account import Account, check_balance
from fanin.host.stale.bound import DynamicBound
from fanin.host.stale.layout import Layout
from fanin.host.stale.policy import Policy, check_policy
from fanin.host.stale.rounds import StaleRounds
from fanin.host.stale.runner import Result, StaleRunner
from fanin.host.stale.scale import HEADROOM, ScaleEpochs, power_of
from fanin.host.torch.pacing import Chooser, Pacing
from fanin.host.torch.process_group import FaninProcessGroup
from fanin.options import Rounds

POLL_S = 0.01
"""How often the store is asked for what another rank is about to post."""
_JOBS: weakref.WeakKeyDictionary[FaninProcessGroup, Counter[str]] = weakref.WeakKeyDictionary()
"""Stale jobs that each group has opened: every rank opens the same ones, so their numbers are names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleOptions:
    """How stale training may be. The same on every rank."""

    staleness: int = 2
    """S, 0..1024: rounds by which a contribution may land late. Each costs the switch another copy of the gradient, and
    lanes a part of a bit."""
    quorum: int | None = None
    """K, 1..N: contributions that close a round. None: all but one under `wait`, so that a round is nearly what a
    synchronous one is, and half of the workers under `skip` and `fold`."""
    bound: int | None = None
    """Largest age of a gradient under `skip` and `fold`: rounds between the weights that it was computed on and the
    round that it is contributed to. None: S."""
    epoch_rounds: int = 1024
    """Rounds from one change of scale to the next, more than S. Each change costs one meeting of all workers."""
    lanes: int | None = None
    """Bits per lane, 32, 16, 8 or 4. None: the group's."""
    tune: Chooser | None = None
    """Who chooses S (DynamicBound, whose range then stands for `staleness`) or K (SemiAsynchronousQuorum,
    AdaptiveQuorum) while the job runs, from what rank 0 sees. None: nobody."""
    patience_s: float = 600.0
    """How long a rank waits for the others before it raises CollectiveTimeoutError."""

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 0:
            raise ConfigurationError(f"bound = {self.bound}; must not be negative")
        if self.patience_s <= 0:
            raise ConfigurationError(f"patience_s = {self.patience_s}; must be positive")

    @property
    def rounds(self) -> Rounds:
        """S now and at most, for the job's admission."""
        if isinstance(self.tune, DynamicBound):
            return Rounds(staleness=self.tune.lowest, max_staleness=self.tune.highest)
        return Rounds(staleness=self.staleness)

    @property
    def largest_staleness(self) -> int:
        """The largest S that may be in force."""
        return self.tune.highest if isinstance(self.tune, DynamicBound) else self.staleness

    def quorum_for(self, policy: Policy, workers: int) -> int:
        """K where none is given."""
        return self.quorum or max(workers - 1 if policy == "wait" else workers // 2, 1)


def fanin_group(group: c10d.ProcessGroup | None) -> FaninProcessGroup:
    """The group, or the world's; ConfigurationError when it is no fanin group with a switch."""
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, FaninProcessGroup) or found.session is None:
        raise ConfigurationError("stale training needs a group of at least two ranks whose backend is 'fanin'")
    return found


class StaleJob:
    """One stale job of a group: its runner, and what the ranks do together around it."""

    def __init__(
        self,
        group: FaninProcessGroup,
        policy: Policy,
        options: StaleOptions,
        *,
        elements: int,
        largest: float,
        end: int | None,
        on_result: Callable[[Result], None],
        weigh: Callable[[int], float] = lambda _age: 1.0,
    ) -> None:
        """Open it; every rank of the group does so at the same time.

        `largest` is this rank's largest gradient element, from which the ranks agree on the first scale; `end` the
        first base without gradients. Raises what Session.join raises.
        """
        check_policy(policy)
        self._patience_s = options.patience_s
        session = group.session
        assert session is not None
        self.group = group
        self.size = dist.get_world_size(group)
        layout = Layout(
            elements=elements,
            words_per_packet=session.spec.words_per_packet,
            flows=session.flows,
            lanes=options.lanes or group.options.lanes,
            contributions=self.size * (options.largest_staleness + 1),
        )
        agreed = torch.tensor(largest, dtype=torch.float32)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
        scale = ScaleEpochs(options.largest_staleness, options.epoch_rounds, power_of(agreed.item()) + HEADROOM)
        numbers = _JOBS.setdefault(group, Counter())
        numbers["stale"] += 1
        wanted = dataclasses.replace(
            group.options, slots=layout.slots, words_per_packet=layout.words_per_packet, switch=str(session.address)
        )
        self.session = Session.join(
            options=wanted,
            switch=session.address,
            job_name=f"{session.job_name}-stale-{numbers['stale']}",
            rank=session.rank,
            size=session.size,
            rounds=dataclasses.replace(options.rounds, quorum=options.quorum_for(policy, self.size)),
        )
        spec = self.session.spec
        if (spec.slots, spec.words_per_packet, self.session.flows) != (
            layout.slots, layout.words_per_packet, layout.flows
        ):  # fmt: skip
            self.session.close()
            raise ConfigurationError(
                f"the switch gives {spec.slots} slots of {spec.words_per_packet} words in {self.session.flows} flows; "
                f"this model needs {layout.slots} of {layout.words_per_packet} in {layout.flows}. Remedy: set "
                f"FANIN_WORDS_PER_PACKET={spec.words_per_packet}"
            )
        bound = options.largest_staleness if options.bound is None else options.bound
        rounds = StaleRounds(policy, bound, scale, Account(session.rank, layout.chunks), end=end)
        self.runner = StaleRunner(self.session, layout, rounds, on_result, weigh=weigh, patience_s=options.patience_s)
        self._pacing = Pacing(group.store, self.session, options.tune) if options.tune is not None else None

    @property
    def account(self) -> Account:
        """What this rank did."""
        return self.runner.rounds.account

    @property
    def choices(self) -> list[int]:
        """What rank 0 has chosen for S or K, oldest first; the other ranks' is empty."""
        return list(self._pacing.choices) if self._pacing is not None else []

    def stepped(self, loss: float | None = None) -> None:
        """A gradient is ready."""
        if self._pacing is not None:
            self._pacing.stepped(loss)

    def resumed(self) -> None:
        """The next one is being computed from here on."""
        if self._pacing is not None:
            self._pacing.resumed()

    def flush(self) -> list[Account]:
        """Let everything late land on every rank; the accounts of all ranks that are there, which balance.

        Raises UnbalancedError when they do not, and CollectiveTimeoutError when a rank does not come.
        """
        self.runner.flush()
        accounts = self._accounts()
        check_balance(accounts, lost=self.size - len(accounts))
        return accounts

    def _accounts(self) -> list[Account]:
        """Those of all ranks but lost ones, through the store: gloo's collectives do not outlive a rank."""
        store, rank = self.group.store, self.session.rank
        key = f"fanin/account/{self.session.job_name}/"
        store.set(f"{key}{rank}", base64.b64encode(pickle.dumps(self.account)).decode())
        posted = [f"{key}{other}" for other in range(self.size) if self._has_posted(other, f"{key}{other}")]
        accounts: list[Account] = [pickle.loads(base64.b64decode(store.get(each))) for each in posted]
        store.set(f"{key}{rank}/read", "")
        if rank == 0:  # it holds the store, so it may go only when the others have read
            for account in accounts:
                self._has_posted(account.rank, f"{key}{account.rank}/read")
        return accounts

    def _has_posted(self, rank: int, key: str) -> bool:
        """Wait for a rank's key in the store; False when the rank is lost and had not set it."""
        store, session = self.group.store, self.session
        deadline = time.monotonic() + self._patience_s
        while not store.check([key]):
            if rank not in session.members:
                return store.check([key])  # again: who leaves in order has posted before
            if session.failure is not None:
                raise session.failure
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"Timed out: rank {rank} of job {session.job_name!r} has not flushed after {self._patience_s:g} s; "
                    f"it is alive. Remedy: call flush on every rank"
                )
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Leave the job."""
        if self._pacing is not None:
            self._pacing.close()
        self.runner.close()

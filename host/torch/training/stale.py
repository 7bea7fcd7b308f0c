"""The common part of stale training over torch: its options, and how a group opens a second, stale job.

The group's own job stays synchronous. The stale job is another one at the same switches, with the same ranks, in which
each chunk of the model owns a slot (docs/staleness.md).
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError, UnsupportedError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.joining_shards import join_shards
from fanin.host.session.session import Session
from fanin.host.session.shards import JoinedSession
from fanin.host.session.threads import WORK
from fanin.host.stale.account import Account, check_balance
from fanin.host.stale.bound import DynamicBound
from fanin.host.stale.layout import Layout
from fanin.host.stale.policies import make_policy, policy_class
from fanin.host.stale.rounds import StaleRounds
from fanin.host.stale.runner import FLUSH_ALIKE, Result, StaleRunner
from fanin.host.stale.scale import ScaleEpochs, first_power
from fanin.host.torch.collectives.process_group import LEAVE_S, FaninProcessGroup
from fanin.host.torch.training.accounts import gather_accounts
from fanin.host.torch.training.pacing import Chooser, Pacing
from fanin.numerics.reduction import WIDE_SUMS, lanes_number
from fanin.options import Rounds

_JOBS: weakref.WeakKeyDictionary[FaninProcessGroup, Counter[str]] = weakref.WeakKeyDictionary()
"""How many stale jobs each group has opened, by its own job's name. Every rank opens the same, so counts name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleOptions:
    """Settings of stale training. The same on every rank."""

    staleness: int = 2
    """S, 0..1024: rounds by which a contribution may land late. Each costs the switch another copy of the gradient, and
    lanes a part of a bit."""
    quorum: int | None = None
    """K, 1..N: contributions that close a round. None: the policy's (`RoundPolicy.default_quorum`): all but one under
    `wait`, half of the workers under `skip` and `fold`."""
    bound: int | None = None
    """Largest age of a gradient, which `skip` and `fold` observe: rounds between the weights that it was computed on
    and the round that it is contributed to. None: S."""
    epoch_rounds: int = 1024
    """Rounds from one change of scale to the next at most, more than S. Each change costs one meeting of all workers.
    The first ones come sooner, and so does one after a gradient far above the bound (fanin.host.stale.scale)."""
    lanes: int | str | None = None
    """Lanes as in `Options.lanes`: 8 or "4/8". None: the group's."""
    tune: Chooser | None = None
    """Chooser of S (DynamicBound, whose range then stands for `staleness`) or of K (SemiAsynchronousQuorum,
    AdaptiveQuorum) while the job runs, from what rank 0 sees. None: nobody."""
    patience_s: float | None = None
    """How long a rank waits for the others before it raises CollectiveTimeoutError. None: the group's timeout."""

    def __post_init__(self) -> None:
        if self.lanes is not None:
            lanes_number(self.lanes)
        if self.bound is not None and self.bound < 0:
            raise ConfigurationError(f"bound = {self.bound}; must not be negative", "bound")
        if self.patience_s is not None and not self.patience_s > 0:
            raise ConfigurationError(
                f"patience_s = {self.patience_s}; must be above 0. Remedy: seconds, or None for the group's timeout"
            )

    def patience_in(self, group: FaninProcessGroup) -> float:
        """How long a rank of this group waits for the others, in seconds."""
        return group.timeout_s if self.patience_s is None else self.patience_s

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

    @property
    def oldest(self) -> int:
        """The largest age that a gradient may have."""
        return self.largest_staleness if self.bound is None else self.bound

    def quorum_for(self, policy: str, workers: int) -> int:
        """K: `quorum` where it is given, else the policy's for so many workers."""
        return self.quorum or policy_class(policy).default_quorum(workers)


Elements = int | Callable[[int], int]
"""Elements of a round, or a function that says how many from the elements of a chunk, which the job decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleTerms:
    """The stale job that a training asks for, alike on every rank, and the training's own part in its rounds."""

    policy: str
    options: StaleOptions
    elements: Elements
    flags: int = 0
    """Number of flags of a contribution."""
    end: int | None
    """The first base without gradients; None: training ends when it calls `flush`."""
    on_result: Callable[[Result], None]
    """Takes the result of each round, on the runner's thread."""
    weigh: Callable[[int], float]
    """Factor of a gradient by its age, applied when it is sent."""

    def rounds_of(self, workers: int) -> Rounds:
        """K and S of the job, for its admission with so many workers."""
        quorum = self.options.quorum_for(self.policy, workers)
        return dataclasses.replace(self.options.rounds, quorum=quorum)


def fanin_group(group: c10d.ProcessGroup | None, *, newcomers: bool = False) -> FaninProcessGroup:
    """The group, or the world's; ConfigurationError when it is not a fanin group with a switch.

    UnsupportedError for a process that came into a running job, unless `newcomers` are welcome.
    """
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, FaninProcessGroup) or (found.session is None and not found.outside):
        raise ConfigurationError(
            "stale training needs a group of at least two ranks whose backend is 'fanin'"
            ". Remedy: init_process_group('fanin') with two ranks or more"
        )
    if found.outside and not newcomers:
        raise UnsupportedError(
            f"rank {found.rank()} came into job {found.job_name!r} while it ran: stale synchronous training takes no "
            "newcomers, since all ranks must have the same iterations. Remedy: use AsynchronousOptimizer, or "
            "Membership and synchronous training, or start the job again from a checkpoint"
        )
    if found.options.on_nonfinite != "warn":
        raise ConfigurationError(
            f"on_nonfinite = {found.options.on_nonfinite!r} with stale training: a rank leaves out its own gradient "
            "that is not finite, and the others learn nothing of it. Remedy: on_nonfinite='warn'"
        )
    return found


def is_newcomer(group: c10d.ProcessGroup | None = None) -> bool:
    """Whether this process came into a job that ran already, and its group takes no collectives yet."""
    found = group if group is not None else dist.group.WORLD
    return isinstance(found, FaninProcessGroup) and found.outside


def next_job_name(group: FaninProcessGroup) -> str:
    """The name of the next stale job that this rank takes part in: the same on every rank, and known to a newcomer."""
    numbers = _JOBS.setdefault(group, Counter())
    numbers[group.job_name] += 1
    return f"{group.job_name}-stale-{numbers[group.job_name]}"


def layout_for(group: FaninProcessGroup, terms: StaleTerms, words_per_packet: int, flows: tuple[int, ...]) -> Layout:
    """The shape of the job's rounds, over shards with so many flows each, or at one."""
    options, elements = terms.options, terms.elements

    def layout(count: int) -> Layout:
        return Layout(
            elements=count,
            words_per_packet=words_per_packet,
            flows=flows,
            weights=group.meeting.spread.weights if len(flows) > 1 else (1,),
            lanes=group.options.lanes_number if options.lanes is None else lanes_number(options.lanes),
            workers=dist.get_world_size(group),
            staleness=options.largest_staleness,
            flags=terms.flags,
        )

    return layout(elements if isinstance(elements, int) else elements(layout(1).chunk_elements))


def check_shape(session: JoinedSession, layout: Layout) -> None:
    """Raise ConfigurationError unless the job is of the model's shape, at every shard."""
    for each, slots, flows in zip(session.sessions, layout.slots, layout.flows, strict=False):
        _check_shape_at(each, layout, slots, flows)


def _check_shape_at(session: Session, layout: Layout, slots: int, flows: int) -> None:
    spec = session.spec
    if layout.lanes in WIDE_SUMS and not spec.accumulators:
        up, down = WIDE_SUMS[layout.lanes]
        raise ConfigurationError(
            f"lanes = {up}/{down}: the switch gives this job no accumulators for lanes, for it adds whole words or has "
            "no more memory. Remedy: packed lanes (lanes = 32, 16, 8 or 4), or a software switch with more --memory"
        )
    if (spec.slots, spec.words_per_packet, session.flows) == (slots, layout.words_per_packet, flows):
        return
    raise ConfigurationError(
        f"the switch at {session.address} gives {spec.slots} slots of {spec.words_per_packet} words in {session.flows} "
        f"flows; this model needs {slots} of {layout.words_per_packet} in {flows}. Remedy: set "
        f"FANIN_WORDS_PER_PACKET={spec.words_per_packet}; in a running job, the same lanes as the other ranks"
    )


def _join(group: FaninProcessGroup, terms: StaleTerms, layout: Layout, rank: int) -> JoinedSession:
    """Join the stale job at every shard that has a part of the rounds: directly, also where hosts have leaves."""
    meeting, size, options = group.meeting, dist.get_world_size(group), terms.options
    shaped = dataclasses.replace(
        group.options,
        words_per_packet=layout.words_per_packet,
        lanes=group.options.lanes if options.lanes is None else options.lanes,
        codec=None,
    )
    joins = JoinTerms(
        options=shaped, switch=group.switch, job_name=next_job_name(group), rank=rank, size=size,
        rounds=terms.rounds_of(size), credentials=group.credentials, starts_switch=not group.options.switches,
    )  # fmt: skip
    if len(layout.slots) > 1:
        return join_shards(joins, meeting.shards, meeting.local_shards, spread=layout.spread, slots=layout.slots)
    shared = group.switch_options.shared_memory
    own = dataclasses.replace(shaped, slots=layout.slots[0], switch=str(group.switch), shared_memory=shared)
    return Session.join(dataclasses.replace(joins, options=own))


class StaleJob:
    """One stale job of a group: its runner, and what the ranks do together around it."""

    def __init__(
        self,
        group: FaninProcessGroup,
        session: JoinedSession,
        layout: Layout,
        rounds: StaleRounds,
        terms: StaleTerms,
        *,
        newcomer: bool = False,
    ) -> None:
        """`session`: just joined, and of the layout's shape: see `found`, and newcomer.come_in."""
        options = terms.options
        self.group = group
        self.session = session
        self.size = dist.get_world_size(group)
        self.patience_s = options.patience_in(group)
        """How long this rank waits for the others."""

        def apply(result: Result) -> None:
            with WORK:  # on the runner's thread
                terms.on_result(result)

        self.runner = StaleRunner(session, layout, rounds, apply, weigh=terms.weigh, patience_s=self.patience_s)
        self._pacing: Pacing | None = None
        if options.tune is not None:
            share = lambda: self.runner.dropped_share  # noqa: E731
            self._pacing = Pacing(group.store, session, options.tune, dropped_share=share, newcomer=newcomer)
        self.newcomers = 0
        """Processes that came into the job while it ran; known after `flush`."""
        group.attach(self.close)

    @classmethod
    def found(cls, group: FaninProcessGroup, terms: StaleTerms, *, largest: float, first_epoch: int = 0) -> StaleJob:
        """Open a stale job; every rank of the group does so at the same point.

        `largest` is this rank's largest gradient element, from which the ranks agree on the first scale: 0 where it has
        no gradient; one that is not finite counts as 0, since that gradient is not contributed. `first_epoch`: rounds
        of the first scale where `largest` says more than a first gradient does (0: few). Raises what Session.join
        raises.
        """
        options = terms.options
        decides = make_policy(terms.policy)  # raises for an unknown one before anything is opened
        present = group.session
        assert present is not None
        # A job that continues without lost ranks takes newcomers in, whose first base is one switch's: it is at one.
        offered = present.sessions[:1] if present.spec.survives_loss else present.sessions
        flows = tuple(each.flows for each in offered)
        layout = layout_for(group, terms, present.spec.words_per_packet, flows)
        agreed = torch.tensor(largest if math.isfinite(largest) else 0.0, dtype=torch.float32, device="cpu")
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
        power = first_power(agreed.item())
        scale = ScaleEpochs(options.largest_staleness, options.epoch_rounds, power, length=first_epoch)
        session = _join(group, terms, layout, present.rank)
        try:
            check_shape(session, layout)
        except ConfigurationError:
            session.close()
            raise
        rounds = StaleRounds(decides, options.oldest, scale, Account(session.rank, layout.chunks), end=terms.end)
        return cls(group, session, layout, rounds, terms)

    @property
    def account(self) -> Account:
        """Account of this rank."""
        return self.runner.rounds.account

    @property
    def choices(self) -> list[int]:
        """Values that rank 0 has chosen for S or K, oldest first; empty on the other ranks."""
        return list(self._pacing.choices) if self._pacing is not None else []

    def stepped(self, loss: float | None = None) -> None:
        """Note that a gradient is ready, for the choice of S or K."""
        if self._pacing is not None:
            self._pacing.stepped(loss)

    def resumed(self) -> None:
        """Note that the next gradient is computed from here on."""
        if self._pacing is not None:
            self._pacing.resumed()

    def flush(self, remedy: str = FLUSH_ALIKE) -> list[Account]:
        """Let everything late land on every rank; returns the accounts of all ranks that are there, which balance.

        Raises UnbalancedError when they do not, and CollectiveTimeoutError, with this remedy, when a rank does not come
        within the job's patience.
        """
        self.runner.flush(remedy)
        accounts, self.newcomers = gather_accounts(self.group.store, self.session, self.account, self.patience_s)
        check_balance(accounts, lost=self.size - len(accounts) + self.newcomers)
        return accounts

    def close(self, timeout_s: float = LEAVE_S) -> None:
        """Leave the job and close; the group does so before it leaves its own. Idempotent."""
        self.group.detach(self.close)
        if self._pacing is not None:
            self._pacing.close()
        self.runner.close(timeout_s)

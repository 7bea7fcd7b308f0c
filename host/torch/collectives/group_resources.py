"""The parts of one process group: its session with the switch, its inner gloo group, and its reducers.

They are made in this order: address and job name through the store, then the session, then gloo; so the commonest
mistake, no switch at the address, is reported first and within seconds. A group of one has no session, and one of
new_group joins its job when it first sums (host/session/leased.py).

A process that takes the place of one that is gone (on_worker_loss="continue") is *outside*: it knows the job, and has
neither session nor gloo group, since the others' reductions are under way and gloo admits nobody. `renew` makes both
anew, on all ranks at once; until then it takes no part in collectives (docs/torch.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch._C import _distributed_c10d as c10d

from fanin import json_log
from fanin.errors import (
    AdmissionError,
    ConfigurationError,
    FaninError,
    JoinTimeoutError,
    StoreSilentError,
    SwitchLostError,
    SwitchUnreachableError,
    UnsupportedError,
    WorkerLostError,
)
from fanin.host.session.any_session import AnySession
from fanin.host.session.control import ENDING, RUNNING, job_state
from fanin.host.session.failures import MemberNames
from fanin.host.session.joining import JoinTerms
from fanin.host.session.joining_shards import join_shards
from fanin.host.session.leased import LeasedSession
from fanin.host.session.outputs import without_effect_alone
from fanin.host.session.session import Session
from fanin.host.session.shards import JoinedSession
from fanin.host.session.surviving import SurvivingSession
from fanin.host.torch.collectives.device_parts import DeviceParts
from fanin.host.torch.collectives.fallback import Fallback, warn_once
from fanin.host.torch.collectives.survived_losses import SurvivedLosses
from fanin.host.torch.collectives.switch_reducer import SwitchReducer
from fanin.host.torch.collectives.timeline import Timeline, check_faults, timeline_for
from fanin.host.torch.collectives.two_levels import TwoLevels
from fanin.host.torch.device import device_agreement
from fanin.host.torch.gloo.inner import Inner
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.completion import Completion
from fanin.host.torch.handles.failures import WATCH, Failures
from fanin.host.torch.handles.work import FaninWork
from fanin.host.torch.meeting.ballot import StoreBallot
from fanin.host.torch.meeting.incarnation import find_incarnation, renewed_store
from fanin.host.torch.meeting.meeting import Meeting
from fanin.host.torch.meeting.rendezvous import (
    hear,
    meet,
    raise_if_refused,
    raise_if_unlike,
    refusal_of_another,
    tell_refusal,
    wait_for_all,
    wait_until_heard,
)
from fanin.host.torch.meeting.side_store import SideStore, side_of
from fanin.host.torch.meeting.versions import Versions
from fanin.options import Options
from fanin.protocol.control import Refusal
from fanin.protocol.job import MIN_JOIN_TIMEOUT_S

if TYPE_CHECKING:
    from fanin.host.torch.device.arithmetic import Arithmetic
    from fanin.host.torch.device.reducer import DeviceReducer

log = logging.getLogger("fanin")

OVER = (None, ENDING)
"""States of a job that no rank can join any more; None: the switch does not know the job."""


class GroupResources:
    """The parts of one group, opened together and closed together."""

    def __init__(
        self,
        store: c10d.Store,
        group_name: str,
        rank: int,
        size: int,
        timeout: timedelta,
        options: Options,
        global_ranks: list[int],
        world: Meeting | None = None,
        world_failures: Failures | None = None,
        *,
        has_gloo: bool = True,
        may_fall_back: bool = True,
    ) -> None:
        """`world`: the world's meeting, whose switches this group uses if rank 0 is given none; None: rank 0 starts
        one. `world_failures`: the failures of the world's group. `has_gloo`: False for a group of sums alone, whose
        ranks need not reach each other. `may_fall_back`: False where fallback="gloo" cannot be set, so that no
        error offers it, though the options alone would allow it."""
        self._falls_back = may_fall_back and has_gloo and options.may_fall_back
        self._has_gloo = has_gloo
        self.rank = rank
        self.size = size
        self._group_name = group_name
        # Joining waits for missing ranks no longer than the group's timeout.
        join_timeout_s = max(min(options.join_timeout_s, timeout.total_seconds()), MIN_JOIN_TIMEOUT_S)
        self.options = dataclasses.replace(options, join_timeout_s=join_timeout_s)
        self._world, self._world_failures = world, world_failures
        self.failures = Failures(group_name, rank, size, global_ranks, options.on_nonfinite)
        self.completion = Completion(ordered=options.ordered_futures)
        self.session: AnySession | None = None
        self._switch_reducer: SwitchReducer | None = None
        self.fallback: Fallback | None = None
        self.two_levels: TwoLevels | None = None
        """Levels of the group's own all-reduces (Options.inside), which FaninProcessGroup opens after this is made."""
        self.opened_levels: list[TwoLevels] = []
        """All levels that were opened, those of hooks included: broken and closed with the group."""
        self._device_parts: DeviceParts | None = None
        self.outside = False
        """Whether this process has taken a rank's place in a running job, and `renew` has not been called yet."""
        self._inner: Inner | None = None
        self._meetings: list[Meeting] = []
        """All meetings, oldest first. The last counts; an older one may hold the switch that this process started."""
        self.timeline: Timeline | None = None
        self.global_ranks = global_ranks
        """The world's ranks that are in this group, in order; empty for the world."""
        self._is_world = not global_ranks
        self.side: SideStore | None = None
        """Store by which ranks that have met ask each other; only in a group that joins its job at its first sum."""
        self.closed = False
        """Whether this rank has left, or is about to."""
        self.on_close: Callable[[], None] = lambda: None
        """Called once after the group was left, when nothing of it is under way any more."""
        patience = timeout if options.on_worker_loss == "continue" else None
        own_store, replaces = find_incarnation(store, group_name, rank, global_ranks, patience)
        try:
            self.outside = replaces and size > 1 and self._runs_without_me(own_store, timeout)
            if not self.outside:
                self._open(own_store, group_name, timeout)
        except BaseException:
            self.close()
            raise

    @property
    def meeting(self) -> Meeting:
        """The meeting of the group's present job."""
        return self._meetings[-1]

    @property
    def meeting_now(self) -> Meeting:
        """The present meeting, with the shards that were lost since then in its `lost`."""
        meeting, session = self.meeting, self.session
        if not isinstance(session, SurvivingSession):
            return meeting
        left = {each.address for each in session.sessions}
        lost = frozenset(number for number, address in enumerate(meeting.switches) if address not in left)
        return replace(meeting, lost=lost, holds_switch=False)

    @property
    def inner(self) -> Inner:
        """The gloo group. UnsupportedError where there is none yet, FaninError where there is none any more."""
        if self._inner is None:
            if self.closed:
                raise FaninError(
                    f"rank {self.rank} has left its group: no collectives after shutdown or abort. Remedy: leave "
                    "it last"
                )
            if not self._has_gloo:
                raise UnsupportedError(
                    f"the group of rank {self.rank} has no gloo, and takes what goes through the switch alone: its "
                    "ranks need not reach each other. Remedy: a group of init_process_group for other collectives"
                )
            raise self._outside_error()
        return self._inner

    def renew(self, store: c10d.Store, group_name: str, timeout: timedelta, name: str) -> None:
        """Make job and gloo group anew: on every rank at the same point, with a `name` that was not used before."""
        self._leave_job()
        self._open(renewed_store(store, self.rank, self.global_ranks, name), group_name, timeout)
        self.outside = False

    def _outside_error(self) -> UnsupportedError:
        return UnsupportedError(
            f"rank {self.rank} came into job {self.meeting.job_name!r} while it ran, so its group takes no collectives "
            "yet: the others' are under way, and gloo admits nobody. Remedy: train with AsynchronousOptimizer, which "
            "brings the weights, and whose flush() makes the group whole again, or synchronously with Membership; "
            "leave collectives before that out where fanin.host.torch.is_newcomer() says so"
        )

    def _runs_without_me(self, store: c10d.Store, timeout: timedelta) -> bool:
        """Whether the job of this rank's previous process runs (True) or still forms (False).

        Raises AdmissionError if it does neither, and ConfigurationError with fallback="gloo".
        """
        if self.options.fallback == "gloo":
            raise ConfigurationError(
                "fallback='gloo' takes no newcomers: over gloo nobody could come in. Remedy: unset FANIN_FALLBACK"
            )
        meeting = hear(store, self.options, timeout, self.rank)
        state = self._state_of(meeting)
        if state in OVER:
            raise AdmissionError(
                f"rank {self.rank} was to take the place of another process, but job {meeting.job_name!r} does not run "
                f"at {meeting.address} any more. Remedy: see the output of the other ranks; start the job anew, with a "
                "store (MASTER_PORT) of its own",
                Refusal.UNKNOWN_JOB.value,
            )
        if state == RUNNING:
            self._meetings.append(meeting)
        return state == RUNNING

    def _state_of(self, meeting: Meeting) -> str | None:
        """The state of the job, from the first of its switches that answers; SwitchUnreachableError if none does."""
        *others, last = meeting.switches
        for address in others:
            with contextlib.suppress(SwitchUnreachableError):
                return job_state(address, meeting.job_name, self.options, meeting.credentials, rank=self.rank)
        return job_state(last, meeting.job_name, self.options, meeting.credentials, rank=self.rank)

    def _open(self, store: c10d.Store, group_name: str, timeout: timedelta) -> None:
        """Open the session, and then gloo."""
        if self._is_world:
            check_faults(self.options, self.size)
        if self.size > 1:
            self._join(store, group_name, timeout)
        elif self._is_world and (names := ", ".join(without_effect_alone(self.options))):
            log.warning(
                "rank %d is alone in its world, which has no switch and no packets: no effect of %s", self.rank, names
            )
        if self._is_world:
            self.timeline = timeline_for(self.session, self.options, self.rank, self.size)
        if self.session is not None:
            self._device_parts = DeviceParts(
                store, self.meeting.job_name, self.rank, self.size, timeout, self.options, self.failures,
                self.completion,
            )  # fmt: skip
        if self._has_gloo or self.size == 1:  # alone, gloo connects to nobody, and carries exchanges
            gloo_store = c10d.PrefixStore("gloo", store)
            self._inner = Inner(gloo_store, self.rank, self.size, timeout, self.failures, self.completion)
        self._watch()

    def _watch(self) -> None:
        """Have the watch thread watch the session, so that its failure ends waits for gloo, too."""
        if isinstance(self.session, LeasedSession):
            WATCH.add(self.session, self._failed, self.session.return_if_idle)
        elif self.session is not None and self.options.goes_on and self.options.flight_recorder:
            survived = SurvivedLosses(self.session)
            WATCH.add(self.session, self._failed, lambda: self._report(survived))
        elif self.session is not None:
            WATCH.add(self.session, self._failed)

    def _report(self, survived: SurvivedLosses) -> None:
        """Report ranks and shards that a continuing job has lost since the last call; on the watch thread."""
        for loss in survived.since_last():
            self.failures.on_error(loss)

    def _join(self, store: c10d.Store, group_name: str, timeout: timedelta) -> None:
        if self.options.fallback == "gloo":
            self._join_or_fall_back(store, group_name, timeout)
        elif self._is_world or self.options.goes_on:
            self._use(self._join_switch(store, group_name, timeout))
        else:
            self._use(self._lease(store, group_name, timeout))

    def _lease(self, store: c10d.Store, group_name: str, timeout: timedelta) -> LeasedSession:
        """Meet now, join at the first sum: most of a program's groups sum little or nothing."""
        meeting = self._meet(store, group_name, timeout)
        wait_for_all(store, meeting, self.rank, self.size, timeout)
        side = self.side = side_of(store)
        ballot = None
        if side is not None and self.options.idle_return_s > 0:
            ballot = StoreBallot(side, meeting.job_name, self.rank, self.size)

        def join(name: str, interrupted: Callable[[], None]) -> JoinedSession:
            of_lease = replace(meeting, job_name=name, holds_switch=False)
            if side is None:
                return self._join_met(store, of_lease, interrupted)
            return self._join_beside(side, of_lease, interrupted)

        return LeasedSession(
            join,
            MemberNames(address=meeting.address, job_name=meeting.job_name, rank=self.rank, size=self.size),
            ballot=ballot,
            idle_s=self.options.idle_return_s,
            elsewhere=self._lost_elsewhere,
        )

    def _lost_elsewhere(self) -> FaninError | None:
        """The loss of ranks of this group that the world's session has noticed."""
        failure = None if self._world_failures is None else self._world_failures.failure
        if not isinstance(failure, WorkerLostError):
            return None
        lost = tuple(rank for rank, member in enumerate(self.global_ranks) if member in failure.ranks)
        return WorkerLostError(lost, f"noticed by the world's group: {failure}") if lost else None

    def _meet(self, store: c10d.Store, group_name: str, timeout: timedelta) -> Meeting:
        job_prefix = "world" if self._is_world else f"group-{group_name}"
        meeting = meet(store, self.rank, self.size, job_prefix, self.options, timeout, self.global_ranks, self._world)
        self._meetings.append(meeting)
        return meeting

    def _join_switch(self, store: c10d.Store, group_name: str, timeout: timedelta) -> JoinedSession:
        return self._join_met(store, self._meet(store, group_name, timeout), lambda: None)

    def _join_met(self, store: c10d.Store, meeting: Meeting, interrupted: Callable[[], None]) -> JoinedSession:
        versions = Versions(store, self.rank)

        def judge() -> None:
            interrupted()
            raise_if_refused(store, meeting, self.rank, self.size)
            raise_if_unlike(store, meeting, self.rank, self.size, versions)

        def tell(error: SwitchUnreachableError) -> None:
            tell_refusal(store, meeting, self.rank, error)
            if self.rank == 0:
                wait_until_heard(store, meeting, self.size)

        return self._joined(meeting, judge, tell)

    def _join_beside(self, side: SideStore, meeting: Meeting, interrupted: Callable[[], None]) -> JoinedSession:
        """Join after the meeting, in a thread of its own, asking the store by its second connection. The process that
        serves the store, which need not be a member, may have left: then this rank hears no refusal of another."""
        rank = self.rank

        def judge() -> None:
            interrupted()
            with contextlib.suppress(StoreSilentError):
                if (refusal := side.ask(rank, lambda store: refusal_of_another(store, meeting, rank))) is not None:
                    raise refusal

        def tell(error: SwitchUnreachableError) -> None:
            with contextlib.suppress(StoreSilentError):
                side.ask(rank, lambda store: tell_refusal(store, meeting, rank, error))

        return self._joined(meeting, judge, tell)

    def _joined(
        self, meeting: Meeting, judge: Callable[[], None], tell: Callable[[SwitchUnreachableError], None]
    ) -> JoinedSession:
        try:
            session = self._join_meeting(meeting, judge, self.options)
        except SwitchUnreachableError as error:
            tell(error)
            raise
        except JoinTimeoutError as error:  # programs look for the words of torch's timeouts
            timeout_ms = self.options.join_timeout_s * 1000
            raise JoinTimeoutError(error.missing, f"timeout after {timeout_ms:.0f}ms: {error}") from error
        if self._is_world:
            json_log.identify(self.rank, self._group_name, meeting.job_name)
            if self.options.fallback == "cards" and not isinstance(session, SurvivingSession):
                meeting.warn_of_one_card(self.rank)
        log.info("%s%s", session.description, meeting.in_words)
        return session

    def _join_meeting(self, meeting: Meeting, interrupted: Callable[[], None], options: Options) -> JoinedSession:
        ways = meeting.ways if options.fallback == "cards" else None
        terms = JoinTerms(
            options=options, switch=meeting.address, job_name=meeting.job_name, rank=self.rank, size=self.size,
            credentials=meeting.credentials, interrupted=interrupted,
            falls_back=self._falls_back, starts_switch=not options.switches,
        )  # fmt: skip
        if len(meeting.switches) > 1:
            return join_shards(terms, meeting.switches, meeting.local, spread=meeting.spread, ways=ways)
        shared = options.shared_memory if meeting.local else False
        return Session.join(replace(terms, options=replace(options, shared_memory=shared)))

    def _join_or_fall_back(self, store: c10d.Store, group_name: str, timeout: timedelta) -> None:
        """Start on the switch if every rank can, else on gloo from the first reduction on."""
        reason = "another rank could not join it"
        session: JoinedSession | None = None
        try:
            session = self._join_switch(store, group_name, timeout)
        except JoinTimeoutError:
            raise  # a rank is missing: gloo would wait for it too
        except (SwitchUnreachableError, SwitchLostError, AdmissionError) as error:
            reason = str(error)
        self.fallback = Fallback(
            c10d.PrefixStore("fallback", store), self.rank, self.size, timeout, self.failures, self.completion
        )
        everywhere = self.fallback.joined_everywhere(session is not None)
        if session is not None and everywhere:
            self._use(session)
            assert self._switch_reducer is not None
            self.fallback.attach(self._switch_reducer)
            self.failures.survivable = self.fallback.survives
        else:
            if session is not None:
                session.close()
            where = f"the switch at {self.meeting.address}" if self._meetings else "a switch"
            warn_once(f"{where} cannot be used", reason)

    def _use(self, session: AnySession) -> None:
        self.session = self.failures.session = session
        self._switch_reducer = SwitchReducer(session, self.failures, self.completion, self._make_device)

    def _make_device(self, switch: SwitchReducer, device: torch.device) -> DeviceReducer | None:
        """Make the reducer of CUDA tensors, for the first one; scale codes have a job beside that of the words."""
        assert self._device_parts is not None

        def join(name: str, options: Options, interrupted: Callable[[], None]) -> JoinedSession:
            return self._join_meeting(replace(self.meeting, job_name=name, holds_switch=False), interrupted, options)

        return self._device_parts.make(switch, device, join, self._failed)

    @property
    def submit(self) -> Callable[[Call], FaninWork]:
        """The function that starts a reduction by the switch, on host or CUDA memory; all collectives that sum use it.

        The reducer stays the same until `renew`, so callers may keep the function.
        """
        reducer = self.fallback or self._switch_reducer
        return self._refuse if reducer is None else reducer.submit

    @property
    def sums_over_gloo(self) -> bool:
        """Whether what the switch could sum goes over gloo, since the switch is lost or could not be used."""
        return self.fallback is not None and self.fallback.over_gloo

    @property
    def device_in_words(self) -> str:
        """How CUDA tensors go, for a description; empty before the first, and with a fallback without a device."""
        if self.fallback is not None:
            says = f"; CUDA tensors go by the host, since fallback={self.options.fallback!r}"
            return says if device_agreement.has_device() else ""
        said = "" if self._switch_reducer is None else self._switch_reducer.device_in_words
        return said and f"; {said}"

    @property
    def fast_path(self) -> SwitchReducer | None:
        """The reducer whose `submit_and_wait` may be called; None without a switch, and where a fallback logs sums."""
        return self._switch_reducer if self.fallback is None else None

    def arithmetic_on(self, device: torch.device) -> Arithmetic[torch.Tensor] | None:
        """Arithmetic that makes codes and words of tensors on that device; None: the host does, on every rank.

        Every rank asks at the same point, because the first call makes the group's parts for CUDA tensors.
        """
        switch = self.fast_path
        return None if switch is None or device.type == "cpu" else switch.arithmetic_on(device)

    def _refuse(self, call: Call) -> FaninWork:
        raise self._outside_error()

    def _failed(self, failure: FaninError) -> None:
        """React to a failure of the session, on the watch thread: recover over gloo, or break all connections."""
        self.failures.on_error(failure)  # before the ranks agree on how to go on: collectives are still under way
        if self.fallback is not None and self.fallback.survives(failure):
            threading.Thread(target=self.fallback.recover, args=(failure,), name="fanin-recovery", daemon=True).start()
        else:
            inner = self._inner
            if inner is not None:  # not closed meanwhile
                inner.break_connections()
            for levels in self.opened_levels:
                levels.break_connections()

    def _leave_job(self, timeout_s: float = 10.0, finish_s: float = 0.0) -> None:
        """Leave the job, and close the timeline and the reducers that used it."""
        if self.timeline is not None:
            self.timeline.close()
            self.timeline = None
        if self._switch_reducer is not None and timeout_s > 0:
            self._switch_reducer.drain()
            self._switch_reducer.finish(finish_s)
        if self.session is not None:
            WATCH.remove(self.session)
            self.session.close(timeout_s)
        if self._device_parts is not None:
            self._device_parts.close(timeout_s)
        if self._switch_reducer is not None:
            self._switch_reducer.close()

    def close(self, timeout_s: float = 10.0, breaking: bool = False, finish_s: float = 0.0) -> None:
        """Leave the job and release everything. Idempotent, bounded; raises nothing but what interrupts it.

        Collectives under way may end within `finish_s`. Those that gloo then still carries raise, or, `breaking`, end
        as gloo decides.
        """
        if self.closed or (self.session is not None and self.session.inherited):
            return
        self.closed = True
        with contextlib.ExitStack() as steps:  # run in reverse order; an interrupted step leaves none out
            steps.callback(self.on_close)
            steps.callback(self.failures.nonfinite.close)
            for meeting in self._meetings:
                steps.callback(meeting.close)
            if self.fallback is not None:
                steps.callback(self.fallback.close)
            steps.callback(self.completion.close)
            steps.callback(self._end_gloo, breaking, finish_s)
            steps.callback(self._leave_job, timeout_s, finish_s)
            for levels in self.opened_levels:
                steps.callback(levels.close, breaking=breaking)
            self.side = None  # it holds the store, which is to end with the world's group

    def _end_gloo(self, breaking: bool, finish_s: float) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.drop() if breaking else inner.end(0.0 if self.failures.failure else finish_s)

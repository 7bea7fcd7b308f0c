"""What one process group is made of: its session with the switch, its inner gloo group, and who reduces.

Made in this order, so that the commonest mistake (no switch there) is told first and within seconds: address and job
name through the store, session, gloo. A group of one has no session.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

from fanin.errors import AdmissionError, FaninError, JoinTimeoutError, SwitchLostError, SwitchUnreachableError
from fanin.host.session import Session
from fanin.host.torch.completion import Completion
from fanin.host.torch.failures import WATCH, Failures
from fanin.host.torch.fallback import Fallback, warn_once
from fanin.host.torch.inner import Inner
from fanin.host.torch.reducing import Direct, Request
from fanin.host.torch.rendezvous import SHARED, Meeting, incarnation_store, meet
from fanin.host.torch.staging import Staging
from fanin.host.torch.timeline import Timeline, timeline_for
from fanin.host.torch.work import FaninWork
from fanin.options import Options


class Plumbing:
    """The parts of one group, opened together and closed together."""

    def __init__(
        self, store: c10d.Store, group_name: str, rank: int, size: int, timeout: timedelta, options: Options,
        global_ranks: list[int],
    ) -> None:  # fmt: skip
        self.rank = rank
        self.size = size
        self.options = options
        self.failures = Failures(group_name, rank, size, global_ranks)
        self.completion = Completion(ordered=options.ordered_futures)
        self.session: Session | None = None
        self.direct: Direct | None = None
        self.fallback: Fallback | None = None
        self.staging: Staging | None = None
        self._meeting: Meeting | None = None
        self._timeline: Timeline | None = None
        self._is_world = not global_ranks
        self._closed = False
        own_store = incarnation_store(store, rank, global_ranks)
        try:
            if size > 1:
                self._join(own_store, group_name, timeout)
            self.inner = Inner(c10d.PrefixStore("gloo", own_store), rank, size, timeout, self.failures, self.completion)
        except BaseException:
            self.close()
            raise
        self._watch()

    def _watch(self) -> None:
        """From here on the session's failure reaches whatever waits for gloo."""
        if self.session is not None:
            WATCH.add(self.session, self._failed)

    def _join(self, store: c10d.Store, group_name: str, timeout: timedelta) -> None:
        if self.options.fallback == "gloo":
            self._join_or_fall_back(store, group_name, timeout)
        else:
            self._use(self._join_switch(store, group_name, timeout))

    def _join_switch(self, store: c10d.Store, group_name: str, timeout: timedelta) -> Session:
        job_prefix = "world" if self._is_world else f"group-{group_name}"
        self._meeting = meet(store, self.rank, job_prefix, self.options, timeout)
        session = Session.join(
            options=self.options,
            switch=self._meeting.address,
            job_name=self._meeting.job_name,
            rank=self.rank,
            size=self.size,
        )
        if self._is_world:
            SHARED.world_address = self._meeting.address
        return session

    def _join_or_fall_back(self, store: c10d.Store, group_name: str, timeout: timedelta) -> None:
        """Start on the switch if every rank can, else on gloo from the first reduction on."""
        reason = "another rank could not join it"
        session: Session | None = None
        try:
            session = self._join_switch(store, group_name, timeout)
        except JoinTimeoutError:
            raise  # a rank is missing: gloo would wait for it too
        except (SwitchUnreachableError, SwitchLostError, AdmissionError) as error:
            reason = str(error)
        self.fallback = Fallback(
            None, 1, c10d.PrefixStore("fallback", store), self.rank, self.size, timeout, self.failures, self.completion
        )
        everywhere = self.fallback.joined_everywhere(session is not None)
        if session is not None and everywhere:
            self._use(session)
            assert self.direct is not None
            self.fallback.attach(self.direct, session.flows)
            self.failures.survivable = self.fallback.survives
        else:
            if session is not None:
                session.close()
            warn_once(self._meeting.address if self._meeting is not None else "(none)", reason)

    def _use(self, session: Session) -> None:
        self.session = self.failures.session = session
        self.direct = Direct(session, self.failures, self.completion)
        if self._is_world:
            self._timeline = timeline_for(session, self.options)

    def start(self, request: Request) -> FaninWork:
        """Start a reduction that the switch can do, on host or CUDA memory."""
        if self.fallback is not None:
            return self.fallback.start(request)
        assert self.direct is not None
        if request.source.is_cuda and self.staging is None:
            self.staging = Staging(self.direct, self.failures, self.completion)
        if self.staging is not None and (request.source.is_cuda or self.staging.busy):
            return self.staging.start(request)
        return self.direct.start(request)

    def _failed(self, failure: FaninError) -> None:
        """On the watch thread: the session has failed."""
        if self.fallback is not None and self.fallback.survives(failure):
            recovery = threading.Thread(
                target=self.fallback.recover, args=(failure,), name="fanin-recovery", daemon=True
            )
            recovery.start()
        else:
            self.inner.break_connections()

    def close(self, timeout_s: float = 10.0) -> None:
        """Leave the job and release everything. Idempotent, bounded, never raises."""
        if self._closed:
            return
        self._closed = True
        if self._timeline is not None:
            self._timeline.close()
        if self.session is not None:
            WATCH.remove(self.session)
            self.session.close(timeout_s)
            if self._is_world:
                SHARED.world_address = None
        self.completion.close()
        if self.staging is not None:
            self.staging.close()
        if self.fallback is not None:
            self.fallback.close()
        if self._meeting is not None:
            self._meeting.close()

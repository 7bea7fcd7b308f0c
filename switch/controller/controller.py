"""The controller: forms jobs out of the workers that ask, puts them on the data plane, and knows who is still there.

Rules
-----
* A job is known by its name and its ranks' key while ranks may still join, and by index and generation once it is on
  the data plane. A request under another key neither finds the job nor blocks its name.
* Time, randomness and the data plane are passed in; messages go out through `messages_to_send`. No socket, no clock.
* `AnyController` is the interface that the driver uses: requests, hang-ups, events and times come in, replies are
  fetched. `Controller` serves a switch without a parent (a single switch or a root), `LeafController` (leaf.py) a leaf.
* All jobs have one life (lifecycle.py). Their ranks come to this switch themselves (direct.py) or are at leaves below
  it (trees.py); no job has both.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import fanin
from fanin.protocol import control
from fanin.protocol.control import Join, Refusal, Scheme
from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.schemes import tree_scheme
from fanin.switch.controller import direct
from fanin.switch.controller.admission import ADD_DATA, refuse
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_table import JobTable
from fanin.switch.controller.jobs import Job, ReplyTo
from fanin.switch.controller.lifecycle import Lifecycle
from fanin.switch.controller.outbox import Outbox
from fanin.switch.controller.regroup import regroup
from fanin.switch.controller.reports import report, seen_by
from fanin.switch.controller.resources import UNLIMITED_BYTES, Resources
from fanin.switch.controller.trees import ThroughLeaves


class AnyController(abc.ABC):
    """Dispatches every request, event and timer to the jobs that it concerns. One thread drives it."""

    def __init__(
        self,
        limits: Limits,
        planes: Mapping[Scheme, DataPlane],
        *,
        random_bits: Callable[[int], int],
        started_s: float,
        engine: str,
        curve: bool = False,
    ) -> None:
        """`random_bits(n)` draws generations and tokens; the rest is for Stats."""
        self._planes = planes
        self._started_s = started_s
        self.engine = engine
        """Names of the running engine and data servers, in words."""
        self._curve = curve
        self._outbox = Outbox()
        self._table = JobTable()
        self._resources = Resources(limits, self._table, random_bits)
        self._jobs = Lifecycle(self._table, self._resources, self._outbox)

    def receive(self, peer: bytes, request: control.Request, now: float, caller: Caller) -> None:
        """Act on a request of `peer`, identified by the gate as `caller`; `messages_to_send` returns the replies."""
        if isinstance(request, Join):
            self._join(peer, request, now, caller)
        elif isinstance(request, control.Leave):
            self._leave(request, now, caller)
            self._outbox.send(peer, control.Left(job=request.job, rank=request.rank))
        elif isinstance(request, control.Explain):
            self._explain(peer, request, now, caller)
        elif isinstance(request, control.Regroup):
            self._regroup(peer, request, now, caller)
        elif isinstance(request, control.Tune):
            self._tune(peer, request, caller)
        elif isinstance(request, control.Spent):
            self._jobs.note_spending(request, caller)
            self._outbox.send(peer, control.Noted(job=request.job, rank=request.rank))
        elif isinstance(request, control.Enlist):
            self._enlist(peer, request, now, caller)
        elif isinstance(request, control.Attach):
            self._attach(peer, request)
        else:
            self._outbox.send(peer, seen_by(caller, self.stats(now)))

    def hung_up(self, peer: bytes, now: float) -> None:
        """The connection over which `peer` asked is closed: its process may have died."""
        self._jobs.hung_up(peer, now)

    def device_gone(self) -> None:
        """Tell every rank that the device which this controller programs is gone."""
        reason = "the device that this controller programs is gone: its P4Runtime connection has ended"
        refused = refuse(Refusal.DEVICE_GONE, reason, "start the device, then its controller, whose output says more")
        for job in self._table.all():
            for member in job.members.values():
                self._outbox.refuse(member.reply_to.peer, refused)

    def count_refusal(self, code: str) -> None:
        """Count a refusal, by its code, that was sent before the request reached this controller."""
        self._outbox.count(code)

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """Update the job that an event of the data plane concerns."""
        self._jobs.handle_event(event, now)

    def handle_timer(self, now: float) -> None:
        """Refuse, end or forget the jobs and ranks whose deadlines have passed."""
        self._jobs.handle_timer(now)

    def next_timer(self) -> float | None:
        """Time at which `handle_timer` is due; None if nothing waits."""
        return self._jobs.next_timer()

    def messages_to_send(self) -> list[tuple[bytes, control.Reply]]:
        """The replies since the last call, in order, each with the peer that it is for."""
        return self._outbox.fetch()

    @property
    def live_jobs(self) -> int:
        """Number of jobs in which a worker still takes part, or for which one waits."""
        return self._table.live

    def stats(self, now: float) -> control.Stats:
        """Everything that `fanin stats` shows."""
        memory_bytes, used_bytes = self._resources.limits.memory_bytes, self._table.memory_bytes
        if memory_bytes == UNLIMITED_BYTES:
            memory_bytes = used_bytes = 0
        return control.Stats(
            software=fanin.__version__,
            wire_version=WIRE_VERSION,
            engine=self.engine,
            uptime_s=now - self._started_s,
            memory_bytes=memory_bytes,
            memory_used_bytes=used_bytes,
            curve=self._curve,
            data=tuple(
                control.DataReport(
                    scheme=scheme,
                    description=plane.server.description,
                    ports=plane.server.ports,
                    counters=plane.server.counters(),
                    tags=plane.tags,
                )
                for scheme, plane in self._planes.items()
            ),
            jobs=tuple(report(job, now, self._ranks_here(job)) for job in self._table.all()),
            refused=dict(self._outbox.refused),
            job_count=self.live_jobs,
        )

    def _ranks_here(self, job: Job) -> Iterable[int]:
        """The ranks of a job that this switch reports on in its statistics."""
        return range(job.first.size)

    @abc.abstractmethod
    def _join(self, peer: bytes, join: Join, now: float, caller: Caller) -> None: ...

    @abc.abstractmethod
    def _leave(self, leave: control.Leave, now: float, caller: Caller) -> None: ...

    @abc.abstractmethod
    def _explain(self, peer: bytes, request: control.Explain, now: float, caller: Caller) -> None: ...

    @abc.abstractmethod
    def _regroup(self, peer: bytes, request: control.Regroup, now: float, caller: Caller) -> None: ...

    @abc.abstractmethod
    def _tune(self, peer: bytes, wish: control.Tune, caller: Caller) -> None: ...

    @abc.abstractmethod
    def _enlist(self, peer: bytes, request: control.Enlist, now: float, caller: Caller) -> None: ...

    @abc.abstractmethod
    def _attach(self, peer: bytes, request: control.Attach) -> None: ...


class Controller(AnyController):
    """The controller of a switch that has no parent: it decides for itself."""

    def __init__(
        self,
        limits: Limits,
        planes: Mapping[Scheme, DataPlane],
        *,
        random_bits: Callable[[int], int],
        started_s: float,
        engine: str,
        curve: bool = False,
    ) -> None:
        """Construct as `AnyController`. Leaves are served if `planes` has their scheme, `tree_scheme()`."""
        super().__init__(limits, planes, random_bits=random_bits, started_s=started_s, engine=engine, curve=curve)
        self._direct = direct.Direct(planes, self._resources)
        self._leaves = ThroughLeaves(planes[up], self._resources) if (up := tree_scheme()) in planes else None

    def adopt(self, spec: JobSpec, scheme: Scheme, now: float) -> None:
        """Take over a job that an earlier controller has put on the data plane, and that is still running."""
        direct.adopt(self._jobs, self._direct, spec, scheme, now)

    def _join(self, peer: bytes, join: Join, now: float, caller: Caller) -> None:
        self._jobs.join(self._direct, ReplyTo(peer), join, now, caller)

    def _leave(self, leave: control.Leave, now: float, caller: Caller) -> None:
        self._jobs.leave(leave, now, caller)

    def _explain(self, peer: bytes, request: control.Explain, now: float, caller: Caller) -> None:
        unknown = "this switch never had that job; it may have been restarted"
        answer = self._jobs.explain((request.job, caller.key), request.generation)
        answer = answer or control.Explanation(known=False, text=unknown)
        self._outbox.send(peer, replace(answer, generation=request.generation))

    def _regroup(self, peer: bytes, request: control.Regroup, now: float, caller: Caller) -> None:
        regroup(self._jobs, peer, request, now, caller)

    def _tune(self, peer: bytes, wish: control.Tune, caller: Caller) -> None:
        direct.tune(self._jobs, peer, wish, caller)

    def _enlist(self, peer: bytes, request: control.Enlist, now: float, caller: Caller) -> None:
        """Handle a Join that a leaf passes on, sealed with the key of the rank that sent it."""
        join = request.join
        if self._leaves is not None:
            self._jobs.join(self._leaves, ReplyTo(peer, request.leaf, request.address), join, now, caller)
            return
        refused = refuse(Refusal.DISAGREEMENT, f"this switch serves no {tree_scheme()}://", ADD_DATA)
        self._outbox.count(refused.code)
        self._outbox.send(peer, control.Relayed(job=join.job, rank=join.rank, refused=refused))

    def _attach(self, peer: bytes, request: control.Attach) -> None:
        """Answer a switch that asks to be a leaf of this one; no state is kept for it."""
        if self._leaves is not None:
            self._outbox.send(peer, control.Attached(leaf=request.leaf))
            return
        text = f"this switch serves no {tree_scheme()}://, by which a leaf's data comes"
        self._outbox.refuse(peer, refuse(Refusal.PARENT, text, ADD_DATA))

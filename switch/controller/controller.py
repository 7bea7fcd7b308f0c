"""The controller: forms jobs out of the workers that ask, puts them on the data plane, and knows who is still there.

Rules
-----
* A job is known by its name and its ranks' key while ranks may still join, and by index and generation once it is on
  the data plane. Whoever asks with another key neither finds it nor stands in its way.
* Time, randomness and the data plane are passed in; messages go out through `messages_to_send`. No socket, no clock.
* There are two kinds of jobs, each with a table of its own: those whose ranks come to this switch themselves
  (switch/controller/direct.py), and those whose ranks are at leaves below it (switch/controller/trees.py). They share
  memory and indices (switch/controller/resources.py). No job is both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import fanin
from fanin.protocol import control
from fanin.protocol.control import Join, Refusal, Scheme
from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.switch.controller.admission import refuse
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.direct import DirectJobs
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_table import JobTable
from fanin.switch.controller.jobs import DirectJob
from fanin.switch.controller.outbox import Outbox
from fanin.switch.controller.reports import seen_by
from fanin.switch.controller.resources import Resources
from fanin.switch.controller.trees import TreeJob, TreeJobs


class Controller:
    """Gives every request, event and timer to whom it concerns. One thread drives it."""

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
        """Which engine and data servers run, in words."""
        self._curve = curve
        self._outbox = Outbox()
        direct_jobs: JobTable[DirectJob] = JobTable()
        tree_jobs: JobTable[TreeJob] = JobTable()
        self._tables = (direct_jobs, tree_jobs)
        self._resources = Resources(limits, self._tables, random_bits)
        self._direct = DirectJobs(direct_jobs, self._resources, planes, self._outbox)
        self._trees: TreeJobs | None = None
        """Jobs whose ranks are at leaves; they come over udp only."""
        if "udp" in planes:
            self._trees = TreeJobs(tree_jobs, self._resources, planes["udp"], self._outbox)

    # --- what comes in ---

    def receive(self, peer: bytes, request: control.Request, now: float, caller: Caller) -> None:
        """Act on a request of `peer`, in whom the gate has seen `caller`; the answers wait in `messages_to_send`."""
        if isinstance(request, Join):
            through_leaves = self._trees is not None and self._trees.forms((request.job, caller.key))
            self._direct.join(peer, request, now, caller, through_leaves=through_leaves)
        elif isinstance(request, control.Leave):
            if not self._direct.leave(request, now, caller) and self._trees is not None:
                self._trees.leave(request, now, caller)
            self._outbox.send(peer, control.Left(job=request.job, rank=request.rank))
        elif isinstance(request, control.Explain):
            self._outbox.send(peer, self._explain(request, caller))
        elif isinstance(request, control.Tune):
            self._direct.tune(peer, request, caller)
        elif isinstance(request, control.Enlist):
            self._enlist(peer, request, now, caller)
        elif isinstance(request, control.Attach):
            self._attach(peer, request)
        else:
            self._outbox.send(peer, seen_by(caller, self.stats(now)))

    def hung_up(self, peer: bytes, now: float) -> None:
        """The connection over which `peer` asked is closed: its process may have died."""
        self._direct.hung_up(peer, now)
        if self._trees is not None:
            self._trees.hung_up(peer, now)

    def count_refusal(self, code: str) -> None:
        """Somebody was refused before the request came here."""
        self._outbox.count(code)

    def adopt(self, spec: JobSpec, scheme: Scheme, now: float) -> None:
        """Take over a job that an earlier controller has put on the data plane, and that goes on meanwhile."""
        self._direct.adopt(spec, scheme, now)

    def handle_event(self, event: SwitchEvent, now: float) -> None:
        """Take in what the data plane reports."""
        if self._trees is not None and self._trees.holds(event.job):
            self._trees.handle_event(event, now)
        else:
            self._direct.handle_event(event, now)

    def handle_timer(self, now: float) -> None:
        """Let go of what has waited too long."""
        self._direct.handle_timer(now)
        if self._trees is not None:
            self._trees.handle_timer(now)

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called, or None."""
        times = [self._direct.next_timer(), self._trees.next_timer() if self._trees is not None else None]
        return min((at for at in times if at is not None), default=None)

    def _enlist(self, peer: bytes, request: control.Enlist, now: float, caller: Caller) -> None:
        """A leaf passes on a Join, with the key of the rank that said it."""
        join = request.join
        if self._trees is not None and not self._direct.forms((join.job, caller.key)):
            self._trees.enlist(peer, request, now, caller)
            return
        text = f"other ranks of job {join.job!r} came to this switch directly, or it serves no udp://"
        refused = refuse(Refusal.DISAGREEMENT, text, "let all ranks use leaves, or none")
        self._outbox.count(refused.code)
        self._outbox.send(peer, control.Relayed(job=join.job, rank=join.rank, refused=refused))

    def _attach(self, peer: bytes, request: control.Attach) -> None:
        """A leaf wants to be one of this switch; nothing is kept of it."""
        if self._trees is not None:
            self._outbox.send(peer, control.Attached(leaf=request.leaf))
            return
        text = "this switch serves no udp://, by which a leaf's data comes"
        self._outbox.refuse(peer, refuse(Refusal.PARENT, text, "start it with --data udp,zmq"))

    # --- what goes out ---

    def messages_to_send(self) -> list[tuple[bytes, control.Reply]]:
        """What to send, in order, each with the peer that it is for."""
        return self._outbox.fetch()

    @property
    def live_jobs(self) -> int:
        """Jobs that some worker still takes part in, or waits for."""
        return sum(table.live for table in self._tables)

    def _explain(self, request: control.Explain, caller: Caller) -> control.Explanation:
        title = (request.job, caller.key)
        explanation = self._direct.explain(title, request.generation)
        if explanation is None and self._trees is not None:
            explanation = self._trees.explain(title, request.generation)
        unknown = "this switch never had that job; it may have been restarted"
        answer = explanation or control.Explanation(known=False, text=unknown)
        return replace(answer, generation=request.generation)

    def stats(self, now: float) -> control.Stats:
        """Everything that `fanin stats` shows."""
        memory_bytes = self._resources.limits.memory_bytes
        return control.Stats(
            software=fanin.__version__,
            wire_version=WIRE_VERSION,
            engine=self.engine,
            uptime_s=now - self._started_s,
            memory_bytes=memory_bytes,
            memory_used_bytes=memory_bytes - self._resources.free_bytes,
            curve=self._curve,
            data=tuple(
                control.DataReport(
                    scheme=scheme,
                    description=plane.server.description,
                    ports=plane.server.ports,
                    counters=plane.server.counters(),
                )
                for scheme, plane in self._planes.items()
            ),
            jobs=(
                *self._direct.reports(now),
                *(self._trees.reports() if self._trees is not None else ()),
            ),
            refused=dict(self._outbox.refused),
            job_count=self.live_jobs,
        )

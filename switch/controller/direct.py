"""The attachment of ranks that reach this switch directly: they are its workers, and the job may change while it runs.

Such a job has the same life as any other (lifecycle.py), but only such a job may continue without a rank, take in
newcomers, and be tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fanin.errors import ConfigurationError
from fanin.protocol import control
from fanin.protocol.control import Join, Refusal, Refused, Scheme
from fanin.protocol.job import Agreed, JobRounds, JobSpec, facts_of
from fanin.switch.controller.admission import (
    judge_accumulators,
    judge_alone,
    judge_tags,
    judge_tune,
    refuse,
)
from fanin.switch.controller.adoption import adopted
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import choose_shape
from fanin.switch.controller.jobs import Attachment, Job, State, bits
from fanin.switch.controller.lifecycle import Lifecycle
from fanin.switch.controller.reports import admission
from fanin.switch.controller.resources import Resources


class Direct(Attachment):
    """The attachment of ranks that reach this switch themselves."""

    tree = False

    def __init__(self, planes: Mapping[Scheme, DataPlane], resources: Resources) -> None:
        self._planes, self._resources = planes, resources

    def judge(self, join: Join) -> Refused | None:
        """Judge sizes, versions, the scheme, tags and accumulators."""
        refused = judge_alone(join, self._planes.keys())
        if refused is not None:
            return refused
        plane = self.plane(join.scheme)
        return judge_tags(join, able=plane.tags) or judge_accumulators(join, able=plane.buffers.accumulators)

    def workers(self, job: Job) -> tuple[tuple[int, ...], ...]:
        """One worker for each rank, of the same number."""
        return tuple((rank,) for rank in range(job.first.size))

    def spec(self, job: Job) -> JobSpec:
        """The specification with the K and S that the ranks ask for."""
        first, shape = job.first, choose_shape(job.joins, job.plane.buffers)
        spec = self._resources.new_spec(shape, first.size, job.tagging)
        return replace(spec, **first.settled(first.size), **facts_of(first, Agreed))

    def plane(self, scheme: Scheme) -> DataPlane:
        """The data plane of that scheme."""
        return self._planes[scheme]

    def admitted(self, job: Job, spec: JobSpec, rank: int) -> control.Admitted:
        """The reply with the job's specification and the rank's token."""
        admitted = admission(job.name, rank, spec, rank, job.first.scheme, job.plane.server)
        if job.state is State.RUNNING:
            # A newcomer gets no shared-memory ring: the rings' tokens belong to the processes that founded the job.
            admitted = replace(admitted, running=True, shared_memory=())
        return replace(admitted, data_host=job.plane.host)


def adopt(jobs: Lifecycle, attachment: Direct, spec: JobSpec, scheme: Scheme, now: float) -> None:
    """Take over a job that an earlier controller has put on the data plane, and that is still running."""
    job = adopted(spec, scheme, attachment, now)
    job.registered, job.lost, job.left = job.plane.server.members(spec.job)
    jobs.table.placed[spec.job] = jobs.table.open[job.job_id] = job
    jobs.resources.pass_over(spec.job)
    if gone := tuple(bits(job.lost | job.left)):
        jobs.handle_departure(job, gone, "had gone before this controller was started", now)


def tune(jobs: Lifecycle, peer: bytes, wish: control.Tune, caller: Caller) -> None:
    """Change K and S of a running job, or report them if `wish` has neither. Only its own ranks and operators may."""
    found = [job for job in jobs.table.open.values() if job.name == wish.job and job.state is State.RUNNING]
    if not caller.operator:
        found = [job for job in found if job.key == caller.key]
    if wish.index is not None:
        found = [job for job in found if job.spec is not None and job.spec.job == wish.index]
    if len(found) > 1:
        indices = ", ".join(str(job.spec.job) for job in found if job.spec is not None)
        text = f"{len(found)} jobs of different owners are called {wish.job!r}"
        jobs.outbox.refuse(peer, refuse(Refusal.DISAGREEMENT, text, f"say which of them: --index {indices}"))
        return
    job = found[0] if found else None
    spec = None if job is None else job.spec
    if job is not None and job.attachment.tree:
        text = f"job {wish.job!r} is over a tree of switches, which is synchronous"
        jobs.outbox.refuse(peer, refuse(Refusal.QUORUM, text, "use one switch without --parent"))
        return
    refused = judge_tune(wish, spec)
    if refused is not None:
        jobs.outbox.refuse(peer, refused)
        return
    assert job is not None
    assert spec is not None
    server = job.plane.server
    if wish.staleness is not None:  # first, since it may be refused: then nothing has changed
        try:
            server.set_staleness(spec.job, wish.staleness)
        except ConfigurationError as error:  # not every data plane can change the staleness of a running job
            refused = refuse(Refusal.STALENESS, str(error), "start the job anew with that staleness")
            jobs.outbox.refuse(peer, refused)
            return
        spec = replace(spec, staleness=wish.staleness)
    if wish.quorum is not None:
        server.set_quorum(spec.job, wish.quorum)
        spec = replace(spec, quorum=wish.quorum)
    job.spec = spec
    jobs.outbox.send(peer, control.Tuned(job=job.name, **facts_of(spec, JobRounds)))

"""The attachment of ranks through leaves of this switch: the job has all ranks, and each leaf is one of its workers.

Rules
-----
* A leaf passes on every Join of its ranks as Enlist, with its own identity; the replies to each rank go back to the
  leaf, as Relayed. The root judges ranks as if they had come directly: sizes, agreement, versions, ranks taken twice.
* Ranks are global: the job has the size that its ranks state, and the root waits for all of them, wherever they are.
* Leaves are numbered as workers, or branches, in the order of the lowest rank at each.
* A leaf is registered once all of its own workers are. When ranks leave in order, the leaf tells the root only once all
  of its ranks have left.
"""

from __future__ import annotations

from dataclasses import replace

from fanin.protocol import control
from fanin.protocol.control import Join, Refusal, Refused, Relayed, Scheme, Started, Waiting
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import MAX_WORKERS
from fanin.schemes import tree_scheme
from fanin.switch.controller.admission import (
    in_words,
    judge_accumulators,
    judge_alone,
    judge_tags,
    refuse,
)
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.controller.job_shape import choose_shape
from fanin.switch.controller.jobs import Attachment, Job
from fanin.switch.controller.reports import placement
from fanin.switch.controller.resources import Resources


class ThroughLeaves(Attachment):
    """The attachment of ranks behind leaves."""

    tree = True

    def __init__(self, plane: DataPlane, resources: Resources) -> None:
        self._plane, self._resources = plane, resources

    def judge(self, join: Join) -> Refused | None:
        """Judge a rank as if it came directly, and refuse options that a synchronous tree cannot honour."""
        synchronous = join.quorum in (None, join.size) and not join.staleness and not join.max_staleness
        if not synchronous or join.on_worker_loss != "raise":
            return refuse(
                Refusal.QUORUM,
                "a tree of switches is synchronous: every round waits for every worker, and a loss ends the job",
                "leave quorum, staleness and on_worker_loss alone, or use one switch without --parent",
            )
        return (
            judge_alone(join, (tree_scheme(),), tree=True)
            or judge_tags(join, able=self._plane.tags)
            or judge_accumulators(join, able=self._plane.buffers.accumulators)
        )

    def judge_all(self, job: Job) -> Refused | None:
        """Object, too, if the root or a leaf would have more than MAX_WORKERS workers."""
        branches = self.workers(job)
        crowd = max(map(len, branches))
        if len(branches) <= MAX_WORKERS and crowd <= MAX_WORKERS:
            return super().judge_all(job)
        reason = f"{len(branches)} leaves with up to {crowd} ranks each; a switch takes {MAX_WORKERS}"
        return refuse(Refusal.TOO_MANY_WORKERS, reason, "spread the ranks over more leaves")

    def workers(self, job: Job) -> tuple[tuple[int, ...], ...]:
        """The ranks at each leaf."""
        branches: dict[str, list[int]] = {}
        for rank in sorted(job.members):
            branches.setdefault(job.members[rank].reply_to.leaf, []).append(rank)
        return tuple(map(tuple, branches.values()))

    def spec(self, job: Job) -> JobSpec:
        """Specification of a synchronous job whose lanes are sized for all ranks."""
        shape = choose_shape(job.joins, job.plane.buffers)
        spec = self._resources.new_spec(shape, len(self.workers(job)), job.tagging)
        return replace(spec, total_workers=job.first.size, branches=True)

    def plane(self, scheme: Scheme) -> DataPlane:
        """The data plane that leaves use."""
        return self._plane

    def reply_for(self, job: str, rank: int, reply: Waiting | Started | Refused) -> Relayed:
        """The reply wrapped in Relayed, for the leaf to pass on to the rank."""
        if isinstance(reply, Waiting):
            return Relayed(job=job, rank=rank, waiting=reply)
        if isinstance(reply, Started):
            return Relayed(job=job, rank=rank, started=reply)
        return Relayed(job=job, rank=rank, refused=reply)

    def admitted(self, job: Job, spec: JobSpec, rank: int) -> Relayed:
        """The reply that prescribes the shape of the leaf's part of the job."""
        branch = job.worker_of(rank)
        assert branch is not None
        placed = control.Placed(
            branch=branch,
            ranks=job.workers[branch],
            size=job.first.size,
            **placement(spec, branch, job.plane.server),
        )
        return Relayed(job=job.name, rank=rank, placed=placed)

    def worker_name(self, job: Job, worker: int) -> str:
        """The worker's name in messages: the leaf's address and its ranks."""
        ranks = job.workers[worker]
        return f"leaf switch {job.members[ranks[0]].reply_to.address}, with {in_words(ranks)},"

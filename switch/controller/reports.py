"""Messages of the control protocol that describe jobs, for their ranks and for `fanin stats`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fanin.protocol.control import Admitted, Explanation, JobReport, MemberReport, Scheme, Stats
from fanin.protocol.job import Agreed, JobRounds, JobSpec, Shape, facts_of
from fanin.protocol.tag_algorithm import SIPHASH
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.jobs import Job
from fanin.switch.server.any_server import Server


def admission(name: str, rank: int, spec: JobSpec, worker: int, scheme: Scheme, server: Server) -> Admitted:
    """The reply that tells `rank`, worker `worker` of the job, how to reach it at `server`."""
    return Admitted(
        job=name,
        rank=rank,
        workers=spec.workers,
        scheme=scheme,
        shared_memory=server.shared_memory(spec.job),
        **facts_of(spec, Agreed, JobRounds),
        **placement(spec, worker, server),
    )


def placement(spec: JobSpec, worker: int, server: Server) -> dict[str, Any]:
    """The fields of fanin.protocol.control.Placement, for a worker of a job that is at `server`."""
    return {
        "index": spec.job,
        "generation": spec.generation,
        "token": spec.tokens[worker],
        "ports": server.ports,
        "liveness_timeout_s": spec.liveness_timeout_s,
        "authenticate": bool(spec.data_key),
        "tag_algorithm": spec.tag,
        **facts_of(spec, Shape),
    }


def report(job: Job, now: float, ranks: Iterable[int]) -> JobReport:
    """The report on a job for `fanin stats`, with these of its ranks; its `size` counts all ranks."""
    spec, first, server = job.spec, job.first, job.plane.server
    explanation = job.explanation()
    counts = server.member_counters(spec.job) if spec else []
    # At the root of a tree the spec counts leaves: the ranks know their quorum.
    rounds = facts_of(spec, JobRounds) if spec and not spec.in_tree else first.settled(first.size)
    return JobReport(
        name=job.name,
        state=job.state.value,
        index=spec.job if spec else None,
        generation=spec.generation if spec else None,
        scheme=first.scheme,
        size=first.size,
        slots=spec.slots if spec else 0,
        words_per_packet=spec.words_per_packet if spec else 0,
        flows=len(server.ports),
        memory_bytes=job.memory_bytes,
        ring_bytes=job.ring_bytes,
        wanted_ring_bytes=job.wanted_ring_bytes,
        age_s=now - job.opened_s,
        members=tuple(_member(job, rank, explanation, counts) for rank in ranks),
        counters=server.job_counters(spec.job) if spec else {},
        key=job.key,
        authenticated=bool(spec and spec.data_key),
        tag_algorithm=spec.tag if spec else SIPHASH,
        accumulators=bool(spec and spec.accumulators),
        shards=first.shards,
        share=first.share,
        **facts_of(first, Agreed),
        **rounds,
    )


def seen_by(caller: Caller, stats: Stats) -> Stats:
    """The statistics that a caller may see: an operator all of them, a rank its own jobs, anybody else no names."""
    if caller.operator:
        return stats
    own = () if caller.is_open else tuple(job for job in stats.jobs if job.key == caller.key)
    return replace(stats, jobs=own, operator=False)


def _member(job: Job, rank: int, explanation: Explanation, counts: list[dict[str, int]]) -> MemberReport:
    member, worker = job.members.get(rank), job.worker_of(rank)
    state = "waiting"
    if rank in explanation.lost:
        state = "lost"
    elif rank in explanation.left:
        state = "left"
    elif member is None:
        state = "missing"
    elif worker is not None:
        state = "registered" if job.registered >> worker & 1 else "joined"
    alone = worker is not None and worker < len(counts) and len(job.workers[worker]) == 1
    return MemberReport(
        rank=rank,
        process="" if member is None else member.join.process,
        state=state,
        counters=counts[worker] if worker is not None and alone else {},
        spending=None if member is None else member.spending,
    )

"""Adopt jobs that an earlier controller left running: a programmable switch outlives the process that programs it."""

from __future__ import annotations

import fanin
from fanin.protocol.control import Join, Scheme
from fanin.protocol.job import Agreed, JobRounds, JobSpec, facts_of
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.switch.controller.admission import MIN_PATH_MTU
from fanin.switch.controller.jobs import Attachment, Job, Member, ReplyTo, State


def adopted(spec: JobSpec, scheme: Scheme, attachment: Attachment, now: float) -> Job:
    """A job found on the data plane, as RUNNING; placeholders stand for its name and its ranks' processes."""
    ranks = [
        Join(
            job=f"job {spec.job} of an earlier controller",
            rank=rank,
            size=spec.workers,
            nonce="",
            wire_version=WIRE_VERSION,
            software=fanin.__version__,
            process="unknown process",
            scheme=scheme,
            path_mtu=MIN_PATH_MTU,
            receive_buffer_bytes=0,
            **facts_of(spec, JobRounds, Agreed),
        )
        for rank in range(spec.workers)
    ]
    return Job(
        name=ranks[0].job,
        key="",
        source="",
        attachment=attachment,
        plane=attachment.plane(scheme),
        first=ranks[0],
        opened_s=now,
        deadline_s=now,
        state=State.RUNNING,
        members={join.rank: Member(join, now, ReplyTo(b""), now) for join in ranks},
        spec=spec,
        workers=tuple((join.rank,) for join in ranks),
        memory_bytes=spec.pool_bytes,
    )

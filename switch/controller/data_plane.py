"""Resources that the controller hands out: memory, and ways to the machines that use it."""

from __future__ import annotations

from dataclasses import dataclass

from fanin.protocol.job import SWITCH_LIVENESS_TIMEOUT_S, JobSpec
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm
from fanin.switch.controller.job_shape import SwitchBuffers
from fanin.switch.server.any_server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a switch's jobs."""

    memory_bytes: int
    """Aggregation memory in all; a job that does not fit is refused."""
    source_share: float = 1.0
    """Largest part of the memory that all jobs opened from one address may hold together."""
    liveness_timeout_s: float = SWITCH_LIVENESS_TIMEOUT_S
    """Silence after which a worker, or the switch, counts as gone. Longer forgives more, and tells later."""


@dataclass(frozen=True, slots=True)
class DataPlane:
    """One way to the switch's machines."""

    server: Server
    buffers: SwitchBuffers
    host: str = ""
    """Host that workers send data to; empty: the one at which they reach the controller."""
    tags: tuple[TagAlgorithm, ...] = (SIPHASH,)
    """Algorithms of keyed tags that it computes (fanin/protocol/packet_tag.py); a pipeline none."""
    running: tuple[JobSpec, ...] = ()
    """Jobs that were on it already, and go on."""

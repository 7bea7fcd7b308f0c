"""Limits of a switch's resources, and the data planes on which its jobs run."""

from __future__ import annotations

from dataclasses import dataclass

from fanin.protocol.job import SWITCH_LIVENESS_TIMEOUT_S, JobSpec
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm
from fanin.switch.controller.job_shape import SwitchBuffers
from fanin.switch.server.any_server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the memory and the silence of a switch's jobs."""

    memory_bytes: int
    """Aggregation memory in all; a job that does not fit is refused."""
    source_share: float = 1.0
    """Largest part of the memory that all jobs opened from one address may hold together."""
    liveness_timeout_s: float = SWITCH_LIVENESS_TIMEOUT_S
    """Silence after which a worker, or the switch, counts as gone; a longer one tolerates more, but detects later."""


@dataclass(frozen=True, slots=True)
class DataPlane:
    """The server of one scheme, by which workers reach the switch's machines, and its abilities."""

    server: Server
    buffers: SwitchBuffers
    host: str = ""
    """Host that workers send data to; empty: the one at which they reach the controller."""
    tags: tuple[TagAlgorithm, ...] = (SIPHASH,)
    """Algorithms of keyed tags that the server computes (fanin/protocol/packet_tag.py); empty for a P4 pipeline."""
    running: tuple[JobSpec, ...] = ()
    """Jobs of an earlier controller that still run on it, to be adopted."""

"""How large a switch is: its flows, and the memory that its jobs may have together."""

from __future__ import annotations

import contextlib
import os

from fanin.addresses import SwitchAddress
from fanin.errors import ConfigurationError, FaninError
from fanin.memory import memory_bytes
from fanin.options import MAX_FLOWS, Options
from fanin.protocol import control
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import WORD_BYTES, codes_bytes
from fanin.schemes import tree_scheme
from fanin.settings import checked

CORES_PER_FLOW = 4
MEMORY_PART = 8
"""By default a switch may use one part in so many of the machine's memory. None of it is touched before a job needs it.
"""
LEAST_MEMORY_BYTES, FLOW_MEMORY_BYTES = 512 << 20, 1 << 30
"""The least default memory of a switch, even where it is more than the part above, and the most for each flow, since a
job has a pool and rings in every flow. The least is enough for some hundred groups of a program."""
DEFAULT_SOURCE_SHARE = 0.5
"""Part of the memory that the jobs of one address may hold together."""

PARENT_TIMEOUT_S = 1.0
"""Longest wait of a starting leaf for its parent's number of flows."""


def default_flows(cores: int, there_bytes: int) -> int:
    """Default number of flows of a machine, or container, with so many cores and so much memory."""
    return max(1, min(cores // CORES_PER_FLOW, there_bytes // MEMORY_PART // LEAST_MEMORY_BYTES, MAX_FLOWS))


def default_memory_bytes(flows: int, there_bytes: int) -> int:
    """Default memory of a switch with so many flows on a machine, or in a container, with so much memory."""
    return max(LEAST_MEMORY_BYTES, min(flows * FLOW_MEMORY_BYTES, there_bytes // MEMORY_PART))


def flows_of(given: int | None) -> int:
    """The number of flows of --flows, or the default; ConfigurationError outside the bounds of `Options.flows`."""
    if given is None:
        return default_flows(len(os.sched_getaffinity(0)), memory_bytes())
    return checked(Options, "flows", given)


def flows_like(parent: SwitchAddress | None, otherwise: int) -> int:
    """The parent's number of flows, which a leaf must have as well; `otherwise` if there is no parent or none that
    answers.
    """
    if parent is None:
        return otherwise
    from fanin.host.session.control import ask

    key = os.environ.get("FANIN_CURVE_SERVER_KEY")
    with contextlib.suppress(FaninError):
        answer = ask(parent, control.Ask(), curve_server_key=key, timeout_s=PARENT_TIMEOUT_S)
        if isinstance(answer, control.Stats):
            return next((len(each.ports) for each in answer.data if each.scheme == tree_scheme()), otherwise)
    return otherwise


def slot_bytes() -> int:
    """Memory of one synchronous slot of the longest packet that a job is given by default."""
    words, codes = packet_shape(1 << 16)
    return 2 * (words * WORD_BYTES + codes_bytes(codes))


def memory_of(memory_mib: int | None, slots: int | None, flows: int) -> int:
    """Bytes, as --memory or --slots says; ConfigurationError for both, less than one, and more than there is."""
    if memory_mib is not None and slots is not None:
        raise ConfigurationError("--memory and --slots say the same thing. Remedy: give one of them")
    if (memory_mib is not None and memory_mib < 1) or (slots is not None and slots < 1):
        raise ConfigurationError("--memory and --slots must be at least 1", "these")
    there = memory_bytes()
    if slots is not None:
        option, wanted = f"--slots {slots}", slots * slot_bytes()
    elif memory_mib is not None:
        option, wanted = f"--memory {memory_mib}", memory_mib << 20
    else:
        return default_memory_bytes(flows, there)
    if wanted > there:
        raise ConfigurationError(
            f"{option}: {wanted >> 20:,} MiB, but this machine, or the container that this is in, has {there >> 20:,} "
            f"MiB in all. Remedy: at most --memory {there >> 20}"
        )
    return wanted

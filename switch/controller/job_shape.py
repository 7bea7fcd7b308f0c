"""Choose a job's packet length and window: the smallest that its workers and the switch allow, or that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fanin.protocol.control import Join
from fanin.protocol.job import JobSpec, Shape
from fanin.protocol.window import MAX_SLOTS, packet_shape, slots_for
from fanin.protocol.wire import datagram_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape(Shape):
    """Parts of a job's specification that the controller chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchBuffers:
    """Limits of the switch's data plane on packets, windows and receive buffers."""

    receive_buffer_bytes: int
    """Receive buffer of one socket, as SO_RCVBUF reads."""
    shared: bool
    """Whether all workers send to one socket of the switch; otherwise the switch has a socket for each."""
    words_per_packet: int | None = None
    """Longest packet that the switch takes; None: any that fits a datagram."""
    codes_per_packet: int | None = None
    """Most scale codes that the switch takes in one packet; None: any."""
    accumulators: bool = True
    """Whether the switch can keep an accumulator for each lane (fanin/numerics/wide_sums.py): a P4 pipeline cannot."""
    slots: int | None = None
    """Widest window that one job gets; None: any that fits the memory."""
    flows: int = 1
    """Number of flows; a job has a window in each."""


def choose_shape(joins: Sequence[Join], buffers: SwitchBuffers) -> JobShape:
    """The shape for the workers that `joins` describe, all of one job.

    The packet is the longest that every path carries, the window what the smallest receive buffer holds, a worker's or
    the switch's. An explicit `words_per_packet` or `slots` (the smallest given) decides instead; but no packet is
    longer than the path carries.
    """
    words, codes = packet_shape(min(join.path_mtu for join in joins))
    asked_words = [join.words_per_packet for join in joins if join.words_per_packet is not None]
    if asked_words and min(asked_words) < words:
        words = min(asked_words)
        codes = _most_codes(words, codes)
    if buffers.words_per_packet is not None:
        words = min(words, buffers.words_per_packet)
    codes = _most_codes(words, codes if buffers.codes_per_packet is None else min(codes, buffers.codes_per_packet))
    asked_slots = [join.slots for join in joins if join.slots is not None]
    if asked_slots:
        slots = min(asked_slots)
    else:
        packet_bytes = datagram_bytes(codes, words)
        share = min(join.share for join in joins)
        slots = min(
            slots_for(min(join.receive_buffer_bytes for join in joins), packet_bytes, share=share, flows=buffers.flows),
            slots_for(buffers.receive_buffer_bytes, packet_bytes, senders=len(joins) if buffers.shared else 1),
            MAX_SLOTS if buffers.slots is None else buffers.slots,
        )
    return JobShape(
        slots=slots,
        words_per_packet=words,
        codes_per_packet=codes,
        checksum=any(join.checksum for join in joins),
        accumulators=buffers.accumulators and may_accumulate(joins),
    )


def may_accumulate(joins: Sequence[Join]) -> bool:
    """Whether all these ranks of one job accept an accumulator for each lane."""
    return all(join.accumulators is not False for join in joins)


def must_accumulate(joins: Sequence[Join]) -> bool:
    """Whether one of these ranks requires an accumulator for each lane."""
    return any(join.accumulators is True for join in joins)


def without_accumulators(spec: JobSpec, joins: Sequence[Join]) -> JobSpec:
    """The job without accumulators, which takes less memory; unchanged if one of its ranks requires them."""
    return spec if must_accumulate(joins) else replace(spec, accumulators=False)


def _most_codes(words: int, limit: int) -> int:
    """Most scale codes, at most `limit`, among which a packet's words divide in equal multiples of 8."""
    return max(count for count in range(1, limit + 1) if words % (8 * count) == 0)

"""A codec's stages as sums of a process group."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from fanin.host.codecs.codec import Encoder, Floats, Sum, sums_of
from fanin.host.codecs.words import codec_for
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.work import FaninWork
from fanin.numerics.fixed_point import DTYPES
from fanin.numerics.reduction import EXACT, Element, Operator

_OPERATORS = {Operator.SUM: dist.ReduceOp.SUM, Operator.MAX: dist.ReduceOp.MAX, Operator.MIN: dist.ReduceOp.MIN}


def start_sum(group: FaninProcessGroup, asked: Sum) -> FaninWork:
    """Start one stage: `asked.values` hold its sum when the work is done. Keeps the arrays alive."""
    residual = None if asked.residual is None else torch.from_numpy(asked.residual)
    values = torch.from_numpy(asked.values)
    average = asked.average and values.is_floating_point()
    return group.all_reduce_lanes(
        values,
        lanes=asked.lanes,
        average=average,
        residual=residual,
        operator=_OPERATORS[asked.operator],
        scale_code=asked.scale_code,
    )


def reduce_now(group: FaninProcessGroup, encoder: Encoder, x: Floats, step: int) -> tuple[float, float]:
    """Make x the ranks' mean; returns the processor seconds that the codec took before its first sum, and after it."""
    started = time.thread_time()
    stages = encoder.reduce(x, step)
    asked = sums_of(next(stages, None))
    encode_s, decode_s = time.thread_time() - started, 0.0
    while asked:
        for work in [start_sum(group, each) for each in asked]:
            work.wait()
        started = time.thread_time()
        asked = sums_of(next(stages, None))
        decode_s += time.thread_time() - started
    return encode_s, decode_s


def payload_bytes(group: FaninProcessGroup, asked: Sum) -> int:
    """Bytes of the words that this rank contributes to a stage, as its word codec lays them out."""
    element = next(each for each, dtype in DTYPES.items() if dtype == asked.values.dtype.type)
    return contributed_bytes(group, element, len(asked.values), asked.lanes, asked.operator)


def contributed_bytes(
    group: FaninProcessGroup, element: Element, count: int, lanes: int, operator: Operator = Operator.SUM
) -> int:
    """Bytes of the words that this rank contributes to a sum of `count` elements; 0 in a group of one."""
    session = group.session
    if session is None or not count:
        return 0
    small = count <= group.options.largest_exact(group.size()) and element.floating
    codec = codec_for(element, EXACT if small else lanes, count, session.spec, operator=operator)
    last = codec.word_count(codec.packets - 1)
    return 4 * (codec.word_count(0) * (codec.packets - 1) + last)

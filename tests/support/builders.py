"""The records that nearly every test needs: a job, a packet, and a reduction of an array, or of bytes with owners."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.numerics.fixed_point import DTYPES
from fanin.numerics.reduction import COPIED, Reduction
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import HEADER_BYTES, Kind, Packet

Array = npt.NDArray[Any]


def job_spec(**given: Any) -> JobSpec:
    """A small job of two workers that all must contribute, with a token for each; `given` fields win."""
    workers = given.get("workers", 2)
    fields: dict[str, Any] = {
        "job": 7,
        "generation": 0xABCD0123,
        "workers": workers,
        "quorum": workers,
        "slots": 4,
        "words_per_packet": 16,
        "tokens": tuple(0x1234_5678_9ABC_DE00 + worker for worker in range(workers)),
    }
    return JobSpec(**{**fields, **given})


def reduction(source: Array, destination: Array | None = None, **given: Any) -> Reduction:
    """A reduction of an array, in place unless there is a destination. bfloat16 and keep ranges by `given` fields.

    It keeps its arrays alive, unless an `owner` is given.
    """
    if destination is None:
        destination = source
    element = given.pop("element", None) or next(e for e, dtype in DTYPES.items() if np.dtype(dtype) == source.dtype)
    residual = given.pop("residual", None)
    fields: dict[str, Any] = {"count": len(source), "owner": (source, destination, residual), **given}
    return Reduction(
        source=source.ctypes.data,
        destination=destination.ctypes.data,
        element=element,
        residual=0 if residual is None else residual.ctypes.data,
        **fields,
    )


def to_worker(spec: JobSpec, kind: Kind, *, words: tuple[int, ...] = (), pad: bool = False, **fields: Any) -> bytes:
    """A packet of the switch to worker 0 of a job, without a tag; `pad` makes it as long as the longest."""
    padded = words + (0,) * ((spec.packet_bytes - HEADER_BYTES) // 4 - len(words)) if pad else words
    header = {"job": spec.job, "generation": spec.generation, "worker": 0, **fields}
    return Packet(kind=kind, words=np.array(padded, np.uint32), **header).to_bytes()


def moved(source: Array, first: int, count: int, output: Array, keep_first: int, **given: Any) -> Reduction:
    """A reduction of `count` bytes of which this worker owns `source` and keeps as many as `output` has."""
    owned = {"own_first": first, "own_count": len(source), "keep_first": keep_first, "keep_count": len(output)}
    return reduction(source, output, count=count, lanes=COPIED, **owned, **given)

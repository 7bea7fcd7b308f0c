"""Packets of every kind and shape, made by hand, for whatever must read all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from fanin.protocol.wire import MAX_CODES, SWITCH_WORKER, Flag, Kind, Packet, Reason


def words(*values: int) -> npt.NDArray[np.uint32]:
    """Words as a packet holds them."""
    return np.array(values, np.uint32)


_JOB: dict[str, Any] = {"job": 0x0102, "generation": 0xA1B2C3D4}
_TOKEN = words(0x01234567, 0x89ABCDEF)

HAND_BUILT: dict[str, Packet] = {
    "hello": Packet(kind=Kind.HELLO, worker=3, slot=1, words=_TOKEN, **_JOB),
    "welcome": Packet(kind=Kind.WELCOME, worker=3, slot=1, bitmap=0b1011, words=words(0b100, 0), **_JOB),
    "contribution": Packet(
        kind=Kind.CONTRIBUTION,
        worker=3,
        slot=7,
        base=12,
        signature=0xDEADBEEF,
        codes=(0x7F40, 0, 0xFFFF),
        words=words(0, 1, 0xFFFFFFFF, 0x80000000),
        **_JOB,
    ),
    "codes only": Packet(kind=Kind.CONTRIBUTION, worker=0, slot=7, codes=(1,), **_JOB),
    "words only": Packet(kind=Kind.CONTRIBUTION, worker=0, slot=7, words=words(5), **_JOB),
    "pass": Packet(kind=Kind.CONTRIBUTION, worker=1, flags=Flag.PASS, slot=9, base=1, **_JOB),
    "result": Packet(
        kind=Kind.RESULT,
        worker=SWITCH_WORKER,
        flags=Flag.CHECKSUM,
        slot=7,
        base=12,
        signature=0xDEADBEEF,
        bitmap=0b1111,
        contributors=4,
        codes=(0x7F40, 3),
        words=words(*range(16)),
        **_JOB,
    ),
    "bare answer": Packet(
        kind=Kind.ANSWER, worker=2, flags=Flag.BARE | Flag.CHECKSUM, slot=7, base=12, bitmap=0b1111, **_JOB
    ),
    "notice": Packet(kind=Kind.NOTICE, worker=2, contributors=Reason.WORKER_LOST, words=words(0b1, 0b10), **_JOB),
    "bye": Packet(kind=Kind.BYE, worker=3, words=_TOKEN, **_JOB),
    "probe": Packet(kind=Kind.PROBE, slot=4, words=words(*[0] * 100)),
    "echo": Packet(kind=Kind.ECHO, slot=4, words=words(*[0] * 100)),
    "most codes": Packet(kind=Kind.RESULT, codes=tuple(range(MAX_CODES)), words=words(1, 2), **_JOB),
}

_u8, _u16, _u32 = st.integers(0, 0xFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)

ANY_PACKET = st.builds(
    Packet,
    kind=st.sampled_from(Kind),
    job=_u16,
    worker=_u8,
    flags=st.integers(0, 7).map(Flag),
    generation=_u32,
    slot=_u32,
    base=_u32,
    signature=_u32,
    bitmap=_u32,
    contributors=_u16,
    codes=st.lists(_u16, max_size=MAX_CODES).map(tuple),
    words=st.lists(_u32, max_size=20).map(lambda values: words(*values)),
)

"""Lanes: several small integers in one 32-bit word, so that adding words adds every one of them.

A lane of L bits (16, 8 or 4) holds q + B, with q in [-B, B] and B = (2^L - 1) // (2 M): the sum of M of them is at most
2 B M <= 2^L - 1, so nothing is ever carried into the neighbour. The reader of a sum of c contributions subtracts c B.
32-bit lanes are plain two's complement with B = (2^31 - 1) // M. docs/numerics.md has the table of B.

Within a word the first element is the most significant: the order of elements is the order of bytes on the wire.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.numerics.reduction import LANES
from fanin.protocol.wire import WORD_BYTES

WORD_BITS = 8 * WORD_BYTES

Words = npt.NDArray[np.uint32]
"""Words in host order, shape (words,)."""


def largest_step(lanes: int, contributions: int) -> int:
    """B, the largest magnitude of one contribution in a lane where `contributions` are added.

    ConfigurationError for an illegal width, and where B would be 0.
    """
    if lanes not in LANES:
        raise ConfigurationError(f"lanes = {lanes}; must be one of {LANES}", "lanes")
    bound = _bound(lanes, contributions) if contributions > 0 else 0
    if bound < 1:
        wider = [width for width in sorted(LANES) if contributions > 0 and _bound(width, contributions) >= 1]
        remedy = f"take lanes = {wider[0]}" if wider else "take fewer workers or a smaller staleness"
        raise ConfigurationError(
            f"{lanes}-bit lanes cannot hold the sum of {contributions} contributions. Remedy: {remedy}"
        )
    return bound


def _bound(lanes: int, contributions: int) -> int:
    return ((1 << 31) - 1) // contributions if lanes == WORD_BITS else ((1 << lanes) - 1) // (2 * contributions)


def words_for(elements: int, lanes: int) -> int:
    """Words that `elements` lanes take; the last one may be padded."""
    per_word = WORD_BITS // lanes
    return -(-elements // per_word)


def pack(steps: npt.NDArray[np.int32], lanes: int, bound: int) -> Words:
    """Put each q of `steps`, shape (n,), into its lane; lanes that pad the last word hold q = 0."""
    if lanes == WORD_BITS:
        return steps.view(np.uint32).copy()
    per_word = WORD_BITS // lanes
    padded = np.zeros(words_for(len(steps), lanes) * per_word, np.int64)
    padded[: len(steps)] = steps
    shifts = np.arange(WORD_BITS - lanes, -1, -lanes)
    return np.asarray(((padded + bound).reshape(-1, per_word) << shifts).sum(axis=1), np.int64).astype(np.uint32)


def unpack(words: Words, lanes: int, count: int, bound: int, contributors: int) -> npt.NDArray[Any]:
    """The sums of q in the first `count` lanes of `words`, int64, shape (count,)."""
    if lanes == WORD_BITS:
        return words[:count].view(np.int32).astype(np.int64)
    shifts = np.arange(WORD_BITS - lanes, -1, -lanes)
    raw = words.astype(np.int64)[:, None] >> shifts & ((1 << lanes) - 1)
    return raw.reshape(-1)[:count] - contributors * bound

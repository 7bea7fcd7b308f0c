"""Blocks of consecutive elements: their squared norms, and which of them are not all zero.

    squares_b = sum of x_i^2 over the block: element i is added to partial sum i mod 16, in the order of i, and the
                partial sums are then added by halves: j and j + 8, j and j + 4, ...

The order is fixed, so native/kernels/gradient_blocks.cpp gives the same bits, and a restarted run those of a run
without interruption.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fanin.extension import native_extension

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

_NATIVE = native_extension(None)
_PARTIAL_SUMS = 16


def block_squares(x: Floats, block: int) -> Floats:
    """The squared norm of each `block` elements of x, shape (n,); the last block may be shorter."""
    if _NATIVE is None:
        return squares_oracle(x, block)
    squares = np.empty(-(-len(x) // block), np.float32)
    _NATIVE.block_squares_into(x, block, squares)
    return squares


def squares_oracle(x: Floats, block: int) -> Floats:
    """Compute `block_squares` in numpy: the reference of the native kernel."""
    blocks = -(-len(x) // block)
    padded = np.zeros((blocks, -(-block // _PARTIAL_SUMS) * _PARTIAL_SUMS), np.float32)
    whole = len(x) // block
    padded[:whole, :block] = x[: whole * block].reshape(whole, block)
    if whole < blocks:
        padded[whole, : len(x) - whole * block] = x[whole * block :]
    return row_squares(padded)


def row_squares(rows: Floats) -> Floats:
    """Squared norm of each row, in numpy; the length of a row is a multiple of 16."""
    partial = np.zeros((len(rows), _PARTIAL_SUMS), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, rows.shape[1], _PARTIAL_SUMS):
            part = rows[:, first : first + _PARTIAL_SUMS]
            partial += part * part
        half = _PARTIAL_SUMS // 2
        while half:
            partial[:, :half] += partial[:, half : 2 * half]
            half //= 2
    return partial[:, 0].copy()


def nonzero_blocks(x: Floats, block: int) -> Flags:
    """Return for each block of x whether any of its elements is not zero, shape (n,); NaN is not zero."""
    if _NATIVE is None:
        return nonzero_oracle(x, block)
    nonzero = np.empty(-(-len(x) // block), bool)
    _NATIVE.nonzero_blocks_into(x, block, nonzero)
    return nonzero


def nonzero_oracle(x: Floats, block: int) -> Flags:
    """Compute `nonzero_blocks` in numpy: the reference of the native kernel."""
    if not len(x):
        return np.empty(0, bool)
    return np.logical_or.reduceat(x != 0, np.arange(0, len(x), block))

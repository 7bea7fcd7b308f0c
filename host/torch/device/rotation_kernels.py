"""Triton kernels of the rotation (host/codecs/rotation.py): H D x per row, clipped, and back.

Rules
-----
* The rules of kernels.py hold here, too.
* Signs are flipped by their bit: Triton's `-v` is 0 - v, which loses the sign of zero.
* Butterflies are reshaped, split and joined: no other order of sums, as tl.dot would have.
* Squares are added in the order of host/codecs/blocks.py, sixteen columns of a row at a time, read again from the
  cache: no reduction of Triton promises an order.
"""

# No `from __future__ import annotations`: Triton reads annotations.

import triton
import triton.language as tl

from fanin.host.torch.device.kernels import INFINITY_BITS, MAGNITUDE_BITS, store_values

SIGN_BIT = tl.constexpr(-2147483648)
SMALL = tl.constexpr(2.0**-64)
RAISED = tl.constexpr(2.0**64)
ROOT_OF_RAISED_BACK = tl.constexpr(2.0**-32)


@triton.jit
def butterflies(v, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """H v of each row."""
    for k in tl.static_range(LOG):
        pairs = tl.reshape(v, (ROWS * (BLOCK // (2 << k)), 2, 1 << k))
        low, high = tl.split(tl.permute(pairs, (0, 2, 1)))
        v = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), (ROWS, BLOCK))
    return v


@triton.jit
def negative(v):
    """-v, of zero as well."""
    return (v.to(tl.int32, bitcast=True) ^ SIGN_BIT).to(tl.float32, bitcast=True)


@triton.jit
def signed(v, signs_ptr, at, inside):
    """D v: negative where bit `at` of the sign words is set."""
    word = tl.load(signs_ptr + at // 32, mask=inside, other=0)
    return tl.where(((word >> (at % 32)) & 1) != 0, negative(v), v)


@triton.jit
def finite_squares(squares):
    """Whether a row's squared norm, and with it the row, is finite."""
    return (squares.to(tl.int32, bitcast=True) & MAGNITUDE_BITS) < INFINITY_BITS


@triton.jit
def square_root(v):
    """Rounded to nearest, of subnormals too, which some Tritons' tl.sqrt_rn takes for zero."""
    small = v < SMALL
    root = tl.sqrt_rn(tl.where(small, v * RAISED, v))
    return tl.where(small, root * ROOT_OF_RAISED_BACK, root)


@triton.jit
def row_squares(v_ptr, row, there, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The squared norms of rows that this program has written, in the order of blocks.squares_oracle."""
    partial = tl.zeros((ROWS, 16), tl.float32)
    for first in range(0, BLOCK, 16):
        column = first + tl.arange(0, 16)[None, :]
        part = tl.load(v_ptr + row[:, None] * BLOCK + column, mask=there & (column < BLOCK), other=0.0)
        partial = partial + part * part
    for k in tl.static_range(4):  # j and j + 8, j and j + 4, ...
        low, high = tl.split(tl.permute(tl.reshape(partial, (ROWS, 2, 8 >> k)), (0, 2, 1)))
        partial = low + high
    return tl.reshape(partial, (ROWS,))


@triton.jit
def places(count, rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """This program's rows, the places of their elements, and which of the rows and of the elements there are."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = row[:, None] < rows
    return row, at, there, (at < count) & there


@triton.jit
def rotate(
    x_ptr,
    signs_ptr,
    owed_ptr,
    sent_ptr,
    cut_ptr,
    squares_ptr,
    count,
    rows,
    clip,
    scale,
    HAS_OWED: tl.constexpr,
    CLIPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LOG: tl.constexpr,
):
    """sent + cut = H D x + owed, `sent` clipped at `clip` root mean squares of its row."""
    row, at, there, inside = places(count, rows, ROWS, BLOCK)
    v = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    v = butterflies(signed(v, signs_ptr, at, inside), ROWS, BLOCK, LOG) * scale
    if HAS_OWED:
        v = v + tl.load(owed_ptr + at, mask=there, other=0.0)
    tl.store(sent_ptr + at, v, mask=there)
    tl.debug_barrier()  # what other threads have written is read next
    squares = row_squares(sent_ptr, row, there, ROWS, BLOCK)
    tl.debug_barrier()  # and written over after that
    tl.store(squares_ptr + row, squares, mask=row < rows)
    finite = finite_squares(squares)
    clipped = v
    if CLIPS:
        bound = clip * square_root(squares * (1.0 / BLOCK))  # BLOCK is a power of two
        bound = tl.where(finite, bound, float("inf"))[:, None]
        clipped = tl.where(v > bound, bound, v)
        clipped = tl.where(clipped < negative(bound), negative(bound), clipped)
    tl.store(sent_ptr + at, clipped, mask=there)
    tl.store(cut_ptr + at, tl.where(finite[:, None], v - clipped, 0.0), mask=there)


@triton.jit
def rotate_back(
    mean_ptr,
    signs_ptr,
    x_ptr,
    owed_ptr,
    cut_ptr,
    squares_ptr,
    count,
    rows,
    scale,
    HAS_CUT: tl.constexpr,
    HAS_OWED: tl.constexpr,
    SIXTEEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LOG: tl.constexpr,
):
    """x = D H mean. HAS_CUT: rows that were not finite owe again what they owed, which is nothing without HAS_OWED."""
    row, at, there, inside = places(count, rows, ROWS, BLOCK)
    v = tl.load(mean_ptr + at, mask=there, other=0.0)
    v = signed(butterflies(v, ROWS, BLOCK, LOG) * scale, signs_ptr, at, inside)
    store_values(x_ptr, at, inside, v, SIXTEEN)
    if HAS_CUT:
        squares = tl.load(squares_ptr + row, mask=row < rows, other=0.0)
        bad = there & (finite_squares(squares) == 0)[:, None]
        again = tl.zeros((ROWS, BLOCK), tl.float32)
        if HAS_OWED:
            again = tl.load(owed_ptr + at, mask=bad, other=0.0)
        tl.store(cut_ptr + at, again, mask=bad)

"""The randomized Hadamard rotation: it spreads a block's large elements over all of them.

    y = 2^(-k/2) H D x   per block of 2^k elements;   x = D 2^(-k/2) H y,   since H H = 2^k I and D D = I

D are random signs, fixed for a bucket; H is the Hadamard matrix in the order of plain butterflies. k is even, so the
factor is a power of two and exact. No multiplication is fused with an addition, so numpy and
native/kernels/gradient_kernels.cpp give the same bits.

`rotate_and_clip` and `rotate_back` are a codec's work on a bucket before and after its sum. The native kernels do all
of it to one block while that is in the cache (native/kernels/gradient_blocks.cpp).

Sources: Ailon and Chazelle, "The fast Johnson-Lindenstrauss transform", SIAM J. Comput. 2009; Suresh et al.,
"Distributed mean estimation with limited communication", ICML 2017; THC (Li et al., NSDI 2024).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fanin.extension import native_extension
from fanin.host.codecs.blocks import block_squares, squares_oracle
from fanin.host.codecs.philox import Uint32s, signs_of

Floats = npt.NDArray[np.float32]

LARGEST_BLOCK = 1024
_NATIVE = native_extension(None)


def block_for(count: int) -> int:
    """The block for a bucket of `count` elements: the largest, or the least power of four that holds all."""
    block = 1
    while block < min(count, LARGEST_BLOCK):
        block *= 4
    return block


def hadamard(x: Floats, block: int) -> None:
    """x = 2^(-k/2) H x in place, in blocks of 2^k = `block` elements; len(x) is a multiple of it."""
    if _NATIVE is None:
        oracle(x, block)
    else:
        _NATIVE.hadamard_in_place(x, block)


def oracle(x: Floats, block: int) -> None:
    """Compute `hadamard` in numpy: the reference of the native kernel."""
    half = 1
    while half < block:
        pairs = x.reshape(-1, 2, half)
        low, high = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        pairs[:, 0], pairs[:, 1] = low, high
        half *= 2
    x *= np.float32(block**-0.5)


def clip_blocks(blocks: Floats, squares: Floats, clip: np.float32) -> Floats:
    """Return a copy, each row clipped at `clip` times its root mean square; `squares`: the rows' squared norms.

    A row whose squared norm is not finite is not clipped: NaN must reach all workers.
    """
    if not np.isfinite(clip):
        return blocks.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        bound = np.where(np.isfinite(squares), clip * np.sqrt(squares / np.float32(blocks.shape[1])), np.inf)[:, None]
        clipped = np.where(blocks > bound, bound, blocks)
        return np.where(clipped < -bound, -bound, clipped)


def rotate_and_clip(
    x: Floats, signs: Uint32s, block: int, owed: Floats, clip: np.float32, sent: Floats, cut: Floats
) -> Floats:
    """Split H D x + owed into `sent`, clipped at `clip` root mean squares of a block, and `cut`, the rest.

    Returns the blocks' squared norms before clipping.
    x: shape (n,), taken as filled up with zeros to whole blocks. `signs`: a bit for each element of x
    (philox.signs_of). `owed`: as long as whole blocks, or empty. `sent`, `cut`: as long as whole blocks; `sent` may be
    x where n is whole blocks. In blocks that are not finite `cut` is 0.
    """
    if _NATIVE is None:
        return rotate_and_clip_oracle(x, signs, block, owed, clip, sent, cut)
    squares = np.empty(len(sent) // block, np.float32)
    _NATIVE.rotate_and_clip_into(x, signs, block, owed, float(clip), sent, cut, squares)
    return squares


def rotate_and_clip_oracle(
    x: Floats, signs: Uint32s, block: int, owed: Floats, clip: np.float32, sent: Floats, cut: Floats
) -> Floats:
    """Compute `rotate_and_clip` in numpy: the reference of the native kernel."""
    with np.errstate(invalid="ignore", over="ignore"):
        np.multiply(x, signs_of(signs, len(x)), out=sent[: len(x)])
        sent[len(x) :] = 0.0
        oracle(sent, block)
        if len(owed):
            sent += owed
        squares = squares_oracle(sent, block)
        rows, left = sent.reshape(-1, block), cut.reshape(-1, block)
        clipped = clip_blocks(rows, squares, clip)
        np.subtract(rows, clipped, out=left)
        left[~np.isfinite(squares)] = 0.0
        rows[:] = clipped
    return squares


def rotate_back(mean: Floats, signs: Uint32s, block: int, lost: Floats, owed: Floats, x: Floats) -> Floats:
    """Set x = D H mean and owed += lost; return the squared norms of the blocks of `owed`. `mean` is overwritten.

    Shapes and signs as in `rotate_and_clip`; x may be `mean`.
    """
    if _NATIVE is None:
        return rotate_back_oracle(mean, signs, block, lost, owed, x)
    squares = np.empty(len(mean) // block, np.float32)
    _NATIVE.rotate_back_into(mean, signs, block, lost, owed, squares, x)
    return squares


def rotate_back_oracle(mean: Floats, signs: Uint32s, block: int, lost: Floats, owed: Floats, x: Floats) -> Floats:
    """Compute `rotate_back` in numpy: the reference of the native kernel."""
    with np.errstate(invalid="ignore", over="ignore"):
        owed += lost
        oracle(mean, block)
        np.multiply(mean[: len(x)], signs_of(signs, len(x)), out=x)
        return block_squares(owed, block)

"""The randomized Hadamard rotation: it spreads a block's large elements over all of them.

    y = 2^(-k/2) H D x   per block of 2^k elements;   x = D 2^(-k/2) H y,   since H H = 2^k I and D D = I

D are random signs, fixed for a bucket; H is the Hadamard matrix in the order of plain butterflies. k is even, so the
factor is a power of two and exact. Nothing is fused, so numpy and native/gradient_kernels.cpp give the same bits.

Sources: Ailon and Chazelle, "The fast Johnson-Lindenstrauss transform", SIAM J. Comput. 2009; Suresh et al.,
"Distributed mean estimation with limited communication", ICML 2017; THC (Li et al., NSDI 2024).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fanin.extension import native_extension

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
    """The same in numpy."""
    half = 1
    while half < block:
        pairs = x.reshape(-1, 2, half)
        low, high = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        pairs[:, 0], pairs[:, 1] = low, high
        half *= 2
    x *= np.float32(block**-0.5)

"""Triton kernels of lanes: scale codes, words of a contribution, values of a sum (arithmetic.py says what each does).

Rules
-----
* Launches give `enable_fp_fusion=False`: no product may be contracted into a sum (tests/torch/device looks at the PTX).
* Divisions are tl.div_rn; powers of two are made of exponent bits; nothing uses exp2, log2 or `/`.
* The largest magnitude is a maximum of bit patterns: exact in any order, NaN above infinity above all numbers.
* tl.floor flushes subnormals, and is not used.
* A program has one block of elements that share a scale code. Its words come in tiles of shape (TILE, elements of a
  word), whose second dimension lies within a thread: lanes are put together without leaving it.
* Names in capitals are compiled in. BLOCK is among them so that loads of whole vectors can be proven to be aligned.
* PACKET_WORDS: of wide sums, whose packets of PACKET blocks have their words, and a shift, in a place of their own
  (arithmetic.py); 0 where words follow each other.

Kernels alone import triton; triton_arithmetic.py and weights.py import them when a GPU asks for it.
"""

# No `from __future__ import annotations`: Triton reads annotations.

import triton
import triton.language as tl

CODE_BIAS = tl.constexpr(32768)
CODE_ZERO = tl.constexpr(0)
CODE_NOT_FINITE = tl.constexpr(0xFFFF)
NO_CODE = tl.constexpr(0x7FFFFFFF)
INFINITY_BITS = tl.constexpr(0x7F800000)
MAGNITUDE_BITS = tl.constexpr(0x7FFFFFFF)
QUIET_NAN_BITS = tl.constexpr(0x7FC00000)
ROUNDER = tl.constexpr(12582912.0)
"""1.5 * 2^23: adding and subtracting it rounds |v| < 2^22 to nearest, ties to even."""
ROUNDED_BELOW = tl.constexpr(4194304.0)
UNIT = tl.constexpr(2.0**-24)


@triton.jit
def power_of_two(exponent):
    """2^exponent in float32, for -126..127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def uniform(index, key, bucket, step_low, step_high):
    """Number `index` of Randomness.uniform, in [0, 1)."""
    zero = index * 0
    counter = (index >> 2).to(tl.uint32)
    given = ((zero + bucket).to(tl.uint32), (zero + step_low).to(tl.uint32), (zero + step_high).to(tl.uint32))
    a, b, c, d = tl.philox(key, counter, given[0], given[1], given[2])
    place = index & 3
    word = tl.where(place == 0, a, tl.where(place == 1, b, tl.where(place == 2, c, d)))
    return (word >> 8).to(tl.float32) * UNIT


@triton.jit
def prepared(x_ptr, residual_ptr, factor, at, inside, HAS_FACTOR: tl.constexpr, HAS_RESIDUAL: tl.constexpr):
    """x * factor + residual in float32, each step rounded once."""
    v = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_FACTOR:
        v = v * factor
    if HAS_RESIDUAL:
        v = v + tl.load(residual_ptr + at, mask=inside, other=0.0)
    return v


@triton.jit
def scale_codes(
    x_ptr,
    residual_ptr,
    codes_ptr,
    count,
    factor,
    HAS_FACTOR: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    POWERS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """The own code of each block; POWERS: rounded up to powers of two, as lanes of 32 bits want them."""
    block = tl.program_id(0).to(tl.int64)
    first = block * BLOCK
    most = tl.zeros((TILE,), tl.int32)
    for start in range(0, BLOCK, TILE):
        within = start + tl.arange(0, TILE)
        inside = (within < BLOCK) & (first + within < count)
        v = prepared(x_ptr, residual_ptr, factor, first + within, inside, HAS_FACTOR, HAS_RESIDUAL)
        most = tl.maximum(most, v.to(tl.int32, bitcast=True) & MAGNITUDE_BITS)
    bits = tl.max(most, axis=0)
    # In float64 every float32 is normal: the top of its bits, rounded up, is the code.
    wide = bits.to(tl.float32, bitcast=True).to(tl.float64).to(tl.int64, bitcast=True)
    code = ((wide + ((1 << 47) - 1)) >> 47).to(tl.int32)
    code = tl.maximum(code, 32)
    if POWERS:
        code = ((code + 31) >> 5) << 5
    code = tl.where(bits == 0, CODE_ZERO, code)
    code = tl.where(bits >= INFINITY_BITS, CODE_NOT_FINITE, code)
    tl.store(codes_ptr + block, (code - CODE_BIAS).to(tl.int16))


@triton.jit
def mark(codes_ptr, marks_ptr, count, marks, rank, TILE: tl.constexpr):
    """The number of the first of `count` codes that is not finite, in the marks of `rank`; by one program."""
    first = tl.full((TILE,), NO_CODE, tl.int32)
    for start in range(0, count, TILE):
        at = start + tl.arange(0, TILE)
        code = tl.load(codes_ptr + at, mask=at < count, other=0).to(tl.int32) + CODE_BIAS
        first = tl.minimum(first, tl.where(code == CODE_NOT_FINITE, at, NO_CODE))
    lowest = tl.min(first, axis=0)
    for start in range(0, marks, TILE):
        at = start + tl.arange(0, TILE)
        half = tl.where(at % 2 == 0, lowest & 0x7FFF, lowest >> 15)
        own = (at // 2 == rank) & (lowest != NO_CODE)
        tl.store(marks_ptr + at, tl.where(own, half, -CODE_BIAS).to(tl.int16), mask=at < marks)


@triton.jit
def level(codes_ptr, count, TILE: tl.constexpr):
    """Every one of `count` codes becomes the largest; by one program."""
    most = tl.full((TILE,), -CODE_BIAS, tl.int32)
    for start in range(0, count, TILE):
        at = start + tl.arange(0, TILE)
        most = tl.maximum(most, tl.load(codes_ptr + at, mask=at < count, other=-CODE_BIAS).to(tl.int32))
    largest = tl.max(most, axis=0)
    tl.debug_barrier()  # every thread has read what others write now
    for start in range(0, count, TILE):
        at = start + tl.arange(0, TILE)
        tl.store(codes_ptr + at, (largest + 0 * at).to(tl.int16), mask=at < count)


@triton.jit
def scale_of(code, BITS: tl.constexpr, BOUND: tl.constexpr, EXPONENT: tl.constexpr):
    """(to_steps, to_steps', to_value, to_value', limit) of a code, as fixed_point.Codec has them."""
    if BITS == 32:
        power = tl.minimum(tl.maximum(((code + 31) >> 5) - 1023, -149), 128)
        shift = EXPONENT - power
        half = shift >> 1
        one, two = power_of_two(half), power_of_two(shift - half)
        half = (-shift) >> 1
        three, four = power_of_two(half), power_of_two(-shift - half)
        limit = power_of_two(EXPONENT + 0 * code)
    else:
        power = tl.minimum(tl.maximum((code >> 5) - 1023, -149), 128)
        mantissa = 1.0 + (code & 31).to(tl.float32) * 0.03125
        limit = mantissa * 0.0 + BOUND
        down = tl.minimum(tl.maximum(-power, -126), 127)
        up = tl.minimum(tl.maximum(power, -126), 127)
        # A quotient of small integers in float32 is the float64 one rounded: 53 >= 2 * 24 + 2 bits.
        one, two = power_of_two(down), tl.div_rn(limit, mantissa) * power_of_two(-power - down)
        three, four = tl.div_rn(mantissa, limit) * power_of_two(power - up), power_of_two(up)
    empty = (code == CODE_ZERO) | (code == CODE_NOT_FINITE)
    zero = one * 0.0
    return (
        tl.where(empty, zero, one),
        tl.where(empty, zero, two),
        tl.where(empty, zero, three),
        tl.where(empty, zero, four),
        tl.where(empty, zero, limit),
    )


@triton.jit
def rounded(v, BITS: tl.constexpr):
    """To the nearest integer, ties to even."""
    near = (v + ROUNDER) - ROUNDER
    if BITS == 32:  # a product of a float32 and a power of two may have a half beyond 2^22, too
        whole = v.to(tl.int32)  # towards zero
        left = v - whole.to(tl.float32)
        beyond = whole.to(tl.float32) + tl.where((whole & 1) != 0, left + left, 0.0)
        near = tl.where(tl.abs(v) >= ROUNDED_BELOW, beyond, near)
    return near


@triton.jit
def steps_of(v, one, two, limit, BITS: tl.constexpr):
    """q of x' under a scale, within the limit; NaN becomes the limit."""
    s = v * one * two
    s = tl.where(s < limit, s, limit)
    s = tl.where(s > -limit, s, -limit)
    return rounded(s, BITS)


@triton.jit
def elements_of(word, PER_WORD: tl.constexpr):
    """The elements of each word, shape (words, PER_WORD)."""
    return word[:, None] * PER_WORD + tl.arange(0, PER_WORD)[None, :]


@triton.jit
def lane_shifts(BITS: tl.constexpr, PER_WORD: tl.constexpr):
    """The shift of each lane of a word, the first one the most significant, shape (1, PER_WORD)."""
    return (32 - BITS - BITS * tl.arange(0, PER_WORD))[None, :]


@triton.jit
def first_word(block, BITS: tl.constexpr, BLOCK: tl.constexpr, PACKET: tl.constexpr, PACKET_WORDS: tl.constexpr):
    """Place of a block's words, of lanes of BITS."""
    per_word: tl.constexpr = 32 // BITS
    if PACKET_WORDS:
        place = block // PACKET * PACKET_WORDS + block % PACKET * (BLOCK // per_word)
    else:
        place = block * BLOCK // per_word
    return place


@triton.jit
def store_words(
    words_ptr,
    block,
    count,
    word,
    lane,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    PACKET: tl.constexpr,
    PACKET_WORDS: tl.constexpr,
):
    """Words of a tile of lanes; those of elements beyond `count` are part of the last word, or of wide sums' packet."""
    per_word: tl.constexpr = 32 // BITS
    words = tl.sum(lane << lane_shifts(BITS, per_word), axis=1)  # disjoint bits
    there = word * per_word < BLOCK
    if not PACKET_WORDS:
        there = there & (block * BLOCK + word * per_word < count)
    place = first_word(block, BITS, BLOCK, PACKET, PACKET_WORDS)
    tl.store(words_ptr + place + word, words.to(tl.int32), mask=there)


@triton.jit
def code_of(codes_ptr, block, count, BLOCK: tl.constexpr):
    """The code of a block; that of zeros for one beyond the last element, which a packet is filled up with."""
    there = block * BLOCK < count
    return tl.load(codes_ptr + block, mask=there, other=-CODE_BIAS).to(tl.int32) + CODE_BIAS


@triton.jit
def quantize(
    x_ptr,
    residual_ptr,
    codes_ptr,
    words_ptr,
    count,
    factor,
    HAS_FACTOR: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ADDS: tl.constexpr,
    BITS: tl.constexpr,
    BOUND: tl.constexpr,
    EXPONENT: tl.constexpr,
    BLOCK: tl.constexpr,
    PACKET: tl.constexpr,
    PACKET_WORDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The words of one contribution. ADDS: the residual is not part of the input, and gets the loss added."""
    block = tl.program_id(0).to(tl.int64)
    first = block * BLOCK
    code = code_of(codes_ptr, block, count, BLOCK)
    one, two, three, four, limit = scale_of(code, BITS, BOUND, EXPONENT)
    per_word: tl.constexpr = 32 // BITS
    for start in range(0, BLOCK // per_word, TILE):
        word = start + tl.arange(0, TILE)
        within = elements_of(word, per_word)
        inside = (within < BLOCK) & (first + within < count)
        v = prepared(x_ptr, residual_ptr, factor, first + within, inside, HAS_FACTOR, HAS_RESIDUAL and not ADDS)
        q = steps_of(v, one, two, limit, BITS)
        lane = q.to(tl.int32)
        if BITS != 32:
            lane = tl.where(inside, lane, 0) + BOUND
        store_words(words_ptr, block, count, word, lane, BITS, BLOCK, PACKET, PACKET_WORDS)
        if HAS_RESIDUAL:
            left = v - q * three * four
            if ADDS:
                left = tl.load(residual_ptr + first + within, mask=inside, other=0.0) + left
            tl.store(residual_ptr + first + within, left, mask=inside & (code != CODE_NOT_FINITE))


@triton.jit(do_not_specialize=("key", "bucket", "step_low", "step_high"))
def quantize_at_random(
    x_ptr,
    residual_ptr,
    codes_ptr,
    words_ptr,
    count,
    key,
    bucket,
    step_low,
    step_high,
    HAS_RESIDUAL: tl.constexpr,
    BITS: tl.constexpr,
    BOUND: tl.constexpr,
    BLOCK: tl.constexpr,
    PACKET: tl.constexpr,
    PACKET_WORDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The words of one contribution, rounded up or down at random, in float64: floor((x + residual) steps + u)."""
    block = tl.program_id(0).to(tl.int64)
    first = block * BLOCK
    code = code_of(codes_ptr, block, count, BLOCK)
    empty = (code == CODE_ZERO) | (code == CODE_NOT_FINITE)
    bound = tl.where(empty, 32 << 5, code).to(tl.int64) << 47
    bound = bound.to(tl.float64, bitcast=True)
    most = bound * 0.0 + BOUND
    per_unit = most / bound  # of float64, which is rounded to nearest
    unit = bound / most
    per_word: tl.constexpr = 32 // BITS
    for start in range(0, BLOCK // per_word, TILE):
        word = start + tl.arange(0, TILE)
        within = elements_of(word, per_word)
        inside = (within < BLOCK) & (first + within < count)
        v = prepared(x_ptr, residual_ptr, 1.0, first + within, inside, False, HAS_RESIDUAL)
        u = uniform(first + within, key, bucket, step_low, step_high)
        s = tl.floor(v.to(tl.float64) * per_unit + u.to(tl.float64))
        s = tl.where(s < most, s, most)
        s = tl.where(s > -most, s, -most)
        q = tl.where(inside & (not empty), s, 0.0)
        store_words(words_ptr, block, count, word, q.to(tl.int32) + BOUND, BITS, BLOCK, PACKET, PACKET_WORDS)
        if HAS_RESIDUAL:
            tl.store(residual_ptr + first + within, v - (q * unit).to(tl.float32), mask=inside & (not empty))


@triton.jit
def values_of(lane, code, shift, divisor, three, four):
    """The values in float32 that sums of q stand for."""
    y = tl.div_rn(lane.to(tl.float32), divisor) * (three * power_of_two(shift)) * four
    y = tl.where(code == CODE_ZERO, 0.0, y)
    nan = (0 * code + QUIET_NAN_BITS).to(tl.float32, bitcast=True)
    return tl.where(code == CODE_NOT_FINITE, nan, y)


@triton.jit
def store_values(out_ptr, at, inside, y, SIXTEEN: tl.constexpr):
    """y as float32, or as the bits of SIXTEEN ("bf16", "fp16"), whose NaN has numpy's payload and not the device's."""
    if SIXTEEN == "bf16":
        bits = y.to(tl.uint32, bitcast=True)
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(out_ptr + at, tl.where(y != y, (bits >> 16) | 0x40, near).to(tl.int16), mask=inside)
    elif SIXTEEN == "fp16":
        near = y.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
        sign = (y.to(tl.int32, bitcast=True) >> 16) & 0x8000
        tl.store(out_ptr + at, tl.where(y != y, sign | 0x7E00, near).to(tl.int16), mask=inside)
    else:
        tl.store(out_ptr + at, y, mask=inside)


@triton.jit
def dequantize(
    words_ptr,
    codes_ptr,
    failed_ptr,
    out_ptr,
    count,
    skip,
    divisor,
    offset,
    WATCHED: tl.constexpr,
    SIXTEEN: tl.constexpr,
    UP: tl.constexpr,
    DOWN: tl.constexpr,
    BOUND: tl.constexpr,
    EXPONENT: tl.constexpr,
    BLOCK: tl.constexpr,
    PACKET: tl.constexpr,
    PACKET_WORDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The values of elements skip..count. WATCHED: NaN where failed."""
    block = tl.program_id(0).to(tl.int64)
    first = block * BLOCK
    code = tl.load(codes_ptr + block).to(tl.int32) + CODE_BIAS
    if WATCHED:
        code = tl.where(tl.load(failed_ptr) != 0, CODE_NOT_FINITE, code)
    _, _, three, four, _ = scale_of(code, UP, BOUND, EXPONENT)
    per_word: tl.constexpr = 32 // DOWN
    shift = 0 * code
    if PACKET_WORDS:
        shift = tl.load(words_ptr + block // PACKET * PACKET_WORDS + PACKET * BLOCK // per_word)
    words_ptr += first_word(block, DOWN, BLOCK, PACKET, PACKET_WORDS)
    for start in range(0, BLOCK // per_word, TILE):
        word = start + tl.arange(0, TILE)
        there = (word * per_word < BLOCK) & (first + word * per_word < count)
        words = tl.load(words_ptr + word, mask=there, other=0)
        if DOWN == 32:
            lane = words[:, None]
        else:
            lane = ((words[:, None] >> lane_shifts(DOWN, per_word)) & ((1 << DOWN) - 1)) - offset
        within = elements_of(word, per_word)
        at = first + within
        inside = (within < BLOCK) & (at >= skip) & (at < count)
        store_values(out_ptr, at - skip, inside, values_of(lane, code, shift, divisor, three, four), SIXTEEN)

#include "kernels/weight_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/clones.hpp"
#include "kernels/floating_point.hpp"
#include "kernels/streaming.hpp"

namespace fanin {

namespace {

static_assert(std::endian::native == std::endian::little, "offset and delta travel as little-endian floats");

constexpr std::size_t WIDE = 16;
constexpr std::size_t STRETCH = 256;  // elements whose codes are packed together: a multiple of 8, and of WIDE
constexpr std::size_t NEAR = 1024;    // floats that stay in the first cache until they are copied past it
typedef float Wide __attribute__((vector_size(4 * WIDE)));
typedef std::uint32_t WideBits __attribute__((vector_size(4 * WIDE)));
typedef std::uint8_t WideBytes __attribute__((vector_size(WIDE)));

constexpr float ROUNDER = 12582912.0f;  // 1.5 2^23: added to 0..255 it rounds to even, with the integer in the low bits
constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

// Loads up to 16 elements; missing ones are replaced by the first.
__attribute__((always_inline)) inline void load(Wide& v, const float* x, std::size_t count) {
  if (count < WIDE) v = Wide{} + x[0];
  std::memcpy(&v, x, 4 * count);
}

__attribute__((always_inline)) inline float folded(const Wide& partial) {
  float sum = 0;
  for (std::size_t i = 0; i < WIDE; ++i) sum += partial[i];
  return sum;
}

struct Range {
  float low;
  float high;
};

// Least and greatest element; NaN if one is not finite.
FANIN_CLONES Range range_of(const float* x, std::size_t count) {
  Wide low = Wide{} + x[0], high = low, zero = {};
  for (std::size_t i = 0; i < count; i += WIDE) {
    Wide v;
    if (i + WIDE <= count)
      load(v, x + i, WIDE);
    else
      load(v, x + i, count - i);
    low = v < low ? v : low;
    high = v > high ? v : high;
    zero += v - v;
  }
  Range range = {low[0], high[0]};
  for (std::size_t place = 1; place < WIDE; ++place) {
    range.low = std::min(range.low, low[place]);
    range.high = std::max(range.high, high[place]);
  }
  return folded(zero) == 0 ? range : Range{NOT_A_NUMBER, NOT_A_NUMBER};
}

struct Grid {
  float offset;
  float delta;
  float largest;
};

// Codes of up to STRETCH elements, a byte each; bytes up to the next multiple of WIDE may be written as well.
FANIN_CLONES void codes_of(const Grid& grid, const float* x, std::size_t count, std::uint8_t* codes,
                           ShiftedLoss& loss) {
  const float divisor = grid.delta == 0 ? 1.0f : grid.delta;
  const Wide least = {}, most = Wide{} + grid.largest;
  Wide energy = {}, lost = {};
  for (std::size_t i = 0; i < count; i += WIDE) {
    const std::size_t given = std::min(count - i, WIDE);
    Wide v;
    if (given == WIDE)
      load(v, x + i, WIDE);
    else
      load(v, x + i, given);
    Wide level = (v - grid.offset) / divisor;
    level = level < least ? least : level;
    level = level > most ? most : level;
    const Wide rounded = level + ROUNDER;
    WideBits bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    const WideBytes bytes = __builtin_convertvector(bits & 0xFF, WideBytes);
    std::memcpy(codes + i, &bytes, sizeof bytes);
    Wide error = (rounded - ROUNDER) * grid.delta + grid.offset - v;
    Wide squares = v * v;
    error *= error;
    for (std::size_t place = given; place < WIDE; ++place) squares[place] = error[place] = 0;
    energy += squares;
    lost += error;
  }
  loss.energy += folded(energy);
  loss.lost += folded(lost);
}

// A plain loop, which the compiler vectorizes, because GCC 12 converts an explicit vector of bytes one by one.
FANIN_CLONES void values_of(const Grid& grid, const std::uint8_t* __restrict codes, std::size_t count,
                            float* __restrict out) {
  const float delta = grid.delta, offset = grid.offset;
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(static_cast<std::int32_t>(codes[i])) * delta + offset;
}

// One code after the other, the first in the lowest bits; `codes` has zeros up to a multiple of 8.
void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* into) {
  if (bits == 4) {
    for (std::size_t i = 0; i < count; i += 2) *into++ = static_cast<std::uint8_t>(codes[i] | codes[i + 1] << 4);
    return;
  }
  const std::size_t bytes = (count * bits + 7) / 8;
  for (std::size_t i = 0, at = 0; i < count; i += 4) {
    const std::uint32_t four = codes[i] | std::uint32_t{codes[i + 1]} << 6 | std::uint32_t{codes[i + 2]} << 12 |
                               std::uint32_t{codes[i + 3]} << 18;
    for (unsigned place = 0; place < 3 && at < bytes; ++place)
      into[at++] = static_cast<std::uint8_t>(four >> 8 * place);
  }
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) {
  if (bits == 4) {
    for (std::size_t i = 0; i < count; ++i) codes[i] = i % 2 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
    return;
  }
  const std::size_t bytes = (count * bits + 7) / 8;
  for (std::size_t i = 0, at = 0; i < count; i += 4) {
    std::uint32_t four = 0;
    for (unsigned place = 0; place < 3 && at < bytes; ++place) four |= std::uint32_t{packed[at++]} << 8 * place;
    for (std::size_t place = 0; place < 4 && i + place < count; ++place) codes[i + place] = four >> 6 * place & 63;
  }
}

}  // namespace

ShiftedLoss shifted_encode(const ShiftedGrid& grid, const float* x, const float* shifts, std::uint8_t* into) {
  const DefaultFloatingPoint arithmetic;
  const std::size_t buckets = grid.buckets();
  std::uint8_t *const offsets = into, *const deltas = into + 4 * buckets, *const packed = into + 8 * buckets;
  const float largest = static_cast<float>((1u << grid.bits) - 1);
  ShiftedLoss loss = {0, 0};
  for (std::size_t b = 0; b < buckets; ++b) {
    const std::size_t start = b * grid.bucket, stop = std::min(start + grid.bucket, grid.count);
    const Range range = range_of(x + start, stop - start);
    const float delta = (range.high - range.low) / largest;
    const bool finite = std::isfinite(delta);
    Grid own = {range.low + shifts[b] * delta, delta, largest};
    if (!finite) own.offset = own.delta = NOT_A_NUMBER;
    std::memcpy(offsets + 4 * b, &own.offset, 4);
    std::memcpy(deltas + 4 * b, &own.delta, 4);
    if (!finite) {
      std::memset(packed + start * grid.bits / 8, 0, ((stop - start) * grid.bits + 7) / 8);
      loss.lost = NOT_A_NUMBER;
      continue;
    }
    std::uint8_t codes[STRETCH];
    for (std::size_t first = start; first < stop; first += STRETCH) {
      const std::size_t count = std::min(STRETCH, stop - first);
      codes_of(own, x + first, count, codes, loss);
      std::memset(codes + count, 0, STRETCH - count);
      std::uint8_t* const to = packed + first * grid.bits / 8;
      if (grid.bits == 8)
        std::memcpy(to, codes, count);
      else
        pack(codes, count, grid.bits, to);
    }
  }
  return loss;
}

void shifted_decode(const ShiftedGrid& grid, const std::uint8_t* encoded, std::size_t first, std::size_t keep,
                    float* out, bool streams) {
  const DefaultFloatingPoint arithmetic;
  const std::size_t buckets = grid.buckets();
  const std::uint8_t* const packed = encoded + 8 * buckets;
  for (std::size_t at = first; at < first + keep;) {
    const std::size_t b = at / grid.bucket;
    std::size_t stop = std::min((b + 1) * grid.bucket, first + keep);
    Grid own = {0, 0, 0};
    std::memcpy(&own.offset, encoded + 4 * b, 4);
    std::memcpy(&own.delta, encoded + 4 * (buckets + b), 4);
    const std::uint8_t* codes = packed + at;
    std::uint8_t unpacked[STRETCH];
    if (grid.bits != 8) {
      const std::size_t aligned = at / 8 * 8;  // where codes begin with a byte
      stop = std::min(stop, aligned + STRETCH);
      unpack(packed + aligned * grid.bits / 8, stop - aligned, grid.bits, unpacked);
      codes = unpacked + (at - aligned);
    }
    float* const there = out + (at - first);
    if (streams) {
      float near[NEAR];
      stop = std::min(stop, at + NEAR);
      values_of(own, codes, stop - at, near);
      stream_copy(reinterpret_cast<std::uint8_t*>(there), reinterpret_cast<const std::uint8_t*>(near),
                  sizeof(float) * (stop - at));
    } else {
      values_of(own, codes, stop - at, there);
    }
    at = stop;
  }
}

}  // namespace fanin

#include "kernels/gradient_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/clones.hpp"
#include "kernels/floating_point.hpp"
#include "kernels/gradient_kernels.hpp"

namespace fanin {

namespace {

constexpr std::size_t WIDE = 16;  // partial sums of a block's squares, as in host/codecs/blocks.py
constexpr std::size_t WORD_SIGNS = 32;
typedef float Wide __attribute__((vector_size(4 * WIDE)));
typedef std::uint32_t WideBits __attribute__((vector_size(4 * WIDE)));

constexpr WideBits PLACES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr std::uint32_t SIGN = 0x80000000u;

__attribute__((always_inline)) inline float folded(Wide& partial) {
  for (std::size_t half = WIDE / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  return partial[0];
}

// Sum of squares: element i is added to partial sum i mod 16, and the partial sums are added by halves.
__attribute__((always_inline)) inline float squares_of(const float* x, std::size_t count) {
  Wide partial = {};
  std::size_t i = 0;
  for (; i + WIDE <= count; i += WIDE) {
    Wide v;
    std::memcpy(&v, x + i, sizeof v);
    partial += v * v;
  }
  for (std::size_t place = 0; i < count; ++i, ++place) partial[place] += x[i] * x[i];
  return folded(partial);
}

FANIN_CLONES float squares_of_block(const float* x, std::size_t count) { return squares_of(x, count); }

FANIN_CLONES bool any_nonzero(const float* x, std::size_t count) {
  WideBits found = {};
  std::size_t i = 0;
  for (; i + WIDE <= count; i += WIDE) {
    WideBits bits;
    std::memcpy(&bits, x + i, sizeof bits);
    found |= bits;
  }
  std::uint32_t all = 0;
  for (std::size_t place = 0; place < WIDE; ++place) all |= found[place];
  for (; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    all |= bits;
  }
  return (all & ~SIGN) != 0;
}

// to = D from, for elements from `first` of the bucket on; D changes signs (host/codecs/rotation.py).
FANIN_CLONES void with_signs(const std::uint32_t* signs, std::size_t first, const float* from, float* to,
                             std::size_t count) {
  std::size_t i = 0;
  if (first % WORD_SIGNS == 0)
    for (; i + WIDE <= count; i += WIDE) {
      const std::uint32_t word = signs[(first + i) / WORD_SIGNS] >> (i % WORD_SIGNS);
      WideBits bits;
      std::memcpy(&bits, from + i, sizeof bits);
      bits ^= ((WideBits{} + word) >> PLACES) << 31;
      std::memcpy(to + i, &bits, sizeof bits);
    }
  for (; i < count; ++i) {
    const std::uint32_t sign = signs[(first + i) / WORD_SIGNS] >> ((first + i) % WORD_SIGNS) << 31;
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    bits ^= sign;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

FANIN_CLONES void add(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

FANIN_CLONES void clip_at(float bound, float* __restrict v, float* __restrict cut, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float before = v[i];
    float after = before > bound ? bound : before;
    after = after < -bound ? -bound : after;
    v[i] = after;
    cut[i] = before - after;
  }
}

}  // namespace

void block_squares(const float* x, std::size_t count, std::size_t block, float* squares) {
  const DefaultFloatingPoint arithmetic;
  for (std::size_t first = 0; first < count; first += block)
    *squares++ = squares_of_block(x + first, std::min(block, count - first));
}

void nonzero_blocks(const float* x, std::size_t count, std::size_t block, bool* nonzero) {
  for (std::size_t first = 0; first < count; first += block)
    *nonzero++ = any_nonzero(x + first, std::min(block, count - first));
}

void rotate_and_clip(const Rotation& rotation, const float* x, const float* owed, float clip, float* sent, float* cut,
                     float* squares) {
  const DefaultFloatingPoint arithmetic;
  const std::size_t block = rotation.block;
  for (std::size_t first = 0; first < rotation.count; first += block) {
    float *const v = sent + first, *const left = cut + first;
    const std::size_t given = std::min(block, rotation.count - first);
    with_signs(rotation.signs, first, x + first, v, given);
    std::fill(v + given, v + block, 0.0f);
    hadamard(v, block, block);
    if (owed != nullptr) add(v, owed + first, block);
    const float square = *squares++ = squares_of_block(v, block);
    // A block that is not finite, or whose squares are not, is not clipped: NaN must reach everybody.
    if (std::isfinite(square) && std::isfinite(clip))
      clip_at(clip * std::sqrt(square / static_cast<float>(block)), v, left, block);
    else
      std::fill(left, left + block, 0.0f);
  }
}

void rotate_back(const Rotation& rotation, float* mean, const float* lost, float* owed, float* squares, float* x) {
  const DefaultFloatingPoint arithmetic;
  const std::size_t block = rotation.block;
  for (std::size_t first = 0; first < rotation.count; first += block) {
    add(owed + first, lost + first, block);
    *squares++ = squares_of_block(owed + first, block);
    hadamard(mean + first, block, block);
    with_signs(rotation.signs, first, mean + first, x + first, std::min(block, rotation.count - first));
  }
}

}  // namespace fanin

// The numerics: scale codes, quantizing, adding, dequantizing. docs/numerics.md is the specification and
// fanin/numerics/fixed_point.py the readable twin; both agree with this bit for bit.
//
// Every function takes unaligned buffers, allocates nothing and reads and writes no byte beyond what it is given.
// `words` are in wire order (big-endian), at the switch too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/reduction.hpp"

namespace fanin {

// How elements of one type become words that M contributions can be added in without overflow.
struct FixedPoint {
  FixedPoint() : FixedPoint(Element::float32, 32, 1) {}
  // `lanes`: requested bits of a lane; float64 and integers always take 32. Throws std::invalid_argument, with the
  // remedy, if `lanes` is none of 32, 16, 8, 4, or if so many contributions leave a lane no level.
  FixedPoint(Element element, std::uint32_t lanes, std::uint32_t contributions);

  bool operator==(const FixedPoint&) const = default;

  Element element;
  std::uint32_t lanes;
  std::uint32_t contributions;  // M = N (S_max + 1)
  std::int32_t bound;           // B: one contribution's lane holds -B..B (narrow lanes: plus B)
  int exponent;                 // k = floor(log2 B): the part of B that 32-bit lanes use
};

inline constexpr std::uint16_t CODE_ZERO = 0;             // every element of the block is zero
inline constexpr std::uint16_t CODE_NOT_FINITE = 0xFFFF;  // an element is NaN or Inf: the block becomes NaN everywhere

inline constexpr std::size_t WIDE_WORDS = 3;  // words of a float64

// Number of words for `elements`; the last one may be padded.
std::size_t words_for(const FixedPoint& codec, std::size_t elements);
// Number of elements that fill `words`.
std::size_t elements_per_packet(const FixedPoint& codec, std::size_t words);

// A chunk is `n` elements of the codec's type at `x`. Blocks of `block_elements` (whole words) share a scale code, so
// a chunk has ceil(n / block_elements) of them, in host order. Quantizing takes x * factor + residual; `residual`
// is one float per element, or null. Integers have no codes; block_elements, codes, factor and residual are ignored.
void scale_codes(const FixedPoint& codec, const void* x, std::size_t n, std::size_t block_elements, double factor,
                 const float* residual, std::uint16_t* codes);

// Writes words_for(codec, n) words in wire order. `codes` are the agreed ones: the maximum over all contributors.
void quantize(const FixedPoint& codec, const void* x, std::size_t n, std::size_t block_elements,
              const std::uint16_t* codes, double factor, const float* residual, std::uint8_t* words_be);

// Writes elements [skip, skip + keep) of the chunk's sum, divided by `divisor`, from `out` on. `contributors`: number
// of contributions in the words.
void dequantize(const FixedPoint& codec, const std::uint8_t* words_be, std::size_t n, std::size_t block_elements,
                const std::uint16_t* codes, std::uint32_t contributors, double divisor, std::size_t skip,
                std::size_t keep, void* out);

// Describes a sum that the switch has narrowed to lanes of `bits`, whatever the codec's lanes: a unit stands for
// 2^shift steps, and a lane of 0 holds `offset`.
struct Narrowed {
  std::uint32_t bits;
  std::int32_t offset;
  std::uint32_t shift;
};
void dequantize_narrowed(const FixedPoint& codec, const Narrowed& narrowed, const std::uint8_t* words_be, std::size_t n,
                         std::size_t block_elements, const std::uint16_t* codes, double divisor, std::size_t skip,
                         std::size_t keep, void* out);

// residual = (x * factor + residual) minus its quantized value; a block that is not finite keeps its residual. To be
// called before dequantize if the reduction is in place, because it reads x. Not for float64 and integers.
void update_residual(const FixedPoint& codec, const void* x, std::size_t n, std::size_t block_elements,
                     const std::uint16_t* codes, double factor, float* residual);

// Exact reductions: fanin/numerics/exact.py has the rules.
std::size_t exact_words(Element element, std::size_t elements);  // of one rank's elements
std::size_t exact_elements(Element element, std::size_t words);  // that fill one rank's words

// Writes exact_words(element, n) words in wire order: x, or x * factor + residual rounded to the element type.
void exact_encode(Element element, const void* x, std::size_t n, double factor, const float* residual,
                  std::uint8_t* words_be);
// residual = the loss of exact_encode's rounding. Not for float64 and integers.
void exact_residual(Element element, const void* x, std::size_t n, double factor, float* residual);

// All ranks' elements as words in wire order, part_bytes for each rank.
struct Parts {
  Element element;
  std::uint32_t ranks;
  std::uint32_t present;  // bit r: whether rank r of the first 32 counts
  std::size_t part_bytes;
  const std::uint8_t* words_be;
};
// Whether all of a rank's `n` elements, in wire order, are finite.
bool exact_finite(Element element, const std::uint8_t* part_be, std::size_t n);
// Writes elements [skip, skip + keep) of the result to `out`.
void exact_decode(const Parts& parts, Operator with, double divisor, std::size_t skip, std::size_t keep, void* out);

// At the switch: adds `count` inputs, 1..MAX_ADDED, of `n` words each, to the sum, or with `starts` sets the sum to
// their sum. No input overlaps the sum. Sums wrap around. One pass: the sum is read and written once for all inputs.
inline constexpr std::size_t MAX_ADDED = 4;
void add_words(std::uint8_t* sum_be, const std::uint8_t* const* in_be, std::size_t count, std::size_t n, bool starts);

// Accumulators, one for each lane, of 16 or 32 bits, which wrap around. They are ordered in planes: for lanes of U
// bits, plane p has lanes p, p + 8/U, p + 16/U, ..., one for each byte of the words.
struct LaneSums {
  std::uint8_t* at;
  std::uint32_t bytes_each;  // 2 or 4
};
// Adds `count` inputs, 1..MAX_ADDED, to the sums, or with `first` sets the sums to theirs: `bytes` of words in wire
// order each, all with the same `lanes`, as in a packet's header. One pass, as add_words. Returns the largest magnitude
// among the sums.
std::uint32_t accumulate_lanes(const LaneSums& sums, std::uint8_t lanes, const std::uint8_t* const* in,
                               std::size_t count, std::size_t bytes, bool first);
// Writes the sums of contributions of `bytes` each in lanes of the result, and returns their shift. `most`: the last
// result of accumulate_lanes.
std::uint32_t narrow_lanes(const LaneSums& sums, std::uint8_t lanes, std::size_t bytes, std::uint32_t most,
                           std::uint8_t* out);

void max_codes(std::uint8_t* codes_be, const std::uint8_t* in_be, std::size_t n);  // elementwise, both in wire order

// CRC-32 (IEEE 802.3), as zlib.crc32(data, start).
std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t start = 0);

// The implementation in use: "avx512", "avx2" or "portable", which all give the same bits. It is the best for this
// processor, unless FANIN_KERNELS names another. use_kernels returns false for an unknown one, or one that cannot run
// here.
const char* kernels_in_use();
bool use_kernels(const char* name);

}  // namespace fanin

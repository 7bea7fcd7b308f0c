// Chooses an implementation once, and has the functions that need no vector instructions.
#include "kernels/kernels.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/floating_point.hpp"
#include "kernels/kernel_table.hpp"
#include "wire/packet.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

namespace {

bool runs_here(const KernelTable& table) {
#if FANIN_X86_KERNELS
  __builtin_cpu_init();
  if (&table == &avx512_kernels) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && runs_here(avx2_kernels);
  }
  if (&table == &avx2_kernels) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("pclmul");
  }
#endif
  return &table == &portable_kernels;
}

constexpr const KernelTable* all_kernels[] = {
#if FANIN_X86_KERNELS
    &avx512_kernels, &avx2_kernels,
#endif
    &portable_kernels};

const KernelTable* find_kernels(const char* name) {
  for (const KernelTable* table : all_kernels) {
    if ((name == nullptr || std::strcmp(name, table->name) == 0) && runs_here(*table)) return table;
  }
  return nullptr;
}

// Ignores a name in the environment that cannot run here, instead of failing at import; kernels_in_use() reports the
// choice.
const KernelTable* first_choice() {
  const KernelTable* wished = find_kernels(std::getenv("FANIN_KERNELS"));
  return wished != nullptr ? wished : find_kernels(nullptr);
}

std::atomic<const KernelTable*> current{first_choice()};

const KernelTable& kernels() { return *current.load(std::memory_order_relaxed); }

}  // namespace

const char* kernels_in_use() { return kernels().name; }

bool use_kernels(const char* name) {
  const KernelTable* table = find_kernels(name);
  if (table != nullptr) current.store(table, std::memory_order_relaxed);
  return table != nullptr;
}

FixedPoint::FixedPoint(Element element_, std::uint32_t lanes_, std::uint32_t contributions_)
    : element(element_), lanes(lanes_), contributions(contributions_) {
  if (lanes != 32 && lanes != 16 && lanes != 8 && lanes != 4) {
    throw std::invalid_argument("lanes = " + std::to_string(lanes) + "; must be 32, 16, 8 or 4");
  }
  if (!is_floating(element) || element == Element::float64) lanes = 32;
  const std::uint64_t levels = lanes == 32 ? (1ull << 31) - 1 : (1ull << lanes) - 1;
  const std::uint64_t shares = lanes == 32 ? contributions : 2ull * contributions;
  if (contributions == 0 || levels / shares == 0) {
    throw std::invalid_argument(std::to_string(lanes) + "-bit lanes cannot hold " + std::to_string(contributions) +
                                " contributions; choose wider lanes");
  }
  bound = static_cast<std::int32_t>(levels / shares);
  exponent = std::bit_width(static_cast<std::uint32_t>(bound)) - 1;
}

namespace {

constexpr int CODE_MANTISSA_BITS = 5;
constexpr int CODE_BIAS = 1023;
constexpr int CODE_SHIFT = 52 - CODE_MANTISSA_BITS;

// 2^exponent for a normal result; no libm, so that it is the same everywhere.
float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23); }

double wide_power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// log2 of the power-of-two bound that covers the code, clamped to the range that honest senders of this type use.
int bound_exponent(std::uint16_t code, int lowest, int highest) {
  const int rounded_up = (code + (1 << CODE_MANTISSA_BITS) - 1) >> CODE_MANTISSA_BITS;
  return std::clamp(rounded_up - CODE_BIAS, lowest, highest);
}

}  // namespace

BlockScale block_scale(const FixedPoint& codec, std::uint16_t code) {
  if (code == CODE_ZERO || code == CODE_NOT_FINITE) return {};
  constexpr int lowest = -149, highest = 128;  // float32: the smallest subnormal, and a bound that covers the largest
  if (codec.lanes == 32) {
    const int shift = codec.exponent - bound_exponent(code, lowest, highest);
    return {{power_of_two(shift >> 1), power_of_two(shift - (shift >> 1))},
            {power_of_two(-shift >> 1), power_of_two(-shift - (-shift >> 1))},
            power_of_two(codec.exponent)};
  }
  const int exponent = std::clamp((code >> CODE_MANTISSA_BITS) - CODE_BIAS, lowest, highest);
  const double mantissa = 1.0 + (code & ((1 << CODE_MANTISSA_BITS) - 1)) / double(1 << CODE_MANTISSA_BITS);
  const double levels = codec.bound;
  const int down = std::clamp(-exponent, -126, 127), up = std::clamp(exponent, -126, 127);
  return {{power_of_two(down), static_cast<float>(levels / mantissa) * power_of_two(-exponent - down)},
          {static_cast<float>(mantissa / levels) * power_of_two(exponent - up), power_of_two(up)},
          static_cast<float>(codec.bound)};
}

WideScale wide_scale(const FixedPoint& codec, std::uint16_t code) {
  if (code == CODE_ZERO || code == CODE_NOT_FINITE) return {};
  const int shift = codec.exponent - bound_exponent(code, -1022, 1024);
  return {{wide_power_of_two(shift >> 1), wide_power_of_two(shift - (shift >> 1))},
          {wide_power_of_two(-shift >> 1), wide_power_of_two(-shift - (-shift >> 1))},
          wide_power_of_two(codec.exponent),
          wide_power_of_two(codec.exponent)};
}

std::uint16_t scale_code(const FixedPoint& codec, double magnitude) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(magnitude);
  if (bits == 0) return CODE_ZERO;
  if (bits >= 0x7FF0000000000000u) return CODE_NOT_FINITE;
  std::uint32_t code = static_cast<std::uint32_t>((bits + (1ull << CODE_SHIFT) - 1) >> CODE_SHIFT);
  code = std::max(code, 1u << CODE_MANTISSA_BITS);  // a float64 subnormal
  if (codec.lanes == 32) code = (code + 31) & ~31u;
  return static_cast<std::uint16_t>(code);
}

std::size_t words_for(const FixedPoint& codec, std::size_t elements) {
  if (codec.element == Element::float64) return WIDE_WORDS * elements;
  const std::size_t lanes_per_word = 32 / codec.lanes;
  return (elements + lanes_per_word - 1) / lanes_per_word;
}

std::size_t elements_per_packet(const FixedPoint& codec, std::size_t words) {
  return codec.element == Element::float64 ? words / WIDE_WORDS : words * (32 / codec.lanes);
}

void scale_codes(const FixedPoint& codec, const void* x, std::size_t n, std::size_t block_elements, double factor,
                 const float* residual, std::uint16_t* codes) {
  const DefaultFloatingPoint arithmetic;
  kernels().scale_codes(codec, x, n, block_elements, factor, residual, codes);
}

void quantize(const FixedPoint& codec, const void* x, std::size_t n, std::size_t block_elements,
              const std::uint16_t* codes, double factor, const float* residual, std::uint8_t* words_be) {
  const DefaultFloatingPoint arithmetic;
  kernels().quantize(codec, x, n, block_elements, codes, factor, residual, words_be);
}

void dequantize(const FixedPoint& codec, const std::uint8_t* words_be, std::size_t n, std::size_t block_elements,
                const std::uint16_t* codes, std::uint32_t contributors, double divisor, std::size_t skip,
                std::size_t keep, void* out) {
  const DefaultFloatingPoint arithmetic;
  kernels().dequantize(codec, words_be, n, block_elements, codes, contributors, divisor, skip, keep, out);
}

void dequantize_narrowed(const FixedPoint& codec, const Narrowed& narrowed, const std::uint8_t* words_be, std::size_t n,
                         std::size_t block_elements, const std::uint16_t* codes, double divisor, std::size_t skip,
                         std::size_t keep, void* out) {
  const DefaultFloatingPoint arithmetic;
  kernels().dequantize_narrowed(codec, narrowed, words_be, n, block_elements, codes, divisor, skip, keep, out);
}

void update_residual(const FixedPoint& codec, const void* x, std::size_t n, std::size_t block_elements,
                     const std::uint16_t* codes, double factor, float* residual) {
  const DefaultFloatingPoint arithmetic;
  kernels().update_residual(codec, x, n, block_elements, codes, factor, residual);
}

std::size_t exact_words(Element element, std::size_t elements) {
  return (elements * element_bytes(element) + WORD_BYTES - 1) / WORD_BYTES;
}

std::size_t exact_elements(Element element, std::size_t words) { return words * WORD_BYTES / element_bytes(element); }

void exact_encode(Element element, const void* x, std::size_t n, double factor, const float* residual,
                  std::uint8_t* words_be) {
  const DefaultFloatingPoint arithmetic;
  kernels().exact_encode(element, x, n, factor, residual, words_be);
}

void exact_residual(Element element, const void* x, std::size_t n, double factor, float* residual) {
  const DefaultFloatingPoint arithmetic;
  kernels().exact_residual(element, x, n, factor, residual);
}

namespace {

// `exponent`: the bits that are all set in NaN and infinity. The loop has no branch, so that it is vectorized.
template <typename Bits>
bool all_finite(const std::uint8_t* part_be, std::size_t n, Bits exponent) {
  Bits mask = 0;
  for (std::size_t i = 0; i < sizeof mask; ++i)
    reinterpret_cast<std::uint8_t*>(&mask)[i] = static_cast<std::uint8_t>(exponent >> 8 * (sizeof mask - 1 - i));
  Bits bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, part_be + i * sizeof bits, sizeof bits);
    bad |= static_cast<Bits>((bits & mask) == mask);
  }
  return bad == 0;
}

}  // namespace

bool exact_finite(Element element, const std::uint8_t* part_be, std::size_t n) {
  switch (element) {
    case Element::float32:
      return all_finite(part_be, n, std::uint32_t{0x7F800000});
    case Element::float64:
      return all_finite(part_be, n, std::uint64_t{0x7FF} << 52);
    case Element::float16:
      return all_finite(part_be, n, std::uint16_t{0x7C00});
    case Element::bfloat16:
      return all_finite(part_be, n, std::uint16_t{0x7F80});
    default:
      return true;
  }
}

void exact_decode(const Parts& parts, Operator with, double divisor, std::size_t skip, std::size_t keep, void* out) {
  const DefaultFloatingPoint arithmetic;
  kernels().exact_decode(parts, with, divisor, skip, keep, out);
}

void add_words(std::uint8_t* sum_be, const std::uint8_t* const* in_be, std::size_t count, std::size_t n, bool starts) {
  kernels().add_words(sum_be, in_be, count, n, starts);
}

std::uint32_t accumulate_lanes(const LaneSums& sums, std::uint8_t lanes, const std::uint8_t* const* in,
                               std::size_t count, std::size_t bytes, bool first) {
  return kernels().accumulate_lanes(sums, lanes, in, count, bytes, first);
}

std::uint32_t narrow_lanes(const LaneSums& sums, std::uint8_t lanes, std::size_t bytes, std::uint32_t most,
                           std::uint8_t* out) {
  const DefaultFloatingPoint arithmetic;
  return kernels().narrow_lanes(sums, lanes, bytes, most, out);
}

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t start) {
  return kernels().crc32(data, bytes, start);
}

void max_codes(std::uint8_t* codes_be, const std::uint8_t* in_be, std::size_t n) {
  for (std::size_t i = 0; i < n * CODE_BYTES; i += CODE_BYTES)
    store_be16(codes_be + i, std::max(load_be16(codes_be + i), load_be16(in_be + i)));
}

}  // namespace fanin

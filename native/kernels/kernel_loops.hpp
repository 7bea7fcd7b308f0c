// The kernels that are plain loops, which the compiler vectorizes: float64 over three words, integers, the switch's
// sums.
//
// Templates over the group type, though they do not use it, for the reason that kernel_body.hpp gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernel_table.hpp"

namespace fanin {

// The wanted elements of a chunk, [skip, end), and where the first of them is written.
struct Wanted {
  std::size_t skip, end;
  std::uint8_t* out;
};

template <class Simd>
struct KernelLoops {
  using Size = std::size_t;

  static Size least(Size a, Size b) { return a < b ? a : b; }
  static Size most(Size a, Size b) { return a > b ? a : b; }

  // ---- the switch

  static std::uint32_t get_word(const std::uint8_t* words_be, Size i) {
    std::uint32_t value;
    std::memcpy(&value, words_be + 4 * i, 4);
    return swap(value);
  }
  static void put_word(std::uint8_t* words_be, Size i, std::uint32_t value) {
    value = swap(value);
    std::memcpy(words_be + 4 * i, &value, 4);
  }
  static std::uint32_t swap(std::uint32_t value) {
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap32(value) : value;
  }

  // Adds the first `Count` inputs; the others are ignored.
  template <Size Count, bool Starts>
  static void add_some(std::uint8_t* __restrict sum_be, const std::uint8_t* __restrict a,
                       const std::uint8_t* __restrict b, const std::uint8_t* __restrict c,
                       const std::uint8_t* __restrict d, Size n) {
    for (Size i = 0; i < n; ++i) {
      std::uint32_t total = get_word(a, i);
      if constexpr (Count > 1) total += get_word(b, i);
      if constexpr (Count > 2) total += get_word(c, i);
      if constexpr (Count > 3) total += get_word(d, i);
      if constexpr (!Starts) total += get_word(sum_be, i);
      put_word(sum_be, i, total);
    }
  }

  template <bool Starts>
  static void add_up(std::uint8_t* sum_be, const std::uint8_t* const* in, Size count, Size n) {
    switch (count) {
      case 1:
        return add_some<1, Starts>(sum_be, in[0], in[0], in[0], in[0], n);
      case 2:
        return add_some<2, Starts>(sum_be, in[0], in[1], in[1], in[1], n);
      case 3:
        return add_some<3, Starts>(sum_be, in[0], in[1], in[2], in[2], n);
      default:
        return add_some<4, Starts>(sum_be, in[0], in[1], in[2], in[3], n);
    }
  }

  static void add_words(std::uint8_t* sum_be, const std::uint8_t* const* in_be, Size count, Size n, bool starts) {
    return starts ? add_up<true>(sum_be, in_be, count, n) : add_up<false>(sum_be, in_be, count, n);
  }

  // ---- integers: one word each, extended and truncated

  template <class Integer>
  static void widen(const std::uint8_t* x, Size n, std::uint8_t* words_be) {
    for (Size i = 0; i < n; ++i) {
      Integer value;
      std::memcpy(&value, x + i * sizeof value, sizeof value);
      put_word(words_be, i, static_cast<std::uint32_t>(static_cast<std::int32_t>(value)));
    }
  }

  template <class Integer>
  static void narrow(const std::uint8_t* words_be, const Wanted& wanted) {
    for (Size i = wanted.skip; i < wanted.end; ++i) {
      const Integer value = static_cast<Integer>(get_word(words_be, i));
      std::memcpy(wanted.out + (i - wanted.skip) * sizeof value, &value, sizeof value);
    }
  }

  // ---- float64

  static double wide_at(const std::uint8_t* x, Size i) {
    double value;
    std::memcpy(&value, x + i * sizeof value, sizeof value);
    return value;
  }

  // Rounds to nearest, ties to even, for magnitudes below 2^52.
  static double wide_round(double x) { return __builtin_copysign((__builtin_fabs(x) + 0x1p52) - 0x1p52, x); }

  static double wide_step(const std::uint8_t* words_be, Size i) {
    return static_cast<std::int32_t>(get_word(words_be, i));
  }

  static void wide_codes(const FixedPoint& codec, const std::uint8_t* x, Size n, Size block, double factor,
                         std::uint16_t* codes) {
    for (Size first = 0; first < n; first += block) {
      std::uint64_t largest = 0;
      for (Size i = first; i < least(first + block, n); ++i) {
        const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, wide_at(x, i) * factor) & ~(1ull << 63);
        largest = bits > largest ? bits : largest;
      }
      *codes++ = scale_code(codec, __builtin_bit_cast(double, largest));
    }
  }

  static void quantize_wide(const FixedPoint& codec, const std::uint8_t* x, Size n, Size block,
                            const std::uint16_t* codes, double factor, std::uint8_t* words_be) {
    for (Size first = 0; first < n; first += block) {
      const WideScale scale = wide_scale(codec, *codes++);
      const Size last = least(first + block, n);
      for (Size i = first; i < last; ++i) {
        double steps = wide_at(x, i) * factor * scale.to_steps[0] * scale.to_steps[1];
        steps = steps < scale.limit ? steps : scale.limit;
        steps = steps > -scale.limit ? steps : -scale.limit;
        for (Size word = 0; word < WIDE_WORDS; ++word) {
          const double whole = wide_round(steps);
          put_word(words_be, WIDE_WORDS * i + word, static_cast<std::uint32_t>(static_cast<std::int32_t>(whole)));
          steps = (steps - whole) * scale.low;
        }
      }
    }
  }

  static void dequantize_wide(const FixedPoint& codec, const std::uint8_t* words_be, Size block,
                              const std::uint16_t* codes, double divisor, const Wanted& wanted) {
    for (Size first = wanted.skip / block * block; first < wanted.end; first += block) {
      const std::uint16_t code = codes[first / block];
      const WideScale scale = wide_scale(codec, code);
      const double unit = 1.0 / scale.low;
      const Size to = least(first + block, wanted.end);
      for (Size i = most(first, wanted.skip); i < to; ++i) {
        double value = code == CODE_ZERO ? 0.0 : __builtin_nan("");
        if (code != CODE_ZERO && code != CODE_NOT_FINITE) {
          const double high = wide_step(words_be, WIDE_WORDS * i);
          const double middle = wide_step(words_be, WIDE_WORDS * i + 1);
          const double low = wide_step(words_be, WIDE_WORDS * i + 2);
          const double steps = high + (middle + low * unit) * unit;
          value = steps / divisor * scale.to_value[0] * scale.to_value[1];
        }
        std::memcpy(wanted.out + (i - wanted.skip) * sizeof value, &value, sizeof value);
      }
    }
  }
};

}  // namespace fanin

// The kernels of exact reductions, from elements to a rank's own words, and from all ranks' words to the result. The
// rules stand in fanin/numerics/exact.py. Plain loops over blocks that stay in the first cache; the compiler vectorizes
// them.
//
// Templates over the group type, though they do not use it, for the reason that kernel_body.hpp gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernel_table.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

// Traits of a floating point element: its type, and the integer type that holds its bits. It has no functions.
template <Element E>
struct Of;
template <>
struct Of<Element::float32> {
  using Bits = std::uint32_t;
};
template <>
struct Of<Element::float64> {
  using Bits = std::uint64_t;
};
template <>
struct Of<Element::float16> {
  using Bits = std::uint16_t;
};
template <>
struct Of<Element::bfloat16> {
  using Bits = std::uint16_t;
};

template <class Simd>
struct ExactLoops {
  using Size = std::size_t;
  static constexpr Size BLOCK = 128;       // elements
  static constexpr double ROOM = 0x1p-11;  // for the mean of float64 whose sum overflows: there are at most 1,024

  // ---- bits to and from the wire

  static std::uint8_t swapped(std::uint8_t bits) { return bits; }
  static std::uint16_t swapped(std::uint16_t bits) { return little() ? __builtin_bswap16(bits) : bits; }
  static std::uint32_t swapped(std::uint32_t bits) { return little() ? __builtin_bswap32(bits) : bits; }
  static std::uint64_t swapped(std::uint64_t bits) { return little() ? __builtin_bswap64(bits) : bits; }
  static constexpr bool little() { return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__; }

  template <class T>
  static T load(const void* at, Size i) {
    T value;
    std::memcpy(&value, static_cast<const std::uint8_t*>(at) + i * sizeof value, sizeof value);
    return value;
  }
  template <class T>
  static void store(void* at, Size i, T value) {
    std::memcpy(static_cast<std::uint8_t*>(at) + i * sizeof value, &value, sizeof value);
  }

  // ---- floats as their bits, to float64 and back, rounded once

  static double from_half(std::uint16_t half) {
    const std::uint32_t rest = half & 0x7FFFu, sign = half & 0x8000u;
    const std::uint32_t normal = (rest << 13) + ((127u - 15u) << 23);
    const std::uint32_t special = 0x7F800000u | (rest & 0x3FFu) << 13;
    const float magnitude = rest < 0x0400u ? static_cast<float>(static_cast<std::int32_t>(rest)) * 0x1p-24f
                                           : __builtin_bit_cast(float, rest < 0x7C00u ? normal : special);
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, magnitude) | sign << 16);
  }
  static double widened(std::uint32_t bits, Of<Element::float32>) { return __builtin_bit_cast(float, bits); }
  static double widened(std::uint64_t bits, Of<Element::float64>) { return __builtin_bit_cast(double, bits); }
  static double widened(std::uint16_t bits, Of<Element::float16>) { return from_half(bits); }
  static double widened(std::uint16_t bits, Of<Element::bfloat16>) {
    return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
  }

  // `value` as float32 rounded to odd: the last bit says whether anything was lost, so that rounding this to 16 bits
  // rounds `value` correctly.
  static std::uint32_t rounded_to_odd(double value) {
    const float near = static_cast<float>(value);
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, near);
    if (near == value || value != value) return bits;
    return (bits - (__builtin_fabs(static_cast<double>(near)) > __builtin_fabs(value))) | 1u;
  }
  static std::uint32_t narrowed(double value, Of<Element::float32>) {
    return value != value ? 0x7FC00000u : __builtin_bit_cast(std::uint32_t, static_cast<float>(value));
  }
  static std::uint64_t narrowed(double value, Of<Element::float64>) {
    return value != value ? std::uint64_t{0x7FF8} << 48 : __builtin_bit_cast(std::uint64_t, value);
  }
  static std::uint16_t narrowed(double value, Of<Element::bfloat16>) {
    if (value != value) return 0x7FC0u;
    const std::uint32_t bits = rounded_to_odd(value);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
  static std::uint16_t narrowed(double value, Of<Element::float16>) {
    if (value != value) return 0x7E00u;
    const std::uint32_t bits = rounded_to_odd(value);
    const std::uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (rest >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65,520 and up
    if (rest < 0x38800000u) {  // below 2^-14: a float addition rounds to multiples of 2^-24
      const float aligned = __builtin_bit_cast(float, rest) + 0.5f;
      return static_cast<std::uint16_t>(sign | (__builtin_bit_cast(std::uint32_t, aligned) - 0x3F000000u));
    }
    const std::uint32_t rounded = rest + 0xFFFu + (rest >> 13 & 1u);
    return static_cast<std::uint16_t>(sign | (rounded - ((127u - 15u) << 23)) >> 13);
  }

  // ---- one rank's elements

  template <class Bits>
  static void copy_swapped(const void* x, Size n, std::uint8_t* words_be) {
    for (Size i = 0; i < n; ++i) store(words_be, i, swapped(load<Bits>(x, i)));
  }

  template <Element E>
  static double corrected(const void* x, Size i, double factor, const float* residual) {
    const double value = widened(load<typename Of<E>::Bits>(x, i), Of<E>{}) * factor;
    return residual == nullptr ? value : value + load<float>(residual, i);
  }

  template <Element E>
  static void encode_floats(const void* x, Size n, double factor, const float* residual, std::uint8_t* words_be) {
    if (factor == 1.0 && residual == nullptr) return copy_swapped<typename Of<E>::Bits>(x, n, words_be);
    for (Size i = 0; i < n; ++i) store(words_be, i, swapped(narrowed(corrected<E>(x, i, factor, residual), Of<E>{})));
  }

  static void encode(Element element, const void* x, Size n, double factor, const float* residual,
                     std::uint8_t* words_be) {
    using enum Element;
    const Size bytes = n * element_bytes(element);
    for (Size at = bytes; at % WORD_BYTES != 0; ++at) words_be[at] = 0;
    switch (element) {
      case float32:
        return encode_floats<float32>(x, n, factor, residual, words_be);
      case float64:
        return encode_floats<float64>(x, n, factor, residual, words_be);
      case float16:
        return encode_floats<float16>(x, n, factor, residual, words_be);
      case bfloat16:
        return encode_floats<bfloat16>(x, n, factor, residual, words_be);
      case int32:
        return copy_swapped<std::uint32_t>(x, n, words_be);
      case int16:
        return copy_swapped<std::uint16_t>(x, n, words_be);
      case int64:
        return copy_swapped<std::uint64_t>(x, n, words_be);
      case int8:
      case uint8:
        return copy_swapped<std::uint8_t>(x, n, words_be);
    }
  }

  template <Element E>
  static void residual_floats(const void* x, Size n, double factor, float* residual) {
    for (Size i = 0; i < n; ++i) {
      const double exact = corrected<E>(x, i, factor, residual);
      const double sent = widened(narrowed(exact, Of<E>{}), Of<E>{});
      if (__builtin_isfinite(sent)) store(residual, i, static_cast<float>(exact - sent));
    }
  }

  static void residual(Element element, const void* x, Size n, double factor, float* residual) {
    using enum Element;
    switch (element) {
      case float32:
        return residual_floats<float32>(x, n, factor, residual);
      case float16:
        return residual_floats<float16>(x, n, factor, residual);
      case bfloat16:
        return residual_floats<bfloat16>(x, n, factor, residual);
      default:
        return;
    }
  }

  // ---- all ranks' elements

  static double lesser(double a, double b) {
    const bool first = a < b || (a == b && __builtin_signbit(a));
    return a != a || b != b ? __builtin_nan("") : first ? a : b;
  }
  template <Operator O>
  static double combined(double a, double b) {
    if constexpr (O == Operator::sum) return a + b;
    if constexpr (O == Operator::product) return a * b;
    if constexpr (O == Operator::min) return lesser(a, b);
    return -lesser(-a, -b);
  }
  // Products and sums are computed in unsigned 64 bits, and wrap around.
  template <Operator O, class Integer>
  static Integer combined_integers(Integer a, Integer b) {
    if constexpr (O == Operator::sum) return static_cast<Integer>(std::uint64_t(a) + std::uint64_t(b));
    if constexpr (O == Operator::product) return static_cast<Integer>(std::uint64_t(a) * std::uint64_t(b));
    if constexpr (O == Operator::min) return b < a ? b : a;
    if constexpr (O == Operator::max) return a < b ? b : a;
    if constexpr (O == Operator::band) return static_cast<Integer>(a & b);
    if constexpr (O == Operator::bor) return static_cast<Integer>(a | b);
    return static_cast<Integer>(a ^ b);
  }

  static bool is_present(const Parts& parts, std::uint32_t rank) {
    return rank >= 32 || (parts.present >> rank & 1) != 0;
  }
  static const std::uint8_t* part(const Parts& parts, std::uint32_t rank) {
    return parts.words_be + rank * parts.part_bytes;
  }

  // Combines elements [first, first + count) of all ranks, one rank after the other; 0 if no rank takes part.
  template <Operator O, Element E>
  static void fold_floats(const Parts& parts, Size first, Size count, double room, double* total) {
    bool any = false;
    for (std::uint32_t rank = 0; rank < parts.ranks; ++rank) {
      if (!is_present(parts, rank)) continue;
      const std::uint8_t* const words = part(parts, rank) + first * sizeof(typename Of<E>::Bits);
      if (!any) {
        for (Size i = 0; i < count; ++i) total[i] = value_at<E>(words, i) * room;
      } else {
        for (Size i = 0; i < count; ++i) total[i] = combined<O>(total[i], value_at<E>(words, i) * room);
      }
      any = true;
    }
    for (Size i = 0; i < count && !any; ++i) total[i] = 0.0;
  }
  template <Element E>
  static double value_at(const std::uint8_t* words_be, Size i) {
    return widened(swapped(load<typename Of<E>::Bits>(words_be, i)), Of<E>{});
  }

  template <Operator O, Element E>
  static void decode_floats(const Parts& parts, double divisor, Size skip, Size keep, void* out) {
    double total[BLOCK];
    for (Size done = 0; done < keep; done += BLOCK) {
      const Size count = keep - done < BLOCK ? keep - done : BLOCK;
      fold_floats<O, E>(parts, skip + done, count, 1.0, total);
      if (O == Operator::sum && divisor != 1.0) divide<E>(parts, skip + done, count, divisor, total);
      for (Size i = 0; i < count; ++i) store(out, done + i, narrowed(total[i], Of<E>{}));
    }
  }

  template <Element E>
  static void divide(const Parts& parts, Size first, Size count, double divisor, double* total) {
    for (Size i = 0; i < count; ++i) {
      if (E == Element::float64 && __builtin_isinf(total[i]) && all_finite(parts, first + i)) {
        double with_room;  // the sum overflows, the mean does not
        fold_floats<Operator::sum, E>(parts, first + i, 1, ROOM, &with_room);
        total[i] = with_room / divisor / ROOM;
      } else {
        total[i] /= divisor;
      }
    }
  }
  static bool all_finite(const Parts& parts, Size i) {
    for (std::uint32_t rank = 0; rank < parts.ranks; ++rank)
      if (is_present(parts, rank) && !__builtin_isfinite(value_at<Element::float64>(part(parts, rank), i)))
        return false;
    return true;
  }

  template <Operator O, class Integer>
  static void decode_integers(const Parts& parts, Size skip, Size keep, void* out) {
    using Bits = decltype(bits_of(Integer{}));
    Integer total[BLOCK];
    for (Size done = 0; done < keep; done += BLOCK) {
      const Size count = keep - done < BLOCK ? keep - done : BLOCK;
      bool any = false;
      for (std::uint32_t rank = 0; rank < parts.ranks; ++rank) {
        if (!is_present(parts, rank)) continue;
        const std::uint8_t* const words = part(parts, rank) + (skip + done) * sizeof(Integer);
        for (Size i = 0; i < count; ++i) {
          const auto value = static_cast<Integer>(swapped(load<Bits>(words, i)));
          total[i] = any ? combined_integers<O>(total[i], value) : value;
        }
        any = true;
      }
      for (Size i = 0; i < count; ++i) store(out, done + i, any ? total[i] : Integer{0});
    }
  }
  static std::uint8_t bits_of(std::int8_t);
  static std::uint8_t bits_of(std::uint8_t);
  static std::uint16_t bits_of(std::int16_t);
  static std::uint32_t bits_of(std::int32_t);
  static std::uint64_t bits_of(std::int64_t);

  template <Operator O>
  static void decode_element(const Parts& parts, double divisor, Size skip, Size keep, void* out) {
    using enum Element;
    if constexpr (O <= Operator::product) {
      switch (parts.element) {
        case float32:
          return decode_floats<O, float32>(parts, divisor, skip, keep, out);
        case float64:
          return decode_floats<O, float64>(parts, divisor, skip, keep, out);
        case float16:
          return decode_floats<O, float16>(parts, divisor, skip, keep, out);
        case bfloat16:
          return decode_floats<O, bfloat16>(parts, divisor, skip, keep, out);
        default:
          break;
      }
    }
    switch (parts.element) {
      case int32:
        return decode_integers<O, std::int32_t>(parts, skip, keep, out);
      case int16:
        return decode_integers<O, std::int16_t>(parts, skip, keep, out);
      case int8:
        return decode_integers<O, std::int8_t>(parts, skip, keep, out);
      case uint8:
        return decode_integers<O, std::uint8_t>(parts, skip, keep, out);
      case int64:
        return decode_integers<O, std::int64_t>(parts, skip, keep, out);
      default:
        return;  // bitwise operators on floats, which Operation refuses
    }
  }

  static void decode(const Parts& parts, Operator with, double divisor, Size skip, Size keep, void* out) {
    using enum Operator;
    switch (with) {
      case sum:
        return decode_element<sum>(parts, divisor, skip, keep, out);
      case min:
        return decode_element<min>(parts, divisor, skip, keep, out);
      case max:
        return decode_element<max>(parts, divisor, skip, keep, out);
      case product:
        return decode_element<product>(parts, divisor, skip, keep, out);
      case band:
        return decode_element<band>(parts, divisor, skip, keep, out);
      case bor:
        return decode_element<bor>(parts, divisor, skip, keep, out);
      case bxor:
        return decode_element<bxor>(parts, divisor, skip, keep, out);
    }
  }
};

}  // namespace fanin

// Groups of sixteen lanes in plain C++: the fallback, and the reference that the vector versions are tested against.
//
// The three simd_*.hpp have the same members. Floats and Ints hold sixteen 32-bit numbers in element order; `load`
// and `store` convert between the element type and float32, `load_lanes` and `store_lanes` between wire order and Ints.
#pragma once

#include <cstdint>
#include <cstring>

#include "wire/reduction.hpp"

namespace fanin {

struct PortableSimd {
  static constexpr std::size_t GROUP = 16;
  static constexpr std::size_t PARTS = 4;
  // Holds as many floats as a register of SSE2 or NEON; GCC and Clang do arithmetic on such vectors as on numbers.
  typedef float FloatPart __attribute__((vector_size(16)));
  typedef std::int32_t IntPart __attribute__((vector_size(16)));
  struct Floats {
    FloatPart part[PARTS];
  };
  struct Ints {
    IntPart part[PARTS];
  };

#define FANIN_EACH_PART(Result, expression)                              \
  Result result;                                                         \
  for (std::size_t i = 0; i < PARTS; ++i) result.part[i] = (expression); \
  return result

  static Floats floats(float value) { FANIN_EACH_PART(Floats, (FloatPart{value, value, value, value})); }
  static Ints ints(std::int32_t value) { FANIN_EACH_PART(Ints, (IntPart{value, value, value, value})); }
  static Floats multiply(const Floats& a, const Floats& b) { FANIN_EACH_PART(Floats, a.part[i] * b.part[i]); }
  static Floats divide(const Floats& a, const Floats& b) { FANIN_EACH_PART(Floats, a.part[i] / b.part[i]); }
  static Floats add(const Floats& a, const Floats& b) { FANIN_EACH_PART(Floats, a.part[i] + b.part[i]); }
  static Floats subtract(const Floats& a, const Floats& b) { FANIN_EACH_PART(Floats, a.part[i] - b.part[i]); }
  static Ints add(const Ints& a, const Ints& b) { FANIN_EACH_PART(Ints, wrapped(bits(a.part[i]) + bits(b.part[i]))); }
  static Ints subtract(const Ints& a, const Ints& b) {
    FANIN_EACH_PART(Ints, wrapped(bits(a.part[i]) - bits(b.part[i])));
  }
  // NaN becomes `high`, as the x86 minimum does: the comparison is false.
  static Floats clamp(const Floats& a, const Floats& low, const Floats& high) {
    Floats result;
    for (std::size_t i = 0; i < PARTS; ++i) {
      const FloatPart below = select(a.part[i] < high.part[i], a.part[i], high.part[i]);
      result.part[i] = select(below > low.part[i], below, low.part[i]);
    }
    return result;
  }
  // Nearest, ties to even, for magnitudes up to 2^30. Adding and taking away 2^23 leaves no bit for a fraction; what is
  // larger has none to begin with.
  static Ints round(const Floats& a) {
    constexpr float magic = 0x1p23f;
    const FloatPart limit{magic, magic, magic, magic};
    Ints result;
    for (std::size_t i = 0; i < PARTS; ++i) {
      const IntPart magnitude_bits = reinterpret<IntPart>(a.part[i]) & 0x7FFFFFFF;
      const FloatPart magnitude = reinterpret<FloatPart>(magnitude_bits);
      const FloatPart rounded = select(magnitude < limit, (magnitude + limit) - limit, magnitude);
      const IntPart sign = reinterpret<IntPart>(a.part[i]) ^ magnitude_bits;
      result.part[i] = __builtin_convertvector(reinterpret<FloatPart>(reinterpret<IntPart>(rounded) | sign), IntPart);
    }
    return result;
  }
  static Floats to_floats(const Ints& a) { FANIN_EACH_PART(Floats, __builtin_convertvector(a.part[i], FloatPart)); }
  // The bits without the sign: as integers they are ordered as the magnitudes are, infinity and NaN on top.
  static Ints magnitude_bits(const Floats& a) { FANIN_EACH_PART(Ints, reinterpret<IntPart>(a.part[i]) & 0x7FFFFFFF); }
  static Ints maximum(const Ints& a, const Ints& b) {
    FANIN_EACH_PART(Ints, select(a.part[i] > b.part[i], a.part[i], b.part[i]));
  }
#undef FANIN_EACH_PART
  static std::uint32_t largest(const Ints& a) {
    std::int32_t lane[GROUP], result = 0;
    std::memcpy(lane, a.part, sizeof lane);
    for (std::size_t i = 0; i < GROUP; ++i) result = lane[i] > result ? lane[i] : result;
    return static_cast<std::uint32_t>(result);
  }

  template <Element E>
  static Floats load(const std::uint8_t* at) {
    Floats result;
    if constexpr (E == Element::float32) {
      std::memcpy(result.part, at, sizeof result.part);
    } else {
      std::uint16_t halves[GROUP];
      float values[GROUP];
      std::memcpy(halves, at, sizeof halves);
      for (std::size_t i = 0; i < GROUP; ++i) {
        values[i] = E == Element::float16 ? from_half(halves[i]) : float_of(std::uint32_t{halves[i]} << 16);
      }
      std::memcpy(result.part, values, sizeof values);
    }
    return result;
  }
  template <Element E>
  static void store(std::uint8_t* at, const Floats& a) {
    if constexpr (E == Element::float32) {
      std::memcpy(at, a.part, sizeof a.part);
    } else {
      std::uint16_t halves[GROUP];
      float values[GROUP];
      std::memcpy(values, a.part, sizeof values);
      for (std::size_t i = 0; i < GROUP; ++i) {
        halves[i] = E == Element::float16 ? to_half(values[i]) : to_bfloat(values[i]);
      }
      std::memcpy(at, halves, sizeof halves);
    }
  }

  template <std::uint32_t L>
  static Ints load_lanes(const std::uint8_t* at) {
    std::uint32_t lane[GROUP];
    if constexpr (L == 32) {
      std::memcpy(lane, at, sizeof lane);
      for (std::size_t i = 0; i < GROUP; ++i) lane[i] = swap32(lane[i]);
    } else if constexpr (L == 16) {
      std::uint16_t narrow[GROUP];
      std::memcpy(narrow, at, sizeof narrow);
      for (std::size_t i = 0; i < GROUP; ++i) lane[i] = swap16(narrow[i]);
    } else if constexpr (L == 8) {
      for (std::size_t i = 0; i < GROUP; ++i) lane[i] = at[i];
    } else {
      for (std::size_t i = 0; i < GROUP; ++i) lane[i] = at[i / 2] >> (i % 2 == 0 ? 4 : 0) & 0xF;
    }
    Ints result;
    std::memcpy(result.part, lane, sizeof lane);
    return result;
  }
  template <std::uint32_t L>
  static void store_lanes(std::uint8_t* at, const Ints& a) {
    std::uint32_t lane[GROUP];
    std::memcpy(lane, a.part, sizeof lane);
    if constexpr (L == 32) {
      for (std::size_t i = 0; i < GROUP; ++i) lane[i] = swap32(lane[i]);
      std::memcpy(at, lane, sizeof lane);
    } else if constexpr (L == 16) {
      std::uint16_t narrow[GROUP];
      for (std::size_t i = 0; i < GROUP; ++i) narrow[i] = swap16(static_cast<std::uint16_t>(lane[i]));
      std::memcpy(at, narrow, sizeof narrow);
    } else if constexpr (L == 8) {
      for (std::size_t i = 0; i < GROUP; ++i) at[i] = static_cast<std::uint8_t>(lane[i]);
    } else {
      for (std::size_t i = 0; i < GROUP / 2; ++i) {
        at[i] = static_cast<std::uint8_t>(lane[2 * i] << 4 | lane[2 * i + 1]);
      }
    }
  }

 private:
  typedef std::uint32_t BitPart __attribute__((vector_size(16)));

  template <class To, class From>
  static To reinterpret(const From& from) {
    return __builtin_bit_cast(To, from);
  }
  static BitPart bits(const IntPart& value) { return reinterpret<BitPart>(value); }
  static IntPart wrapped(const BitPart& value) { return reinterpret<IntPart>(value); }
  // `first` where the mask has all bits set, `second` elsewhere.
  template <class Part>
  static Part select(const IntPart& mask, const Part& first, const Part& second) {
    return reinterpret<Part>((reinterpret<IntPart>(first) & mask) | (reinterpret<IntPart>(second) & ~mask));
  }

  // Converts between host and wire order by shifts, which are vectorized even without an instruction that shuffles
  // bytes.
  static std::uint32_t swap32(std::uint32_t value) {
    if constexpr (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) return value;
    return value << 24 | (value & 0xFF00u) << 8 | (value >> 8 & 0xFF00u) | value >> 24;
  }
  static std::uint16_t swap16(std::uint16_t value) {
    if constexpr (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) return value;
    return static_cast<std::uint16_t>(value << 8 | value >> 8);
  }

  static std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
  static float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

  static float from_half(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
    const std::uint32_t rest = half & 0x7FFFu;
    if (rest >= 0x7C00u) return float_of(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
    if (rest < 0x0400u) return __builtin_copysignf(static_cast<float>(rest) * 0x1p-24f, float_of(sign));
    return float_of(sign | ((rest << 13) + ((127u - 15u) << 23)));
  }
  // Rounds ties to even: adds just under half a unit of the last remaining place, and one more if that place is odd.
  static std::uint16_t to_half(float value) {
    const std::uint32_t sign = bits_of(value) >> 16 & 0x8000u;
    const std::uint32_t rest = bits_of(value) & 0x7FFFFFFFu;
    if (rest > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | (rest >> 13 & 0x3FFu));
    if (rest >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65,520 and up round to infinity
    if (rest < 0x38800000u) {  // below 2^-14: a float addition does the rounding to multiples of 2^-24
      const float aligned = float_of(rest) + 0.5f;
      return static_cast<std::uint16_t>(sign | (bits_of(aligned) - bits_of(0.5f)));
    }
    const std::uint32_t rounded = rest + 0xFFFu + (rest >> 13 & 1u);
    return static_cast<std::uint16_t>(sign | (rounded - ((127u - 15u) << 23)) >> 13);
  }
  static std::uint16_t to_bfloat(float value) {
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
};

}  // namespace fanin

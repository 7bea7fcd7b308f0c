// Groups of sixteen lanes in two AVX2 registers (with F16C). The members are those of simd_portable.hpp.
#pragma once

#include <immintrin.h>

#include "wire/reduction.hpp"

namespace fanin {

struct Avx2Simd {
  static constexpr std::size_t GROUP = 16;
  struct Floats {
    __m256 a, b;
  };
  struct Ints {
    __m256i a, b;
  };

  static Floats floats(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Ints ints(std::int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static Floats multiply(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static Floats divide(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static Floats subtract(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  // The minimum takes its second operand when the first is NaN: the order matters.
  static Floats clamp(Floats x, Floats low, Floats high) {
    return {_mm256_max_ps(_mm256_min_ps(x.a, high.a), low.a), _mm256_max_ps(_mm256_min_ps(x.b, high.b), low.b)};
  }
  static Ints round(Floats x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static Ints add(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static Ints subtract(Ints x, Ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
  static Ints magnitude_bits(Floats x) {
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    return {_mm256_and_si256(_mm256_castps_si256(x.a), mask), _mm256_and_si256(_mm256_castps_si256(x.b), mask)};
  }
  static Ints maximum(Ints x, Ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
  static std::uint32_t largest(Ints x) {
    const __m256i eight = _mm256_max_epi32(x.a, x.b);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(2, 3, 0, 1)));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
  }

  template <Element E>
  static Floats load(const std::uint8_t* at) {
    if constexpr (E == Element::float32) {
      const float* values = reinterpret_cast<const float*>(at);
      return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
    } else if constexpr (E == Element::float16) {
      return {_mm256_cvtph_ps(load128(at)), _mm256_cvtph_ps(load128(at + 16))};
    } else {
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(at)), 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(at + 16)), 16))};
    }
  }
  template <Element E>
  static void store(std::uint8_t* at, Floats x) {
    if constexpr (E == Element::float32) {
      float* values = reinterpret_cast<float*>(at);
      _mm256_storeu_ps(values, x.a);
      _mm256_storeu_ps(values + 8, x.b);
    } else if constexpr (E == Element::float16) {
      store128(at, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      store128(at + 16, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    } else {
      store256(at, pack16({bfloat_bits(x.a), bfloat_bits(x.b)}));
    }
  }

  template <std::uint32_t L>
  static Ints load_lanes(const std::uint8_t* at) {
    if constexpr (L == 32) {
      const __m256i swap = _mm256_broadcastsi128_si256(swap32());
      return {_mm256_shuffle_epi8(load256(at), swap), _mm256_shuffle_epi8(load256(at + 32), swap)};
    } else if constexpr (L == 16) {
      return {_mm256_cvtepu16_epi32(_mm_shuffle_epi8(load128(at), swap16())),
              _mm256_cvtepu16_epi32(_mm_shuffle_epi8(load128(at + 16), swap16()))};
    } else if constexpr (L == 8) {
      return from_bytes(load128(at));
    } else {
      const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)), low = _mm_set1_epi8(0x0F);
      const __m128i first = _mm_and_si128(_mm_srli_epi16(pairs, 4), low);
      return from_bytes(_mm_unpacklo_epi8(first, _mm_and_si128(pairs, low)));
    }
  }
  template <std::uint32_t L>
  static void store_lanes(std::uint8_t* at, Ints x) {
    if constexpr (L == 32) {
      const __m256i swap = _mm256_broadcastsi128_si256(swap32());
      store256(at, _mm256_shuffle_epi8(x.a, swap));
      store256(at + 32, _mm256_shuffle_epi8(x.b, swap));
    } else if constexpr (L == 16) {
      store256(at, _mm256_shuffle_epi8(pack16(x), _mm256_broadcastsi128_si256(swap16())));
    } else if constexpr (L == 8) {
      store128(at, pack8(x));
    } else {
      // first * 16 + second of every pair, in one instruction
      const __m128i pairs = _mm_maddubs_epi16(pack8(x), _mm_set1_epi16(0x0110));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_packus_epi16(pairs, pairs));
    }
  }

 private:
  static __m128i load128(const std::uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
  static __m256i load256(const std::uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  static void store128(std::uint8_t* at, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), x); }
  static void store256(std::uint8_t* at, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x); }
  static __m128i swap32() { return _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12); }
  static __m128i swap16() { return _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14); }

  // Sixteen numbers in 0..65535, or 0..255, narrowed in element order.
  static __m256i pack16(Ints x) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xD8); }
  static __m128i pack8(Ints x) {
    const __m256i wide = pack16(x);
    return _mm_packus_epi16(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  }
  static Ints from_bytes(__m128i bytes) {
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static __m256i bfloat_bits(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7FFF), _mm256_and_si256(top, _mm256_set1_epi32(1)));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
};

}  // namespace fanin

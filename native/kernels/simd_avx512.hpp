// Groups of sixteen lanes in one AVX-512 register (F, BW, DQ, VL). The members are those of simd_portable.hpp.
#pragma once

#include <immintrin.h>

#include "wire/reduction.hpp"

namespace fanin {

struct Avx512Simd {
  static constexpr std::size_t GROUP = 16;
  using Floats = __m512;
  using Ints = __m512i;

  static Floats floats(float value) { return _mm512_set1_ps(value); }
  static Ints ints(std::int32_t value) { return _mm512_set1_epi32(value); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  // The minimum takes its second operand when the first is NaN: the order matters.
  static Floats clamp(Floats a, Floats low, Floats high) { return _mm512_max_ps(_mm512_min_ps(a, high), low); }
  static Ints round(Floats a) { return _mm512_cvtps_epi32(a); }
  static Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
  static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
  static Ints magnitude_bits(Floats a) { return _mm512_and_si512(_mm512_castps_si512(a), ints(0x7FFFFFFF)); }
  static Ints maximum(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
  static std::uint32_t largest(Ints a) { return static_cast<std::uint32_t>(_mm512_reduce_max_epi32(a)); }

  template <Element E>
  static Floats load(const std::uint8_t* at) {
    if constexpr (E == Element::float32) {
      return _mm512_loadu_ps(at);
    } else if constexpr (E == Element::float16) {
      return _mm512_cvtph_ps(load256(at));
    } else {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(at)), 16));
    }
  }
  template <Element E>
  static void store(std::uint8_t* at, Floats a) {
    if constexpr (E == Element::float32) {
      _mm512_storeu_ps(at, a);
    } else if constexpr (E == Element::float16) {
      store256(at, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    } else {
      const Ints bits = _mm512_castps_si512(a), top = _mm512_srli_epi32(bits, 16);
      const Ints half = add(ints(0x7FFF), _mm512_and_si512(top, ints(1)));
      const Ints rounded = _mm512_srli_epi32(add(bits, half), 16), quiet = _mm512_or_si512(top, ints(0x40));
      const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
      store256(at, _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet)));
    }
  }

  template <std::uint32_t L>
  static Ints load_lanes(const std::uint8_t* at) {
    if constexpr (L == 32) {
      return _mm512_shuffle_epi8(_mm512_loadu_si512(at), _mm512_broadcast_i32x4(swap32()));
    } else if constexpr (L == 16) {
      return _mm512_cvtepu16_epi32(_mm256_shuffle_epi8(load256(at), _mm256_broadcastsi128_si256(swap16())));
    } else if constexpr (L == 8) {
      return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    } else {
      const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)), low = _mm_set1_epi8(0x0F);
      const __m128i first = _mm_and_si128(_mm_srli_epi16(pairs, 4), low);
      return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(first, _mm_and_si128(pairs, low)));
    }
  }
  template <std::uint32_t L>
  static void store_lanes(std::uint8_t* at, Ints a) {
    if constexpr (L == 32) {
      _mm512_storeu_si512(at, _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(swap32())));
    } else if constexpr (L == 16) {
      store256(at, _mm256_shuffle_epi8(_mm512_cvtepi32_epi16(a), _mm256_broadcastsi128_si256(swap16())));
    } else if constexpr (L == 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(a));
    } else {
      // first * 16 + second of every pair, in one instruction
      const __m128i pairs = _mm_maddubs_epi16(_mm512_cvtepi32_epi8(a), _mm_set1_epi16(0x0110));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_packus_epi16(pairs, pairs));
    }
  }

 private:
  static __m256i load256(const std::uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  static void store256(std::uint8_t* at, __m256i a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), a); }
  static __m128i swap32() { return _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12); }
  static __m128i swap16() { return _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14); }
};

}  // namespace fanin

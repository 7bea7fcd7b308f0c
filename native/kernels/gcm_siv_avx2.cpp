// Tags of AES-GCM-SIV for processors with AVX2 and carry-less multiplication in all of a register (VPCLMULQDQ).
#include "kernels/gcm_siv.hpp"

#if FANIN_X86_KERNELS

// Standard headers come first: what they define must be compiled for any x86-64.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#pragma GCC push_options
#pragma GCC target("aes,pclmul,vpclmulqdq,avx2")

#include "kernels/gcm_siv_body.hpp"

namespace fanin {

namespace {

struct TwoBlocks {
  using Vector = __m256i;
  static constexpr std::size_t COUNT = 2;
  static Vector load(const std::uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  template <typename Block>
  static Vector together(const Block& block) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(block(0)), block(1), 1);
  }
  static Vector zero() { return _mm256_setzero_si256(); }
  static Vector widened(__m128i block) { return _mm256_zextsi128_si256(block); }
  static Vector plus(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
  template <int HALVES>
  static Vector times(Vector a, Vector b) {
    return _mm256_clmulepi64_epi128(a, b, HALVES);
  }
  static Vector up(Vector a) { return _mm256_bslli_epi128(a, 8); }
  static Vector down(Vector a) { return _mm256_bsrli_epi128(a, 8); }
  static __m128i folded(Vector a) { return _mm_xor_si128(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)); }
};

}  // namespace

void gcm_siv_tags_of_two(std::span<const Tagged> datagrams, std::uint32_t* tags) {
  GcmSivBody<TwoBlocks>::tags(datagrams, tags);
}

}  // namespace fanin

#pragma GCC pop_options

#endif  // FANIN_X86_KERNELS

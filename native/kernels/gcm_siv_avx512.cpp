// Tags of AES-GCM-SIV for processors with AVX-512 and carry-less multiplication in all of a register (VPCLMULQDQ).
#include "kernels/gcm_siv.hpp"

#if FANIN_X86_KERNELS

// Standard headers come first: what they define must be compiled for any x86-64.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

// GCC's own intrinsics start from a deliberately undefined register, and GCC 12 warns of it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#pragma GCC push_options
#pragma GCC target("aes,pclmul,vpclmulqdq,avx2,avx512f,avx512bw,avx512vl")

#include "kernels/gcm_siv_body.hpp"

namespace fanin {

namespace {

struct FourBlocks {
  using Vector = __m512i;
  static constexpr std::size_t COUNT = 4;
  static Vector load(const std::uint8_t* at) { return _mm512_loadu_si512(at); }
  template <typename Block>
  static Vector together(const Block& block) {
    const __m256i half = _mm256_inserti128_si256(_mm256_castsi128_si256(block(0)), block(1), 1);
    const __m256i other = _mm256_inserti128_si256(_mm256_castsi128_si256(block(2)), block(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(half), other, 1);
  }
  static Vector zero() { return _mm512_setzero_si512(); }
  static Vector widened(__m128i block) { return _mm512_zextsi128_si512(block); }
  static Vector plus(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
  template <int HALVES>
  static Vector times(Vector a, Vector b) {
    return _mm512_clmulepi64_epi128(a, b, HALVES);
  }
  static Vector up(Vector a) { return _mm512_bslli_epi128(a, 8); }
  static Vector down(Vector a) { return _mm512_bsrli_epi128(a, 8); }
  static __m128i folded(Vector a) {
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  }
};

}  // namespace

void gcm_siv_tags_of_four(std::span<const Tagged> datagrams, std::uint32_t* tags) {
  GcmSivBody<FourBlocks>::tags(datagrams, tags);
}

}  // namespace fanin

#pragma GCC pop_options

#endif  // FANIN_X86_KERNELS

// Keys of AES-GCM-SIV, and its tags on processors with carry-less multiplication of one block at a time.
#include "kernels/gcm_siv.hpp"

#if FANIN_X86_KERNELS

// Standard headers come first: what they define must be compiled for any x86-64.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#pragma GCC push_options
#pragma GCC target("aes,pclmul,sse4.1")

#include "kernels/gcm_siv_body.hpp"

namespace fanin {

namespace {

struct OneBlock {
  using Vector = __m128i;
  static constexpr std::size_t COUNT = 1;
  static Vector load(const std::uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
  template <typename Block>
  static Vector together(const Block& block) {
    return block(0);
  }
  static Vector zero() { return _mm_setzero_si128(); }
  static Vector widened(__m128i block) { return block; }
  static Vector plus(Vector a, Vector b) { return _mm_xor_si128(a, b); }
  template <int HALVES>
  static Vector times(Vector a, Vector b) {
    return _mm_clmulepi64_si128(a, b, HALVES);
  }
  static Vector up(Vector a) { return _mm_slli_si128(a, 8); }
  static Vector down(Vector a) { return _mm_srli_si128(a, 8); }
  static __m128i folded(Vector a) { return a; }
};
using Body = GcmSivBody<OneBlock>;

template <int CONSTANT>
__m128i next_round_key(__m128i key) {
  __m128i mixed = _mm_xor_si128(key, _mm_slli_si128(key, 4));
  mixed = _mm_xor_si128(mixed, _mm_xor_si128(_mm_slli_si128(key, 8), _mm_slli_si128(key, 12)));
  return _mm_xor_si128(mixed, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, CONSTANT), 0xFF));
}

// FIPS 197, section 5.2.
void expand(__m128i key, __m128i (&rounds)[AES_ROUND_KEYS]) {
  rounds[0] = key;
  rounds[1] = next_round_key<0x01>(rounds[0]), rounds[2] = next_round_key<0x02>(rounds[1]);
  rounds[3] = next_round_key<0x04>(rounds[2]), rounds[4] = next_round_key<0x08>(rounds[3]);
  rounds[5] = next_round_key<0x10>(rounds[4]), rounds[6] = next_round_key<0x20>(rounds[5]);
  rounds[7] = next_round_key<0x40>(rounds[6]), rounds[8] = next_round_key<0x80>(rounds[7]);
  rounds[9] = next_round_key<0x1B>(rounds[8]), rounds[10] = next_round_key<0x36>(rounds[9]);
}

__m128i encrypted(const __m128i (&rounds)[AES_ROUND_KEYS], __m128i block) {
  block = _mm_xor_si128(block, rounds[0]);
  for (std::size_t round = 1; round + 1 < AES_ROUND_KEYS; ++round) block = _mm_aesenc_si128(block, rounds[round]);
  return _mm_aesenclast_si128(block, rounds[AES_ROUND_KEYS - 1]);
}

__m128i dot(__m128i a, __m128i b) {
  const __m128i middle = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10));
  return Body::reduced(_mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x00), _mm_slli_si128(middle, 8)),
                       _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x11), _mm_srli_si128(middle, 8)));
}

GcmSivKey made_ready(const std::array<std::uint8_t, AES_BLOCK_BYTES>& given,
                     const std::array<std::uint8_t, GCM_SIV_NONCE_BYTES>& nonce) {
  __m128i rounds[AES_ROUND_KEYS];
  expand(OneBlock::load(given.data()), rounds);
  // Each of four blocks gives half of a key (RFC 8452, section 4).
  alignas(AES_BLOCK_BYTES) std::uint64_t halves[4];
  for (std::uint32_t counter = 0; counter < std::size(halves); ++counter) {
    alignas(AES_BLOCK_BYTES) std::uint8_t block[AES_BLOCK_BYTES];
    std::memcpy(block, &counter, sizeof counter);
    std::memcpy(block + sizeof counter, nonce.data(), nonce.size());
    const __m128i half = encrypted(rounds, OneBlock::load(block));
    halves[counter] = static_cast<std::uint64_t>(_mm_cvtsi128_si64(half));
  }
  GcmSivKey key = {};
  std::memcpy(key.nonce, nonce.data(), nonce.size());
  const __m128i hash = _mm_set_epi64x(static_cast<long long>(halves[1]), static_cast<long long>(halves[0]));
  __m128i power = hash;
  for (std::size_t place = GcmSivKey::POWERS; place-- > 0; power = dot(power, hash))
    _mm_store_si128(reinterpret_cast<__m128i*>(key.powers[place]), power);
  expand(_mm_set_epi64x(static_cast<long long>(halves[3]), static_cast<long long>(halves[2])), rounds);
  std::memcpy(key.rounds, rounds, sizeof key.rounds);
  return key;
}

}  // namespace

void gcm_siv_tags_of_one(std::span<const Tagged> datagrams, std::uint32_t* tags) { Body::tags(datagrams, tags); }

GcmSivKey gcm_siv_key(const std::array<std::uint8_t, AES_BLOCK_BYTES>& key,
                      const std::array<std::uint8_t, GCM_SIV_NONCE_BYTES>& nonce) {
  return made_ready(key, nonce);
}

}  // namespace fanin

#pragma GCC pop_options

#endif  // FANIN_X86_KERNELS

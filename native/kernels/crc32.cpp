// CRC-32 (IEEE 802.3), reflected: by tables, eight bytes at a time (Kounavis and Berry, "Novel table lookup-based
// algorithms for high-performance CRC generation", 2008), or by carry-less multiplication, 64 bytes at a time (Gopal et
// al., "Fast CRC computation for generic polynomials using PCLMULQDQ instruction", Intel, 2009).
#include <array>
#include <cstring>

#include "kernels/kernel_table.hpp"

#if FANIN_X86_KERNELS
#include <immintrin.h>
#endif

namespace fanin {

namespace {

constexpr std::uint32_t POLYNOMIAL = 0xEDB88320u;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t table = 1; table < 8; ++table) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[table - 1][byte];
      tables[table][byte] = before >> 8 ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables TABLES = make_tables();

}  // namespace

std::uint32_t crc32_portable(const void* data, std::size_t bytes, std::uint32_t start) {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint32_t crc = ~start;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    const std::uint32_t low = crc ^ (at[0] | at[1] << 8 | at[2] << 16 | std::uint32_t{at[3]} << 24);
    crc = TABLES[7][low & 0xFF] ^ TABLES[6][low >> 8 & 0xFF] ^ TABLES[5][low >> 16 & 0xFF] ^ TABLES[4][low >> 24] ^
          TABLES[3][at[4]] ^ TABLES[2][at[5]] ^ TABLES[1][at[6]] ^ TABLES[0][at[7]];
  }
  for (; bytes > 0; --bytes, ++at) crc = crc >> 8 ^ TABLES[0][(crc ^ *at) & 0xFF];
  return ~crc;
}

#if FANIN_X86_KERNELS

#define FANIN_FOLDING __attribute__((target("pclmul,sse4.1")))

namespace {

constexpr std::size_t FOLD_BYTES = 64;

FANIN_FOLDING __m128i load(const std::uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }

// Folds 128 bits of the message forward onto `next`: `by` holds x^n mod P for the distance n, for either half.
FANIN_FOLDING __m128i fold(__m128i bits, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(bits, by, 0x00), high = _mm_clmulepi64_si128(bits, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// The register (not inverted) after `bytes`, a multiple of 16 and at least 64, starting from `crc`. The constants are
// those of the paper, page 22, for the reflected polynomial.
FANIN_FOLDING std::uint32_t folded(const std::uint8_t* at, std::size_t bytes, std::uint32_t crc) {
  const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  const __m128i by_32 = _mm_set_epi64x(0, 0x163cd6124), barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
  const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
  __m128i part[4] = {load(at), load(at + 16), load(at + 32), load(at + 48)};
  part[0] = _mm_xor_si128(part[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  for (at += FOLD_BYTES, bytes -= FOLD_BYTES; bytes >= FOLD_BYTES; at += FOLD_BYTES, bytes -= FOLD_BYTES) {
    for (int i = 0; i < 4; ++i) part[i] = fold(part[i], by_512, load(at + 16 * i));
  }
  __m128i bits = fold(fold(fold(part[0], by_128, part[1]), by_128, part[2]), by_128, part[3]);
  for (; bytes >= 16; at += 16, bytes -= 16) bits = fold(bits, by_128, load(at));
  // 128 bits to 64, to 32 (Barrett reduction).
  bits = _mm_xor_si128(_mm_srli_si128(bits, 8), _mm_clmulepi64_si128(bits, by_128, 0x10));
  bits = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(bits, low_words), by_32, 0x00), _mm_srli_si128(bits, 4));
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(bits, low_words), barrett, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), barrett, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(bits, quotient), 1));
}

}  // namespace

std::uint32_t crc32_folding(const void* data, std::size_t bytes, std::uint32_t start) {
  if (bytes < FOLD_BYTES) return crc32_portable(data, bytes, start);
  const auto* at = static_cast<const std::uint8_t*>(data);
  const std::size_t whole = bytes & ~std::size_t{15};
  return crc32_portable(at + whole, bytes - whole, ~folded(at, whole, ~start));
}

#endif  // FANIN_X86_KERNELS

}  // namespace fanin

// Copies with stores past the caches, for memory that is too large for them and not read again soon. An ordinary store
// reads the cache line first, so that memory is transferred three times instead of twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "wire/packet.hpp"

namespace fanin {

constexpr std::size_t STREAMED_BYTES = 4 << 20;  // results of this size or more do not stay in caches until their use

inline void stream_copy(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
#ifdef __SSE2__
  constexpr std::size_t LINE = 64, PIECE = sizeof(__m128i);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(to) % LINE;
  if (before >= bytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, before);
  std::size_t at = before;
  for (; at + LINE <= bytes; at += LINE) {
    for (std::size_t i = 0; i < LINE; i += PIECE) {
      const __m128i piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i), piece);
    }
  }
  _mm_sfence();  // before other threads are told that the memory is written
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

// Copies words in wire order past the caches, and converts them to host order; `to` is aligned to words. False, with
// nothing done, if the processor has no such stores.
inline bool stream_words([[maybe_unused]] std::uint8_t* to, [[maybe_unused]] const std::uint8_t* from,
                         [[maybe_unused]] std::size_t words) {
#ifdef __SSE2__
  constexpr std::size_t LINE = 64, PIECE = sizeof(__m128i);
  const auto one_by_one = [&](std::size_t count) {
    for (; count > 0; --count, --words, to += WORD_BYTES, from += WORD_BYTES) {
      const std::uint32_t word = load_be32(from);
      std::memcpy(to, &word, sizeof word);
    }
  };
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(to) % LINE / WORD_BYTES;
  one_by_one(before < words ? before : words);
  for (; words >= LINE / WORD_BYTES; words -= LINE / WORD_BYTES, to += LINE, from += LINE) {
    for (std::size_t i = 0; i < LINE; i += PIECE) {
      __m128i piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      piece = _mm_or_si128(_mm_slli_epi16(piece, 8), _mm_srli_epi16(piece, 8));  // bytes, then halves
      piece = _mm_shufflehi_epi16(_mm_shufflelo_epi16(piece, _MM_SHUFFLE(2, 3, 0, 1)), _MM_SHUFFLE(2, 3, 0, 1));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), piece);
    }
  }
  _mm_sfence();
  one_by_one(words);
  return true;
#else
  return false;
#endif
}

}  // namespace fanin

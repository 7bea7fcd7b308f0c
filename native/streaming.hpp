// Copies past the caches: to memory that is too large for them, and is not read again soon. An ordinary store reads the line
// first, which makes three transfers of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace fanin {

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
  _mm_sfence();  // whoever is told that it is there finds it
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace fanin

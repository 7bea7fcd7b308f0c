// The packet's own CRC-32, over the datagram with the checksum field zero.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.hpp"
#include "wire/packet.hpp"

namespace fanin {

inline std::uint32_t datagram_checksum(std::span<const std::uint8_t> datagram) {
  constexpr std::uint8_t zero[WORD_BYTES] = {};
  std::uint32_t crc = crc32(datagram.data(), OFFSET_CHECKSUM);
  crc = crc32(zero, WORD_BYTES, crc);
  return crc32(datagram.data() + HEADER_BYTES, datagram.size() - HEADER_BYTES, crc);
}

// Fills in the checksum of a complete datagram.
inline void seal(std::span<std::uint8_t> datagram) {
  store_be32(datagram.data() + OFFSET_CHECKSUM, datagram_checksum(datagram));
}

// Whether a well-formed datagram's checksum is right; true when it carries none.
inline bool checksum_holds(std::span<const std::uint8_t> datagram) {
  return (datagram[OFFSET_FLAGS] & FLAG_CHECKSUM) == 0 ||
         load_be32(datagram.data() + OFFSET_CHECKSUM) == datagram_checksum(datagram);
}

}  // namespace fanin

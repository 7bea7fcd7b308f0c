// SipHash-2-4: a short tag that only who has the key can make (Aumasson, Bernstein, INDOCRYPT 2012).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fanin {

struct SipKey {
  std::uint64_t low = 0;   // the key's first eight bytes, as a little-endian number
  std::uint64_t high = 0;  // its last eight
};

constexpr std::uint64_t siphash24(const SipKey& key, std::span<const std::uint8_t> message) {
  std::uint64_t v0 = 0x736F'6D65'7073'6575 ^ key.low, v1 = 0x646F'7261'6E64'6F6D ^ key.high;
  std::uint64_t v2 = 0x6C79'6765'6E65'7261 ^ key.low, v3 = 0x7465'6462'7974'6573 ^ key.high;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1, v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1, v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  };
  const auto take = [&](std::uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  };
  const std::size_t whole = message.size() / 8 * 8;
  for (std::size_t at = 0; at < whole; at += 8) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < 8; ++i) word |= std::uint64_t{message[at + i]} << 8 * i;
    take(word);
  }
  std::uint64_t last = static_cast<std::uint64_t>(message.size()) << 56;
  for (std::size_t i = whole; i < message.size(); ++i) last |= std::uint64_t{message[i]} << 8 * (i - whole);
  take(last);
  v2 ^= 0xFF;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

namespace siphash_vectors {

// The paper's example (appendix A), and two of the reference implementation's table: key 00 01 .. 0f, message 00 01 ...
inline constexpr SipKey KEY = {0x0706'0504'0302'0100, 0x0F0E'0D0C'0B0A'0908};
inline constexpr std::uint8_t MESSAGE[15] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
static_assert(siphash24(KEY, MESSAGE) == 0xA129'CA61'49BE'45E5);
static_assert(siphash24(KEY, {}) == 0x726F'DB47'DD0E'0E31);
static_assert(siphash24(KEY, std::span(MESSAGE).first(8)) == 0x93F5'F579'9A93'2462);

}  // namespace siphash_vectors

}  // namespace fanin

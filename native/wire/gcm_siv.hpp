// The tag of AES-128-GCM-SIV (RFC 8452) for associated data alone, on processors with instructions for AES and
// carry-less multiplication. fanin/protocol/gcm_siv.py is a readable version in Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fanin {

inline constexpr std::size_t AES_BLOCK_BYTES = 16;
inline constexpr std::size_t GCM_SIV_NONCE_BYTES = 12;
inline constexpr std::size_t AES_ROUND_KEYS = 11;

// The keys derived from one key and one nonce, expanded for use.
struct alignas(64) GcmSivKey {
  static constexpr std::size_t POWERS = 32;  // number of blocks that are multiplied before their sum is reduced

  std::uint8_t powers[POWERS][AES_BLOCK_BYTES];          // powers of the hash key, the highest first
  std::uint8_t rounds[AES_ROUND_KEYS][AES_BLOCK_BYTES];  // round keys of AES
  std::uint8_t nonce[AES_BLOCK_BYTES];                   // padded with zeros
};

// Whether this processor has the instructions; without them there are no keys and no tags.
bool gcm_siv_runs_here();
GcmSivKey gcm_siv_key(const std::array<std::uint8_t, AES_BLOCK_BYTES>& key,
                      const std::array<std::uint8_t, GCM_SIV_NONCE_BYTES>& nonce);

}  // namespace fanin

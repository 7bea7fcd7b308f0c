#include "p4/p4_code.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/kernels.hpp"

namespace fanin::p4 {

namespace {

std::uint16_t internet_checksum(const std::uint8_t* data, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 1 < bytes; at += 2) sum += static_cast<std::uint64_t>(data[at] << 8 | data[at + 1]);
  if (bytes % 2) sum += static_cast<std::uint64_t>(data[bytes - 1] << 8);
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

std::uint16_t crc16(const std::uint8_t* data, std::size_t bytes) {
  std::uint16_t remainder = 0;
  for (std::size_t at = 0; at < bytes; ++at) {
    remainder = static_cast<std::uint16_t>(remainder ^ data[at]);
    for (int bit = 0; bit < 8; ++bit)
      remainder = static_cast<std::uint16_t>(remainder >> 1 ^ (remainder & 1 ? 0xA001 : 0));
  }
  return remainder;
}

std::uint16_t ccitt(const std::uint8_t* data, std::size_t bytes) {
  std::uint16_t remainder = 0xFFFF;
  for (std::size_t at = 0; at < bytes; ++at) {
    remainder = static_cast<std::uint16_t>(remainder ^ data[at] << 8);
    for (int bit = 0; bit < 8; ++bit)
      remainder = static_cast<std::uint16_t>(remainder << 1 ^ (remainder & 0x8000 ? 0x1021 : 0));
  }
  return remainder;
}

std::uint64_t identity(const std::uint8_t* data, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t at = 0; at < std::min<std::size_t>(bytes, 8); ++at) value = value << 8 | data[at];
  return value;
}

std::uint64_t big_endian(std::uint64_t value) {
  return std::endian::native == std::endian::little ? __builtin_bswap64(value) : value;
}

std::uint16_t xor16(const std::uint8_t* data, std::size_t bytes) {
  std::uint16_t folded = 0;
  for (std::size_t at = 0; at < bytes; ++at)
    folded = static_cast<std::uint16_t>(folded ^ (at % 2 ? data[at] : data[at] << 8));
  return folded;
}

}  // namespace

std::uint64_t hash_of(Hash algorithm, const std::uint8_t* data, std::size_t bytes) {
  switch (algorithm) {
    case Hash::internet:
      return internet_checksum(data, bytes);
    case Hash::crc16:
      return crc16(data, bytes);
    case Hash::crc32:
      return fanin::crc32(data, bytes);
    case Hash::ccitt:
      return ccitt(data, bytes);
    case Hash::identity:
      return identity(data, bytes);
    case Hash::xor16:
      return xor16(data, bytes);
  }
  return 0;
}

void BitWriter::put(std::uint64_t value, unsigned bits) {
  if (rest_bits_ != 0 || bits % 8 != 0) {
    if (bits > 32) {
      put(value >> 32, bits - 32);
      bits = 32;
    }
    value &= (std::uint64_t{1} << bits) - 1;
    rest_ = rest_ << bits | value;
    rest_bits_ += bits;
    if (rest_bits_ < 8) return;
    value = rest_ >> rest_bits_ % 8;
    bits = rest_bits_ - rest_bits_ % 8;
    rest_bits_ %= 8;
    rest_ &= (std::uint64_t{1} << rest_bits_) - 1;
  }
  const std::uint64_t first = big_endian(value << (64 - bits));
  std::memcpy(room(8), &first, 8);  // surplus bytes are overwritten later
  used_ += bits / 8;
}

void BitWriter::put_wide(const std::uint64_t* limbs, unsigned bits) {
  unsigned limb = bits / 64;
  if (bits % 64) put(limbs[limb], bits % 64);
  if (rest_bits_ != 0) {
    while (limb-- > 0) put(limbs[limb], 64);
    return;
  }
  std::uint8_t* to = room(limb * 8);
  used_ += limb * 8;
  for (; limb-- > 0; to += 8) {
    const std::uint64_t word = big_endian(limbs[limb]);
    std::memcpy(to, &word, 8);
  }
}

void BitWriter::put_bytes(const std::uint8_t* data, std::size_t count) {
  std::copy_n(data, count, room(count));
  used_ += count;
}

void BitWriter::pad() {
  if (rest_bits_) put(0, 8 - rest_bits_);
}

}  // namespace fanin::p4

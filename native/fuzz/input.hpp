// Turns a fuzzer's bytes into test input: numbers, raw datagrams, and datagrams that are valid up to some field.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/packet.hpp"

namespace fanin::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }

  // The next byte, or 0 when there is none left.
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const std::uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }

  std::uint32_t below(std::uint32_t limit) { return byte() % limit; }

  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; i++) value = value << 8 | byte();
    return value;
  }

  // A copy in memory of exactly its length, so that the sanitizer sees the first byte read beyond the end.
  std::vector<std::uint8_t> raw() {
    const std::size_t high = byte(),
                      low = byte() >> 5;  // read before left_ is used: the order of evaluating arguments is unspecified
    const std::size_t length = std::min(high << 3 | low, left_.size());
    std::vector<std::uint8_t> bytes(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(length));
    left_ = left_.subspan(length);
    return bytes;
  }

  // A datagram with the right magic and version, small numbers in its fields, and a body that may or may not fit them.
  std::vector<std::uint8_t> plausible(std::uint32_t generation, std::uint32_t bases) {
    Header header;
    header.kind = static_cast<Kind>(1 + below(9));
    header.job = static_cast<std::uint16_t>(below(3));
    header.worker = static_cast<std::uint8_t>(below(4));
    const bool run = below(8) == 0;
    header.flags = static_cast<std::uint8_t>(below(8) | (run ? FLAG_RUN : 0));
    header.generation = below(8) ? generation : word();
    header.slot = below(8);
    header.base = below(8) ? below(bases) : word();
    header.signature = below(2);
    header.bitmap = below(16);
    header.contributors = static_cast<std::uint16_t>(below(20));
    header.code_count = static_cast<std::uint8_t>(below(4));
    constexpr std::uint8_t LANES[] = {0, 0, 0, 15, 11, 10, 7, 6};  // of wide sums, or words
    header.lanes = static_cast<std::uint8_t>(LANES[below(8)] | (below(8) ? 0 : below(16) << LANES_SHIFT));
    if (run) header.lanes = static_cast<std::uint8_t>(below(MAX_RUN + 2));
    const std::size_t whole = run ? HEADER_BYTES + header.lanes * codes_bytes(header.code_count)
                                  : datagram_bytes(header.code_count, below(20));
    const std::size_t length = whole - (below(8) ? 0 : below(4));
    std::vector<std::uint8_t> bytes(std::max(length, HEADER_BYTES));
    store_header(bytes.data(), header);
    for (std::size_t at = HEADER_BYTES; at < bytes.size() && !empty(); at++) bytes[at] = byte();
    bytes.resize(length);
    return bytes;
  }

 private:
  std::span<const std::uint8_t> left_;
};

}  // namespace fanin::fuzz

// Regular runs: datagrams of a batch that differ in slot, round and order only.
//
// Rules speak of single datagrams, and a machine handles them one by one. But datagrams come in trains, and nearly all
// of a train are like the first one: of the same sender, length and kind, for the same job and reduction. A machine
// concludes the same from those fields each time. So it does so once, for a datagram that has taken the ordinary way
// and was accepted, and looks only at what differs in each that continues the run. A datagram that is not like the run
// takes the ordinary way, and may begin another one.
//
// A run lives within one batch, so that no other verb of the machine comes in between, and ends with any datagram that
// takes the ordinary way. In both machines these hold for a run (`begin`):
//
// * Its datagrams have the length of the first, come from the same address, and have not met congestion.
// * Their headers are those of the first, except slot, base, the order number of a contribution, and tag. Flags are 0,
//   or BARE in contributions: no passes, no runs in one datagram, and no checksums.
//
// Each machine requires more, which stands where it begins a run. Everything else about a datagram is checked for each:
// its tag, that there is such a slot, and what the slot's state says of its round.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "wire/packet.hpp"
#include "wire/sinks.hpp"

namespace fanin {

class RegularRun {
 public:
  // The fields in which datagrams of a run differ.
  struct Place {
    std::uint32_t slot = 0;
    std::uint32_t base = 0;
    std::uint32_t order = 0;  // of a contribution
  };

  // Begins a run with a datagram that was accepted; `header` as it was checked, since its sender may have changed the
  // datagram meanwhile.
  void begin(const Arrival& arrival, const Header& header) {
    std::uint8_t like[HEADER_BYTES];
    store_header(like, header);
    std::memcpy(like_.data(), like, sizeof like_);
    same_ = header.kind == Kind::contribution ? &SAME_IN_CONTRIBUTIONS : &SAME_IN_OTHERS;
    bytes_ = arrival.marked ? 0 : arrival.bytes.size();
    source_ = arrival.source;
    ++number_;
  }
  void end() {
    bytes_ = 0;
    ++number_;
  }
  // Changes whenever a run begins or ends.
  std::uint32_t number() const { return number_; }

  // Whether the datagram is of the run; then sets `place`. As in parse_into, what is used of the header is what was
  // compared, whatever its sender does to it meanwhile.
  bool continues(const Arrival& arrival, Place& place) const {
    if (arrival.bytes.size() != bytes_ || arrival.source != source_ || arrival.marked || bytes_ == 0) return false;
    Compared head;
    std::memcpy(head.data(), arrival.bytes.data(), sizeof head);
    std::atomic_thread_fence(std::memory_order_acquire);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::uint64_t other = 0;
    for (std::size_t i = 0; i < head.size(); ++i) other |= (head[i] ^ like_[i]) & (*same_)[i];
    const auto* const at = reinterpret_cast<const std::uint8_t*>(head.data());
    place = {.slot = load_be32(at + OFFSET_SLOT),
             .base = load_be32(at + OFFSET_BASE),
             .order = load_be32(at + OFFSET_BITMAP)};
    return other == 0;
  }

 private:
  static constexpr std::size_t COMPARED_BYTES = OFFSET_CHECKSUM;  // the checksum, or tag, is not compared
  static_assert(COMPARED_BYTES % sizeof(std::uint64_t) == 0);
  using Compared = std::array<std::uint64_t, COMPARED_BYTES / sizeof(std::uint64_t)>;

  // Ones where the headers of a run are alike.
  static constexpr Compared same(bool orders) {
    std::array<std::uint8_t, COMPARED_BYTES> bytes{};
    for (std::size_t at = 0; at < COMPARED_BYTES; ++at) {
      const auto in = [at](std::size_t field) { return at >= field && at < field + sizeof(std::uint32_t); };
      bytes[at] = in(OFFSET_SLOT) || in(OFFSET_BASE) || (orders && in(OFFSET_BITMAP)) ? 0 : 0xFF;
    }
    return std::bit_cast<Compared>(bytes);
  }
  static const Compared SAME_IN_CONTRIBUTIONS;
  static const Compared SAME_IN_OTHERS;

  Compared like_{};
  const Compared* same_ = nullptr;
  std::size_t bytes_ = 0;  // of each datagram; 0: there is no run
  Address source_ = 0;
  std::uint32_t number_ = 1;
};

inline constexpr RegularRun::Compared RegularRun::SAME_IN_CONTRIBUTIONS = same(true);
inline constexpr RegularRun::Compared RegularRun::SAME_IN_OTHERS = same(false);

}  // namespace fanin

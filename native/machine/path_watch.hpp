// Watches whether long packets still pass where short ones do. R-MEMBER-10 and R-MEMBER-11 in
// docs/protocol.md; twin of fanin/protocol/path_watch.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "wire/packet.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

class PathWatch {
 public:
  explicit PathWatch(double limit_s) : limit_s_(limit_s) {}

  // Lengths of the HELLOs to send behind the heartbeat that is due, in order, valid until the next call. `item`: the
  // oldest unfinished one, in packets of `needed_bytes`; none: nothing is outstanding.
  std::span<const std::size_t> beat(std::optional<std::uint64_t> item, std::size_t needed_bytes, double now) {
    const std::optional<std::uint64_t> waited = std::exchange(item_, item);
    // R-MEMBER-10: no test if another item is the oldest now, as packets pass, or if a heartbeat is as long.
    if (!item || item != waited || needed_bytes <= HEARTBEAT_BYTES) {
      rest();
      return {};
    }
    if (needed_bytes != needed_bytes_) {
      rest();
      needed_bytes_ = fails_bytes_ = needed_bytes;
    }
    std::size_t count = 0;
    if (unanswered_++ == 0)
      since_s_ = now;
    else if (const std::size_t shorter = next_shorter(); shorter != 0)
      lengths_[count++] = shorter;
    // The longest goes last: a shorter one behind it could become part of its train, which virtual links pass whole.
    lengths_[count++] = needed_bytes;
    return std::span(lengths_).first(count);
  }

  // Notes that a HELLO of `bytes` was answered in its length.
  void welcome(std::size_t bytes) {
    if (bytes >= needed_bytes_)
      rest();
    else
      passes_bytes_ = std::max(passes_bytes_, bytes);
  }

  bool suspects() const { return unanswered_ > HEARTBEATS_TO_SILENCE; }
  // R-MEMBER-11
  bool too_narrow(double now) const { return suspects() && now >= since_s_ + limit_s_; }
  std::size_t needed_bytes() const { return needed_bytes_; }
  std::size_t passes_bytes() const { return passes_bytes_; }

 private:
  static constexpr std::size_t HEARTBEAT_BYTES = datagram_bytes(0, 2);

  std::size_t next_shorter() {
    if (tried_bytes_ > passes_bytes_) fails_bytes_ = tried_bytes_;
    const std::size_t middle = (passes_bytes_ + fails_bytes_) / 2 / WORD_BYTES * WORD_BYTES;
    return tried_bytes_ = middle > passes_bytes_ ? middle : 0;
  }
  void rest() {
    needed_bytes_ = fails_bytes_ = tried_bytes_ = 0;
    unanswered_ = 0;
    passes_bytes_ = HEARTBEAT_BYTES;
  }

  double limit_s_;
  std::optional<std::uint64_t> item_;  // the oldest at the last heartbeat
  std::size_t needed_bytes_ = 0;       // length of that item's packets
  std::uint32_t unanswered_ = 0;       // long HELLOs since the last that was answered
  std::size_t passes_bytes_ = HEARTBEAT_BYTES;
  std::size_t fails_bytes_ = 0;
  std::size_t tried_bytes_ = 0;  // the last shorter one
  double since_s_ = 0.0;         // when the first of `unanswered_` was sent
  std::array<std::size_t, 2> lengths_{};
};

}  // namespace fanin

// Record of the transmissions of a worker that have arrived, and when to send it a receipt: R-RECEIPT in
// docs/protocol.md. Twin of switch/machine/receipts.py.
#pragma once

#include <algorithm>
#include <cstdint>

#include "wire/wire_constants.hpp"

namespace fanin {

inline constexpr std::uint32_t WORD_BITS = 8 * WORD_BYTES;  // slots per word of a receipt

// Whether the transmission of that order gets a receipt in any case.
inline bool measures(std::uint32_t order) { return order % RECEIPT_EVERY == RECEIPT_EVERY / 2; }

class Arrivals {
 public:
  std::uint32_t highest() const { return highest_; }
  std::uint32_t received() const { return received_; }
  // Transmissions sent, as the highest order numbers show, and those that arrived, over all processes in the worker's
  // place.
  std::uint64_t sent() const { return sent_; }
  std::uint64_t came() const { return came_; }

  // Resets for a new process in the worker's place, whose order numbers begin anew.
  void restart() {
    highest_ = 0;
    received_ = ORDER_MASK;
  }

  // R-RECEIPT-3: whether one of the tracked transmissions is a hole: missing, and not just overtaken.
  bool incomplete() const { return (received_ | ((std::uint32_t{1} << (REORDER_THRESHOLD - 1)) - 1)) != ORDER_MASK; }

  // Notes an arrived transmission; returns whether it uncovers a hole that no receipt has reported yet.
  bool take(std::uint32_t order) {
    const std::uint32_t ahead = order - highest_;
    if (ahead == 0) return false;
    if (ahead > ORDER_MASK / 2) {  // R-RECEIPT-1: it was overtaken; older ones than TRACKED are not tracked
      const std::uint32_t behind = 0 - ahead;
      if (behind > TRACKED) return false;
      const std::uint32_t bit = std::uint32_t{1} << (behind - 1);
      came_ += (received_ & bit) == 0;
      received_ |= bit;
      return false;
    }
    sent_ += ahead;
    ++came_;
    received_ = ahead <= TRACKED
                    ? static_cast<std::uint32_t>(std::uint64_t{received_} << ahead) | std::uint32_t{1} << (ahead - 1)
                    : 0;
    highest_ = order;
    // R-RECEIPT-2: only holes that this transmission uncovers, so that this rule reports each hole once.
    const auto newly_due =
        static_cast<std::uint32_t>(((std::uint64_t{1} << std::min(ahead, TRACKED)) - 1) << (REORDER_THRESHOLD - 1));
    return (received_ & newly_due) != newly_due;
  }

 private:
  std::uint32_t highest_ = 0;
  std::uint32_t received_ = ORDER_MASK;  // bit i: whether order highest_ - 1 - i has come
  std::uint64_t sent_ = 0;
  std::uint64_t came_ = 0;
};

}  // namespace fanin

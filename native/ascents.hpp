// What a leaf has sent up and waits for, and how long that takes. The rules stand in switch/machine/ascents.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "wire_constants.hpp"

namespace fanin {

class Ascents {
 public:
  explicit Ascents(std::uint32_t slots) : sent_(slots) {}

  // The slot's open round goes up.
  void sent(std::uint32_t slot, double now) { sent_[slot] = {now, sent_[slot].times + 1}; }

  // Whether the slot's open round went up so late that its result cannot be here yet.
  bool under_way(std::uint32_t slot, double now) const {
    const double shortest_s = std::min(shortest_s_, before_s_);
    return sent_[slot].times != 0 && now < sent_[slot].at + (shortest_s == NEVER ? MIN_TIMEOUT_S : shortest_s);
  }

  // The result of the slot's open round has come.
  void came(std::uint32_t slot, double now) {
    const Sent found = sent_[slot];
    sent_[slot] = {};
    if (found.times != 1) return;
    shortest_s_ = std::min(shortest_s_, now - found.at);
    if (++rounds_ < RECEIPT_EVERY) return;
    before_s_ = shortest_s_;
    shortest_s_ = NEVER;
    rounds_ = 0;
  }

  // Microseconds; 0 while it is not known.
  std::uint32_t round_trip_us() const {
    const double shortest_s = std::min(shortest_s_, before_s_);
    return shortest_s == NEVER ? 0 : static_cast<std::uint32_t>(std::min(shortest_s * 1e6, double{ORDER_MASK}));
  }

 private:
  static constexpr double NEVER = std::numeric_limits<double>::infinity();

  struct Sent {
    double at = 0.0;
    std::uint32_t times = 0;
  };

  std::vector<Sent> sent_;  // by slot: when its open round last went up, and how often it has
  double shortest_s_ = NEVER;
  double before_s_ = NEVER;
  std::uint32_t rounds_ = 0;  // that shortest_s_ is of
};

}  // namespace fanin

// Counts of a switch for each worker of a job; names, meaning and rules as in switch/machine/member_tally.py.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "machine/receipts.hpp"
#include "machine/switch_tally.hpp"

namespace fanin {

inline constexpr std::size_t TURNAROUND_BUCKETS = 25;
inline constexpr double NEVER_S = -std::numeric_limits<double>::infinity();

// Times of one slot in seconds: when its last round closed, and when the open round's last contribution came.
struct SlotTimes {
  double closed_s = NEVER_S;
  double arrived_s = NEVER_S;
};

class MemberTally {
 public:
  std::uint64_t contributions = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t repeated = 0;
  std::uint64_t asked_again = 0;
  std::uint64_t marks = 0;
  std::uint64_t last = 0;

  // Counts a contribution to an open round, the last one that it waits for if `completes`.
  void accepted(SlotTimes& slot, bool completes, double now) {
    turned_around(slot, now);
    if (!completes) {
      slot.arrived_s = now;
      return;
    }
    ++last;
    const double since_s = std::max(slot.arrived_s, waited_until_s_);
    if (slot.arrived_s != NEVER_S && now > since_s) waited_s_ += now - since_s;
    waited_until_s_ = now;
    slot.arrived_s = NEVER_S;
  }

  // Notes the time at which a packet of this worker was handled.
  void spoke(double now) { spoke_s_ = now; }

  CounterList list(const Arrivals& arrivals) const {
    CounterList counts = {
        {"contributions", contributions},
        {"bytes_in", bytes_in},
        {"transmissions", arrivals.sent()},
        {"lost_up", arrivals.sent() - arrivals.came()},
        {"asked_again", asked_again},
        {"repeated", repeated},
        {"marks", marks},
        {"last", last},
        {"waited_us", static_cast<std::uint64_t>(waited_s_ * 1e6)},
    };
    for (std::size_t bucket = 0; bucket < turnarounds_.size(); ++bucket)
      if (turnarounds_[bucket] != 0)
        counts.emplace_back("turnaround_" + std::to_string(std::uint64_t{1} << bucket), turnarounds_[bucket]);
    return counts;
  }

 private:
  void turned_around(const SlotTimes& slot, double now) {
    if (slot.closed_s == NEVER_S) return;
    const double turnaround_s = now - slot.closed_s;
    if (2 * (now - spoke_s_) >= turnaround_s) burst_s_ = now;  // it was silent for that long: it computed
    if (slot.closed_s < burst_s_) return;
    const auto us = static_cast<std::uint64_t>(turnaround_s * 1e6);
    ++turnarounds_[std::min<std::size_t>(std::bit_width(us), TURNAROUND_BUCKETS - 1)];
  }

  double waited_s_ = 0.0;
  double waited_until_s_ = NEVER_S;  // time before this is not counted for this worker: it is counted already
  double spoke_s_ = NEVER_S;
  double burst_s_ = NEVER_S;  // start of the burst: it has sent without a pause since then
  std::array<std::uint64_t, TURNAROUND_BUCKETS> turnarounds_{};
};

// Adds one flow's counts to those of others.
inline void add_member_counters(CounterList& total, const CounterList& more) {
  for (const auto& [name, count] : more) {
    const auto found = std::ranges::find(total, name, &CounterList::value_type::first);
    if (found == total.end())
      total.emplace_back(name, count);
    else
      found->second = name == "waited_us" ? std::max(found->second, count) : found->second + count;
  }
}

}  // namespace fanin

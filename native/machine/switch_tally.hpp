// Counters of a switch, per job and in total; names and meaning as in switch/machine/tally.py.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wire/wire_constants.hpp"

namespace fanin {

// Names and values, in a fixed order.
using CounterList = std::vector<std::pair<std::string, std::uint64_t>>;

struct SwitchTally {
  std::uint64_t packets_in = 0;
  std::uint64_t packets_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t contributions = 0;
  std::uint64_t passes = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t answers = 0;
  std::uint64_t receipts = 0;
  std::uint64_t rounds = 0;
  std::uint64_t notices = 0;
  std::uint64_t unsent = 0;
  std::array<std::uint64_t, REASON_NAMES.size()> dropped{};

  void drop(Reason reason) { ++dropped[static_cast<std::size_t>(reason)]; }

  void add(const SwitchTally& other) {
    for (const auto& [name, count] : COUNTS) this->*count += other.*count;
    for (std::size_t reason = 0; reason < dropped.size(); ++reason) dropped[reason] += other.dropped[reason];
  }

  CounterList list() const {
    CounterList counts;
    for (const auto& [name, count] : COUNTS) counts.emplace_back(name, this->*count);
    for (std::size_t reason = 1; reason < dropped.size(); ++reason)
      if (reason < FIRST_NEWS || reason > LAST_NEWS)
        counts.emplace_back(std::string("dropped_") + REASON_NAMES[reason], dropped[reason]);
    return counts;
  }

 private:
  // The reasons between these are news about workers, not about packets.
  static constexpr auto FIRST_NEWS = static_cast<std::size_t>(Reason::worker_lost);
  static constexpr auto LAST_NEWS = static_cast<std::size_t>(Reason::branch_left);

  static constexpr std::array<std::pair<const char*, std::uint64_t SwitchTally::*>, 12> COUNTS = {{
      {"packets_in", &SwitchTally::packets_in},
      {"packets_out", &SwitchTally::packets_out},
      {"bytes_in", &SwitchTally::bytes_in},
      {"bytes_out", &SwitchTally::bytes_out},
      {"contributions", &SwitchTally::contributions},
      {"passes", &SwitchTally::passes},
      {"duplicates", &SwitchTally::duplicates},
      {"answers", &SwitchTally::answers},
      {"receipts", &SwitchTally::receipts},
      {"rounds", &SwitchTally::rounds},
      {"notices", &SwitchTally::notices},
      {"unsent", &SwitchTally::unsent},
  }};
};

}  // namespace fanin

// A meter of two rates and three colours, in memory that Python shares: switch/p4/meters.py has the rules.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fanin::p4 {

// Places in a meter's memory, as switch/p4/meters.py numbers them.
enum MeterCell : std::size_t {
  SET,
  COMMITTED,
  COMMITTED_BURST,
  PEAK,
  PEAK_BURST,
  STARTED,
  PEAK_TOKENS,
  PEAK_US,
  COMMITTED_TOKENS,
  COMMITTED_US,
  METER_CELLS,
};

enum Colour : std::uint64_t { GREEN, YELLOW, RED };

// Refills a bucket until `now_us`, and takes `amount` tokens if it has as many; returns whether it had. In the memory,
// its burst follows its rate, and the time of its last packet follows its tokens.
inline bool take_tokens(std::int64_t* meter, std::size_t rate_at, std::size_t tokens_at, std::int64_t amount,
                        std::int64_t now_us) {
  constexpr __int128 US_PER_S = 1'000'000;
  const __int128 rate = meter[rate_at], burst = meter[rate_at + 1];
  const __int128 come = now_us * rate / US_PER_S - meter[tokens_at + 1] * rate / US_PER_S;
  const __int128 tokens = std::min(meter[tokens_at] + come, burst);
  const bool enough = tokens >= amount;
  meter[tokens_at] = static_cast<std::int64_t>(enough ? tokens - amount : tokens);
  meter[tokens_at + 1] = now_us;
  return enough;
}

inline std::uint64_t colour_of(std::int64_t* meter, std::uint64_t amount, std::uint64_t now) {
  if (!meter[SET]) return GREEN;
  const auto now_us = static_cast<std::int64_t>(now), tokens = static_cast<std::int64_t>(amount);
  if (!meter[STARTED]) {
    meter[STARTED] = 1;
    meter[PEAK_TOKENS] = meter[PEAK_BURST];
    meter[COMMITTED_TOKENS] = meter[COMMITTED_BURST];
    meter[PEAK_US] = meter[COMMITTED_US] = now_us;
  }
  if (!take_tokens(meter, PEAK, PEAK_TOKENS, tokens, now_us)) return RED;
  return take_tokens(meter, COMMITTED, COMMITTED_TOKENS, tokens, now_us) ? GREEN : YELLOW;
}

}  // namespace fanin::p4

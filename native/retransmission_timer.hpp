// The retransmission timer: fanin/protocol/timers.py, operation by operation, so that both machines keep the same times.
#pragma once

#include <algorithm>
#include <cmath>

#include "wire_constants.hpp"

namespace fanin {

class RetransmissionTimer {
 public:
  double smoothed_s = 0.0;

  void sample(double round_trip_s) {
    if (smoothed_s == 0.0) {
      smoothed_s = round_trip_s;
      variation_s_ = round_trip_s / 2;
    } else {
      variation_s_ += BETA * (std::abs(smoothed_s - round_trip_s) - variation_s_);
      smoothed_s += ALPHA * (round_trip_s - smoothed_s);
    }
  }

  void expired() {
    if (timeout_s() < MAX_TIMEOUT_S) ++backoff_;
  }

  void progressed() { backoff_ = 0; }

  double timeout_s() const {
    const double timeout_s = smoothed_s == 0.0
                                 ? INITIAL_TIMEOUT_S
                                 : smoothed_s + std::max(GRANULARITY_S, double{VARIATION_FACTOR} * variation_s_);
    return std::min(std::ldexp(std::max(timeout_s, MIN_TIMEOUT_S), backoff_), MAX_TIMEOUT_S);
  }

 private:
  double variation_s_ = 0.0;
  int backoff_ = 0;
};

}  // namespace fanin

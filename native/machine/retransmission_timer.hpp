// The retransmission timer: fanin/protocol/timers.py, operation by operation, so that both machines keep the same
// times.
#pragma once

#include <algorithm>
#include <cmath>

#include "wire/wire_constants.hpp"

namespace fanin {

class RetransmissionTimer {
 public:
  double smoothed_s = 0.0;
  double path_s = 0.0;        // the longest round trip of the path alone, which decays over time; 0: not known
  bool begun = false;         // whether a reply to a contribution has come, or none for a whole timeout
  bool tells_rounds = false;  // whether receipts tell which rounds have closed

  // Takes in a measured round trip. `idle`: of HELLO, which does not include queues that contributions make.
  void sample(double round_trip_s, bool idle = false) {
    begun = begun || !idle;
    if (smoothed_s == 0.0) {
      smoothed_s = round_trip_s;
      variation_s_ = round_trip_s / 2;
    } else {
      variation_s_ += BETA * (std::abs(smoothed_s - round_trip_s) - variation_s_);
      smoothed_s += ALPHA * (round_trip_s - smoothed_s);
    }
  }

  void path_round_trip(double round_trip_s) {
    path_s = std::max(std::min(round_trip_s, MAX_PACED_ROUND_TRIP_S), PATH_DECAY * path_s);
  }

  void expired() {
    if (timeout_s() < MAX_TIMEOUT_S) ++backoff_;  // R-RECOVERY-12
  }

  void progressed() {
    backoff_ = 0;
    begun = true;
  }

  double overdue_s(double more) const {
    if (smoothed_s == 0.0) return timeout_s();
    // A receipt nearly always comes, so wait for it as long as a timeout of the path.
    if (tells_rounds) return std::min((PATHS_PER_TIMEOUT + more) * std::max(path_s, smoothed_s), MAX_TIMEOUT_S);
    double wait_s = smoothed_s + std::max(smoothed_s * OVERDUE_SHARE, 2 * variation_s_);
    double trip_s = smoothed_s;
    if (path_s > 0.0) {  // R-RECOVERY-6: round trips that peers have a part in would drive each other's waits up
      wait_s = std::min(wait_s, path_s + path_s * OVERDUE_SHARE);
      trip_s = std::min(trip_s, path_s);
    }
    return std::min(wait_s + more * trip_s, MAX_TIMEOUT_S);
  }

  // R-RECOVERY-13. `thin`: R-RECOVERY-14.
  double timeout_s(bool thin = false) const {
    double timeout_s = smoothed_s + std::max(GRANULARITY_S, double{VARIATION_FACTOR} * variation_s_);
    if (smoothed_s == 0.0)
      timeout_s = INITIAL_TIMEOUT_S;
    else if (tells_rounds && path_s > 0.0)  // otherwise timeouts would grow with the repairs of peers
      timeout_s = thin ? 0.0 : smoothed_s;
    timeout_s = std::max(timeout_s, PATHS_PER_TIMEOUT * path_s);
    if (!begun) timeout_s = std::max(timeout_s, FIRST_TIMEOUT_S);
    return std::min(std::ldexp(std::max(timeout_s, MIN_TIMEOUT_S), backoff_), MAX_TIMEOUT_S);
  }

 private:
  double variation_s_ = 0.0;
  int backoff_ = 0;
};

}  // namespace fanin

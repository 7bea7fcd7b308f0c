// A token bucket: it limits the datagrams that are read from a sender, per second and at once.
#pragma once

#include <algorithm>

namespace fanin {

class Allowance {
 public:
  constexpr Allowance(double per_s, double at_once) : per_s_(per_s), at_once_(at_once), left_(at_once) {}

  // Takes a token for one datagram; false without one. `now` in seconds must not decrease.
  bool spend(double now) {
    left_ = std::min(at_once_, left_ + (now - filled_s_) * per_s_);
    filled_s_ = now;
    if (left_ < 1.0) return false;
    left_ -= 1.0;
    return true;
  }

 private:
  double per_s_;
  double at_once_;
  double left_;
  double filled_s_ = 0.0;
};

}  // namespace fanin

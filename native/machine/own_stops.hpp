// Detects, from the times of its turns alone, that this process was stopped. R-MEMBER-8 in docs/protocol.md.
#pragma once

#include <limits>

namespace fanin {

class OwnStops {
 public:
  // Sets another tick from the next turn on; infinity: there is nobody to watch.
  void watch_every(double tick_s) {
    tick_s_ = tick_s;
    due_at_ = NEVER_SET;
  }

  // When the next turn is due; infinity before the first one.
  double due_at() const { return due_at_ == NEVER_SET ? std::numeric_limits<double>::infinity() : due_at_; }

  // Begins a turn; returns for how many seconds this process was stopped before it, 0 for not at all.
  double turn(double now) {
    if (now < due_at_) return 0.0;
    return take_turn(now);
  }

 private:
  double take_turn(double now) {
    const double due_at = due_at_;
    if (tick_s_ == std::numeric_limits<double>::infinity()) return 0.0;
    due_at_ = now + tick_s_;
    // R-MEMBER-8: nothing could be heard since the turn that was due.
    return due_at != NEVER_SET && now - due_at >= tick_s_ ? now - due_at : 0.0;
  }

  static constexpr double NEVER_SET = -std::numeric_limits<double>::infinity();
  double tick_s_ = std::numeric_limits<double>::infinity();
  double due_at_ = NEVER_SET;
};

}  // namespace fanin

// Whether it pays to give the processor to others for a moment, before a thread goes to sleep: where what it waits for
// comes within that moment, which it does between processes of one machine and does not where peers are behind a
// network.
#pragma once

#include <cstdint>

namespace fanin {

class Lingering {
 public:
  static constexpr double FOR_S = 50e-6;  // each time, at most

  // Asked before each sleep; while it has not paid, now and then it is tried all the same.
  bool pays() { return paid_ >= LEAST || ++asked_ % TRIED_EVERY == 0; }
  // Whether something came in that moment.
  void ended(bool came) { paid_ += ((came ? 1.0 : 0.0) - paid_) / MEMORY; }

 private:
  static constexpr double LEAST = 0.25;  // of the times
  static constexpr double MEMORY = 16.0;
  static constexpr std::uint32_t TRIED_EVERY = 16;
  double paid_ = 1.0;  // how often it has, fading
  std::uint32_t asked_ = 0;
};

}  // namespace fanin

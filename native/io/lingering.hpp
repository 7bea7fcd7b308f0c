// Decides whether a thread should yield the processor for a moment before it sleeps. That pays if the awaited packets
// come within that moment, as they do between processes of one machine, but not from peers behind a network.
#pragma once

#include <cstdint>

namespace fanin {

class Lingering {
 public:
  static constexpr double FOR_S = 50e-6;  // longest duration

  // Whether to linger before this sleep: if it has paid, and otherwise every TRIED_EVERY-th time.
  bool pays() { return paid_ >= LEAST || ++asked_ % TRIED_EVERY == 0; }
  // Notes whether packets came while lingering.
  void ended(bool came) { paid_ += ((came ? 1.0 : 0.0) - paid_) / MEMORY; }

 private:
  static constexpr double LEAST = 0.25;  // least share of successes that pays
  static constexpr double MEMORY = 16.0;
  static constexpr std::uint32_t TRIED_EVERY = 16;
  double paid_ = 1.0;  // share of successes, as an exponential average
  std::uint32_t asked_ = 0;
};

}  // namespace fanin

// When a contribution is sent again. The rules stand in host/machine/loss_recovery.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "retransmission_timer.hpp"

namespace fanin {

class LossRecovery {
 public:
  RetransmissionTimer timer;

  explicit LossRecovery(std::uint32_t slots) : transmissions_(slots) {}

  std::uint32_t timeouts_in_a_row() const { return timeouts_in_a_row_; }
  bool was_sent(std::uint32_t slot) const { return transmissions_[slot].count != 0; }
  // Whether nothing waits for its result.
  bool idle() const { return waiting_ == 0; }

  // The slot's current item was sent; true if for the first time.
  bool sent(std::uint32_t slot, double now) {
    Transmission& transmission = transmissions_[slot];
    transmission.order = next_order_++;
    transmission.sent_at = now;
    append(slot);
    if (transmission.count++ != 0) return false;
    ++waiting_;
    return true;
  }

  // The slot's result came. Calls send_again(slot) for those that it shows to be overdue.
  template <typename SendAgain>
  void finished(std::uint32_t slot, double now, SendAgain send_again) {
    Transmission& transmission = transmissions_[slot];
    withdraw(slot);
    restarted_at_ = now;
    timeouts_in_a_row_ = 0;
    timer.progressed();
    const bool once = transmission.count == 1;
    transmission.count = 0;
    --waiting_;
    if (!once) {
      const std::uint32_t oldest = oldest_;
      if (oldest == NONE || transmissions_[oldest].sent_at + timer.timeout_s() > now) return;
      withdraw(oldest);
      send_again(oldest);
      return;
    }
    if (transmission.sent_at >= expired_at_) timer.sample(now - transmission.sent_at);
    const std::uint32_t threshold = thin() ? THIN_REORDER_THRESHOLD : REORDER_THRESHOLD;
    while (oldest_ != NONE && transmissions_[oldest_].order + threshold <= transmission.order) {
      const std::uint32_t overdue = oldest_;
      withdraw(overdue);
      send_again(overdue);
    }
  }

  // The slot's item will be sent again for another reason.
  void withdraw(std::uint32_t slot) {
    Transmission& transmission = transmissions_[slot];
    if (!transmission.flying) return;
    transmission.flying = false;
    --flying_;
    (transmission.older == NONE ? oldest_ : transmissions_[transmission.older].newer) = transmission.newer;
    (transmission.newer == NONE ? newest_ : transmissions_[transmission.newer].older) = transmission.older;
  }

  // When the timer expires; none while nothing flies.
  std::optional<double> deadline() const {
    if (oldest_ == NONE) return std::nullopt;
    return std::max(transmissions_[oldest_].sent_at, restarted_at_) + timer.timeout_s();
  }

  // The timer has expired. Returns the slot to send again: the oldest.
  std::uint32_t expire(double now) {
    if (!thin() || timeouts_in_a_row_ >= LINEAR_TIMEOUTS) timer.expired();
    ++timeouts_in_a_row_;
    const std::uint32_t oldest = oldest_;
    withdraw(oldest);
    restarted_at_ = expired_at_ = now;
    return oldest;
  }

  std::size_t buffer_bytes() const { return transmissions_.capacity() * sizeof(Transmission); }

 private:
  static constexpr std::uint32_t NONE = 0xFFFFFFFF;

  // The last transmission of a slot's current item. Those that fly are chained, oldest first.
  struct Transmission {
    std::uint64_t order = 0;
    double sent_at = 0.0;
    std::uint32_t count = 0;  // how often the item was sent
    std::uint32_t older = NONE;
    std::uint32_t newer = NONE;
    bool flying = false;
  };

  bool thin() const { return flying_ <= REORDER_THRESHOLD; }

  void append(std::uint32_t slot) {
    withdraw(slot);
    Transmission& transmission = transmissions_[slot];
    transmission.flying = true;
    ++flying_;
    transmission.older = newest_;
    transmission.newer = NONE;
    (newest_ == NONE ? oldest_ : transmissions_[newest_].newer) = slot;
    newest_ = slot;
  }

  std::vector<Transmission> transmissions_;
  std::uint64_t next_order_ = 0;
  std::uint32_t oldest_ = NONE;
  std::uint32_t newest_ = NONE;
  std::uint32_t flying_ = 0;
  std::uint32_t waiting_ = 0;
  std::uint32_t timeouts_in_a_row_ = 0;
  double restarted_at_ = 0.0;
  double expired_at_ = 0.0;
};

}  // namespace fanin

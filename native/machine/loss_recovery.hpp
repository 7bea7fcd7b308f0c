// When a contribution is sent again. The rules stand in fanin/protocol/loss_recovery.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "machine/retransmission_timer.hpp"

namespace fanin {

class LossRecovery {
 public:
  RetransmissionTimer timer;

  explicit LossRecovery(std::uint32_t slots)
      : transmissions_(slots), slot_of_order_(std::bit_ceil(std::size_t{slots} + TRACKED)) {}

  std::uint32_t timeouts_in_a_row() const { return timeouts_in_a_row_; }
  bool was_sent(std::uint32_t slot) const { return transmissions_[slot].count != 0; }
  // The order of the latest transmission of the slot's current item, which was sent.
  std::uint64_t order(std::uint32_t slot) const { return transmissions_[slot].order; }

  // Of the one before that: an ANSWER to the latest says that its result was lost.
  std::uint64_t order_before(std::uint32_t slot) const { return transmissions_[slot].order_before; }
  // Of the next transmission. The lower 32 bits are on the wire, where 0 would be none.
  std::uint64_t next_order() const { return next_order_; }
  // How many items were sent and wait for their results.
  std::uint32_t waiting() const { return waiting_; }
  // How many transmissions load the path, as far as is known: neither arrived, nor lost, nor overdue.
  std::uint32_t in_flight() const { return flying_.size - landed_; }
  bool idle() const { return waiting_ == 0; }
  // How many results are overdue.
  std::uint32_t overdue() const { return doubtful_.size; }

  // The slot's current item was sent; true if for the first time.
  bool sent(std::uint32_t slot, double now) {
    Transmission& transmission = transmissions_[slot];
    withdraw(slot);
    transmission.order_before = transmission.count == 0 ? next_order_ : transmission.order;
    slot_of_order_[next_order_ & (slot_of_order_.size() - 1)] = slot;
    transmission.order = next_order_++;
    transmission.sent_at = now;
    transmission.arrived = transmission.landed = transmission.needless = false;
    append(flying_, slot);
    if (transmission.count++ != 0) return false;
    ++waiting_;
    return true;
  }

  // The slot's result came, or was sent once more because this worker asked for it (`answered`). Returns the round
  // trip, if it measures one; see `take_late` for what it shows.
  std::optional<double> finished(std::uint32_t slot, double now, bool answered = false) {
    Transmission& transmission = transmissions_[slot];
    withdraw(slot);
    restarted_at_ = now;
    timeouts_in_a_row_ = 0;
    timer.progressed();
    // Karn: of an item that was sent twice, nobody knows which transmission the result belongs to. It measures nothing.
    const bool once = transmission.count == 1;
    transmission.count = 0;
    --waiting_;
    if (!once) {
      answers_in_a_row_ += answered;
      if (timer.told && answered && answers_in_a_row_ > ANSWERS_IN_A_ROW) {
        ask_for_late(now);
      } else if (answered || (!has_receipts_ && next_order_ > NO_RECEIPTS_AFTER)) {
        doubt_oldest_if_late(now);
        if (timer.told && doubtful_.oldest != NONE) transmissions_[doubtful_.oldest].doubtful_until = now;
      } else if (timer.told && !transmission.needless) {
        ask_for_untold(now);
      }
      return std::nullopt;
    }
    answers_in_a_row_ = 0;
    // A packet that was under way when the timer expired measures the wait for its repetition, not the path.
    const bool measures = transmission.sent_at >= expired_at_;
    const double round_trip_s = now - transmission.sent_at;
    if (measures) timer.sample(round_trip_s);
    const std::uint32_t threshold = thin() ? THIN_REORDER_THRESHOLD : REORDER_THRESHOLD;
    while (flying_.oldest != NONE && transmissions_[flying_.oldest].order + threshold <= transmission.order) {
      const std::uint32_t overdue = flying_.oldest;
      withdraw(overdue);
      transmissions_[overdue].doubtful_until = now + wait_s();
      append(doubtful_, overdue);
    }
    if (thin())
      for (std::uint32_t other = doubtful_.oldest; other != NONE; other = transmissions_[other].newer)
        transmissions_[other].doubtful_until = now;
    return measures ? std::optional(round_trip_s) : std::nullopt;
  }

  // Something that was sent again turned out to have been missing, or not to have been.
  void repetition_was(bool needed) {
    patience_ = needed ? std::max(patience_ - LESS_PATIENCE, 0.0) : std::min(patience_ + MORE_PATIENCE, MAX_PATIENCE);
  }

  // Calls send_again(slot) for those whose results have been in doubt for long enough.
  template <typename SendAgain>
  void take_late(double now, SendAgain send_again) {
    const double waits_until = now + wait_s();
    const std::uint32_t asks = std::max(asks_, 1U);
    asks_ = 0;
    std::uint32_t asked = 0;
    while (doubtful_.oldest != NONE && transmissions_[doubtful_.oldest].doubtful_until <= now) {
      const std::uint32_t slot = doubtful_.oldest;
      withdraw(slot);
      if (timer.told && asked >= asks) {  // one asks for all: what comes back says which of the others are lost
        transmissions_[slot].doubtful_until = waits_until;
        append(doubtful_, slot);
      } else {
        send_again(slot);
      }
      ++asked;
    }
  }

  // The order with these lower 32 bits: the latest one that was sent. Below 1 if there was none.
  std::int64_t sent_as(std::uint32_t order) const {
    const auto last = static_cast<std::int64_t>(next_order_ - 1);
    return last - (static_cast<std::uint32_t>(last) - order);
  }

  // The switch says which orders have arrived. Calls lost(slot) for those that are lost; returns the round trip of the
  // path, if this measures one. `measures`: that is what it is for, and what has arrived still counts as in flight.
  // `needless`: what it answers, the switch had before.
  template <typename Lost>
  std::optional<double> receipt(std::uint32_t told, std::uint32_t highest, std::uint32_t received, double now,
                                bool measures, bool needless, Lost lost) {
    has_receipts_ = timer.begun = true;
    const std::int64_t top = sent_as(highest);
    const std::int64_t answered = sent_as(told);
    std::optional<double> round_trip_s, top_sent_at;
    highest_ = std::max(highest_, top);
    missing_.clear();
    older_.clear();
    const auto look = [&](std::uint32_t slot) {
      Transmission& transmission = transmissions_[slot];
      const auto order = static_cast<std::int64_t>(transmission.order);
      const std::int64_t behind = top - order;
      if (order == answered) {
        round_trip_s = now - transmission.sent_at;
        transmission.needless = needless;
      }
      if (behind == 0) top_sent_at = transmission.sent_at;
      if (behind == 0 || (0 < behind && behind <= TRACKED && (received >> (behind - 1) & 1) != 0)) {
        transmission.arrived = true;
        if (measures || transmission.place != Place::flying || transmission.landed) return;
        transmission.landed = true;
        ++landed_;
      } else if (0 < behind && behind <= TRACKED) {
        missing_.push_back(slot);
      } else if (behind > TRACKED && received == 0 && transmission.place == Place::flying && !transmission.arrived) {
        older_.push_back(slot);
      }
    };
    for (std::uint32_t slot = doubtful_.oldest; slot != NONE; slot = transmissions_[slot].newer) look(slot);
    const std::int64_t first = top - std::int64_t{TRACKED};
    const std::int64_t oldest = std::min(first, answered);
    if (received != 0 && oldest >= 0 && next_order_ - static_cast<std::uint64_t>(oldest) <= slot_of_order_.size()) {
      // Of those that fly a receipt says nothing but of these few.
      if (answered < first || answered > top) look_if_flying(answered, look);
      for (std::int64_t order = first; order <= top; ++order) look_if_flying(order, look);
    } else {
      for (std::uint32_t slot = flying_.oldest; slot != NONE; slot = transmissions_[slot].newer) look(slot);
    }
    const double earlier_s = timer.smoothed_s * REORDER_SHARE;
    for (const std::uint32_t slot : missing_) {
      const Transmission& transmission = transmissions_[slot];
      // Packets overtake each other: a few orders, or a moment, behind the highest that has arrived is not lost yet.
      const bool far = top - static_cast<std::int64_t>(transmission.order) >= std::int64_t{REORDER_THRESHOLD};
      if (!far && !(top_sent_at && transmission.sent_at + earlier_s < *top_sent_at)) continue;
      withdraw(slot);
      lost(slot);
    }
    for (const std::uint32_t slot : older_) {  // the burst that lost all of them may have begun before them
      withdraw(slot);
      transmissions_[slot].doubtful_until = now + wait_s();
      append(doubtful_, slot);
    }
    return round_trip_s;
  }

  // The switch says which rounds were over (`closed(slot)`) when the order `highest` had come: what is overdue is lost,
  // or is a peer's. The result of such a round, or its answer to what was sent by then, has left the switch before
  // that. Calls lost(slot) for those whose results are lost.
  template <typename Closed, typename Lost>
  void settle(std::uint32_t highest, Closed is_over, double now, Lost lost) {
    const std::int64_t top = sent_as(highest);
    const auto closed = [&](std::uint32_t slot) {
      return static_cast<std::int64_t>(transmissions_[slot].order) <= top && is_over(slot);
    };
    timer.told = true;
    missing_.clear();  // here: those whose rounds are over
    older_.clear();    // and those that wait for a peer
    for (std::uint32_t slot = doubtful_.oldest; slot != NONE; slot = transmissions_[slot].newer) {
      if (closed(slot))
        missing_.push_back(slot);
      else if (transmissions_[slot].arrived)
        older_.push_back(slot);
    }
    for (std::uint32_t slot = flying_.oldest; slot != NONE; slot = transmissions_[slot].newer) {
      if (static_cast<std::int64_t>(transmissions_[slot].order) > top) break;  // they fly in order
      if (closed(slot)) missing_.push_back(slot);
    }
    const double waits_until = now + wait_s();
    for (const std::uint32_t slot : older_) {
      withdraw(slot);
      transmissions_[slot].doubtful_until = waits_until;
      append(doubtful_, slot);
    }
    for (const std::uint32_t slot : missing_) {
      withdraw(slot);
      lost(slot);
    }
  }

  // The slot's item will be sent again for another reason.
  void withdraw(std::uint32_t slot) {
    Transmission& transmission = transmissions_[slot];
    if (transmission.place == Place::nowhere) return;
    Chain& chain = transmission.place == Place::flying ? flying_ : doubtful_;
    landed_ -= transmission.place == Place::flying && transmission.landed;
    transmission.place = Place::nowhere;
    --chain.size;
    (transmission.older == NONE ? chain.oldest : transmissions_[transmission.older].newer) = transmission.newer;
    (transmission.newer == NONE ? chain.newest : transmissions_[transmission.newer].older) = transmission.older;
  }

  // When something is to be sent again; none while nothing flies.
  std::optional<double> deadline() const {
    std::optional<double> first;
    if (doubtful_.oldest != NONE) first = transmissions_[doubtful_.oldest].doubtful_until;
    if (flying_.oldest != NONE) first = std::min(expires_at(), first.value_or(expires_at()));
    return first;
  }

  // If the timer has expired: the slot to send again, and whether that is known to have arrived. `lowest` is the slot
  // of the lowest unfinished item.
  std::optional<std::pair<std::uint32_t, bool>> expire(double now, std::uint32_t lowest) {
    if (flying_.oldest == NONE || expires_at() > now) return std::nullopt;
    // The lowest item of all workers' waits for none of them: taken every other time, it breaks a circle of workers
    // that each send again what the others are not waiting for.
    const bool takes_lowest = timeouts_in_a_row_ % 2 == 0 && transmissions_[lowest].place == Place::flying &&
                              transmissions_[lowest].sent_at <= now - timer.patience_s(0.0);
    const std::uint32_t oldest = takes_lowest ? lowest : flying_.oldest;
    // The last packets of a transfer have no later ones whose results show that they are lost: the timer is all there
    // is, and does not double at once.
    if (!thin() || timeouts_in_a_row_ >= LINEAR_TIMEOUTS) timer.expired();
    ++timeouts_in_a_row_;
    timer.begun = true;
    withdraw(oldest);
    restarted_at_ = expired_at_ = now;
    return std::pair{oldest, transmissions_[oldest].arrived};
  }

  std::size_t buffer_bytes() const {
    return transmissions_.capacity() * sizeof(Transmission) +
           (slot_of_order_.capacity() + missing_.capacity() + older_.capacity()) * sizeof(std::uint32_t);
  }

 private:
  static constexpr std::uint32_t NONE = 0xFFFFFFFF;

  enum class Place : std::uint8_t { nowhere, flying, doubtful };

  // Slots, oldest first: those that fly, by order, and those whose results are overdue.
  struct Chain {
    std::uint32_t oldest = NONE;
    std::uint32_t newest = NONE;
    std::uint32_t size = 0;
  };

  // The last transmission of a slot's current item.
  struct Transmission {
    std::uint64_t order = 0;
    std::uint64_t order_before = 0;  // of the item's transmission before this one; its own, if there was none
    double sent_at = 0.0;
    double doubtful_until = 0.0;
    std::uint32_t count = 0;  // how often the item was sent
    std::uint32_t older = NONE;
    std::uint32_t newer = NONE;
    Place place = Place::nowhere;
    bool arrived = false;   // the switch is known to have it
    bool landed = false;    // and it therefore counts as no longer in flight
    bool needless = false;  // the switch had the item before, from an earlier one
  };

  // Of an order among the last slot_of_order_.size().
  template <typename Look>
  void look_if_flying(std::int64_t order, Look look) {
    const std::uint32_t slot = slot_of_order_[static_cast<std::uint64_t>(order) & (slot_of_order_.size() - 1)];
    const Transmission& transmission = transmissions_[slot];
    if (transmission.place == Place::flying && static_cast<std::int64_t>(transmission.order) == order) look(slot);
  }

  bool thin() const { return flying_.size + doubtful_.size <= REORDER_THRESHOLD; }

  // How long a result may be overdue.
  double wait_s() const { return timer.patience_s(patience_); }

  double expires_at() const {
    return std::max(transmissions_[flying_.oldest].sent_at, restarted_at_) + timer.timeout_s(thin());
  }

  // Results of a burst were lost: ask for the next ones that are in doubt, or have flown for a whole timeout.
  void ask_for_late(double now) {
    asks_ += NEXT_ASKED;
    while (doubtful_.size < asks_ && oldest_is_late(now)) {
      const std::uint32_t late = flying_.oldest;
      withdraw(late);
      transmissions_[late].doubtful_until = now;
      append(doubtful_, late);
    }
    std::uint32_t slot = doubtful_.oldest;
    for (std::uint32_t asked = 0; asked < asks_ && slot != NONE; ++asked, slot = transmissions_[slot].newer)
      transmissions_[slot].doubtful_until = now;
  }

  // A contribution of a burst had been lost: ask for the next ones that no receipt will tell of.
  void ask_for_untold(double now) {
    asks_ += NEXT_ASKED;
    std::uint32_t slot = doubtful_.oldest;
    for (std::uint32_t asked = 0; asked < asks_ && slot != NONE; ++asked, slot = transmissions_[slot].newer) {
      Transmission& transmission = transmissions_[slot];
      if (transmission.arrived || static_cast<std::int64_t>(transmission.order + TRACKED) >= highest_) return;
      transmission.doubtful_until = now;
    }
  }

  // Whether the oldest that flies has waited for a whole timeout.
  bool oldest_is_late(double now) const {
    return flying_.oldest != NONE && transmissions_[flying_.oldest].sent_at + timer.timeout_s() <= now;
  }

  void doubt_oldest_if_late(double now) {
    if (!oldest_is_late(now)) return;
    const std::uint32_t oldest = flying_.oldest;
    withdraw(oldest);
    Transmission& transmission = transmissions_[oldest];
    transmission.doubtful_until = now;
    transmission.place = Place::doubtful;
    ++doubtful_.size;
    transmission.older = NONE;
    transmission.newer = doubtful_.oldest;
    (doubtful_.oldest == NONE ? doubtful_.newest : transmissions_[doubtful_.oldest].older) = oldest;
    doubtful_.oldest = oldest;
  }

  void append(Chain& chain, std::uint32_t slot) {
    Transmission& transmission = transmissions_[slot];
    transmission.place = &chain == &flying_ ? Place::flying : Place::doubtful;
    ++chain.size;
    transmission.older = chain.newest;
    transmission.newer = NONE;
    (chain.newest == NONE ? chain.oldest : transmissions_[chain.newest].newer) = slot;
    chain.newest = slot;
  }

  std::vector<Transmission> transmissions_;
  // By the order of a transmission, of the last ones; a power of two of them.
  std::vector<std::uint32_t> slot_of_order_;
  std::vector<std::uint32_t> missing_;  // of a receipt, while it is read
  std::vector<std::uint32_t> older_;    // likewise: before what it tells of
  std::uint64_t next_order_ = 1;
  Chain flying_;
  Chain doubtful_;
  std::uint32_t landed_ = 0;   // of those that fly: known to have arrived
  std::uint32_t waiting_ = 0;  // items that were sent and wait for their results
  std::uint32_t timeouts_in_a_row_ = 0;
  std::uint32_t answers_in_a_row_ = 0;  // since the last result of something that was sent once
  std::int64_t highest_ = 0;            // order, of what is known to have arrived
  std::uint32_t asks_ =
      0;  // how many in doubt are to be asked for at once, since others had been missing; 0: one will do
  double patience_ = 0.0;  // round trips more than timer.patience_s()
  double restarted_at_ = 0.0;
  double expired_at_ = 0.0;
  bool has_receipts_ = false;  // this switch gives some
};

}  // namespace fanin

// Decides when a contribution is sent again: R-RECOVERY in docs/protocol.md. Twin of fanin/protocol/loss_recovery.py.
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
  // Order number of the latest transmission of the slot's current item, which must have been sent.
  std::uint64_t order(std::uint32_t slot) const { return transmissions_[slot].order; }

  // Order number of the item's transmission before that, whose result was lost if an ANSWER comes to the latest.
  std::uint64_t order_before(std::uint32_t slot) const { return transmissions_[slot].order_before; }
  // Order number of the next transmission. The lower 32 bits are on the wire, where 0 means none.
  std::uint64_t next_order() const { return next_order_; }
  // Number of items that were sent and wait for their results.
  std::uint32_t waiting() const { return waiting_; }
  // How many transmissions load the path, as far as is known: neither arrived, nor lost, nor overdue.
  // R-CONGESTION-2
  std::uint32_t in_flight() const { return on_time_.size - off_path_; }
  bool idle() const { return waiting_ == 0; }
  // Number of overdue results.
  std::uint32_t overdue() const { return overdue_.size; }

  // Notes that the slot's current item was sent; true if for the first time.
  bool sent(std::uint32_t slot, double now) {
    Transmission& transmission = transmissions_[slot];
    withdraw(slot);
    transmission.order_before = transmission.count == 0 ? next_order_ : transmission.order;
    slot_of_order_[next_order_ & (slot_of_order_.size() - 1)] = slot;
    transmission.order = next_order_++;
    transmission.sent_at = now;
    transmission.arrived = transmission.off_path = transmission.spurious = false;
    append(on_time_, slot);
    if (transmission.count++ != 0) return false;
    ++waiting_;
    return true;
  }

  // Notes the slot's result; `answered`: it was sent in answer to this worker's repetition. Returns the round trip, if
  // it measures one. Items that this result shows to be due are sent again by `take_due`.
  [[gnu::always_inline]] std::optional<double> finished(std::uint32_t slot, double now, bool answered = false) {
    Transmission& transmission = transmissions_[slot];
    withdraw(slot);
    restarted_at_ = now;
    timeouts_in_a_row_ = 0;
    timer.progressed();
    // R-RECOVERY-11, Karn: nobody knows which transmission of several this is the result of.
    const bool once = transmission.count == 1;
    transmission.count = 0;
    --waiting_;
    if (!once) {
      finished_repeated(transmission, now, answered);
      return std::nullopt;
    }
    answers_in_a_row_ = 0;
    // R-RECOVERY-11: sent before the timer expired, it would time how long some worker waited before it sent again.
    const bool measures = transmission.sent_at >= expired_at_;
    const double round_trip_s = now - transmission.sent_at;
    if (measures) timer.sample(round_trip_s);
    // R-RECOVERY-5: this result has overtaken those of transmissions that are `threshold` or more behind it.
    const std::uint32_t threshold = thin() ? THIN_REORDER_THRESHOLD : REORDER_THRESHOLD;
    while (on_time_.oldest != NONE && transmissions_[on_time_.oldest].order + threshold <= transmission.order) {
      const std::uint32_t overdue = on_time_.oldest;
      withdraw(overdue);
      // R-RECOVERY-6: overdue, not lost, since the switch may have it, and wait for a peer whose packet was lost.
      transmissions_[overdue].resend_at = now + wait_s();
      append(overdue_, overdue);
    }
    if (thin())  // R-RECOVERY-14: too few are left to bring more evidence, and sending so few again costs little
      for (std::uint32_t other = overdue_.oldest; other != NONE; other = transmissions_[other].newer)
        transmissions_[other].resend_at = now;
    return measures ? std::optional(round_trip_s) : std::nullopt;
  }

  // Notes whether a repetition was `needed`, or the switch already had the item.
  void repetition_was(bool needed) {  // R-RECOVERY-6: peers that are held up for longer are waited for longer
    more_wait_ = needed ? std::max(more_wait_ - LESS_WAIT, 0.0) : std::min(more_wait_ + MORE_WAIT, MAX_WAIT);
  }

  // Calls send_again(slot) for slots whose results have been overdue for long enough.
  template <typename SendAgain>
  void take_due(double now, SendAgain send_again) {
    const double waits_until = now + wait_s();
    const std::uint32_t resends = std::max(resends_, 1U);
    resends_ = 0;
    std::uint32_t sent_again = 0;
    while (overdue_.oldest != NONE && transmissions_[overdue_.oldest].resend_at <= now) {
      const std::uint32_t slot = overdue_.oldest;
      withdraw(slot);
      // R-RECOVERY-7: what comes back says which of the others are lost.
      if (timer.tells_rounds && sent_again >= resends) {
        transmissions_[slot].resend_at = waits_until;
        append(overdue_, slot);
      } else {
        send_again(slot);
      }
      ++sent_again;
    }
  }

  // The latest sent order number with these lower 32 bits; below 1 without one.
  std::int64_t sent_as(std::uint32_t order) const {
    const auto last = static_cast<std::int64_t>(next_order_ - 1);
    return last - (static_cast<std::uint32_t>(last) - order);
  }

  // Handles a receipt of the orders that have arrived. Calls lost(slot) for lost transmissions; returns the round trip
  // of the path, if the receipt measures one. `measures`: it was sent only to measure, so that transmissions that have
  // arrived still count as in flight. `spurious`: the switch had the item of order `answers` before.
  template <typename Lost>
  std::optional<double> receipt(std::uint32_t answers, std::uint32_t highest, std::uint32_t received, double now,
                                bool measures, bool spurious, Lost lost) {
    has_receipts_ = timer.begun = true;
    const std::int64_t top = sent_as(highest);
    const std::int64_t answered = sent_as(answers);
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
        transmission.spurious = spurious;
      }
      if (behind == 0) top_sent_at = transmission.sent_at;
      if (behind == 0 || (0 < behind && behind <= TRACKED && (received >> (behind - 1) & 1) != 0)) {
        transmission.arrived = true;
        if (measures || transmission.place != Place::on_time || transmission.off_path) return;
        transmission.off_path = true;
        ++off_path_;
      } else if (0 < behind && behind <= TRACKED) {
        missing_.push_back(slot);
        // R-RECOVERY-4: the burst that lost all of the 32 may have begun before them.
      } else if (behind > TRACKED && received == 0 && transmission.place == Place::on_time && !transmission.arrived) {
        older_.push_back(slot);
      }
    };
    for (std::uint32_t slot = overdue_.oldest; slot != NONE; slot = transmissions_[slot].newer) look(slot);
    const std::int64_t first = top - std::int64_t{TRACKED};
    const std::int64_t oldest = std::min(first, answered);
    if (received != 0 && oldest >= 0 && next_order_ - static_cast<std::uint64_t>(oldest) <= slot_of_order_.size()) {
      // A receipt tells only these few transmissions apart, of all that are not overdue.
      if (answered < first || answered > top) look_if_on_time(answered, look);
      for (std::int64_t order = first; order <= top; ++order) look_if_on_time(order, look);
    } else {
      for (std::uint32_t slot = on_time_.oldest; slot != NONE; slot = transmissions_[slot].newer) look(slot);
    }
    const double earlier_s = timer.smoothed_s * REORDER_SHARE;
    for (const std::uint32_t slot : missing_) {
      const Transmission& transmission = transmissions_[slot];
      // R-RECOVERY-1: packets overtake each other, so only distance in orders or time makes it lost.
      const bool far = top - static_cast<std::int64_t>(transmission.order) >= std::int64_t{REORDER_THRESHOLD};
      if (!far && !(top_sent_at && transmission.sent_at + earlier_s < *top_sent_at)) continue;
      withdraw(slot);
      lost(slot);
    }
    for (const std::uint32_t slot : older_) {
      withdraw(slot);
      transmissions_[slot].resend_at = now + wait_s();
      append(overdue_, slot);
    }
    return round_trip_s;
  }

  // Handles a receipt of the rounds that had closed (`is_over(slot)`) when order `highest` had arrived: an overdue
  // result of such a round, which has left the switch before this receipt, is lost, and any other waits for a peer.
  // Calls lost(slot) for lost results. `none_over`: no round of an outstanding item has closed, as while nothing is
  // lost; then the items that are on time, a window, need not be searched.
  template <typename Closed, typename Lost>
  void settle(std::uint32_t highest, bool none_over, Closed is_over, double now, Lost lost) {
    // R-RECOVERY-2: of a later transmission the switch may say more than this receipt knows.
    const std::int64_t top = sent_as(highest);
    const auto closed = [&](std::uint32_t slot) {
      return static_cast<std::int64_t>(transmissions_[slot].order) <= top && is_over(slot);
    };
    timer.tells_rounds = true;
    missing_.clear();  // here: slots whose rounds have closed
    older_.clear();    // here: slots that wait for a peer
    for (std::uint32_t slot = overdue_.oldest; slot != NONE; slot = transmissions_[slot].newer) {
      if (closed(slot))
        missing_.push_back(slot);
      else if (transmissions_[slot].arrived)  // R-RECOVERY-3: at the switch, in an open round, so a peer is late
        older_.push_back(slot);
    }
    for (std::uint32_t slot = none_over ? NONE : on_time_.oldest; slot != NONE; slot = transmissions_[slot].newer) {
      if (static_cast<std::int64_t>(transmissions_[slot].order) > top) break;  // they are in order
      if (closed(slot)) missing_.push_back(slot);
    }
    const double waits_until = now + wait_s();
    for (const std::uint32_t slot : older_) {
      withdraw(slot);
      transmissions_[slot].resend_at = waits_until;
      append(overdue_, slot);
    }
    for (const std::uint32_t slot : missing_) {
      withdraw(slot);
      lost(slot);
    }
  }

  // Forgets the slot's transmission, because its item will be sent again for another reason.
  // Inlined always: most of the calls are for transmissions that are on time and oldest, or nowhere.
  [[gnu::always_inline]] void withdraw(std::uint32_t slot) {
    Transmission& transmission = transmissions_[slot];
    if (transmission.place == Place::nowhere) return;
    Chain& chain = transmission.place == Place::on_time ? on_time_ : overdue_;
    off_path_ -= transmission.place == Place::on_time && transmission.off_path;
    transmission.place = Place::nowhere;
    --chain.size;
    (transmission.older == NONE ? chain.oldest : transmissions_[transmission.older].newer) = transmission.newer;
    (transmission.newer == NONE ? chain.newest : transmissions_[transmission.newer].older) = transmission.older;
  }

  // Time at which an item must be sent again; none while nothing is outstanding.
  std::optional<double> deadline() const {
    std::optional<double> first;
    if (overdue_.oldest != NONE) first = transmissions_[overdue_.oldest].resend_at;
    if (on_time_.oldest != NONE) first = std::min(expires_at(), first.value_or(expires_at()));
    return first;
  }

  // If the timer has expired: the slot to send again, and whether its transmission is known to have arrived. `lowest`:
  // slot of the lowest unfinished item.
  std::optional<std::pair<std::uint32_t, bool>> expire(double now, std::uint32_t lowest) {
    if (on_time_.oldest == NONE || expires_at() > now) return std::nullopt;
    // R-RECOVERY-12: the lowest unfinished item of all workers does not wait for any other. Sending it every other time
    // ends cycles in which each worker repeats items that the others do not wait for.
    const bool takes_lowest = timeouts_in_a_row_ % 2 == 0 && transmissions_[lowest].place == Place::on_time &&
                              transmissions_[lowest].sent_at <= now - timer.overdue_s(0.0);
    const std::uint32_t oldest = takes_lowest ? lowest : on_time_.oldest;
    // R-RECOVERY-14: a thin flight has nothing but the timer to show a loss, so the timer stays short for a while.
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

  enum class Place : std::uint8_t { nowhere, on_time, overdue };

  // A list of slots, oldest first: one for those that are on time, by order, one for those whose results are overdue.
  struct Chain {
    std::uint32_t oldest = NONE;
    std::uint32_t newest = NONE;
    std::uint32_t size = 0;
  };

  // The latest transmission of a slot's current item; a line of the cache, so that no slot's lies in two.
  struct alignas(CACHE_LINE_BYTES) Transmission {
    std::uint64_t order = 0;
    std::uint64_t order_before = 0;  // order of the item's transmission before this one; its own without one
    double sent_at = 0.0;
    double resend_at = 0.0;
    std::uint32_t count = 0;  // how often the item was sent
    std::uint32_t older = NONE;
    std::uint32_t newer = NONE;
    Place place = Place::nowhere;
    bool arrived = false;   // whether the switch is known to have it
    bool off_path = false;  // whether it therefore no longer counts as in flight
    bool spurious = false;  // whether the switch had the item before, from an earlier transmission
  };

  // Calls look(slot) for the transmission of that order if it is on time; `order` must be one of the last
  // slot_of_order_.size().
  template <typename Look>
  void look_if_on_time(std::int64_t order, Look look) {
    const std::uint32_t slot = slot_of_order_[static_cast<std::uint64_t>(order) & (slot_of_order_.size() - 1)];
    const Transmission& transmission = transmissions_[slot];
    if (transmission.place == Place::on_time && static_cast<std::int64_t>(transmission.order) == order) look(slot);
  }

  // R-RECOVERY-14: too few are outstanding for three to overtake one.
  bool thin() const { return on_time_.size + overdue_.size <= REORDER_THRESHOLD; }

  // Draws the conclusions from the result of an item that was sent more than once.
  void finished_repeated(const Transmission& transmission, double now, bool answered) {
    answers_in_a_row_ += answered;
    if (timer.tells_rounds && answered && answers_in_a_row_ > ANSWERS_IN_A_ROW) {  // R-RECOVERY-9
      resend_more_results(now);
      // R-RECOVERY-8: results have been lost. R-RECOVERY-15: without receipts nothing else would ever say so.
    } else if (answered || (!has_receipts_ && next_order_ > NO_RECEIPTS_AFTER)) {
      resend_oldest_if_timed_out(now);
      if (timer.tells_rounds && overdue_.oldest != NONE) transmissions_[overdue_.oldest].resend_at = now;
    } else if (timer.tells_rounds && !transmission.spurious) {  // R-RECOVERY-10
      resend_more_contributions(now);
    }
  }

  // How long a result may be overdue.
  double wait_s() const { return timer.overdue_s(more_wait_); }

  double expires_at() const {
    return std::max(transmissions_[on_time_.oldest].sent_at, restarted_at_) + timer.timeout_s(thin());
  }

  // R-RECOVERY-9: sends more of a burst of lost results again, overdue ones and those that have timed out.
  void resend_more_results(double now) {
    resends_ += NEXT_RESENT;
    while (overdue_.size < resends_ && oldest_timed_out(now)) {
      const std::uint32_t late = on_time_.oldest;
      withdraw(late);
      transmissions_[late].resend_at = now;
      append(overdue_, late);
    }
    std::uint32_t slot = overdue_.oldest;
    for (std::uint32_t sent_again = 0; sent_again < resends_ && slot != NONE;
         ++sent_again, slot = transmissions_[slot].newer)
      transmissions_[slot].resend_at = now;
  }

  // R-RECOVERY-10: sends more of a burst of lost contributions again, which no receipt will tell of.
  void resend_more_contributions(double now) {
    resends_ += NEXT_RESENT;
    std::uint32_t slot = overdue_.oldest;
    for (std::uint32_t sent_again = 0; sent_again < resends_ && slot != NONE;
         ++sent_again, slot = transmissions_[slot].newer) {
      Transmission& transmission = transmissions_[slot];
      if (transmission.arrived || static_cast<std::int64_t>(transmission.order + TRACKED) >= highest_) return;
      transmission.resend_at = now;
    }
  }

  // Whether the oldest result that is not overdue has been waited for a whole timeout.
  bool oldest_timed_out(double now) const {
    return on_time_.oldest != NONE && transmissions_[on_time_.oldest].sent_at + timer.timeout_s() <= now;
  }

  void resend_oldest_if_timed_out(double now) {
    if (!oldest_timed_out(now)) return;
    const std::uint32_t oldest = on_time_.oldest;
    withdraw(oldest);
    Transmission& transmission = transmissions_[oldest];
    transmission.resend_at = now;
    // R-RECOVERY-8, at the front: `take_due` and `deadline` rely on the order of the times.
    transmission.place = Place::overdue;
    ++overdue_.size;
    transmission.older = NONE;
    transmission.newer = overdue_.oldest;
    (overdue_.oldest == NONE ? overdue_.newest : transmissions_[overdue_.oldest].older) = oldest;
    overdue_.oldest = oldest;
  }

  void append(Chain& chain, std::uint32_t slot) {
    Transmission& transmission = transmissions_[slot];
    transmission.place = &chain == &on_time_ ? Place::on_time : Place::overdue;
    ++chain.size;
    transmission.older = chain.newest;
    transmission.newer = NONE;
    (chain.newest == NONE ? chain.oldest : transmissions_[chain.newest].newer) = slot;
    chain.newest = slot;
  }

  std::vector<Transmission> transmissions_;
  // Slots by the order of their transmissions, for the latest ones; a power of two of them.
  std::vector<std::uint32_t> slot_of_order_;
  std::vector<std::uint32_t> missing_;  // missing transmissions by the current receipt
  std::vector<std::uint32_t> older_;    // transmissions before those of the current receipt
  std::uint64_t next_order_ = 1;
  Chain on_time_;
  Chain overdue_;
  std::uint32_t off_path_ = 0;  // items on time that are known to have arrived
  std::uint32_t waiting_ = 0;   // items that were sent and wait for their results
  std::uint32_t timeouts_in_a_row_ = 0;
  std::uint32_t answers_in_a_row_ = 0;  // since the last result of an item that was sent once
  std::int64_t highest_ = 0;            // highest order that is known to have arrived
  // Number of overdue items to send again at once, because others were missing; 0: only one.
  std::uint32_t resends_ = 0;
  double more_wait_ = 0.0;  // round trips to wait in addition to timer.overdue_s()
  double restarted_at_ = 0.0;
  double expired_at_ = 0.0;
  bool has_receipts_ = false;  // whether this switch gives receipts
};

}  // namespace fanin

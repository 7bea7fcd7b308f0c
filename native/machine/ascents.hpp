// Transmissions of a leaf to its parent: order, window and loss recovery. R-LEAF-6 to R-LEAF-9 in docs/protocol.md;
// twin of switch/machine/ascents.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "machine/congestion.hpp"
#include "machine/loss_recovery.hpp"
#include "machine/receipts.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

struct Ascent {
  std::uint32_t slot;
  std::uint32_t order;  // order number in its packet
  bool full;            // whether its packet is as long as a result
};

class Ascents {
 public:
  // `packet_bytes`: length of the longest packets to the parent.
  Ascents(std::uint32_t slots, std::size_t packet_bytes)
      : rounds_of_(slots), congestion_(slots, packet_bytes), recovery_(slots) {
    waiting_.reserve(slots);
  }

  // Queues the slot's complete round, `number`, for the parent; if it was sent already, sends it again.
  void complete(std::uint32_t slot, std::uint32_t number) {
    Round& round = rounds_of_[slot];
    if (round.place == Place::under_way) return again(slot, false);
    if (round.place == Place::waiting) return;
    round = {.place = Place::waiting, .number = number};
    waiting_.push_back(item(slot));
    std::ranges::push_heap(waiting_, std::greater<>{});
  }

  // Whether to send the slot's complete round again, because a worker repeats its contribution to it (R-LEAF-8).
  bool asked(std::uint32_t slot, double now) {
    const Round& round = rounds_of_[slot];
    if (round.place != Place::under_way || std::ranges::find(again_, slot, &Again::slot) != again_.end()) return false;
    const double shortest_s = std::min(shortest_s_, before_s_);
    if (now < round.sent_at + (shortest_s == NEVER ? MIN_TIMEOUT_S : shortest_s)) return false;
    again(slot, false);
    return true;
  }

  // Handles a bare answer: the parent has the round, so ask again in a packet as long as the result.
  void acknowledged(std::uint32_t slot) {
    if (rounds_of_[slot].place == Place::under_way) again(slot, true);
  }

  // Item of the lowest round that was sent and waits for the parent's result.
  std::optional<std::uint64_t> oldest() const {
    std::optional<std::uint64_t> lowest;
    for (std::uint32_t slot = 0; slot < rounds_of_.size(); ++slot)
      if (rounds_of_[slot].place == Place::under_way && (!lowest || item(slot) < *lowest)) lowest = item(slot);
    return lowest;
  }

  // The slot whose round to send now; none if nothing is to be sent.
  std::optional<Ascent> take(double now) {
    const double round_trip_s = congestion_.paced_round_trip(recovery_.timer.smoothed_s);
    Ascent next = {};
    if (!again_.empty()) {  // R-CONGESTION-3, R-CONGESTION-13: it replaces a transmission that has left the path
      next = {.slot = again_.front().slot, .order = 0, .full = again_.front().full};
      again_.erase(again_.begin());
    } else if (const std::optional<std::uint32_t> first = this->first();
               first && congestion_.may_send(round_trip_s, now)) {
      next.slot = *first;
      std::ranges::pop_heap(waiting_, std::greater<>{});
      waiting_.pop_back();
      rounds_of_[next.slot].place = Place::under_way;
    } else {
      congestion_.limited = !waiting_.empty();
      return std::nullopt;
    }
    // R-LEAF-6; 0 asks for no receipts (R-CONGESTION-1).
    next.order = congestion_.shares() ? static_cast<std::uint32_t>(recovery_.next_order()) : 0;
    congestion_.sent(round_trip_s, now);
    Round& round = rounds_of_[next.slot];
    round.sent_at = now;
    round.once = recovery_.sent(next.slot, now);
    return next;
  }

  // Time at which pacing lets `take` send the next round; none if nothing waits, or not for pacing alone.
  std::optional<double> next_timer() const {
    return again_.empty() && first() ? std::optional(congestion_.held_until()) : std::nullopt;
  }

  // Notes the parent's result of the slot's open round; `answered`: it answers this leaf's repetition alone.
  void came(std::uint32_t slot, double now, bool answered, bool marked = false) {
    std::erase_if(again_, [slot](const Again& each) { return each.slot == slot; });
    const Round round = rounds_of_[slot];
    if (round.place == Place::waiting) {
      std::erase(waiting_, item(slot));
      std::ranges::make_heap(waiting_, std::greater<>{});
    }
    rounds_of_[slot] = {};
    if (round.place != Place::under_way) return;
    const std::uint64_t order = recovery_.order(slot);
    if (marked) congestion_.marked(order, recovery_.next_order());
    if (answered) {
      recovery_.repetition_was(true);
      congestion_.lost(recovery_.order_before(slot), recovery_.next_order());
    }
    if (const std::optional<double> round_trip_s = recovery_.finished(slot, now, answered))
      congestion_.round_trip(*round_trip_s, now);
    congestion_.result(order, recovery_.next_order(), recovery_.overdue());
    if (!round.once) return;  // R-RECOVERY-11
    shortest_s_ = std::min(shortest_s_, now - round.sent_at);
    if (++rounds_ < RECEIPT_EVERY) return;  // R-LEAF-9: the shortest of several is the path's, without late peers
    before_s_ = shortest_s_;
    shortest_s_ = NEVER;
    rounds_ = 0;
  }

  // Handles a receipt; arguments as of LossRecovery::receipt. `spurious`: order `answers` is a repetition.
  void receipt(std::uint32_t answers, std::uint32_t highest, std::uint32_t received, double now, bool spurious) {
    const bool by_rota = !spurious && measures(answers);
    const std::optional<double> round_trip_s = recovery_.receipt(answers, highest, received, now, by_rota, spurious,
                                                                 [this](std::uint32_t slot) { lost_.push_back(slot); });
    congestion_.heard();
    if (round_trip_s) {
      recovery_.timer.path_round_trip(*round_trip_s);
      if (!by_rota) congestion_.path_round_trip(*round_trip_s, now);
    }
    if (spurious) recovery_.repetition_was(false);
    for (const std::uint32_t slot : lost_) {  // R-LEAF-6
      congestion_.lost(recovery_.order(slot), recovery_.next_order());
      again(slot);
    }
    lost_.clear();
  }

  // Sends rounds again whose results were lost. `odd(slot)`: whether the parent has closed an odd number there.
  template <typename Odd>
  void settle(std::uint32_t highest, Odd odd, double now) {
    const auto closed = [&](std::uint32_t slot) { return odd(slot) != ((rounds_of_[slot].number & 1) != 0); };
    recovery_.settle(highest, false, closed, now, [this](std::uint32_t slot) { again(slot); });
  }

  // Notes that the HELLO of that sequence number was sent to the parent.
  void hello_sent(std::uint32_t sequence, double now) { hello_ = {sequence, now}; }

  // Measures the path by a WELCOME that answers the last HELLO; ignores one that answers an earlier HELLO.
  void welcome(std::uint32_t sequence, double now) {
    if (!hello_ || hello_->first != sequence) return;
    const double round_trip_s = now - hello_->second;
    recovery_.timer.sample(round_trip_s, true);
    recovery_.timer.path_round_trip(round_trip_s);
    congestion_.path_round_trip(round_trip_s, now);
  }

  // Shortest recent time from sending a round to its result, in microseconds; 0 while it is not known.
  std::uint32_t round_trip_us() const {
    const double shortest_s = std::min(shortest_s_, before_s_);
    return shortest_s == NEVER ? 0 : static_cast<std::uint32_t>(std::min(shortest_s * 1e6, double{ORDER_MASK}));
  }

 private:
  static constexpr double NEVER = std::numeric_limits<double>::infinity();

  enum class Place : std::uint8_t { nowhere, waiting, under_way };

  // The open round of a slot.
  struct Round {
    Place place = Place::nowhere;
    bool once = false;  // whether it was sent only once
    std::uint32_t number = 0;
    double sent_at = 0.0;  // when it was last sent
  };

  struct Again {
    std::uint32_t slot;
    bool full;
  };

  std::uint64_t item(std::uint32_t slot) const {
    return std::uint64_t{rounds_of_[slot].number} * rounds_of_.size() + slot;
  }

  // Queues a slot's round to be sent again; if it is queued already, only sets its length, if `full` is given.
  void again(std::uint32_t slot, std::optional<bool> full = std::nullopt) {
    const auto found = std::ranges::find(again_, slot, &Again::slot);
    if (found == again_.end())
      again_.push_back({.slot = slot, .full = full.value_or(false)});
    else
      found->full = full.value_or(found->full);
  }

  // Slot of the lowest waiting round, if the window has room or no lower round is under way; else none.
  std::optional<std::uint32_t> first() const {
    if (waiting_.empty()) return std::nullopt;
    const auto slot = static_cast<std::uint32_t>(waiting_.front() % rounds_of_.size());
    if (congestion_.has_room(recovery_.in_flight(), recovery_.waiting())) return slot;
    // R-LEAF-7: leaves whose windows were full of different rounds would wait for each other.
    for (std::uint32_t other = 0; other < rounds_of_.size(); ++other)
      if (rounds_of_[other].place == Place::under_way && item(other) < waiting_.front()) return std::nullopt;
    return slot;
  }

  std::vector<Round> rounds_of_;        // by slot
  std::vector<std::uint64_t> waiting_;  // a heap: items of complete rounds that were not sent yet
  std::vector<Again> again_;            // rounds to be sent again, in the order in which that became known
  std::vector<std::uint32_t> lost_;     // lost slots by the current receipt
  Congestion congestion_;
  LossRecovery recovery_;
  std::optional<std::pair<std::uint32_t, double>> hello_;  // sequence number and time of the last HELLO
  double shortest_s_ = NEVER;
  double before_s_ = NEVER;
  std::uint32_t rounds_ = 0;  // number of rounds that shortest_s_ was measured over
};

}  // namespace fanin

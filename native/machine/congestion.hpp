// Congestion window and pacing of a flow's contributions: R-CONGESTION in docs/protocol.md. Twin of
// fanin/protocol/congestion.py, operation by operation, so that both machines keep the same windows and times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "wire/wire_constants.hpp"

namespace fanin {

class Congestion {
 public:
  // `packet_bytes` is the length of the job's longest packets.
  Congestion(std::uint32_t slots, std::size_t packet_bytes)
      : shares_(packet_bytes <= LONGEST_FRAME_BYTES),
        pool_(slots),
        window_(shares_ ? std::min(initial(packet_bytes, pool_), pool_) : pool_),
        threshold_(pool_) {}

  bool limited = false;  // whether the window or the pace has held back a packet

  // Whether the path may have links that others use.
  bool shares() const { return shares_; }
  double window() const { return window_; }
  // The longest round trip of the path, which decays over time.
  double path_s() const { return path_s_; }
  std::uint64_t cuts() const { return cuts_; }
  // R-CONGESTION-2: whether one more item may go out while so many are in flight, and so many wait for their results.
  bool has_room(std::uint32_t in_flight, std::uint32_t waiting) const {
    return in_flight < static_cast<std::uint32_t>(window_) &&
           waiting < static_cast<std::uint32_t>(WINDOWS_WAITING * window_);
  }

  // Notes a measured round trip, which may include the lateness of peers.
  void round_trip(double round_trip_s, double now) {
    if (now - shortest_since_ >= SHORTEST_FOR_S) {  // R-CONGESTION-9: paths change
      shortest_before_s_ = shortest_s_;
      shortest_s_ = round_trip_s;
      shortest_since_ = now;
    }
    shortest_s_ = std::min(shortest_s_, round_trip_s);
    recent_s_ = std::min(recent_s_, round_trip_s);
  }

  // Notes a measured round trip of the path alone, without peers.
  void path_round_trip(double round_trip_s, double now) {
    round_trip(round_trip_s, now);
    path_s_ = std::max(std::min(round_trip_s, MAX_PACED_ROUND_TRIP_S), PATH_DECAY * path_s_);
  }

  // Notes that the switch has reacted to a transmission, so that the path works.
  void heard() { silent_ = 0; }

  // Notes a result of the transmission `order`; `overdue`: number of overdue results.
  void result(std::uint64_t order, std::uint64_t next_order, std::uint32_t overdue) {
    silent_ = 0;
    if (order >= window_ends_) {  // R-CONGESTION-9: sent after the window began, so a window of packets is over
      recent_before_s_ = recent_s_;
      recent_s_ = NEVER;
      window_ends_ = next_order;
    }
    // R-CONGESTION-6: what was not used is not validated (RFC 7661), and what was sent before a cut says nothing of it.
    if (OVERDUE_PER_WINDOW * overdue > window_ || order < recover_ || !limited) return;
    if (window_ < threshold_)  // R-CONGESTION-5: slow start
      window_ = std::min(window_ + 1.0, pool_);
    else
      window_ = std::min(window_ + GROWTH / window_, pool_);
  }

  // Notes that the transmission `order`, or its result, was lost.
  void lost(std::uint64_t order, std::uint64_t next_order) {
    // R-CONGESTION-8, at most one cut per round trip: what was sent before the last cut met the queue that this cut
    // answers. R-CONGESTION-9: lost with empty queues, it was lost by chance.
    if (!shares_ || order < recover_ || !queues()) return;
    recover_ = next_order;
    // R-CONGESTION-7: less than what does not wait in queues would leave the link idle.
    const double unqueued = shortest_s() / std::min(recent_s_, recent_before_s_);
    threshold_ = window_ = std::max(window_ * std::max(DECREASE, unqueued), std::min(MIN_WINDOW, pool_));
    ++cuts_;
  }

  // Notes that the transmission `order`, or its reply, met congestion.
  void marked(std::uint64_t order, std::uint64_t next_order) {
    if (!shares_ || order < recover_) return;  // R-CONGESTION-8
    recover_ = next_order;
    // R-CONGESTION-10: a queue is full, and nothing was lost yet.
    threshold_ = window_ = std::max(window_ * DECREASE_MARKED, std::min(MIN_WINDOW, pool_));
    ++cuts_;
  }

  // Notes that the timer expired; `arrived`: whether the switch is known to have the transmission.
  void expired(bool arrived, std::uint64_t next_order) {
    // R-CONGESTION-11: fewer may be a peer's lateness.
    if (arrived || !shares_ || ++silent_ < SILENT_TIMEOUTS) return;
    if (silent_ == SILENT_TIMEOUTS) {  // once: each later timer would halve the threshold again
      threshold_ = std::max(window_ / 2.0, std::min(MIN_WINDOW, pool_));
      ++cuts_;
    }
    recover_ = next_order;
    window_ = std::min(MIN_WINDOW, pool_);
  }

  // R-CONGESTION-12: the round trip in which a window goes out. A peer that was late must not slow down what follows.
  double paced_round_trip(double smoothed_s) const { return shares_ ? std::min(smoothed_s, path_s_) : 0.0; }

  // Whether the pace allows a packet now, to be followed by `sent`; otherwise see `held_until`.
  bool may_send(double round_trip_s, double now) const {
    return round_trip_s < MIN_PACED_ROUND_TRIP_S || held_until_ <= now;
  }

  // When the next burst may begin.
  double held_until() const { return held_until_; }

  // Notes that a contribution was sent, at a pace of one window per round trip.
  void sent(double round_trip_s, double now) {
    if (round_trip_s < MIN_PACED_ROUND_TRIP_S) return;
    const double gain = window_ < threshold_ ? PACING_GAIN_SLOW_START : PACING_GAIN;
    const double interval_s = round_trip_s / (gain * window_);
    // R-CONGESTION-13: the repair of a long outage sends many while the window is short.
    drained_at_ = std::min(std::max(drained_at_, now) + interval_s, now + round_trip_s);
    if (drained_at_ - now >= std::max(BURST_S, BURST_PACKETS * interval_s)) held_until_ = drained_at_;
  }

 private:
  static constexpr double NEVER = std::numeric_limits<double>::infinity();

  // R-CONGESTION-4: ten small packets are no load; of a job with many shards all first windows meet in one link.
  static double initial(std::size_t packet_bytes, double pool) {
    const std::size_t whole_packets = INITIAL_WINDOW_BYTES / packet_bytes;
    const double frames = std::max(INITIAL_WINDOW, static_cast<double>(whole_packets));
    return frames > INITIAL_WINDOW ? frames : std::min(frames, std::max(FIRST_SHARE * pool, 2.0 * MIN_WINDOW));
  }

  // The shortest known round trip of the path, without queues.
  double shortest_s() const { return std::min({shortest_s_, shortest_before_s_, LONGEST_UNQUEUED_S}); }

  // R-CONGESTION-9: whether this flow's packets wait in queues. Of a full queue every packet of a window has a long
  // round trip, of a late peer only some.
  bool queues() const {
    const double recent_s = std::min(recent_s_, recent_before_s_);
    return recent_s < NEVER && window_ * (recent_s - shortest_s()) > QUEUED_PACKETS * recent_s;
  }

  bool shares_;  // the path may have links that others use: R-CONGESTION-1
  double pool_;
  double window_;
  double threshold_;           // slow start up to here
  std::uint64_t recover_ = 0;  // losses of transmissions with lower orders belong to the last cut
  std::uint64_t cuts_ = 0;
  std::uint32_t silent_ = 0;          // timers since anything was heard of a transmission
  double shortest_s_ = NEVER;         // shortest round trip since shortest_since_
  double shortest_before_s_ = NEVER;  // shortest in the SHORTEST_FOR_S or more before
  double shortest_since_ = 0.0;
  double recent_s_ = NEVER;  // shortest of this window of packets, and of the one before
  double recent_before_s_ = NEVER;
  std::uint64_t window_ends_ = 0;  // the order whose result ends this window of packets
  double path_s_ = 0.0;            // the longest round trip of the path, which decays over time
  double drained_at_ = 0.0;        // when all sent packets will have left at the paced rate
  double held_until_ = 0.0;        // after a burst: when the next one may begin
};

}  // namespace fanin

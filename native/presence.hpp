// A worker's membership in its job: HELLO, heartbeats, whether the switch and the peers are there, BYE. The rules and
// the table of phases stand in host/machine/presence.py.
#pragma once

#include <cstdint>
#include <optional>

#include "growing_ring.hpp"
#include "job.hpp"
#include "wire_constants.hpp"
#include "worker_events.hpp"

namespace fanin {

enum class Phase : std::uint8_t { connecting, member, leaving, left, failed };

class Presence {
 public:
  Presence(const JobSpec& spec, double connect_timeout_s, GrowingRing<WorkerEvent>& events);

  Phase phase() const { return phase_; }
  // Whether the job still runs for this worker.
  bool joined() const { return phase_ == Phase::connecting || phase_ == Phase::member; }

  // --- what to say, and when ---

  std::uint32_t hello_sequence() const { return hello_sequence_; }
  bool hello_due(double now);  // the first call starts the clock
  void hello_sent(double now);
  bool bye_due(double now) const { return phase_ == Phase::leaving && now >= say_at_; }
  void bye_sent(double now) { say_at_ = now + BYE_RETRY_S; }
  void leave(double now);
  std::optional<double> next_timer() const;
  void handle_timer(double now);

  // --- what is heard ---

  void heard(double now) {
    heard_at_ = now;
    unanswered_ = 0;
  }
  // Returns the round trip in seconds if it answers the last HELLO.
  std::optional<double> welcome(std::uint32_t sequence, std::uint32_t lost, std::uint32_t left, double now);
  void peers_gone(std::uint32_t lost, std::uint32_t left, double now);
  void members_are(std::uint32_t change, std::uint32_t members, std::uint64_t base);
  void branch(Reason reason, double now);
  void refused(Reason reason);
  void other_version();
  void departed();

  // --- peers that have left ---

  std::optional<double> left_deadline(double moved_at) const;
  void peers_hold_up(double moved_at, double now);

 private:
  void fail(WorkerEvent event);

  GrowingRing<WorkerEvent>& events_;
  const bool protected_;  // by checksums or tags
  const bool survives_loss_;
  bool branch_left_ = false;
  std::uint32_t members_;
  std::uint32_t change_ = 0;
  Phase phase_ = Phase::connecting;
  bool started_ = false;
  std::uint32_t hello_sequence_ = 0;
  std::uint32_t unanswered_ = 0;  // HELLOs since heard_at_
  std::uint32_t left_ = 0;
  double silence_limit_s_;
  double liveness_timeout_s_;
  double heartbeat_s_;
  double heard_at_ = 0.0;  // when the switch was last heard; before that, when the machine started
  double say_at_ = 0.0;    // when the next HELLO or BYE is due
  double hello_sent_at_ = 0.0;
  double leave_by_ = 0.0;
  double left_at_ = 0.0;
};

}  // namespace fanin

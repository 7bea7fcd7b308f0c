// Messages between a member of a job and its switch that show that both live: HELLO, heartbeats, silence, BYE. Members
// are workers of a switch (presence.hpp) and leaves of a parent (uplink.hpp). R-MEMBER in docs/protocol.md; twin of
// fanin/protocol/keepalive.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "wire/job.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

enum class Phase : std::uint8_t { waiting, connecting, member, leaving, left, failed };

class Keepalive {
 public:
  Keepalive(const JobSpec& spec, Phase phase, double connect_timeout_s)
      : phase_(phase),
        silence_limit_s_(connect_timeout_s),
        liveness_timeout_s_(spec.liveness_timeout_s),
        heartbeat_s_(std::min(HEARTBEAT_INTERVAL_S, spec.liveness_timeout_s / LIVENESS_HEARTBEATS)) {}

  Phase phase() const { return phase_; }
  // Whether the job goes on for this member.
  bool joined() const { return phase_ == Phase::connecting || phase_ == Phase::member; }
  // Starts the clock, once: the first HELLO is due, and silence counts from now on.
  void start(double now) {
    if (started_) return;
    started_ = true;
    say_at_ = heard_at_ = now;
  }

  // --- messages to send ---

  std::uint32_t hello_sequence() const { return hello_sequence_; }
  bool hello_due(double now) const { return joined() && now >= say_at_; }
  void hello_sent(double now) {
    say_at_ = now + (phase_ == Phase::connecting ? HELLO_RETRY_S : heartbeat_s_);
    ++unanswered_;
    ++hello_sequence_;
  }
  // Notes a HELLO that tests a packet length, and does not count for silence.
  void probe_sent() { ++hello_sequence_; }
  // Whether the switch was heard since the last heartbeat but one.
  bool answered() const { return unanswered_ < 2; }
  bool bye_due(double now) const { return phase_ == Phase::leaving && now >= say_at_; }
  void bye_sent(double now) { say_at_ = now + BYE_RETRY_S; }
  void leave(double now) {
    if (!joined()) return;
    phase_ = Phase::leaving;
    say_at_ = now;
    leave_by_ = now + LEAVE_TIMEOUT_S;
  }

  // --- what is heard, and time ---

  void heard(double now) {
    heard_at_ = now;
    unanswered_ = 0;
  }
  std::optional<double> next_timer() const {
    if (phase_ == Phase::leaving) return std::min(say_at_, leave_by_);
    if (!joined() || !started_) return std::nullopt;
    if (unanswered_ < HEARTBEATS_TO_SILENCE) return say_at_;
    return std::min(say_at_, silent_at());
  }

 protected:
  // Handles WELCOME; returns whether it has made this a member.
  bool welcomed(double now) {
    if (phase_ != Phase::connecting) return false;
    phase_ = Phase::member;
    silence_limit_s_ = liveness_timeout_s_;
    say_at_ = now + heartbeat_s_;
    return true;
  }
  // R-MEMBER-4: whether the time to wait for the echo of BYE is over.
  bool left_unconfirmed(double now) const { return phase_ == Phase::leaving && now >= leave_by_; }
  // R-MEMBER-9: for how long the switch has been silent, if that is too long. Only unanswered HELLOs make it so: a
  // process that was stopped must not take its own sleep for silence.
  std::optional<double> silent_s(double now) const {
    const bool watched = joined() && started_ && unanswered_ >= HEARTBEATS_TO_SILENCE;
    if (!watched || now < silent_at()) return std::nullopt;
    return now - heard_at_;
  }
  // R-MEMBER-7: something else than silence speaks for the switch's death. The next HELLO is due at once.
  void suspect(double now) {
    if (phase_ != Phase::member || suspicion_stands()) return;
    suspected_at_ = say_at_ = now;
  }
  void was_stopped(double seconds) {
    heard_at_ += seconds;
    if (suspected_at_) *suspected_at_ += seconds;
    leave_by_ += seconds;
  }

  Phase phase_;

 private:
  bool suspicion_stands() const { return suspected_at_ && heard_at_ <= *suspected_at_ + SUSPICION_SETTLES_S; }
  double silent_at() const {
    const double at = heard_at_ + silence_limit_s_;
    // A heartbeat more than for a worker: the last of HEARTBEATS_TO_SILENCE has time for its answer.
    return suspicion_stands() ? std::min(at, *suspected_at_ + heartbeat_s_ + SUSPICION_TIMEOUT_S) : at;
  }

  bool started_ = false;
  std::uint32_t hello_sequence_ = 0;
  std::uint32_t unanswered_ = 0;  // HELLOs since heard_at_
  double silence_limit_s_;
  double liveness_timeout_s_;
  double heartbeat_s_;
  double heard_at_ = 0.0;               // when the switch was last heard; before that, when this started
  std::optional<double> suspected_at_;  // when it was last suspected of having died
  double say_at_ = 0.0;                 // when the next HELLO or BYE is due
  double leave_by_ = 0.0;
};

}  // namespace fanin

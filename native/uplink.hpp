// How a leaf is present at its parent, in one job: HELLO, heartbeats, silence, BYE. The rules, and the table of phases, stand
// in switch/machine/uplink.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "job.hpp"
#include "wire_constants.hpp"

namespace fanin {

class UplinkPresence {
 public:
  enum class Phase : std::uint8_t { waiting, connecting, member, leaving, over };

  UplinkPresence(const Uplink& uplink, const JobSpec& spec)
      : uplink_(uplink),
        liveness_timeout_s_(spec.liveness_timeout_s),
        heartbeat_s_(std::min(HEARTBEAT_INTERVAL_S, spec.liveness_timeout_s / LIVENESS_HEARTBEATS)) {}

  const Uplink& uplink() const { return uplink_; }
  Phase phase() const { return phase_; }
  std::uint32_t hello_sequence() const { return hello_sequence_; }

  void start(double now) {
    if (phase_ != Phase::waiting) return;
    phase_ = Phase::connecting;
    say_at_ = heard_at_ = now;
  }
  void leave(double now) {
    if (!joined()) return;
    phase_ = Phase::leaving;
    say_at_ = now;
    leave_by_ = now + LEAVE_TIMEOUT_S;
  }

  bool hello_due(double now) const { return joined() && now >= say_at_; }
  void hello_sent(double now) {
    say_at_ = now + (phase_ == Phase::connecting ? HELLO_RETRY_S : heartbeat_s_);
    ++unanswered_;
    ++hello_sequence_;
  }
  bool bye_due(double now) const { return phase_ == Phase::leaving && now >= say_at_; }
  void bye_sent(double now) { say_at_ = now + BYE_RETRY_S; }

  std::optional<double> next_timer() const {
    if (phase_ == Phase::leaving) return std::min(say_at_, leave_by_);
    if (!joined()) return std::nullopt;
    if (phase_ == Phase::member && unanswered_ >= HEARTBEATS_TO_SILENCE)
      return std::min(say_at_, heard_at_ + liveness_timeout_s_);
    return say_at_;
  }
  // What these return is to be told to the leaf's workers; Reason{} for nothing.
  Reason handle_timer(double now) {
    if (phase_ == Phase::leaving && now >= leave_by_) phase_ = Phase::over;
    const bool silent = unanswered_ >= HEARTBEATS_TO_SILENCE && now >= heard_at_ + liveness_timeout_s_;
    if (phase_ != Phase::member || !silent) return Reason{};
    phase_ = Phase::over;
    return Reason::branch_lost;
  }
  Reason branches_gone(std::uint32_t lost, std::uint32_t left) {
    if (!joined()) return Reason{};
    if (lost != 0) return refused();
    return left != 0 ? Reason::branch_left : Reason{};
  }
  Reason refused() {
    const bool was_joined = phase_ != Phase::leaving && phase_ != Phase::over;
    phase_ = Phase::over;
    return was_joined ? Reason::branch_lost : Reason{};
  }

  void was_stopped(double seconds) {
    heard_at_ += seconds;
    leave_by_ += seconds;
  }
  void heard(double now) {
    heard_at_ = now;
    unanswered_ = 0;
  }
  void welcome(double now) {
    if (phase_ != Phase::connecting) return;
    phase_ = Phase::member;
    say_at_ = now + heartbeat_s_;
  }
  void departed() {
    if (phase_ == Phase::leaving) phase_ = Phase::over;
  }

 private:
  bool joined() const { return phase_ == Phase::connecting || phase_ == Phase::member; }

  Uplink uplink_;
  double liveness_timeout_s_;
  double heartbeat_s_;
  Phase phase_ = Phase::waiting;
  std::uint32_t hello_sequence_ = 0;
  std::uint32_t unanswered_ = 0;  // HELLOs since heard_at_
  double say_at_ = 0.0;
  double heard_at_ = 0.0;
  double leave_by_ = 0.0;
};

}  // namespace fanin

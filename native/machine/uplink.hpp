// A leaf's membership in its parent's job: keepalive.hpp, and the notices to its workers. The
// table of phases stands in switch/machine/uplink.py.
#pragma once

#include <cstdint>
#include <limits>

#include "machine/keepalive.hpp"
#include "machine/path_watch.hpp"

namespace fanin {

class UplinkPresence : public Keepalive {
 public:
  // While connecting, the parent's silence ends nothing.
  UplinkPresence(const Uplink& uplink, const JobSpec& spec)
      : Keepalive(spec, Phase::waiting, std::numeric_limits<double>::infinity()),
        path(spec.liveness_timeout_s),
        uplink_(uplink) {}

  const Uplink& uplink() const { return uplink_; }
  Reason news() const { return news_; }  // branch_left or branch_lost, once there is a reason to tell the workers

  void start(double now) {
    if (phase_ != Phase::waiting) return;
    phase_ = Phase::connecting;
    Keepalive::start(now);
  }

  // These return the notice for the leaf's workers; Reason{} for none. Each kind of news is told once; the
  // worse one stays.
  Reason handle_timer(double now) {
    if (left_unconfirmed(now)) phase_ = Phase::left;
    // R-MEMBER-11; if no HELLO at all is answered, the cause is silence (R-MEMBER-9), not the length.
    narrowed_ = !silent_s(now) && phase_ == Phase::member && path.too_narrow(now) && answered();
    if (!silent_s(now) && !narrowed_) return Reason{};
    phase_ = Phase::failed;
    return once(Reason::branch_lost);
  }
  // Whether `handle_timer` has just found the path too narrow.
  bool narrowed() const { return narrowed_; }
  Reason branches_gone(std::uint32_t lost, std::uint32_t left) {
    if (!joined()) return Reason{};
    if (lost != 0) return refused();  // R-LEAF-10: no branch can do without the others, as trees are synchronous
    return left != 0 ? once(Reason::branch_left) : Reason{};
  }
  Reason refused() {
    const bool over = phase_ == Phase::leaving || phase_ == Phase::left || phase_ == Phase::failed;
    phase_ = over ? Phase::left : Phase::failed;
    return over ? Reason{} : once(Reason::branch_lost);
  }

  void welcome(std::size_t bytes, double now) {
    path.welcome(bytes);
    welcomed(now);
  }
  void departed() {
    if (phase_ == Phase::leaving) phase_ = Phase::left;
  }
  using Keepalive::suspect;
  using Keepalive::was_stopped;

  PathWatch path;

 private:
  Reason once(Reason news) {
    // R-LEAF-10: once by NOTICE, and then in every WELCOME, so that a lost NOTICE costs one heartbeat.
    if (news_ == news || news_ == Reason::branch_lost) return Reason{};
    return news_ = news;
  }

  Uplink uplink_;
  Reason news_{};
  bool narrowed_ = false;
};

}  // namespace fanin

#include "machine/presence.hpp"

#include <algorithm>

namespace fanin {

Presence::Presence(const JobSpec& spec, double connect_timeout_s, GrowingRing<WorkerEvent>& events)
    : Keepalive(spec, Phase::connecting, connect_timeout_s),
      events_(events),
      protected_(spec.checksum || spec.data_key),
      survives_loss_(spec.survives_loss),
      members_(spec.full_mask()) {}

void Presence::handle_timer(double now) {
  if (left_unconfirmed(now)) {  // R-MEMBER-4
    phase_ = Phase::left;
    events_.push_back(Departed{.confirmed = false});
  } else if (const std::optional<double> silent = silent_s(now)) {  // R-MEMBER-9
    fail(SwitchSilent{.silent_s = *silent});
  }
}

std::optional<double> Presence::welcome(std::uint32_t sequence, std::uint32_t lost, std::uint32_t left, double now) {
  if (welcomed(now)) events_.push_back(Ready{});
  peers_gone(lost, left, now);
  if (sequence != heartbeat_) return std::nullopt;  // the time of an earlier HELLO is not kept
  return now - heartbeat_at_;
}

void Presence::peers_gone(std::uint32_t lost, std::uint32_t left, double now) {
  if (!joined() || survives_loss_) return;
  if (left != 0 && left_ == 0) left_at_ = now;  // R-MEMBER-5: the first starts the grace; every WELCOME repeats it
  left_ = left;
  if (lost != 0) fail(WorkersGone{.lost = lost, .left = left});
}

void Presence::missing(std::uint32_t workers) {
  if (joined()) fail(WorkersGone{.lost = workers, .left = left_});
}

void Presence::members_are(std::uint32_t change, std::uint32_t members, std::uint64_t base) {
  // R-MEMBER-12: packets overtake each other, and WELCOME repeats what a NOTICE has said.
  if (!joined() || !survives_loss_ || change <= change_) return;
  events_.push_back(MembersChanged{
      .change = change, .members = members, .gone = members_ & ~members, .come = members & ~members_, .base = base});
  change_ = change;
  members_ = members;
}

void Presence::branch(Reason reason, double now) {
  if (reason == Reason::branch_lost) return refused(reason);  // R-LEAF-10: final
  if (!branch_left_) left_at_ = now;
  branch_left_ = true;
}

void Presence::refused(Reason reason) {
  if (phase_ == Phase::leaving)  // the echo of BYE was lost, and the switch has forgotten this worker
    departed();
  else if (joined())
    fail(PacketRefused{.reason = static_cast<std::uint16_t>(reason)});
}

void Presence::other_version() {
  // Later a peer of another version cannot be the switch; with checksums or tags the packet may be damaged.
  if (phase_ == Phase::connecting && !protected_)
    fail(PacketRefused{.reason = static_cast<std::uint16_t>(Reason::version)});
}

void Presence::departed() {
  if (phase_ != Phase::leaving) return;
  phase_ = Phase::left;
  events_.push_back(Departed{.confirmed = true});
}

std::optional<double> Presence::left_deadline(double moved_at) const {
  if (!joined() || (left_ == 0 && !branch_left_)) return std::nullopt;
  return std::max(moved_at, left_at_) + LEFT_GRACE_S;
}

void Presence::peers_hold_up(double moved_at, double now) {
  const std::optional<double> deadline = left_deadline(moved_at);
  if (!deadline || now < *deadline) return;  // R-MEMBER-5
  if (left_ != 0)
    fail(WorkersGone{.lost = 0, .left = left_});
  else
    fail(PacketRefused{.reason = static_cast<std::uint16_t>(Reason::branch_left)});
}

void Presence::fail(WorkerEvent event) {
  phase_ = Phase::failed;
  events_.push_back(event);
}

}  // namespace fanin

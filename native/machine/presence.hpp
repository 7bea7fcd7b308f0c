// A worker's membership in its job: keepalive.hpp, and the news of its peers. R-MEMBER in docs/protocol.md;
// the table of phases stands in host/machine/presence.py.
#pragma once

#include <cstdint>
#include <optional>

#include "machine/growing_ring.hpp"
#include "wire/job.hpp"
#include "machine/keepalive.hpp"
#include "wire/wire_constants.hpp"
#include "machine/worker_events.hpp"

namespace fanin {

class Presence : public Keepalive {
 public:
  Presence(const JobSpec& spec, double connect_timeout_s, GrowingRing<WorkerEvent>& events);

  bool hello_due(double now) {  // the first call starts the clock
    start(now);
    return Keepalive::hello_due(now);
  }
  void hello_sent(double now) {
    heartbeat_ = hello_sequence();
    heartbeat_at_ = now;
    Keepalive::hello_sent(now);
  }
  void handle_timer(double now);

  // --- what is heard ---

  // Returns the round trip in seconds if it answers the last heartbeat.
  std::optional<double> welcome(std::uint32_t sequence, std::uint32_t lost, std::uint32_t left, double now);
  void peers_gone(std::uint32_t lost, std::uint32_t left, double now);
  // Notes that a round that needs all workers has closed without these.
  void missing(std::uint32_t workers);
  void members_are(std::uint32_t change, std::uint32_t members, std::uint64_t base);
  void path_narrowed(std::uint64_t needed_bytes, std::uint64_t passes_bytes) {
    fail(PathNarrowed{.needed_bytes = needed_bytes, .passes_bytes = passes_bytes});
  }
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
  std::uint32_t left_ = 0;
  std::uint32_t heartbeat_ = 0;  // number and time of the last HELLO that did not test a packet length
  double heartbeat_at_ = 0.0;
  double left_at_ = 0.0;
};

}  // namespace fanin

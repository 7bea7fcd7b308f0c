// The engine carries out the reductions of one worker of one job: one flow per port of the switch, and waiting threads.
//
// Chunks of a tensor are dealt out to the flows in turn; a reduction is done when every flow has done its part. The
// first failure of any flow ends them all, and nothing is written to anybody's memory once it has been reported. Calls
// may come from any thread. None hangs: each takes a timeout or returns at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/worker_flow.hpp"

namespace fanin {

class WorkerEngine {
 public:
  static constexpr std::size_t MAX_EVENTS = 1 << 16;  // most events that wait to be read

  // `offers`: a text per port, from SwitchServer::offers, or empty; used by a bypass that reaches the switch.
  // Throws std::system_error when the host does not resolve or has no route.
  WorkerEngine(const JobSpec& spec, std::uint32_t worker, std::uint64_t token, const std::string& host,
               const std::vector<std::uint16_t>& ports, double connect_timeout_s, const UdpOptions& options,
               const std::vector<std::string>& offers = {}, bool newcomer = false);
  ~WorkerEngine();

  void start();
  // Tickets count 1, 2, ...; after a failure new tickets are never done. Throws std::invalid_argument for a reduction
  // that the machine refuses, std::logic_error while leaving.
  std::uint64_t submit(const Reduction& reduction);
  bool wait(std::uint64_t ticket,
            double timeout_s);  // false after the timeout, or once the engine has failed or is closed
  bool done(std::uint64_t ticket);
  void subscribe();  // from now on, every reduction that is done is reported as an event
  std::optional<WorkerEvent> next_event(double timeout_s);
  bool failed() const { return failed_.load(); }
  std::uint64_t spoiled() const { return spoiled_.load(); }  // events Spoiled so far
  bool closed();
  void begin(std::uint32_t base);  // of a newcomer, once Stands has come
  bool leave(double timeout_s);    // true once the switch has confirmed it on every flow
  void close();

  std::vector<std::pair<std::string, std::uint64_t>> counters();
  std::size_t buffer_bytes();
  int receive_buffer_bytes() const;
  bool has_bypass() const;  // whether every flow has a working bypass
  std::string trouble();

 private:
  void take_event(std::uint32_t flow, const WorkerEvent& event);
  void fail(const WorkerEvent& event);
  bool is_done(std::uint64_t ticket) const;  // with state_lock_
  void publish(const WorkerEvent& event);    // with state_lock_

  std::vector<std::unique_ptr<WorkerFlow>> flows_;
  // Held by submit, so that all flows see the same order of reductions and failures. If one flow accepted a reduction
  // and another refused it, the first would write to memory that nobody keeps.
  std::mutex submit_lock_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> failing_ = false;
  std::atomic<std::uint64_t> spoiled_ = 0;

  std::mutex state_lock_;                   // guards everything below
  std::condition_variable progress_;        // for wait() and leave()
  std::condition_variable events_changed_;  // for next_event(), whose thread need not wake for progress
  std::uint64_t first_ticket_ = 1;          // the oldest that is not done
  std::deque<std::uint32_t> remaining_;     // number of flows that still work on first_ticket_, first_ticket_ + 1, ...
  double busy_since_s_ = 0.0;               // if a reduction is outstanding: since when there was always one
  double communicating_s_ = 0.0;            // earlier time during which reductions were outstanding
  std::deque<WorkerEvent> events_;
  std::optional<MembersChanged> change_;  // the last one
  std::uint64_t stands_ = 0;              // largest base that any flow has reported by Stands
  std::size_t standing_flows_ = 0;
  std::vector<std::uint64_t> heard_;  // by flow: one past the newest round that it has reported
  std::size_t ready_flows_ = 0;
  std::size_t departed_flows_ = 0;
  bool all_confirmed_ = true;
  bool subscribed_ = false;
  bool closed_ = false;
};

}  // namespace fanin

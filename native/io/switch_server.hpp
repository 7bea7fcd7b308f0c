// A switch's data plane: one flow per port, each with a machine and a thread of its own, behind one set of verbs.
//
// A job is admitted to every flow; a chunk of a tensor belongs to one of them. Calls may come from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "io/event_fd.hpp"
#include "io/switch_flow.hpp"

namespace fanin {

// Memory of the rings in shared memory that a job is offered, over all flows.
struct RingBytes {
  std::uint64_t held = 0;
  std::uint64_t wanted = 0;  // bytes that the rings need; 0: none were requested
};

class SwitchServer {
 public:
  static constexpr std::size_t MAX_EVENTS = 4096;

  // Flow 0 listens at `port`, further flows at those after it; all of them, if it is 0, at any free one.
  // `memory_bytes` is for all flows together. Without `share_memory` no job is offered a bypass: everything goes
  // through sockets. Throws std::system_error.
  SwitchServer(const std::string& host, std::uint16_t port, std::uint32_t flows, std::uint64_t memory_bytes,
               const UdpOptions& options, bool share_memory = true);
  ~SwitchServer();

  void start();
  void close();
  std::vector<std::uint16_t> ports() const;
  int receive_buffer_bytes() const;

  // An uplink without the parent's address number, which differs between flows: flow f's parent is at ports[f].
  struct Parent {
    std::string host;
    std::vector<std::uint16_t> ports;
    Uplink uplink;
  };

  // Admits a job on every flow, or throws JobRefused and admits it on none. `share_memory`: offer workers on this
  // machine shared memory beside the sockets, if its rings fit beside the slots of all jobs; otherwise the job uses
  // sockets only.
  void admit(const JobSpec& spec, bool share_memory = true, const std::optional<Parent>& parent = std::nullopt);
  // Returns one path of shared memory per flow, by which the job's workers on this machine bypass UDP; empty if there
  // is none.
  std::vector<std::string> offers(std::uint16_t job);
  RingBytes ring_bytes(std::uint16_t job);
  void remove(std::uint16_t job);  // this and the following throw NoSuchJob
  void evict(std::uint16_t job, std::uint32_t worker);
  void suspect(std::uint16_t job, std::uint32_t worker);
  void suspect_parent(std::uint16_t job);
  void set_quorum(std::uint16_t job, std::uint32_t quorum);
  void set_staleness(std::uint16_t job, std::uint32_t staleness);
  void admit_worker(std::uint16_t job, std::uint32_t worker, std::uint64_t token);
  std::vector<std::uint16_t> jobs();
  Members members(std::uint16_t job);  // registered on every flow, lost on any, left on any
  CounterList counters();              // of the machines, added up, then of the carriers
  CounterList job_counters(std::uint16_t job);
  // Counters by worker, summed over flows; `waited_us` is the maximum over flows, since these wait at the same time.
  std::vector<CounterList> member_counters(std::uint16_t job);

  // The next event. Joined is reported when all flows have reported it, silent and left when the first one has.
  std::optional<SwitchEvent> next_event(double timeout_s);
  bool closed();
  // Readable while there is an event.
  int event_fd() const { return events_bell_.fd(); }

 private:
  struct Seen {  // events of one worker so far
    std::uint32_t joined = 0;
    bool silent = false;
    bool left = false;
    bool narrowed = false;  // kept for worker 0: branch_narrowed concerns the whole part
  };

  void take_event(const SwitchEvent& event);

  const bool share_memory_;
  std::vector<std::unique_ptr<SwitchFlow>> flows_;
  struct Offer {
    std::vector<std::string> texts;  // by flow
    RingBytes bytes;
  };
  std::unordered_map<std::uint16_t, Offer> offers_;  // by job; guarded by control_
  std::mutex control_;  // one control verb at a time, so that all flows see them in one order
  std::mutex events_lock_;
  std::condition_variable events_changed_;
  std::deque<SwitchEvent> events_;
  EventFd events_bell_;                           // rings while there are any
  std::unordered_map<std::uint32_t, Seen> seen_;  // by job << 8 | worker
  bool closed_ = false;
};

}  // namespace fanin

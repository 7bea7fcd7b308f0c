// The worker's end of the protocol, without sockets, clocks or threads: host/machine/worker_machine.py in C++.
//
// How to drive it: call datagrams_to_send() once to start (it says HELLO) and after every other verb, until the machine
// has nothing more or the sink is full; drain the socket into receive_datagram() before handle_timer(), so that a
// process that was stopped does not take its own sleep for the switch's silence; take next_event() until it is empty.
// One thread at a time. `now` is in seconds of one monotonic clock.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "wire/job.hpp"
#include "wire/reduction.hpp"
#include "wire/sinks.hpp"
#include "machine/worker_counters.hpp"
#include "machine/worker_events.hpp"

namespace fanin {

class WorkerMachine {
 public:
  WorkerMachine(JobSpec spec, std::uint32_t worker, Address switch_address, std::uint64_t token, std::uint32_t flow = 0,
                std::uint32_t flow_count = 1, double connect_timeout_s = 5.0, bool newcomer = false);
  ~WorkerMachine();
  WorkerMachine(const WorkerMachine&) = delete;
  WorkerMachine& operator=(const WorkerMachine&) = delete;

  // Tickets count 1, 2, ...; the memory stays the machine's until ReductionDone(ticket) or a failure. Throws
  // std::invalid_argument for what it refuses and std::logic_error when the machine has failed or is leaving.
  std::uint64_t submit(const Reduction& reduction);
  void leave(double now);
  // Reductions of a newcomer begin with `base`, which is no earlier than Stands said; it passes up to there.
  void begin(std::uint32_t base);

  // `marked`: it has met congestion (fanin/protocol/ecn.py).
  void receive_datagram(std::span<const std::uint8_t> datagram, Address source, double now, bool marked = false);
  // The same of each, in order; keyed tags are checked several at a time.
  void receive_datagrams(std::span<const Arrival> datagrams, double now);
  // Makes the keyed tags of datagrams that were committed to a sink without them (WorkerSink::tags_later).
  void tag(std::span<const iovec> datagrams) const;
  // Everything goes to the switch. Stops early when the sink takes no more: call again when it does.
  void datagrams_to_send(double now, WorkerSink& sink);
  std::optional<double> next_timer() const;
  void handle_timer(double now);
  std::optional<WorkerEvent> next_event();

  std::size_t outstanding() const;  // reductions submitted and not done
  bool ready() const;               // the switch has welcomed this worker
  bool capable() const;             // it gives receipts, which echo marks: contributions may be sent as ECN-capable
  bool failed() const;              // WorkersGone, SwitchSilent or PacketRefused was reported: nothing is sent any more
  WorkerCounters counters() const;
  std::size_t buffer_bytes() const;  // heap memory that the machine holds

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace fanin

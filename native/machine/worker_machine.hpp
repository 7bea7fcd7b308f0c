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

  // Tickets count 1, 2, ...; the machine uses the memory until ReductionDone(ticket) or a failure. Throws
  // std::invalid_argument for a reduction that it refuses, and std::logic_error if the machine has failed or is
  // leaving.
  std::uint64_t submit(const Reduction& reduction);
  void leave(double now);
  // Sets the base at which a newcomer's reductions begin, no earlier than Stands reported; it passes all bases before.
  void begin(std::uint32_t base);

  // `marked`: it has met congestion (fanin/protocol/ecn.py).
  void receive_datagram(std::span<const std::uint8_t> datagram, Address source, double now, bool marked = false);
  // Handles datagrams in order; keyed tags are checked several at a time, and regular runs take a shorter way
  // (regular_run.hpp).
  void receive_datagrams(std::span<const Arrival> datagrams, double now);
  std::uint64_t regular() const;  // datagrams that took it
  // Makes the keyed tags of datagrams that were committed to a sink without them (WorkerSink::tags_later).
  void tag(std::span<const iovec> datagrams) const;
  // Writes all datagrams to send, all to the switch. Stops early if the sink has no room: call again when it has.
  // Contributions in a row that differ in few fields take a shorter way.
  void datagrams_to_send(double now, WorkerSink& sink);
  std::uint64_t regular_sent() const;  // contributions that took it
  std::optional<double> next_timer() const;
  void handle_timer(double now);
  std::optional<WorkerEvent> next_event();

  std::size_t outstanding() const;  // reductions submitted and not done
  bool ready() const;               // whether the switch has welcomed this worker
  bool capable() const;             // whether its receipts echo marks, so that contributions may be ECN-capable
  bool failed() const;              // whether a failure was reported (WorkersGone, ...), after which nothing is sent
  WorkerCounters counters() const;
  std::size_t buffer_bytes() const;  // heap memory that the machine holds

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace fanin

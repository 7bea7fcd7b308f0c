// The switch machine: jobs, registration, packets, liveness, counters around the slot machine of docs/slot-machine.md.
//
// Twin of fanin.switch.machine.switch_machine.SwitchMachine: same verbs, and packet by packet the same output. It has
// no socket and no clock; times are seconds. Not thread safe: one thread drives one machine.
//
// In steady state nothing is allocated. A result is sent from the ring entry in which it was summed up: the entry's
// memory is the datagram's wire image (native/machine/slot_ring.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "wire/job.hpp"
#include "wire/sinks.hpp"
#include "machine/switch_tally.hpp"

namespace fanin {

// Thrown for a job that does not fit: too little pool memory is left, or its index is taken.
struct JobRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown by verbs for a job or a worker that the machine does not know.
struct NoSuchJob : std::out_of_range {
  using std::out_of_range::out_of_range;
};

struct SwitchEvent {
  enum class Kind : std::uint8_t { worker_joined, worker_silent, worker_left, branch_narrowed };
  Kind kind;
  std::uint16_t job;
  std::uint8_t worker;
  double silent_s;                 // for worker_silent
  std::uint64_t needed_bytes = 0;  // for branch_narrowed
  std::uint64_t passes_bytes = 0;
};

// Bit masks of the registered, lost and left workers; evicted workers are in none.
struct Members {
  std::uint32_t registered;
  std::uint32_t lost;
  std::uint32_t left;
};

class SwitchMachine {
 public:
  explicit SwitchMachine(std::uint64_t memory_bytes);
  ~SwitchMachine();
  SwitchMachine(const SwitchMachine&) = delete;
  SwitchMachine& operator=(const SwitchMachine&) = delete;

  // --- what the controller asks ---

  // Admits a job; with an uplink, as a leaf's part. Throws JobRefused.
  void admit(const JobSpec& spec, const std::optional<Uplink>& uplink = std::nullopt);
  // Counts `bytes`, beside the slots, as the job's memory until it is removed, instead of what was held before; false,
  // with nothing changed, if they are not free. Throws NoSuchJob.
  bool hold(std::uint16_t job, std::uint64_t bytes);
  // Puts the job's images into `memory` (SlotRing::use_images); called right after admission. Throws NoSuchJob.
  void use_images(std::uint16_t job, std::shared_ptr<std::uint8_t> memory, std::span<const std::uint8_t> lasting);
  // Whether words of the job in `memory` are still to be added (SlotRing::waits_in); false without such a job.
  bool waits_in(std::uint16_t job, std::span<const std::uint8_t> memory) const;
  void let_go(std::uint16_t job, std::span<const std::uint8_t> memory);
  void remove(std::uint16_t job);  // this and the following throw NoSuchJob
  void evict(std::uint16_t job, std::uint32_t worker, double now);
  void suspect(std::uint16_t job, std::uint32_t worker, double now);
  // Suspects the parent of a leaf's part of having died: unless it gives a sign of life soon, the branch is lost.
  void suspect_parent(std::uint16_t job, double now);
  std::vector<Address> overdue(double now) const;
  void sign_of_life(Address source, double now);
  void set_quorum(std::uint16_t job, std::uint32_t quorum, double now);             // throws std::invalid_argument, too
  void set_staleness(std::uint16_t job, std::uint32_t staleness, double now);       // the same
  void admit_worker(std::uint16_t job, std::uint32_t worker, std::uint64_t token);  // the same
  std::vector<std::uint16_t> jobs() const;
  Members members(std::uint16_t job) const;
  std::optional<Address> source(std::uint16_t job, std::uint32_t worker) const;  // where a registered worker sends from
  std::uint32_t slots_in_step(std::uint16_t job) const;  // JobSpec::slots_in_step; 0 without such a job
  std::uint32_t missing(std::uint16_t job) const;        // as SlotRing::missing
  CounterList counters() const;
  CounterList job_counters(std::uint16_t job) const;
  std::vector<CounterList> member_counters(std::uint16_t job) const;  // by worker

  // --- the five verbs ---

  // Handles a datagram with any bytes from any source; malformed ones are counted and never throw.
  // `marked`: it has met congestion (fanin/protocol/ecn.py).
  void receive_datagram(std::span<const std::uint8_t> datagram, Address source, double now, bool marked = false);
  // Handles datagrams in order; keyed tags are checked several at a time, and regular runs take a shorter way
  // (regular_run.hpp).
  void receive_datagrams(std::span<const Arrival> datagrams, double now);
  std::uint64_t regular() const;  // datagrams that took it
  // Hands out all datagrams to send, in order. The spans stay valid until the machine is next called.
  void datagrams_to_send(double now, SwitchSink& sink);
  std::size_t pending_bytes() const;  // bytes of datagrams to send, each counted once
  // When handle_timer must be called at the latest.
  std::optional<double> next_timer() const;
  void handle_timer(double now);
  std::optional<SwitchEvent> next_event();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fanin

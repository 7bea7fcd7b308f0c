// One flow of a switch: a port, a switch machine, its carriers, and the thread that moves packets between them.
//
// Bypasses and the base carrier take turns. However much waits in bypasses, descriptors are served after BYPASS_TURN, a
// bounded amount of work, and each time for a bounded number of datagrams. So neither path, and no job, is starved by
// another.
//
// Results go out from the memory in which the machine summed them up: sends are gathered, one list of iovecs for all
// destinations, and handed to the carriers before the machine is called again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "io/carriers.hpp"
#include "io/lingering.hpp"
#include "io/loop_thread.hpp"
#include "io/poller.hpp"
#include "machine/switch_machine.hpp"
#include "io/turnstile.hpp"

namespace fanin {

class SwitchFlow : private CarrierHost {
 public:
  // Work on bypasses before descriptors have their turn, which costs a system call: each datagram counts as 1, and 1
  // more for every BYPASS_TURN_BYTES. So at most 1 MiB, and one batch.
  static constexpr std::size_t BYPASS_TURN = 256;
  static constexpr std::size_t BYPASS_TURN_BYTES = 4096;

  using OnEvent = std::function<void(const SwitchEvent&)>;

  // Throws std::system_error if the address is not available. `on_event` is called with the flow's lock held.
  SwitchFlow(const SocketAddress& address, const UdpOptions& options, std::uint64_t memory_bytes, OnEvent on_event);
  ~SwitchFlow();

  void start();
  // Ends the thread and gives up the sockets; the machine's counters can still be read.
  void close();
  std::uint16_t port() const { return base_->port(); }
  int receive_buffer_bytes() const { return base_->receive_buffer_bytes(); }

  // Calls `use(machine, now)` while no packet is being handled.
  template <typename Use>
  auto with_machine(Use use) {
    const std::lock_guard lock(turnstile_);
    return use(machine_, monotonic_now());
  }
  // Makes the thread send datagrams that with_machine() has caused, and check the machine's timer and events.
  void wake() { poller_.ring(); }
  // The number of a switch that this one is a leaf of.
  Address number_of_parent(const SocketAddress& address);
  // Offers a job's workers a bypass; returns its path, or "" without one: its memory counts as the job's, and the
  // switch may have too little left. Only the first bypass that can makes an offer, since a rank is told one text per
  // flow.
  std::string offer_bypass(const JobSpec& spec);
  std::uint64_t offer_bytes(const JobSpec& spec) const;  // memory that such an offer takes
  void withdraw_bypass(std::uint16_t job);
  // Removes a job, with all that the carriers keep for its members. Throws NoSuchJob.
  void remove(std::uint16_t job);
  void evict(std::uint16_t job, std::uint32_t worker);
  // Admits a new process in the worker's place, after reporting all events of the previous one.
  void admit_worker(std::uint16_t job, std::uint32_t worker, std::uint64_t token);
  CarrierCounters carrier_counters();  // of the base carrier, then of every bypass
  std::uint64_t overflows();           // as SwitchBase::overflows
  std::uint64_t flooded();             // as SwitchBase::flooded

 private:
  class Outbox;
  class Intake;

  std::optional<Address> source(std::uint16_t job, std::uint32_t worker) const override;
  std::uint32_t missing(std::uint16_t job) const override;
  std::uint32_t slots_in_step(std::uint16_t job) const override { return machine_.slots_in_step(job); }
  bool ring(Address number) override;
  bool is_parent(Address number) const override;
  bool waits_in(std::uint16_t job, std::span<const std::uint8_t> memory) const override {
    return machine_.waits_in(job, memory);
  }
  void let_go(std::uint16_t job, std::span<const std::uint8_t> memory) override { machine_.let_go(job, memory); }

  void run();
  bool receive_from_bypasses();  // false: there may be more
  void look_at_descriptors();
  void serve(std::uint64_t key);
  bool linger();
  void sleep();
  void send(double now);
  void report();
  bool in_use() const;  // any bypass
  SwitchBypass* offering(const JobSpec& spec) const;

  OnEvent on_event_;
  Poller poller_;
  Turnstile turnstile_;  // guards everything below
  SwitchMachine machine_;
  std::unique_ptr<SwitchBase> base_;
  std::vector<std::unique_ptr<SwitchBypass>> bypasses_;  // by preference
  std::set<Address> parents_;
  Lingering lingering_;
  std::size_t bypass_turn_ = 0;  // part of BYPASS_TURN that was used since descriptors were served
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Intake> from_base_;
  std::unique_ptr<Intake> from_bypasses_;
  std::atomic<bool> closing_ = false;
  LoopThread thread_;
};

}  // namespace fanin

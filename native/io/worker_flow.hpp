// One flow of a worker: a worker machine, its carriers, and what moves packets between them.
//
// When a result comes, it is written to the destination, and the contribution for which it makes room is quantized into
// the send buffer. The flow's thread (worker_threads.hpp: one of a few that all flows of the process share) does that,
// unless another thread waits: a thread that submits sends the first window itself, and a thread that waits moves the
// packets meanwhile. So a small reduction completes without waking another thread of this process.
//
// Division of work: with a bypass that has a bell (shared memory), a waiting thread reads bypasses alone and sleeps on
// the bell; the flow's thread reads the base carrier, through which little comes then. Without one, a waiting thread
// takes over the base carrier's descriptor, and the flow's thread handles timers only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/carriers.hpp"
#include "io/event_fd.hpp"
#include "io/lingering.hpp"
#include "io/poller.hpp"
#include "io/turnstile.hpp"
#include "machine/worker_machine.hpp"
#include "io/worker_threads.hpp"

namespace fanin {

class WorkerFlow final : private Seated {
 public:
  static constexpr Address SWITCH = 0;

  // Called with the machine locked (on_event) and with nothing locked (on_failure: the event that ends the flow).
  struct Listener {
    std::function<void(const WorkerEvent&)> on_event;
    std::function<void(const WorkerEvent&)> on_failure;
  };

  // Throws std::system_error when no socket can be opened or the address has no route.
  WorkerFlow(const JobSpec& spec, const WorkerPath& path, std::uint32_t flow, std::uint32_t flow_count,
             double connect_timeout_s, bool newcomer, Listener listener);
  ~WorkerFlow() override;

  void start();
  // Submits the reduction to the machine and sends as many packets as the window has room for. Does nothing once the
  // machine has failed.
  void submit(const Reduction& reduction);
  void leave();
  void begin(std::uint32_t base);  // as WorkerMachine::begin
  // Moves packets until `finished()`, the deadline, or the end of the flow. False, at once, if another thread does so.
  bool drive(const std::function<bool()>& finished, double deadline_s);
  // Once this returns, no packet is handled and no memory written any more. The switch gets ICMP "port unreachable".
  void halt();
  void close();  // halts, and gives up the seat at the thread

  WorkerCounters counters();
  CarrierCounters carrier_counters();  // of the base carrier, then of every bypass in the table's order
  std::uint64_t packing_us();          // time spent on making packets, mostly quantizing
  std::uint64_t decoding_us();         // time spent on received packets, mostly writing results
  std::uint64_t overflows();           // as WorkerBase::overflows
  std::size_t buffer_bytes();
  int receive_buffer_bytes() const { return base_->receive_buffer_bytes(); }
  bool has_bypass();      // whether a bypass works
  std::string trouble();  // as WorkerBase::trouble

 private:
  class Outbox;
  class Intake;

  int fd() const override { return poller_.fd(); }
  bool turn(bool woken) override;
  bool pump(bool reads_base);  // does all work that is due; false: there may be more to receive
  bool linger();
  bool all_here();  // whether a bypass has every worker of the job
  bool may_sleep(Sleep how);
  void wait_for_packets(const std::function<bool()>& finished, double deadline_s);
  void watch_base(bool by_thread);
  void count_as_awake();
  void drop_broken_bypasses();
  void send(double now, bool overdue = false);
  std::uint64_t send_ns() const;
  void wake_driver();
  // Hands out events; the one that ends the flow, if any, is for on_failure once the lock is released.
  std::optional<WorkerEvent> report();

  Listener listener_;
  Poller poller_;
  Turnstile turnstile_;  // guards everything below
  std::unique_ptr<WorkerBase> base_;
  std::vector<std::unique_ptr<WorkerCarrier>>
      opened_;                            // by row of the table, null where there is none; kept to the end
  std::vector<WorkerCarrier*> bypasses_;  // those that work, by preference
  WorkerMachine machine_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Intake> intake_;
  std::uint64_t packing_ns_ = 0;
  std::uint64_t decoding_ns_ = 0;
  std::atomic<bool> closing_ = false;
  std::mutex driver_;    // held by the thread that waits and drives
  Lingering lingering_;  // used by the driver
  std::atomic<bool> driven_ = false;
  std::atomic<bool> told_ = false;  // whether any event was reported since the thread last checked
  Bell bell_;                       // on which the driver sleeps, if a bypass has one
  std::uint32_t my_bit_;            // the driver's bit on the bell
  int driver_fd_ = -1;              // the base carrier's descriptor for the driver
  EventFd driver_bell_;             // wakes a driver that does not sleep on a bell
  WorkerSeat seat_;
};

}  // namespace fanin

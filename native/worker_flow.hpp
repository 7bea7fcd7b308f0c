// One flow of a worker: a connected socket, a worker machine, and the thread that moves packets between them.
//
// A result comes in, is written to the destination, and what it makes room for is quantized into the send buffer. The
// flow's thread does that, unless somebody waits: whoever submits sends the first window itself, and whoever waits moves the
// packets itself meanwhile. A small reduction that is waited for is done without waking another thread of this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "event_fd.hpp"
#include "loop_thread.hpp"
#include "poller.hpp"
#include "shared_memory.hpp"
#include "turnstile.hpp"
#include "udp_batch.hpp"
#include "worker_machine.hpp"

namespace fanin {

class WorkerFlow {
 public:
  static constexpr Address SWITCH = 0;
  static constexpr int BATCHES_PER_WAKE = 64;           // before timers are looked at
  static constexpr int SHARED_DATAGRAMS_PER_WAKE = 256;  // the same, from shared memory
  static constexpr std::size_t SEND_AFTER_BYTES = 60'000;  // received: about a train's worth of room to send into
  static constexpr double LINGER_S = 50e-6;              // before a thread that waits goes to sleep

  // Called with the machine locked (on_event) and with nothing locked (on_failure: the event that ends the flow).
  struct Listener {
    std::function<void(const WorkerEvent&)> on_event;
    std::function<void(const WorkerEvent&)> on_failure;
  };

  // `shared` is the switch's shared memory for this flow, where it is on this machine (native/shared_memory.hpp).
  // Throws std::system_error when no socket can be had or the address has no route.
  WorkerFlow(const JobSpec& spec, std::uint32_t worker, std::uint64_t token, std::uint32_t flow, std::uint32_t flow_count,
             const SocketAddress& address, const UdpOptions& options, double connect_timeout_s,
             std::optional<SharedMemory> shared, bool newcomer, Listener listener);
  ~WorkerFlow();

  void start();
  // As WorkerMachine::submit; then sends what the window takes. Nothing happens once the machine has failed.
  void submit(const Reduction& reduction);
  void leave();
  void begin(std::uint32_t base);  // as WorkerMachine::begin
  // Moves packets until `finished()`, the deadline, or the end of the flow. False, at once, if another thread does so.
  bool drive(const std::function<bool()>& finished, double deadline_s);
  // No packet is handled any more and no memory written once this returns. The switch gets "nobody listens".
  void halt();
  void close();  // halt, and end the thread

  std::pair<WorkerCounters, UdpCounters> counters();
  std::uint64_t packing_us();  // spent on making packets: quantizing, above all
  std::uint64_t socket_overflows();
  std::size_t buffer_bytes();
  int receive_buffer_bytes() const { return receive_buffer_bytes_; }
  bool shares_memory();
  // What the operating system last complained about, empty for nothing.
  std::string trouble();

 private:
  class Outbox;

  void run();
  bool pump(bool reads_socket);     // everything that is due; false: there may be more to receive
  bool receive();  // the same
  bool receive_shared();
  void sleep();
  bool linger();
  bool may_sleep(Sleep how);
  void drowse(const std::function<bool()>& finished, double deadline_s);
  void watch_socket(bool by_thread);
  void count_as_awake();
  void give_up_sharing();
  void send(double now, bool overdue = false);
  void ring_driver();
  // Hands out events; the one that ends the flow, if any, is for on_failure once the lock is released.
  std::optional<WorkerEvent> report();

  SocketAddress address_;
  Listener listener_;
  Poller poller_;
  Turnstile turnstile_;  // guards everything below
  UdpSocket socket_;
  int receive_buffer_bytes_;
  WorkerMachine machine_;
  std::uint32_t worker_;
  std::optional<SharedMemory> shared_;
  std::optional<SharedMemory> retired_;  // not used any more, but its bell
  RingReader downlink_;                  // of shared_
  ReceiveBatch batch_;
  std::unique_ptr<Outbox> outbox_;
  UdpCounters counters_;
  std::uint64_t overflows_at_halt_ = 0;
  std::uint64_t packing_ns_ = 0;
  std::atomic<bool> closing_ = false;
  std::mutex driver_;    // held by the thread that waits and drives
  std::atomic<bool> driven_ = false;
  Bell bell_;             // what it sleeps on, with shared memory
  int driver_fd_ = -1;    // the socket, as the driver knows it
  EventFd driver_bell_;   // interrupts it elsewhere
  LoopThread thread_;
};

}  // namespace fanin

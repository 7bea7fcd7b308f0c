// One flow of a switch: a port, a switch machine, and the thread that moves packets between them.
//
// Everybody's first packet comes in at the listening socket. Once the machine has welcomed a worker, the flow opens a socket
// that is bound to the same port and connected to that worker: the kernel then queues its packets there. So each
// worker has a receive buffer to itself, and windows add up to no more than any of them holds, however many workers.
//
// Non-members are rate-limited, each and in total. Datagrams above the limits are dropped unread and unanswered, and
// counted (dropped_flood); the listening socket then rests, so that a flood is read in large batches, at
// most so often, and the kernel drops what does not fit its buffer.
//
// Rings and sockets take turns. However much lies in rings, the sockets are looked at after SHARED_TURN, a bounded amount
// of work; a look serves a bounded number of datagrams. So neither way, and no job, waits for another to fall silent.
//
// Results go out from the memory in which the machine summed them up: sends are gathered, one list of iovecs for all
// destinations, and handed to the kernel before the machine is called again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "address_book.hpp"
#include "loop_thread.hpp"
#include "poller.hpp"
#include "shared_memory.hpp"
#include "switch_machine.hpp"
#include "turnstile.hpp"
#include "udp_batch.hpp"

namespace fanin {

class SwitchFlow {
 public:
  static constexpr double LINGER_S = 50e-6;
  static constexpr std::size_t MAX_MEMBER_SOCKETS = 4096;
  static constexpr int BATCHES_PER_SOCKET = 8;  // before the next socket has its turn: a window of trains
  static constexpr int BATCHES_OF_STRANGERS = 64;
  static constexpr double REST_S = 0.005;  // of the listening socket, after a flood was seen
  static constexpr double STRANGERS_DATAGRAMS_PER_S = 20'000.0;  // of all strangers together
  static constexpr double STRANGERS_DATAGRAMS_AT_ONCE = 4096.0;
  static constexpr int SHARED_DATAGRAMS_PER_WORKER = 64;  // before the next worker's ring has its turn
  // Before the sockets have theirs: datagrams from rings, where one counts as more the longer it is: 1 MiB at most.
  // A look costs a system call.
  static constexpr std::size_t SHARED_TURN = 256;
  static constexpr std::size_t SHARED_TURN_BYTES = 4096;  // that count as one more datagram
  static constexpr std::size_t SEND_AFTER_BYTES = 60'000;  // received from shared memory

  using OnEvent = std::function<void(const SwitchEvent&)>;

  // Throws std::system_error when the address cannot be had. `on_event` is called from the flow's thread.
  SwitchFlow(const SocketAddress& address, const UdpOptions& options, std::uint64_t memory_bytes, OnEvent on_event);
  ~SwitchFlow();

  void start();
  // Ends the thread and gives up the sockets; the machine's counters can still be read.
  void close();
  std::uint16_t port() const { return port_; }
  int receive_buffer_bytes() const { return receive_buffer_bytes_; }

  // Calls `use(machine, now)` while no packet is being handled.
  template <typename Use>
  auto with_machine(Use use) {
    const std::lock_guard lock(turnstile_);
    return use(machine_, monotonic_now());
  }
  // Have the thread send what with_machine() made due, and look at the machine's timer and events.
  void wake() { poller_.ring(); }
  // The number of a switch that this one is a leaf of.
  Address number_of_parent(const SocketAddress& address);
  // Offers a job's workers shared memory beside the socket; returns where they find it, or "" if there is none to be had:
  // it counts as the job's memory, of which the switch may have too little left.
  std::string share_memory(const JobSpec& spec);
  static std::uint64_t ring_bytes(const JobSpec& spec);  // what that takes
  void stop_sharing(std::uint16_t job);
  // With its members' sockets and its shared memory. Throws NoSuchJob.
  void remove(std::uint16_t job);
  // Of the sockets: what UdpCounters holds, and datagrams that found a receive buffer full.
  std::pair<UdpCounters, std::uint64_t> socket_counters();
  // Datagrams of strangers beyond their allowance.
  std::uint64_t flooded();

 private:
  class Outbox;

  void run();
  void serve(std::uint64_t key);
  void receive(UdpSocket& socket);
  void receive_from_strangers();
  bool allowed(Address number, double now);
  void end_rest(double now);
  void send(double now);
  void open_socket_for(AddressBook::Peer& peer, Address number, std::uint16_t job);
  std::uint32_t sharing(Address number, std::uint16_t job);
  bool receive_shared();  // false: there may be more
  void look_at_sockets();
  void count_shared(std::size_t bytes) { shared_turn_ += 1 + bytes / SHARED_TURN_BYTES; }
  void announce(std::uint16_t job, SharedMemory& shared);
  bool linger();
  void sleep();
  void report();

  struct Unread {
    std::uint32_t workers = 0;  // who has written it, as a bit mask
    bool much = false;
  };

  // A job's shared memory, and what the switch reads there.
  struct Shared {
    SharedMemory memory;
    std::vector<RingReader> uplinks;  // by worker
    std::uint32_t sleeps_until = 0;   // so many have written: what the workers were told last

    Unread unread() const;
  };

  static constexpr std::uint64_t LISTENER = 0;  // address numbers start at 1

  UdpOptions options_;
  UdpSocket listener_;
  SocketAddress address_;
  std::uint16_t port_;
  int receive_buffer_bytes_;
  OnEvent on_event_;
  Poller poller_;
  Turnstile turnstile_;  // guards everything below
  SwitchMachine machine_;
  AddressBook book_;
  ReceiveBatch batch_;
  std::map<std::uint16_t, Shared> shared_;  // by job: nothing else refers to it
  std::size_t shared_turn_ = 0;             // of SHARED_TURN, since the sockets were looked at
  std::unique_ptr<Outbox> outbox_;
  UdpCounters counters_;
  std::uint64_t closed_drops_ = 0;  // of sockets that are closed
  std::size_t member_sockets_ = 0;
  Allowance strangers_{STRANGERS_DATAGRAMS_PER_S, STRANGERS_DATAGRAMS_AT_ONCE};
  std::uint64_t flooded_ = 0;
  std::optional<double> rests_until_;  // the listening socket
  std::atomic<bool> closing_ = false;
  LoopThread thread_;
};

}  // namespace fanin

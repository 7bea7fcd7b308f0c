// A non-blocking UDP socket, and what the kernel offers to make many packets cheap.
//
// GSO (UDP_SEGMENT, Linux 4.18): one system call and one pass through the stack for a train of equal datagrams; GRO
// (UDP_GRO, Linux 5.0): the train arrives as one buffer. Both are probed, and everything works without them.
// On loopback a train crosses the stack whole, so that a packet's own length hardly matters (docs/performance.md).
#pragma once

#include <netinet/udp.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/socket_address.hpp"

// Headers of libc that are older than the kernel have neither.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace fanin {

// Counters of a socket that no machine sees. Its driver owns them; they are not thread safe.
struct UdpCounters {
  std::uint64_t system_calls = 0;  // that sent or received something
  std::uint64_t ahead = 0;         // datagrams sent ahead of what waits at the device
  std::uint64_t trains = 0;        // sent with GSO, two datagrams or more
  std::uint64_t coalesced = 0;     // received with GRO, two datagrams or more
  std::uint64_t truncated = 0;     // received and longer than any datagram of ours: dropped
  std::uint64_t refused = 0;       // ICMP: nobody listens there
  std::uint64_t send_waits = 0;    // the send buffer was full; waited for room
  std::uint64_t send_dropped = 0;  // datagrams that the kernel did not take; resent by whoever misses them
  std::uint64_t send_ns = 0;       // spent in system calls that send
  int last_error = 0;              // errno of the last complaint, 0 for none
};

// All counters except last_error, with names such as `socket_system_calls`.
std::vector<std::pair<std::string, std::uint64_t>> counter_list(const UdpCounters& counters);

struct UdpOptions {
  int receive_buffer_bytes =
      4 << 20;               // as fanin.protocol.window.RECEIVE_BUFFER_REQUEST_BYTES: the kernel grants what it allows
  bool offload = true;       // GSO and GRO, where the kernel has them
  bool share_port = false;   // SO_REUSEPORT: the switch has one socket per worker on one port
  bool learn_local = false;  // report which local address a datagram was sent to
  bool capable = false;      // send as ECN-capable: who gets it reacts to marks
};

class UdpSocket {
 public:
  UdpSocket() = default;
  // Opens a socket with these options. Throws std::system_error.
  UdpSocket(int family, const UdpOptions& options);
  // Duplicates another owner's socket, which becomes non-blocking, and uses GSO and GRO if the kernel has them.
  static UdpSocket adopt(int fd);
  ~UdpSocket();
  UdpSocket(UdpSocket&& other) noexcept;
  UdpSocket& operator=(UdpSocket&& other) noexcept;

  void bind(const SocketAddress& address);     // throws std::system_error, which names the address
  void share_port();                           // lets other sockets bind to the same port from now on: see UdpOptions
  void connect(const SocketAddress& address);  // the same
  void close();
  void send_empty();  // sends an empty datagram to the connected peer; lost if there is no room for it
  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  SocketAddress local_address() const;
  // Buffer that the kernel granted, as getsockopt(SO_RCVBUF) reads it.
  int receive_buffer_bytes() const;
  // Datagrams that arrived and found the receive buffer full.
  std::uint64_t dropped_by_kernel() const;
  // Longest train in bytes that one send may carry; 0 without GSO.
  std::size_t train_bytes() const { return train_bytes_; }
  // Sends datagrams as ECN-capable from now on (ECT(0) of RFC 3168).
  void be_capable();
  // Sets whether later datagrams may go ahead of earlier ones, of this socket and of others, in the device's queue.
  void go_ahead(bool ahead);
  bool goes_ahead() const { return ahead_; }
  // Sends datagrams one by one from now on, because a device has refused a train.
  void give_up_trains() { train_bytes_ = 0; }

 private:
  void offload(int family);
  void report_marks(int family);

  int fd_ = -1;
  std::size_t train_bytes_ = 0;
  bool ahead_ = false;
};

}  // namespace fanin

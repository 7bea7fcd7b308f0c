// Many datagrams per system call, both ways.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/udp_socket.hpp"

namespace fanin {

inline constexpr std::size_t MAX_TRAIN_PACKETS = 64;  // UDP_MAX_SEGMENTS of the first kernels that had GSO
inline constexpr std::size_t MAX_MESSAGES = 64;       // of one sendmmsg
inline constexpr int SEND_WAIT_MS = 5;                // for room in a full send buffer, before datagrams are dropped
inline constexpr std::size_t RECEIVE_SLOTS = 16;      // of one recvmmsg
inline constexpr std::size_t RECEIVE_SLOT_BYTES = 65'536;  // a whole train
inline constexpr std::size_t LONG_MESSAGE_BYTES = 8'192;   // from here on few messages a call: they stay in the cache
inline constexpr std::size_t LONG_MESSAGES = 2;            // of one recvmmsg: mostly one, and no call to find no more

// One datagram that arrived. It lives until the batch is filled again.
struct Received {
  std::span<const std::uint8_t> bytes;
  const SocketAddress* source;
  bool marked;                 // it has met congestion (fanin/protocol/ecn.py)
  const SocketAddress* local;  // its destination (with port 0); null unless UdpOptions::learn_local
};

class ReceiveBatch {
 public:
  ReceiveBatch();
  ~ReceiveBatch();

  // Receives the datagrams of one system call, at most a few trains.
  std::span<const Received> fill(const UdpSocket& socket, UdpCounters& counters);
  // Whether the socket may have more: the last call got as much as it asked for.
  bool may_have_more() const { return may_have_more_; }

 private:
  struct Messages;
  std::unique_ptr<Messages> messages_;
  std::vector<Received> received_;
  bool long_messages_ = false;
  bool may_have_more_ = false;
};

// Destination of a datagram on an unconnected socket, and its local address (null: the system's choice).
struct Route {
  const SocketAddress* remote = nullptr;
  const SocketAddress* local = nullptr;
};

// Sends the datagrams in order, each of them one iovec; equal ones in a row (the last may be shorter) go as a train.
// Waits at most SEND_WAIT_MS for room; what the kernel does not take is dropped and counted.
void send_datagrams(UdpSocket& socket, std::span<iovec> datagrams, UdpCounters& counters, Route route = {});

}  // namespace fanin

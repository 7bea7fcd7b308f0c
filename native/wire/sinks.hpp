// Interfaces by which a machine hands datagrams to its driver: the emulator, the contract tests, or the UDP loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fanin {

// A peer's number, assigned by the driver and opaque to the machine.
using Address = std::uint32_t;

// One datagram that came in. Its bytes may change while they are read if the other side shares the memory.
struct Arrival {
  std::span<const std::uint8_t> bytes;
  Address source = 0;
  bool marked = false;  // it has met congestion (fanin/protocol/ecn.py)
  bool here = false;    // it came through memory of this user's processes alone, so that it needs no keyed tag
};

// Receives a switch machine's datagrams, each for several destinations. The bytes stay valid until the machine is next
// called.
class SwitchSink {
 public:
  virtual void send(std::span<const std::uint8_t> datagram, std::span<const Address> destinations) = 0;

 protected:
  ~SwitchSink() = default;
};

// Receives a worker machine's datagrams, which it writes directly into the driver's send buffer: quantizing is the only
// copy.
class WorkerSink {
 public:
  // Room for one datagram of `bytes`; empty if the driver has none now.
  virtual std::span<std::uint8_t> reserve(std::size_t bytes) = 0;
  // Room for a contribution without codes to a slot's round to which no other worker contributes, sent for the first
  // time: it may be where the switch would add it up.
  virtual std::span<std::uint8_t> reserve_sole(std::uint32_t, std::uint32_t, std::size_t bytes) {
    return reserve(bytes);
  }
  // Sets whether datagrams reserved from now on may overtake earlier ones, if the driver can do that (overtaking.hpp).
  virtual void go_ahead(bool) {}
  // The datagram of `bytes` is complete in the span last reserved.
  virtual void commit(std::size_t bytes) = 0;
  // The datagram that was committed last, if it may still be changed: it was not sent, and nobody else reads it yet.
  virtual std::span<std::uint8_t> last() { return {}; }
  // Whether datagrams are committed without their keyed tags: the sender has a whole train tagged (WorkerMachine::tag),
  // or needs no tags.
  virtual bool tags_later() const { return false; }

 protected:
  ~WorkerSink() = default;
};

}  // namespace fanin

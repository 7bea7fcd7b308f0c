// How a machine hands datagrams to whoever drives it: the emulator's list, the contract tests, the batched UDP loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fanin {

// Opaque: whoever drives the machine numbers its peers.
using Address = std::uint32_t;

// One datagram that came in. Its bytes may change while they are read if the other side shares the memory.
struct Arrival {
  std::span<const std::uint8_t> bytes;
  Address source = 0;
  bool marked = false;  // it has met congestion (fanin/protocol/ecn.py)
  bool here = false;    // it came through memory of this user's processes alone, where it needs no keyed tag
};

// The switch sends the same bytes to many. They stay valid until the machine is next called.
class SwitchSink {
 public:
  virtual void send(std::span<const std::uint8_t> datagram, std::span<const Address> destinations) = 0;

 protected:
  ~SwitchSink() = default;
};

// The worker writes each datagram straight into the driver's send buffer: quantizing is the only copy.
class WorkerSink {
 public:
  // Room for one datagram of `bytes`, or an empty span when the driver takes no more for now.
  virtual std::span<std::uint8_t> reserve(std::size_t bytes) = 0;
  // The same of a contribution of words alone to that round, to which nobody else contributes, and which was not sent
  // before: it may be written where the switch will add it up.
  virtual std::span<std::uint8_t> reserve_sole(std::uint32_t, std::uint32_t, std::size_t bytes) {
    return reserve(bytes);
  }
  // Whether what is reserved from now on may overtake what was sent before, where the driver can make it
  // (overtaking.hpp).
  virtual void go_ahead(bool) {}
  // The datagram of `bytes` is complete in the span last reserved.
  virtual void commit(std::size_t bytes) = 0;
  // The datagram that was committed last, if it may still be changed: it has not left, and nobody else reads it yet.
  virtual std::span<std::uint8_t> last() { return {}; }
  // Whether what is committed lacks its keyed tag: who sends it has a train tagged at once (WorkerMachine::tag), or it
  // needs none.
  virtual bool tags_later() const { return false; }

 protected:
  ~WorkerSink() = default;
};

}  // namespace fanin

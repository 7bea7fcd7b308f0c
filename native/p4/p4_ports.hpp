// Sockets as the ports of an emulated switch, with many frames per system call: twins of UdpPort and RawPort of
// switch/p4runtime/server/, which own the sockets. Frames that leave through a port wait there until it is flushed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/event_fd.hpp"
#include "io/udp_batch.hpp"
#include "io/udp_socket.hpp"

namespace fanin::p4 {

using Frame = std::span<const std::uint8_t>;

// Memory for received frames, shared by all ports, which are read one after the other.
class Arrivals {
 public:
  static constexpr std::size_t MAX_RAW_FRAMES = 64;               // per recvmmsg
  static constexpr std::size_t RAW_FRAME_BYTES = (1 << 16) + 64;  // as MAX_FRAME_BYTES of raw_port.py

  std::vector<Frame> frames;
  ReceiveBatch datagrams;
  std::vector<std::uint8_t> whole;  // frames made of UDP datagrams by adding headers
  std::unique_ptr<std::uint8_t[]> raw;

  void clear() {
    frames.clear();
    whole.clear();
  }
};

class Port {
 public:
  explicit Port(std::uint32_t number) : number_(number) {}
  virtual ~Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  std::uint32_t number() const { return number_; }
  virtual int fd() const = 0;
  // Appends frames that have arrived, without waiting; returns whether there may be more.
  virtual bool take_in(Arrivals& arrivals) = 0;
  // Queues a frame for the next flush(); false for a frame that this port cannot send.
  virtual bool queue(std::vector<std::uint8_t> frame) = 0;
  // Sends the queued frames; returns how many the kernel did not accept, which are lost.
  virtual std::uint64_t flush() = 0;

 private:
  std::uint32_t number_;
};

// All ports of a switch, driven by one thread; stop() may come from any.
class Ports {
 public:
  // `address` and `udp_port`: those of the switch, as its program sees them. Throws std::system_error.
  void add_udp(int fd, std::uint32_t number, std::uint32_t address, std::uint16_t udp_port);
  void add_raw(int fd, std::uint32_t number);

  // Waits until frames have arrived at a port, and receives some; returns how many, 0 after stop().
  std::size_t receive();
  // Frames of the last receive(), valid until the next one.
  std::span<const Frame> frames() const { return arrivals_.frames; }
  std::uint32_t number() const { return current_; }

  // Queues a frame at the port of that number for the next flush(); false if there is no such port.
  bool send(std::uint32_t number, std::vector<std::uint8_t>& frame);
  // Sends the queued frames of all ports; returns how many could not be sent since the last call.
  std::uint64_t flush();

  void stop();

 private:
  void add(std::unique_ptr<Port> port);
  void wait();

  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::uint8_t> ready_;  // by position of a port: whether frames may be waiting
  std::size_t next_ = 0;
  std::uint32_t current_ = 0;
  std::uint64_t lost_ = 0;
  Arrivals arrivals_;
  EventFd stop_event_;
  std::atomic<bool> stopped_{false};
};

}  // namespace fanin::p4

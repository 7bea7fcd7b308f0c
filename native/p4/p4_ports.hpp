// Sockets as the ports of an emulated switch, many frames to a system call: twins of UdpPort and RawPort of
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

// Memory for what arrives, and the frames in it: shared by all ports, since one is looked at after the other.
class Arrivals {
 public:
  static constexpr std::size_t MAX_RAW_FRAMES = 64;               // of one recvmmsg
  static constexpr std::size_t RAW_FRAME_BYTES = (1 << 16) + 64;  // as MAX_FRAME_BYTES of raw_port.py

  std::vector<Frame> frames;
  ReceiveBatch datagrams;
  std::vector<std::uint8_t> whole;  // datagrams with heads: frames
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
  // Appends what has arrived, without waiting; whether there may be more.
  virtual bool take_in(Arrivals& arrivals) = 0;
  // A frame leaves with the next flush(); false for one that has no way out here.
  virtual bool queue(std::vector<std::uint8_t> frame) = 0;
  // Sends what was queued; how many frames the kernel did not take. They are lost, as at any full queue.
  virtual std::uint64_t flush() = 0;

 private:
  std::uint32_t number_;
};

// All ports of a switch, driven by one thread; stop() may come from any.
class Ports {
 public:
  // `address` and `udp_port` are the switch's, as its program sees them. Throws std::system_error.
  void add_udp(int fd, std::uint32_t number, std::uint32_t address, std::uint16_t udp_port);
  void add_raw(int fd, std::uint32_t number);

  // Waits until frames have arrived at a port, and takes some in: how many; 0 after stop().
  std::size_t receive();
  // Of the last receive(): they live until the next one.
  std::span<const Frame> frames() const { return arrivals_.frames; }
  std::uint32_t number() const { return current_; }

  // Whether there is a port of that number; the frame then leaves through it with the next flush().
  bool send(std::uint32_t number, std::vector<std::uint8_t>& frame);
  // How many frames could not be sent since the last call.
  std::uint64_t flush();

  void stop();

 private:
  void add(std::unique_ptr<Port> port);
  void wait();

  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::uint8_t> ready_;  // by position: whether something may be there
  std::size_t next_ = 0;
  std::uint32_t current_ = 0;
  std::uint64_t lost_ = 0;
  Arrivals arrivals_;
  EventFd stop_event_;
  std::atomic<bool> stopped_{false};
};

}  // namespace fanin::p4

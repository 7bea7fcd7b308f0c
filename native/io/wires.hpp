// Emulated wires: Ethernet frames from one TAP device to another, later, and some of them never.
//
// For kernels without netem, and for faults that a queueing discipline does not have. Rates are the devices' own (tbf);
// a wire only delays, loses, repeats and reorders, each direction with its own dice, drawn in the order of arrival.
//
// One thread serves all wires. A device read until it is empty is a queue of frames with the time at which each is due;
// frames keep their order unless they are to be reordered. A frame may be a train (GSO): one die decides for all of it,
// so whoever wants losses frame by frame opens the devices without offloads.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "io/loop_thread.hpp"
#include "io/poller.hpp"

namespace fanin {

struct WireOptions {
  double delay_s = 0.0;    // each frame, one way
  double jitter_s = 0.0;   // up to this much more, uniformly; frames do not overtake one another for it
  double loss = 0.0;       // probability per frame
  double duplicate = 0.0;  // probability per frame
  double reorder = 0.0;    // probability that a frame leaves REORDER_FRAMES later than its turn
  std::uint64_t seed = 0;
};

struct WireCounters {
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
  std::uint64_t lost = 0;  // by chance, or while the wire was cut
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t overflowed = 0;  // dropped because MAX_FRAMES were under way
  std::uint64_t refused = 0;     // not accepted by the device at the far end
};

class Wires {
 public:
  static constexpr std::size_t MAX_FRAMES = 16'384;  // under way in one direction: 1.3 s at 100 Mbit/s
  static constexpr int FRAMES_PER_TURN = 64;         // before the next device has its turn
  static constexpr int REORDER_FRAMES = 3;           // as many as make loss recovery believe in a loss

  Wires() = default;
  ~Wires() { close(); }

  // Joins two TAP descriptors, which are non-blocking and stay the caller's, and live until close(). Before start()
  // only: std::logic_error afterwards. Throws std::system_error. Returns the wire's number.
  std::size_t join(int fd_a, int fd_b, const WireOptions& options);
  void start();
  void cut(std::size_t wire, bool down);                             // frames under way, or coming meanwhile, are lost
  std::pair<WireCounters, WireCounters> counters(std::size_t wire);  // from a to b, from b to a
  void close();                                                      // idempotent; nothing is read or written any more

 private:
  struct Frame {
    double due_s;
    std::vector<std::uint8_t> bytes;
  };
  struct Direction {
    int from;
    int to;
    WireOptions options;
    std::mt19937_64 dice;
    bool down = false;
    std::deque<Frame> queue;         // in order of due_s
    std::vector<std::uint8_t> held;  // reordered: waits for held_for more frames to pass
    int held_for = 0;
    WireCounters counters;
  };

  void run();
  void receive(Direction& direction, double now);
  void take(Direction& direction, std::size_t bytes, double now);
  void append(Direction& direction, std::vector<std::uint8_t> bytes, double now);
  void deliver(Direction& direction, double now);
  bool strikes(Direction& direction, double probability);

  std::mutex lock_;                   // guards directions_ while the thread runs
  std::deque<Direction> directions_;  // two per wire
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(1 << 17);
  std::vector<std::vector<std::uint8_t>> spare_;  // memory of frames that have left
  Poller poller_;
  LoopThread thread_;
  std::atomic<bool> closing_ = false;
};

}  // namespace fanin

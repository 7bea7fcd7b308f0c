// A word in shared memory that threads of several processes wait on, each under a bit of its own (futex(2)).
//
// Ringing changes the word and wakes all that wait under one of the given bits, in one system call. A waiting thread
// reads the word first, then looks whether there is anything to do, then waits for the word to be another: nothing is
// missed.
#pragma once

#include <atomic>
#include <cstdint>

namespace fanin {

// How a thread sleeps that others may have to wake, if it does: on descriptors, or on a bell.
enum class Sleep : std::uint32_t { awake, in_poll, on_bell };

class Bell {
 public:
  Bell() = default;
  explicit Bell(std::atomic<std::uint32_t>* word) : word_(word) {}

  explicit operator bool() const { return word_ != nullptr; }
  std::uint32_t read() const { return word_->load(std::memory_order_acquire); }
  void ring(std::uint32_t mask) const;
  // Returns once the word is not `seen` any more, somebody rings for `mask`, a signal comes, or, on the monotonic
  // clock, `deadline_s` has come.
  void wait(std::uint32_t seen, std::uint32_t mask, double deadline_s) const;

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;
};

}  // namespace fanin

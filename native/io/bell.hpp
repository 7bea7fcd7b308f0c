// A word in shared memory that threads of several processes wait on, each under a bit of its own (futex(2)).
//
// Ringing changes the word and wakes all threads that wait under one of the given bits, in one system call. A thread
// reads the word first, then checks whether there is work, then waits for the word to change: so it misses no ring.
#pragma once

#include <atomic>
#include <cstdint>

namespace fanin {

// Whether, and how, a thread that others may have to wake sleeps: not, on descriptors, or on a bell.
enum class Sleep : std::uint32_t { awake, in_poll, on_bell };

class Bell {
 public:
  Bell() = default;
  explicit Bell(std::atomic<std::uint32_t>* word) : word_(word) {}

  explicit operator bool() const { return word_ != nullptr; }
  std::uint32_t read() const { return word_->load(std::memory_order_acquire); }
  void ring(std::uint32_t mask) const;
  // Waits until the word differs from `seen`, the bell is rung for `mask`, a signal comes, or the monotonic clock
  // reaches `deadline_s`.
  void wait(std::uint32_t seen, std::uint32_t mask, double deadline_s) const;

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;
};

}  // namespace fanin

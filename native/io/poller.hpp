// Sources that wake a flow's thread: sockets, an alarm clock, and a bell that other threads ring. No timeouts, no
// spinning.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "io/event_fd.hpp"

namespace fanin {

// Returns the time on CLOCK_MONOTONIC in seconds.
double monotonic_now();

class Poller {
 public:
  static constexpr std::uint64_t BELL = ~std::uint64_t{0};
  static constexpr std::uint64_t ALARM = BELL - 1;

  Poller();  // throws std::system_error
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Watches a descriptor. It is removed when it is closed, unless a child of fork() keeps a copy open.
  void watch(int fd, std::uint64_t key);
  void forget(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }
  // Stops watching a descriptor for a while, because another thread reads it, or watches it again.
  void set_watched(int fd, std::uint64_t key, bool watched);
  // Sleeps until something happens; returns the keys. The bell and the alarm are silenced by being returned.
  std::span<const epoll_event> wait() { return wait_for(-1); }
  // Returns the keys of what has happened by now, without sleeping.
  std::span<const epoll_event> look() { return wait_for(0); }
  // Whether the bell has rung or the alarm has gone off. If not, a thread that has found `fd` readable need not call
  // `look`: a watched descriptor is readable.
  bool has_own_news() const;
  // A descriptor for another poller, readable when `wait` would return at once.
  int fd() const { return epoll_; }
  // Wakes `wait`. May be called from any thread.
  void ring() {
    rung_.store(true);
    bell_.ring();
  }
  // Makes `wait` return by `when`. Callers hold a common lock. An earlier alarm stays set, because an unnecessary
  // wake-up is cheaper than a system call for every packet.
  void alarm_at(std::optional<double> when);

 private:
  static constexpr int MAX_EVENTS = 64;
  std::span<const epoll_event> wait_for(int timeout_ms);

  EventFd bell_;
  std::atomic<bool> rung_ = false;  // set before the bell becomes readable
  int epoll_ = -1;
  int alarm_ = -1;
  std::atomic<double> alarm_s_{0.0};  // 0: none is set
  epoll_event events_[MAX_EVENTS];
};

}  // namespace fanin

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

// Seconds of CLOCK_MONOTONIC.
double monotonic_now();

class Poller {
 public:
  static constexpr std::uint64_t BELL = ~std::uint64_t{0};
  static constexpr std::uint64_t ALARM = BELL - 1;

  Poller();  // throws std::system_error
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // A closed descriptor is forgotten by itself, unless a child of fork() keeps a copy of it open.
  void watch(int fd, std::uint64_t key);
  void forget(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }
  // Leaves it to another thread for a while, or takes it back.
  void set_watched(int fd, std::uint64_t key, bool watched);
  // Sleeps until something happens; returns the keys. The bell and the alarm are silenced by being returned.
  std::span<const epoll_event> wait() { return wait_for(-1); }
  // The same, of what has happened by now.
  std::span<const epoll_event> look() { return wait_for(0); }
  // Whether the bell or the alarm has something to say: who watches `fd` and has found it readable need not look
  // otherwise.
  bool has_own_news() const;
  // Readable when `wait` would return at once: what another poller can watch.
  int fd() const { return epoll_; }
  // From any thread.
  void ring() {
    rung_.store(true);
    bell_.ring();
  }
  // Wake `wait` at `when` at the latest. Callers hold one lock of their choice. An alarm that is set and earlier stays:
  // a wake-up too many is cheaper than a system call for every packet.
  void alarm_at(std::optional<double> when);

 private:
  static constexpr int MAX_EVENTS = 64;
  std::span<const epoll_event> wait_for(int timeout_ms);

  EventFd bell_;
  std::atomic<bool> rung_ = false;  // before the bell is readable
  int epoll_ = -1;
  int alarm_ = -1;
  std::atomic<double> alarm_s_{0.0};  // 0: none is set
  epoll_event events_[MAX_EVENTS];
};

}  // namespace fanin

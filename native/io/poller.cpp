#include "io/poller.hpp"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <system_error>

namespace fanin {

double monotonic_now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Poller::Poller()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), alarm_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  if (epoll_ < 0 || alarm_ < 0) {
    const int error = errno;
    for (const int fd : {epoll_, alarm_}) {
      if (fd >= 0) ::close(fd);
    }
    throw std::system_error(error, std::generic_category(), "opening epoll and timerfd");
  }
  watch(bell_.fd(), BELL);
  watch(alarm_, ALARM);
}

Poller::~Poller() {
  for (const int fd : {epoll_, alarm_}) ::close(fd);
}

void Poller::watch(int fd, std::uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void Poller::set_watched(int fd, std::uint64_t key, bool watched) {
  epoll_event event{};
  event.events = watched ? static_cast<std::uint32_t>(EPOLLIN) : 0u;
  event.data.u64 = key;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

std::span<const epoll_event> Poller::wait_for(int timeout_ms) {
  const int count = epoll_wait(epoll_, events_, MAX_EVENTS, timeout_ms);
  if (count < 0) return {};  // EINTR: the caller's loop comes back
  for (int i = 0; i < count; ++i) {
    if (events_[i].data.u64 == BELL) {
      rung_.store(false);  // before reading, so that a ring in between is not lost
      bell_.silence();
    }
    if (events_[i].data.u64 == ALARM) {
      std::uint64_t value;
      [[maybe_unused]] const auto ignored = read(alarm_, &value, sizeof value);
      // After reading: otherwise the read could consume an alarm that another thread sets in between, and alarm_s_
      // would name it as pending for ever. An alarm that this store hides is set again by the caller after this turn.
      alarm_s_.store(0.0);
    }
  }
  return {events_, static_cast<std::size_t>(count)};
}

bool Poller::has_own_news() const {
  const double alarm_s = alarm_s_.load();
  return rung_.load() || (alarm_s != 0.0 && alarm_s <= monotonic_now());
}

void Poller::alarm_at(std::optional<double> when) {
  const double set_s = alarm_s_.load();
  if (!when || (set_s != 0.0 && set_s <= *when)) return;
  alarm_s_.store(*when);
  const double at_s = std::fmax(*when, 1e-9);  // 0 would disable the alarm; a past time rings at once
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(at_s);
  spec.it_value.tv_nsec = static_cast<long>((at_s - std::floor(at_s)) * 1e9);
  timerfd_settime(alarm_, TFD_TIMER_ABSTIME, &spec, nullptr);
}

}  // namespace fanin

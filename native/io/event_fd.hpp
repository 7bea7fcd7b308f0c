// An eventfd(2): rung by one thread, polled by another.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace fanin {

class EventFd {
 public:
  EventFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~EventFd() { ::close(fd_); }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  // Readable from `ring` to `silence`.
  int fd() const { return fd_; }
  void ring() const { eventfd_write(fd_, 1); }
  void silence() const {
    eventfd_t rung = 0;
    eventfd_read(fd_, &rung);
  }

 private:
  int fd_;
};

}  // namespace fanin

// An object with threads and sockets that belongs to the process that created it, and not to its children.
//
// fork() copies the memory, but no thread: in the child a mutex may be locked for ever, a thread cannot be joined, and
// sockets, eventfds, epoll sets and shared memory are still the parent's own. So a child neither uses nor ends what it
// has inherited: to use it is an error, and the copy in its memory is never destroyed.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace fanin {

// Number of forks between the process that loaded the library and this one.
inline std::uint32_t forks() {
  static std::atomic<std::uint32_t> count{0};
  // A handler costs time only at a fork; getpid() would be a system call in every call.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return count.load(std::memory_order_relaxed);
}

template <typename T>
class ProcessOwned {
 public:
  template <typename... Arguments>
  explicit ProcessOwned(const char* name, Arguments&&... arguments)
      : name_(name), forks_(forks()), owned_(std::make_unique<T>(std::forward<Arguments>(arguments)...)) {}
  ~ProcessOwned() {
    if (inherited()) static_cast<void>(owned_.release());
  }
  ProcessOwned(const ProcessOwned&) = delete;
  ProcessOwned& operator=(const ProcessOwned&) = delete;

  bool inherited() const { return forks_ != forks(); }
  // The object. Throws std::runtime_error in a child of the process that created it.
  T& get() const {
    if (inherited())
      throw std::runtime_error(
          std::string("this ") + name_ +
          " belongs to the process that this one was forked from; a child that takes part in a job "
          "joins it by itself");
    return *owned_;
  }

 private:
  const char* name_;
  std::uint32_t forks_;
  std::unique_ptr<T> owned_;
};

}  // namespace fanin

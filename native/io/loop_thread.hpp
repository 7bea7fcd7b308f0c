// The thread of an event loop: started at most once and joined by whoever closes the loop, from any thread.
#pragma once

#include <mutex>
#include <thread>
#include <utility>

namespace fanin {

class LoopThread {
 public:
  // Starts the thread, unless it was started or joined before.
  template <typename Run>
  void start(Run run) {
    const std::lock_guard lock(lock_);
    if (started_ || joined_) return;
    thread_ = std::thread(std::move(run));
    started_ = true;
  }
  // Waits for the end of the loop. Any number of threads may call this at the same time.
  void join() {
    const std::lock_guard lock(lock_);
    joined_ = true;
    if (thread_.joinable()) thread_.join();
  }
  bool started() {
    const std::lock_guard lock(lock_);
    return started_;
  }

 private:
  std::mutex lock_;
  std::thread thread_;
  bool started_ = false;
  bool joined_ = false;
};

}  // namespace fanin

// A mutex that a thread in a loop cannot lock again before threads that already wait for it.
//
// The flow threads lock and unlock around every batch of packets. With a plain mutex they would nearly always be first
// to lock again, and a thread that submits or asks for counters could starve for as long as packets flow.
#pragma once

#include <mutex>

namespace fanin {

class Turnstile {
 public:
  void lock() {
    turn_.lock();
    inside_.lock();
    turn_.unlock();
  }
  void unlock() { inside_.unlock(); }

 private:
  std::mutex turn_;  // held while waiting for the inner mutex; later threads queue up here
  std::mutex inside_;
};

}  // namespace fanin

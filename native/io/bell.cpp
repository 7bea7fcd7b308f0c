#include "io/bell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cmath>

namespace fanin {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "the kernel reads the word");

void Bell::ring(std::uint32_t mask) const {
  word_->fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, word_, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, mask);
}

void Bell::wait(std::uint32_t seen, std::uint32_t mask, double deadline_s) const {
  timespec deadline{};
  deadline.tv_sec = static_cast<time_t>(deadline_s);
  deadline.tv_nsec = static_cast<long>((deadline_s - std::floor(deadline_s)) * 1e9);
  syscall(SYS_futex, word_, FUTEX_WAIT_BITSET, seen, &deadline, nullptr, mask);
}

}  // namespace fanin

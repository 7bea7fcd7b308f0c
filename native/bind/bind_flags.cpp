// Flags in memory that a device shares with the host: 32-bit words that one side writes and the other waits for. They
// count up and around, so a flag has reached a value when their difference, read as signed, is not negative.
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "bind/bind.hpp"
#include "bind/bind_gil.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

using Clock = std::chrono::steady_clock;

// A device that communicates sets the next flag within microseconds; one that computes, within milliseconds.
constexpr auto SPIN = std::chrono::microseconds(20);
constexpr auto SHORTEST_SLEEP = std::chrono::microseconds(20);
constexpr auto LONGEST_SLEEP = std::chrono::microseconds(200);

// By default the kernel lets a thread sleep 50 us longer than it asks for.
void sleep_punctually() {
  thread_local const bool punctual = prctl(PR_SET_TIMERSLACK, 1UL) == 0;
  static_cast<void>(punctual);
}

std::atomic_ref<std::uint32_t> flag_at(std::uintptr_t address) {
  if (address == 0 || address % alignof(std::uint32_t) != 0) throw py::value_error("a flag is an aligned 32-bit word");
  return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(address));
}

bool reached(std::uint32_t stands, std::uint32_t value) { return static_cast<std::int32_t>(stands - value) >= 0; }

// Whether the flag reached the value within the time. Loads acquire, so that memory written before the flag is visible.
bool wait_flag(std::uintptr_t address, std::uint32_t value, double timeout_s) {
  const auto flag = flag_at(address);
  if (reached(flag.load(std::memory_order_acquire), value)) return true;
  return without_gil([&] {
    sleep_punctually();
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
    for (;;) {
      if (reached(flag.load(std::memory_order_acquire), value)) return true;
      const auto now = Clock::now();
      if (now >= end) return false;
      if (now - begin < SPIN) continue;
      const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(now - begin);
      std::this_thread::sleep_for(std::clamp(waited / 8, SHORTEST_SLEEP, LONGEST_SLEEP));
    }
  });
}

// Stores with release order, so that memory written before is visible to a reader of the flag.
void store_flag(std::uintptr_t address, std::uint32_t value) {
  flag_at(address).store(value, std::memory_order_release);
}

std::uint32_t load_flag(std::uintptr_t address) { return flag_at(address).load(std::memory_order_acquire); }

}  // namespace

void bind_flags(py::module_& module) {
  module.def("wait_flag", &wait_flag, py::arg("address"), py::arg("value"), py::arg("timeout_s"));
  module.def("store_flag", &store_flag, py::arg("address"), py::arg("value"));
  module.def("load_flag", &load_flag, py::arg("address"));
}

}  // namespace fanin

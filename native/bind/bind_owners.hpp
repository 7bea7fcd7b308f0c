// Owners of the memory of reductions: Python objects by ticket, dropped where that can do no harm.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace fanin {

// Called with the GIL held. See bind_gil.hpp: dropping a reference may let other threads in, which may call the same
// methods. So references are moved into a list of the caller's before any of them is dropped.
class Owners {
 public:
  using Released = std::vector<pybind11::object>;

  void keep(std::uint64_t ticket, pybind11::object owner) { owners_.emplace_back(ticket, std::move(owner)); }

  // Those whose ticket is done: for the caller to drop. Tickets are done in order, or nearly. `done` runs no Python.
  template <typename Done>
  [[nodiscard]] Released take_done(Done done) {
    Released released;
    while (!owners_.empty() && done(owners_.front().first)) {
      released.push_back(std::move(owners_.front().second));
      owners_.pop_front();  // an empty handle is left in there: nothing is dropped
    }
    return released;
  }

  [[nodiscard]] Released take_all() {
    return take_done([](std::uint64_t) { return true; });
  }

  std::size_t size() const { return owners_.size(); }

 private:
  std::deque<std::pair<std::uint64_t, pybind11::object>> owners_;
};

}  // namespace fanin

// Python objects that own the memory of reductions, by ticket, released where running Python code is safe.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace fanin {

// Called with the GIL held. Dropping a reference may let other threads run (bind_gil.hpp), which may call the same
// methods. So references are first moved into a list that the caller drops.
class Owners {
 public:
  using Released = std::vector<pybind11::object>;

  void keep(std::uint64_t ticket, pybind11::object owner) { owners_.emplace_back(ticket, std::move(owner)); }

  // Takes out the owners whose tickets are done, for the caller to drop. Tickets end nearly in order. `done` must not
  // run Python.
  template <typename Done>
  [[nodiscard]] Released take_done(Done done) {
    Released released;
    while (!owners_.empty() && done(owners_.front().first)) {
      released.push_back(std::move(owners_.front().second));
      owners_.pop_front();  // the handle was moved from, so that this drops no reference
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

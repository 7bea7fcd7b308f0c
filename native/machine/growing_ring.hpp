// A queue in one block of memory, which grows when it is full and never shrinks: no allocation in steady state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fanin {

// Entries are numbered 0, 1, ... from the first one ever pushed; [front_number(), end_number()) are in the queue.
template <typename T>
class GrowingRing {
 public:
  bool empty() const { return front_ == end_; }
  std::size_t size() const { return static_cast<std::size_t>(end_ - front_); }
  std::uint64_t front_number() const { return front_; }
  std::uint64_t end_number() const { return end_; }
  T& front() { return (*this)[front_]; }
  T& operator[](std::uint64_t number) { return entries_[number & (capacity_ - 1)]; }
  const T& operator[](std::uint64_t number) const { return entries_[number & (capacity_ - 1)]; }

  void push_back(T entry) {
    if (size() == capacity_) grow();
    (*this)[end_++] = std::move(entry);
  }
  void pop_front() { ++front_; }
  std::size_t capacity_bytes() const { return entries_.capacity() * sizeof(T); }

 private:
  void grow() {
    const std::size_t more = capacity_ == 0 ? 8 : 2 * capacity_;
    std::vector<T> larger(more);
    for (std::uint64_t number = front_; number != end_; ++number)
      larger[number & (more - 1)] = std::move((*this)[number]);
    entries_ = std::move(larger);
    capacity_ = more;
  }

  std::vector<T> entries_;
  std::size_t capacity_ = 0;  // their number, 0 or a power of two; asking the vector divides by the size of an entry
  std::uint64_t front_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace fanin

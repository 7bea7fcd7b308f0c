// Brings a worker that has joined a running job into step with the others, slot by slot. R-MEMBER-14 and
// R-MEMBER-15 in docs/protocol.md; the table of states stands in host/machine/catch_up.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "wire/packet.hpp"

namespace fanin {

class CatchUp {
 public:
  static constexpr std::uint32_t ASKING_AT_ONCE = 64;  // slots

  enum class Step : std::uint8_t { ignored, moved };

  explicit CatchUp(std::uint32_t slots) : slots_(slots), unknown_(slots), held_(slots) {
    for (std::uint32_t i = 0; i < ASKING_AT_ONCE; ++i) ask_one_more();
  }

  bool holds(std::uint32_t slot) const { return slots_[slot].state != State::done; }
  bool done() const { return held_ == 0; }
  std::optional<std::uint32_t> first_base() const { return unknown_ == 0 ? std::optional(first_base_) : std::nullopt; }

  // Sets the base at which contributions begin; calls release(slot) for slots that are at `base` already.
  template <typename Release>
  void begin(std::uint32_t base, Release release) {
    begin_ = base;
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
      slots_[slot].state = State::passing;
      if (arrive(slot)) release(slot);
    }
  }

  // The slot for which to send the next pass; the same until `take`.
  std::optional<std::uint32_t> next() {
    while (front_ < queue_.size()) {
      if (holds(queue_[front_])) return queue_[front_];
      take();
    }
    queue_.clear();
    front_ = 0;
    return std::nullopt;
  }
  void take() { slots_[queue_[front_++]].queued = false; }
  void again(std::uint32_t slot) {
    if (slots_[slot].queued) return;
    slots_[slot].queued = true;
    queue_.push_back(slot);
  }
  std::uint32_t base_to_pass(std::uint32_t slot) const {
    return slots_[slot].state == State::asking ? MAX_BASE : slots_[slot].base;
  }

  // Handles a RESULT or ANSWER for a slot that is not in step yet; `own`: whether this worker's bit is set.
  Step receive(const Header& header, bool own) {
    Slot& slot = slots_[header.slot];
    const bool bare = header.kind == Kind::answer && (header.flags & FLAG_BARE) != 0;
    if (slot.state == State::asking) {
      // R-MEMBER-14: a result is the others', and an answer with this worker's bit is for a predecessor in this place.
      if (!bare || own) return Step::ignored;
      slot.state = State::standing;
      slot.base = header.base;
      first_base_ = std::max(first_base_, header.base);
      --unknown_;
      ask_one_more();
      return Step::moved;
    }
    // R-MEMBER-15: without the bit the round has closed without this pass, which is not accepted yet.
    if (header.base != slot.base || slot.state != State::passing || !own) return Step::ignored;
    ++slot.base;
    arrive(header.slot);
    return Step::moved;
  }

 private:
  enum class State : std::uint8_t { asking, standing, passing, done };
  struct Slot {
    std::uint32_t base = 0;
    State state = State::asking;
    bool queued = false;
  };

  bool arrive(std::uint32_t slot) {
    if (slots_[slot].base != begin_) {
      again(slot);
      return false;
    }
    slots_[slot].state = State::done;
    --held_;
    return true;
  }

  void ask_one_more() {
    if (unasked_ < slots_.size()) again(unasked_++);
  }

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> queue_;  // from front_ on
  std::size_t front_ = 0;
  std::uint32_t unasked_ = 0;
  std::uint32_t unknown_;
  std::uint32_t held_;
  std::uint32_t first_base_ = 0;
  std::uint32_t begin_ = 0;
};

}  // namespace fanin

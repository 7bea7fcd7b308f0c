// Which item of which operation goes into which slot, and when it may be sent. The rules and the table of states stand
// in host/machine/item_stream.py.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "machine/growing_ring.hpp"
#include "machine/operation.hpp"

namespace fanin {

class ItemStream {
 public:
  ItemStream(std::uint32_t slots, std::uint64_t window, std::uint32_t codes_per_packet);

  std::uint64_t end_item() const { return end_item_; }
  std::uint64_t oldest_item() const { return oldest_item_; }
  std::uint64_t oldest_base() const { return oldest_item_ / slots_.size(); }
  bool unfinished() const { return oldest_item_ < end_item_; }
  // The slot's current item, submitted or not.
  std::uint64_t current(std::uint32_t slot) const { return slots_[slot].item; }
  // The slot's round that its current item goes into.
  std::uint64_t base(std::uint32_t slot) const { return current(slot) / slots_.size() + slots_[slot].repeats; }
  // The operation of a slot's current item, which must have been sent.
  Operation& operation(std::uint32_t slot) { return operations_[slots_[slot].operation]; }
  // Whether the slot's item still has to have its codes agreed on, in the round that its words go into by forecast.
  bool forecasts(std::uint32_t slot) { return operation(slot).forecasts && !knows_codes(current(slot)); }
  // The forecast was wrong: the item goes out again, into the slot's next round, with these codes (in wire order).
  void repeat(std::uint32_t slot, const std::uint8_t* codes_be);
  const std::uint16_t* agreed_codes(std::uint64_t item) const { return &agreed_[entry(item) * codes_per_packet_]; }

  // Takes in an operation, whose first item is end_item(); throws std::overflow_error when the bases run out.
  void append(const Operation& operation);
  // Starts with `base` instead of 0, and with no slot: those of a catch-up come with `release`, one by one.
  void begin(std::uint32_t base);
  void release(std::uint32_t slot);
  // The slot whose current item is to be sent next, what is sent again first; it stays so until `take`.
  std::optional<std::uint32_t> next();
  void take();
  void send_again(std::uint32_t slot);
  // The slot's item has its result, and is stored; codes_be are the codes that came with it, in wire order.
  // Returns the ticket of an operation that is now done, or 0.
  std::uint64_t finish(std::uint32_t slot, const std::uint8_t* codes_be);

  std::size_t buffer_bytes() const;

 private:
  enum class State : std::uint8_t { idle, queued, flying, again };
  struct Slot {
    std::uint64_t item;
    std::uint64_t operation = 0;  // its number in operations_; valid unless idle
    State state = State::idle;
    bool in_queue = false;
    bool in_again = false;
    bool held = false;          // native/machine/catch_up.hpp still has it
    std::uint64_t repeats = 0;  // items that took another round
  };

  // A ring of slots, each in it once at most.
  struct Queue {
    explicit Queue(std::uint32_t slots) : ring(slots) {}
    bool empty() const { return size == 0; }
    std::uint32_t front() const { return ring[first]; }
    void push(std::uint32_t slot) {
      const std::size_t end = first + size++;
      ring[end < ring.size() ? end : end - ring.size()] = slot;
    }
    std::uint32_t pop() {
      const std::uint32_t slot = ring[first];
      first = first + 1 == ring.size() ? 0 : first + 1;
      --size;
      return slot;
    }
    std::vector<std::uint32_t> ring;
    std::size_t first = 0;
    std::size_t size = 0;
  };

  bool knows_codes(std::uint64_t item) const { return agreed_for_[entry(item)] == item + 1; }
  void learn_codes(std::uint64_t item, std::uint32_t count, const std::uint8_t* codes_be);
  std::size_t entry(std::uint64_t item) const { return static_cast<std::size_t>(item % agreed_for_.size()); }
  std::uint64_t window_end() const { return oldest_item_ + window_; }
  // The number of the operation of a submitted, unfinished item; `hint` is where to look first.
  std::uint64_t find(std::uint64_t item, std::uint64_t hint) const;
  void offer(std::uint64_t item, std::uint64_t hint);
  void advance(std::uint64_t hint);
  void enqueue(std::uint32_t slot);
  void pop();

  std::vector<Slot> slots_;
  GrowingRing<Operation> operations_;
  std::uint64_t end_item_ = 0;
  std::uint64_t oldest_item_ = 0;
  std::uint64_t window_;
  std::uint64_t most_repeats_ = 0;  // of any slot

  std::vector<std::pair<std::uint64_t, std::uint32_t>> queue_;  // a heap of (item, slot), the lowest item on top
  Queue again_;

  // Agreed codes by the item that carries their words. An item's codes come at most a pool after it entered the window,
  // so a window and a pool of entries never collide.
  std::uint32_t codes_per_packet_;
  std::vector<std::uint64_t> agreed_for_;  // the item, plus 1; 0: none
  std::vector<std::uint16_t> agreed_;
};

}  // namespace fanin

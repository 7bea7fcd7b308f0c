// Assigns items of operations to slots, and decides when they may be sent. R-WORKER-1 to 3 in docs/protocol.md; the
// table of states stands in host/machine/item_stream.py.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "machine/growing_ring.hpp"
#include "machine/operation.hpp"
#include "machine/receipts.hpp"
#include "wire/packet.hpp"

namespace fanin {

class ItemStream {
 public:
  ItemStream(std::uint32_t slots, std::uint64_t window, std::uint32_t codes_per_packet);

  std::uint64_t end_item() const { return end_item_; }
  std::uint64_t oldest_item() const { return oldest_item_; }
  std::uint64_t oldest_base() const { return oldest_item_ / slot_count_; }
  bool unfinished() const { return oldest_item_ < end_item_; }
  // The slot's current item, submitted or not.
  std::uint64_t current(std::uint32_t slot) const { return slots_[slot].item; }
  // The slot's round into which its current item goes.
  std::uint64_t base(std::uint32_t slot) const { return slots_[slot].base; }
  // Whether the lowest bit of every slot's round equals bit s % 32 of word s / 32 in `parities_be`, in wire order.
  bool all_at(const std::uint8_t* parities_be) const {
    std::uint32_t others = 0;
    for (std::size_t word = 0; word < parities_.size(); ++word)
      others |= parities_[word] ^ load_be32(parities_be + word * WORD_BYTES);
    return others == 0;
  }
  // The operation of a slot's current item, which must have been sent.
  Operation& operation(std::uint32_t slot) { return operations_[slots_[slot].operation]; }
  const Operation& operation(std::uint32_t slot) const { return operations_[slots_[slot].operation]; }
  // Its number, which no other operation ever has.
  std::uint64_t operation_number(std::uint32_t slot) const { return slots_[slot].operation; }
  // Whether the slot's item is sent by forecast: its codes are not agreed yet, and its round also agrees on them.
  bool forecasts(std::uint32_t slot) { return operation(slot).forecasts && !knows_codes(current(slot)); }
  // The forecast was wrong: the item goes out again, into the slot's next round, with these codes (in wire order).
  void repeat(std::uint32_t slot, const std::uint8_t* codes_be);
  const std::uint16_t* agreed_codes(std::uint64_t item) const { return &agreed_[entry(item) * codes_per_packet_]; }

  // Appends an operation, whose first item is end_item(). Throws std::overflow_error if the bases run out.
  void append(const Operation& operation);
  // Starts at `base` instead of 0, with all slots held: the catch-up adds them one by one by `release`.
  void begin(std::uint32_t base);
  void release(std::uint32_t slot);
  static constexpr std::uint32_t NONE = ~std::uint32_t{0};
  // The slot whose current item is to be sent next, repetitions first; the same until `take`. NONE without one. (Not an
  // optional, which would be returned in memory in two parts, for which a processor waits.)
  std::uint32_t next() {
    // An entry may be out of date, if its slot was answered or finished since. It is dropped only here, which is
    // cheaper than searching for it at that time.
    while (!again_.empty()) {
      if (slots_[again_.front()].state == State::again) return again_.front();
      slots_[again_.pop()].in_again = false;
    }
    while (queued() != 0) {
      const std::uint32_t slot = lowest().second;
      if (slots_[slot].state == State::queued) return slot;
      pop();
    }
    return NONE;
  }
  // Notes that the item of that slot, which `next` has named, is being sent.
  void take(std::uint32_t next_slot) {
    Slot& slot = slots_[next_slot];
    if (slot.state == State::again) {
      again_.pop();
      slot.in_again = false;
    } else {
      pop();
    }
    slot.state = State::sent;
  }
  void send_again(std::uint32_t slot);
  // Notes that the slot's item has its result, which is stored; `codes_be`: the codes of that result, in wire order.
  // Returns the ticket of an operation that is now done, or 0.
  std::uint64_t finish(std::uint32_t slot, const std::uint8_t* codes_be);

  std::size_t buffer_bytes() const;

 private:
  enum class State : std::uint8_t { idle, queued, sent, again };
  struct Slot {
    std::uint64_t item;
    std::uint64_t operation = 0;  // its number in operations_; valid unless idle
    State state = State::idle;
    bool in_queue = false;
    bool in_again = false;
    bool held = false;          // whether it still belongs to the catch-up (native/machine/catch_up.hpp)
    std::uint64_t base = 0;     // the round of the item: its number among the slot's items, plus the repeats
    std::uint64_t repeats = 0;  // number of items that took a second round
  };

  // A ring with room for one entry per slot.
  template <typename Entry>
  struct Queue {
    explicit Queue(std::uint32_t slots) : ring(slots), room(slots) {}
    bool empty() const { return size == 0; }
    const Entry& front() const { return ring[first]; }
    const Entry& back() const { return ring[place(size - 1)]; }
    void push(const Entry& entry) { ring[place(size++)] = entry; }
    Entry pop() {
      const Entry entry = ring[first];
      first = first + 1 == room ? 0 : first + 1;
      --size;
      return entry;
    }
    std::size_t place(std::size_t number) const {
      const std::size_t at = first + number;
      return at < room ? at : at - room;
    }
    std::vector<Entry> ring;
    std::size_t room;  // of it
    std::size_t first = 0;
    std::size_t size = 0;
  };
  using Queued = std::pair<std::uint64_t, std::uint32_t>;  // (item, slot)

  bool knows_codes(std::uint64_t item) const { return agreed_for_[entry(item)] == item + 1; }
  void learn_codes(std::uint64_t item, std::uint32_t count, const std::uint8_t* codes_be);
  // The number of entries is a power of two, because a division would cost as much as all other steps here.
  std::size_t entry(std::uint64_t item) const { return static_cast<std::size_t>(item & entry_mask_); }
  // The slot `steps` behind this one, cyclically; at most as many steps as slots.
  std::uint32_t further(std::uint32_t slot, std::uint64_t steps) const {
    const std::uint64_t at = slot + steps;
    return static_cast<std::uint32_t>(at < slot_count_ ? at : at - slot_count_);
  }
  std::uint64_t window_end() const { return oldest_item_ + window_; }
  // The number of the operation of a submitted, unfinished item; `hint` is where to look first.
  std::uint64_t find(std::uint64_t item, std::uint64_t hint) const {
    return operations_[hint].contains(item) ? hint : search(item);
  }
  std::uint64_t search(std::uint64_t item) const;
  // Queues the slot's item if it may be sent and is not queued yet: mostly it may not, so that this is inlined.
  void offer(std::uint64_t item, std::uint32_t index, std::uint64_t hint) {
    // R-WORKER-1: no slot may run away from the oldest unfinished item, whose codes are kept that long.
    if (item >= end_item_ || item >= window_end()) return;
    const Slot& slot = slots_[index];
    if (slot.item == item && slot.state == State::idle && !slot.held) offer_idle(item, index, hint);
  }
  void offer_idle(std::uint64_t item, std::uint32_t index, std::uint64_t hint);
  void advance(std::uint64_t hint) {
    while (slots_[oldest_slot_].item > oldest_item_) {
      const std::uint64_t entering = window_end();
      const std::uint32_t slot = entering_slot_;
      ++oldest_item_;
      oldest_slot_ = further(oldest_slot_, 1);
      entering_slot_ = further(entering_slot_, 1);
      offer(entering, slot, hint);
    }
  }
  void enqueue(std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.state = State::queued;
    if (slot.in_queue) return;
    slot.in_queue = true;
    const Queued entry{slot.item, index};
    if (!in_order_.empty() && entry.first < in_order_.back().first) return enqueue_other(entry);
    in_order_.push(entry);
  }
  void enqueue_other(const Queued& entry);
  void pop() {
    slots_[lowest().second].in_queue = false;
    if (others_first())
      pop_other();
    else
      in_order_.pop();
  }
  void pop_other();
  void next_base(std::uint32_t slot) {
    ++slots_[slot].base;
    parities_[slot / WORD_BITS] ^= std::uint32_t{1} << slot % WORD_BITS;
  }

  // Kept beside the vectors, whose sizes are divisions by the sizes of their elements.
  std::uint64_t slot_count_;
  std::uint64_t entry_mask_;  // of agreed_for_
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> parities_;  // lowest bits of the bases, as in receipts: bit s % 32 of word s / 32
  GrowingRing<Operation> operations_;
  std::uint64_t end_item_ = 0;
  std::uint64_t oldest_item_ = 0;
  std::uint32_t oldest_slot_ = 0;    // of the oldest item
  std::uint32_t entering_slot_ = 0;  // of the item at the end of the window
  std::uint64_t window_;
  std::uint64_t most_repeats_ = 0;  // of any slot

  // Items to be sent, the lowest first: a queue of those added in order, as they are without losses, and a heap of
  // others.
  Queue<Queued> in_order_;
  std::vector<Queued> others_;
  std::size_t queued() const { return in_order_.size + others_.size(); }
  bool others_first() const { return !others_.empty() && (in_order_.empty() || others_.front() < in_order_.front()); }
  const Queued& lowest() const { return others_first() ? others_.front() : in_order_.front(); }
  Queue<std::uint32_t> again_;

  // Agreed codes, by the item that carries their words. Codes are known at most a pool of items ahead of the
  // window, so that entries for a window and a pool of items never collide.
  std::uint32_t codes_per_packet_;
  std::vector<std::uint64_t> agreed_for_;  // the item, plus 1; 0: none
  std::vector<std::uint16_t> agreed_;
};

}  // namespace fanin

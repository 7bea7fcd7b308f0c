#include "machine/item_stream.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <stdexcept>

#include "wire/packet.hpp"

namespace fanin {

ItemStream::ItemStream(std::uint32_t slots, std::uint64_t window, std::uint32_t codes_per_packet)
    : parities_((std::size_t{slots} + WORD_BITS - 1) / WORD_BITS),
      window_(window),
      in_order_(slots),
      again_(slots),
      codes_per_packet_(codes_per_packet),
      agreed_for_(std::bit_ceil(window_ + slots)),
      agreed_(agreed_for_.size() * codes_per_packet) {
  entering_slot_ = static_cast<std::uint32_t>(window_ % slots);
  others_.reserve(slots);
  slots_.reserve(slots);
  for (std::uint32_t slot = 0; slot < slots; ++slot) slots_.push_back({.item = slot});
}

void ItemStream::append(const Operation& operation) {
  const std::uint64_t repeats = most_repeats_ + operations_.size() + 1;
  if (operation.end_item() / slots_.size() + repeats > MAX_BASE)
    throw std::overflow_error("a slot counts 2^32 - 1 rounds, and this job has used them up: join a new one");
  if (operation.chunks == 0) return;  // without items here, it would never leave operations_
  const std::uint64_t number = operations_.end_number();
  operations_.push_back(operation);
  end_item_ = operation.end_item();
  const std::uint64_t last = std::min<std::uint64_t>(end_item_, operation.first_item + slots_.size());
  auto slot = static_cast<std::uint32_t>(operation.first_item % slots_.size());
  for (std::uint64_t item = operation.first_item; item < last; ++item, slot = further(slot, 1))
    offer(item, slot, number);
}

void ItemStream::begin(std::uint32_t base) {
  end_item_ = oldest_item_ = std::uint64_t{base} * slots_.size();
  oldest_slot_ = 0;
  entering_slot_ = static_cast<std::uint32_t>(window_ % slots_.size());
  std::ranges::fill(parities_, 0u);
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot] = {.item = end_item_ + slot, .held = true, .base = base};
    parities_[slot / WORD_BITS] |= (base & 1) << slot % WORD_BITS;
  }
}

void ItemStream::release(std::uint32_t slot) {
  slots_[slot].held = false;
  if (slots_[slot].item < end_item_) offer(slots_[slot].item, slot, operations_.front_number());
}

void ItemStream::take() {
  const std::uint32_t next_slot = next();
  if (next_slot == NONE) return;
  Slot& slot = slots_[next_slot];
  if (slot.state == State::again) {
    again_.pop();
    slot.in_again = false;
  } else {
    pop();
  }
  slot.state = State::sent;
}

void ItemStream::send_again(std::uint32_t index) {
  Slot& slot = slots_[index];
  slot.state = State::again;
  if (slot.in_again) return;  // queued before: the ring has room for each slot once
  slot.in_again = true;
  again_.push(index);
}

std::uint64_t ItemStream::finish(std::uint32_t slot_index, const std::uint8_t* codes_be) {
  Slot& slot = slots_[slot_index];
  const std::uint64_t item = slot.item, number = slot.operation;
  Operation& operation = operations_[number];
  slot.item += slots_.size();
  next_base(slot_index);
  slot.state = State::idle;
  if (operation.carries_codes(item)) {
    learn_codes(item + operation.lead, operation.code_count, codes_be);
    offer(item + operation.lead, further(slot_index, operation.lead), number);
  }
  offer(slot.item, slot_index, number);
  advance(number);
  if (!operation.carries_words(item)) return 0;
  const std::uint64_t done = --operation.unfinished_chunks == 0 ? operation.ticket : 0;
  // Remove operations in order only, even if a later one is done first: `find` needs numbers without gaps.
  while (!operations_.empty() && operations_.front().unfinished_chunks == 0) operations_.pop_front();
  return done;
}

void ItemStream::repeat(std::uint32_t slot, const std::uint8_t* codes_be) {
  learn_codes(current(slot), operation(slot).code_count, codes_be);
  // R-WORKER-3: all workers see the same result, so they agree that the slot's bases are one ahead from here on.
  most_repeats_ = std::max(most_repeats_, ++slots_[slot].repeats);
  next_base(slot);
  enqueue(slot);
}

void ItemStream::learn_codes(std::uint64_t item, std::uint32_t count, const std::uint8_t* codes_be) {
  std::uint16_t* const codes = &agreed_[entry(item) * codes_per_packet_];
  for (std::uint32_t i = 0; i < count; ++i) codes[i] = load_be16(codes_be + i * CODE_BYTES);
  agreed_for_[entry(item)] = item + 1;
}

void ItemStream::advance(std::uint64_t hint) {
  std::uint64_t item = window_end();
  std::uint32_t slot = entering_slot_;
  while (slots_[oldest_slot_].item > oldest_item_) {
    ++oldest_item_;
    oldest_slot_ = further(oldest_slot_, 1);
    entering_slot_ = further(entering_slot_, 1);
  }
  for (const std::uint64_t last = std::min(window_end(), end_item_); item < last; ++item, slot = further(slot, 1))
    offer(item, slot, hint);
}

std::uint64_t ItemStream::find(std::uint64_t item, std::uint64_t hint) const {
  if (operations_[hint].contains(item)) return hint;
  std::uint64_t low = operations_.front_number(), high = operations_.end_number();
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (operations_[middle].first_item <= item ? low : high) = middle;
  }
  return low;
}

void ItemStream::offer(std::uint64_t item, std::uint32_t index, std::uint64_t hint) {
  // R-WORKER-1: no slot may run away from the oldest unfinished item, whose codes are kept that long.
  if (item >= end_item_ || item >= window_end()) return;
  Slot& slot = slots_[index];
  if (slot.item != item || slot.state != State::idle || slot.held) return;
  const std::uint64_t number = find(item, hint);
  const Operation& operation = operations_[number];
  // R-WORKER-2: its codes travel in an earlier item, whose `finish` offers this one.
  if (operation.lead != 0 && operation.carries_words(item) && !knows_codes(item)) return;
  slot.operation = number;
  enqueue(index);
}

void ItemStream::enqueue(std::uint32_t index) {
  Slot& slot = slots_[index];
  slot.state = State::queued;
  if (slot.in_queue) return;
  slot.in_queue = true;
  const Queued entry{slot.item, index};
  if (in_order_.empty() || in_order_.back() < entry) return in_order_.push(entry);
  others_.push_back(entry);
  std::ranges::push_heap(others_, std::ranges::greater{});
}

void ItemStream::pop() {
  slots_[lowest().second].in_queue = false;
  if (!others_first()) {
    in_order_.pop();
    return;
  }
  std::ranges::pop_heap(others_, std::ranges::greater{});
  others_.pop_back();
}

std::size_t ItemStream::buffer_bytes() const {
  return slots_.capacity() * sizeof(Slot) + parities_.capacity() * sizeof(std::uint32_t) +
         operations_.capacity_bytes() + (in_order_.ring.capacity() + others_.capacity()) * sizeof(Queued) +
         again_.ring.capacity() * sizeof(std::uint32_t) + agreed_for_.capacity() * sizeof(std::uint64_t) +
         agreed_.capacity() * sizeof(std::uint16_t);
}

}  // namespace fanin

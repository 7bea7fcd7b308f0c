#include "machine/item_stream.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <stdexcept>

#include "wire/packet.hpp"

namespace fanin {

ItemStream::ItemStream(std::uint32_t slots, std::uint64_t window, std::uint32_t codes_per_packet)
    : slot_count_(slots),
      entry_mask_(std::bit_ceil(window + slots) - 1),
      parities_((std::size_t{slots} + WORD_BITS - 1) / WORD_BITS),
      window_(window),
      in_order_(slots),
      again_(slots),
      codes_per_packet_(codes_per_packet),
      agreed_for_(entry_mask_ + 1),
      agreed_(agreed_for_.size() * codes_per_packet) {
  entering_slot_ = static_cast<std::uint32_t>(window_ % slots);
  others_.reserve(slots);
  slots_.reserve(slots);
  for (std::uint32_t slot = 0; slot < slots; ++slot) slots_.push_back({.item = slot});
}

void ItemStream::append(const Operation& operation) {
  const std::uint64_t repeats = most_repeats_ + operations_.size() + 1;
  if (operation.end_item() / slot_count_ + repeats > MAX_BASE)
    throw std::overflow_error("a slot counts 2^32 - 1 rounds, and this job has used them up: join a new one");
  if (operation.chunks == 0) return;  // without items here, it would never leave operations_
  const std::uint64_t number = operations_.end_number();
  operations_.push_back(operation);
  end_item_ = operation.end_item();
  const std::uint64_t last = std::min<std::uint64_t>(end_item_, operation.first_item + slot_count_);
  auto slot = static_cast<std::uint32_t>(operation.first_item % slot_count_);
  for (std::uint64_t item = operation.first_item; item < last; ++item, slot = further(slot, 1))
    offer(item, slot, number);
}

void ItemStream::begin(std::uint32_t base) {
  end_item_ = oldest_item_ = std::uint64_t{base} * slot_count_;
  oldest_slot_ = 0;
  entering_slot_ = static_cast<std::uint32_t>(window_ % slot_count_);
  std::ranges::fill(parities_, 0u);
  for (std::uint32_t slot = 0; slot < slot_count_; ++slot) {
    slots_[slot] = {.item = end_item_ + slot, .held = true, .base = base};
    parities_[slot / WORD_BITS] |= (base & 1) << slot % WORD_BITS;
  }
}

void ItemStream::release(std::uint32_t slot) {
  slots_[slot].held = false;
  if (slots_[slot].item < end_item_) offer(slots_[slot].item, slot, operations_.front_number());
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
  slot.item += slot_count_;
  next_base(slot_index);
  slot.state = State::idle;
  if (operation.carries_codes(item)) {
    learn_codes(item + operation.lead, operation.code_count, codes_be);
    offer(item + operation.lead, further(slot_index, operation.lead), number);
  }
  offer(slot.item, slot_index, number);
  advance(number);
  if (!operation.carries_words(item)) return 0;
  if (--operation.unfinished_chunks != 0) return 0;
  const std::uint64_t done = operation.ticket;
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

std::uint64_t ItemStream::search(std::uint64_t item) const {
  std::uint64_t low = operations_.front_number(), high = operations_.end_number();
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (operations_[middle].first_item <= item ? low : high) = middle;
  }
  return low;
}

void ItemStream::offer_idle(std::uint64_t item, std::uint32_t index, std::uint64_t hint) {
  const std::uint64_t number = find(item, hint);
  const Operation& operation = operations_[number];
  // R-WORKER-2: its codes travel in an earlier item, whose `finish` offers this one.
  if (operation.lead != 0 && operation.carries_words(item) && !knows_codes(item)) return;
  slots_[index].operation = number;
  enqueue(index);
}

void ItemStream::enqueue_other(const Queued& entry) {
  others_.push_back(entry);
  std::ranges::push_heap(others_, std::ranges::greater{});
}

void ItemStream::pop_other() {
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

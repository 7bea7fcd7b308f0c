#include "machine/slot_ring.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <new>
#include <utility>

#include "kernels/checksum.hpp"
#include "kernels/kernels.hpp"

namespace fanin {

namespace {

constexpr std::size_t whole_lines(std::size_t bytes) {
  return (bytes + CACHE_LINE_BYTES - 1) / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
}

std::size_t head_bytes(const JobSpec& spec) { return whole_lines(HEADER_BYTES + codes_bytes(spec.codes_per_packet)); }

// Length of the image of one round.
std::size_t one_image_bytes(const JobSpec& spec) {
  return head_bytes(spec) + whole_lines(std::size_t{spec.words_per_packet} * WORD_BYTES);
}

// Accumulators of one slot: JobSpec.accumulated_bytes.
std::size_t sums_bytes(const JobSpec& spec) {
  if (!spec.accumulators) return 0;
  return whole_lines(std::size_t{spec.words_per_packet} * MAX_LANES_PER_WORD * spec.accumulator_bytes());
}

bool lies_in(const std::uint8_t* at, std::span<const std::uint8_t> memory) {
  const std::less<> before;
  return !before(at, memory.data()) && before(at, memory.data() + memory.size());
}

}  // namespace

SlotRing::SlotRing(const JobSpec& spec, const std::optional<Uplink>& uplink)
    : uplink_(uplink),
      job_(spec.job),
      flags_(spec.checksum ? FLAG_CHECKSUM : std::uint8_t{0}),
      generation_(spec.generation),
      parent_keys_(uplink ? MemberKeys(uplink->data_key, uplink->token) : MemberKeys()),
      slot_count_(spec.slots),
      staleness_(spec.staleness),
      history_(spec.history()),
      quorum_(spec.quorum),
      synchronous_(spec.synchronous()),
      live_(spec.full_mask()),
      slot_words_((SLOT_BYTES + history_ * ARRIVED_BYTES) / sizeof(std::uint32_t)),
      head_bytes_(head_bytes(spec)),
      image_bytes_(one_image_bytes(spec)),
      slots_(spec.slots * slot_words_),
      facts_(std::size_t{spec.slots} * history_),
      accumulator_bytes_(spec.accumulator_bytes()),
      sums_bytes_(sums_bytes(spec)) {
  set_quorum(spec.quorum);
  slots_with_[0] = spec.slots;
  images_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(CACHE_LINE_BYTES, image_bytes(spec))), Free{});
  if (images_ == nullptr) throw std::bad_alloc();
  if (sums_bytes_ != 0) sums_ = accumulators(spec.slots);
}

std::uint64_t SlotRing::pool_bytes(const JobSpec& spec) {
  const std::uint64_t registers = SLOT_BYTES + std::uint64_t{spec.history()} * (ARRIVED_BYTES + ENTRY_FACTS_BYTES);
  return spec.slots * (registers + sums_bytes(spec)) + image_bytes(spec);
}

std::uint64_t SlotRing::waiting_bytes(const JobSpec& spec) { return spec.slots * sizeof(Waiting) + sums_bytes(spec); }

std::size_t SlotRing::image_bytes(const JobSpec& spec) {
  return std::size_t{spec.slots} * spec.history() * one_image_bytes(spec);
}

std::size_t SlotRing::words_at(const JobSpec& spec, std::uint32_t slot, std::uint32_t number) {
  const std::size_t index = std::size_t{slot} * spec.history() + number % spec.history();
  return index * one_image_bytes(spec) + head_bytes(spec);
}

void SlotRing::use_images(std::shared_ptr<std::uint8_t> memory, std::span<const std::uint8_t> lasting) {
  images_ = std::move(memory);
  lasting_ = lasting;
  waiting_.assign(lasting.empty() ? 0 : slot_count_, {});
  if (sums_bytes_ != 0 && !lasting.empty()) sums_at_once_ = accumulators(1);
}

SlotRing::Accumulators SlotRing::accumulators(std::size_t slots) const {
  Accumulators memory(static_cast<std::uint8_t*>(std::aligned_alloc(CACHE_LINE_BYTES, slots * sums_bytes_)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

bool SlotRing::lasts(const Contribution& given) const {
  return !waiting_.empty() && lies_in(given.words, lasting_) &&
         lasting_.size() - static_cast<std::size_t>(given.words - lasting_.data()) >= given.word_count * WORD_BYTES;
}

bool SlotRing::Waiting::has_any_in(std::span<const std::uint8_t> memory) const {
  const auto lies_there = [memory](const std::uint8_t* at) { return lies_in(at, memory); };
  return std::any_of(words.begin(), words.begin() + count, lies_there);
}

bool SlotRing::waits_in(std::span<const std::uint8_t> memory) const {
  if (waiting_slots_ == 0) return false;
  return std::ranges::any_of(waiting_, [memory](const Waiting& waiting) { return waiting.has_any_in(memory); });
}

void SlotRing::let_go(std::span<const std::uint8_t> memory) {
  for (std::uint32_t slot = 0; slot < waiting_.size(); ++slot)
    if (waiting_[slot].has_any_in(memory)) add_waiting(slot, entry_at(slot, open(slot)), nullptr, false);
}

void SlotRing::add_up(std::uint32_t slot, const Entry& entry, std::uint8_t lanes,
                      std::span<const std::uint8_t* const> words, bool begins) {
  const std::uint32_t count = entry.facts.given_words;
  if (lanes != 0) {
    const std::size_t bytes = std::size_t{count} * WORD_BYTES;
    entry.facts.most = accumulate_lanes(sums_at(slot), lanes, words.data(), words.size(), bytes, begins);
    return;
  }
  if (!begins || words.size() > 1) return add_words(entry.words, words.data(), words.size(), count, begins);
  // A worker that shares this memory may have written them here (WorkerSink::reserve_sole).
  if (words.front() != entry.words) std::memmove(entry.words, words.front(), std::size_t{count} * WORD_BYTES);
}

void SlotRing::add_waiting(std::uint32_t slot, const Entry& entry, const std::uint8_t* more, bool last) {
  Waiting& waiting = waiting_[slot];
  std::array<const std::uint8_t*, MAX_ADDED> all;
  std::size_t count = 0;
  for (; count < waiting.count; ++count) all[count] = waiting.words[count];
  if (more != nullptr) all[count++] = more;
  if (count == 0) return;
  waiting.at_once = last && !waiting.begun;
  add_up(slot, entry, entry.facts.lanes, {all.data(), count}, !waiting.begun);
  waiting_slots_ -= waiting.count != 0;
  waiting.count = 0;
  waiting.begun = true;
}

void SlotRing::set_live(std::uint32_t mask) {
  live_ = mask;
  set_quorum(quorum_);
}

void SlotRing::set_quorum(std::uint32_t quorum) {
  quorum_ = quorum;
  arrivals_to_close_ = std::min(quorum, static_cast<std::uint32_t>(std::popcount(live_)));
}

std::uint32_t SlotRing::missing() const {
  if (!synchronous_) return 1;
  std::uint32_t most = arrivals_to_close_;  // most arrivals that do not close a round yet
  while (most > 0 && slots_with_[--most] == 0) continue;
  return std::max(arrivals_to_close_ - most, 1u);
}

// `last`: the round closes with this contribution, so that its words need not wait.
inline void SlotRing::add(std::uint32_t slot, const Entry& entry, const Contribution& given, bool last) {
  Facts& facts = entry.facts;
  std::uint8_t* const codes = entry.words - codes_bytes(given.code_count);
  const bool first = facts.contributors == 0;
  facts.contributors += given.contributors;
  if (first) {
    facts.signature = given.signature;
    facts.code_count = static_cast<std::uint16_t>(given.code_count);
    facts.lanes = without_shift(given.lanes);
    facts.given_words = given.word_count;
    facts.word_count = static_cast<std::uint32_t>(words_of_result(given.lanes, given.word_count));
    for (std::uint32_t i = 0; i < given.code_count; ++i)
      store_be16(codes + i * CODE_BYTES, load_be16(given.codes + i * CODE_BYTES));
    if (given.code_count % 2 != 0) store_be16(codes + given.code_count * CODE_BYTES, 0);  // pads the codes to a word
  } else {
    max_codes(codes, given.codes, given.code_count);
  }
  if (waiting_.empty()) return add_up(slot, entry, given.lanes, {&given.words, 1}, first);
  Waiting& waiting = waiting_[slot];
  if (first) waiting = {};  // contributions wait within one round only
  const bool shifted = lane_shift(given.lanes) != 0;
  if (!last && !shifted && lasts(given) && waiting.count < MAX_ADDED - 1) {
    waiting_slots_ += waiting.count == 0;
    waiting.words[waiting.count++] = given.words;
    return;
  }
  add_waiting(slot, entry, shifted ? nullptr : given.words, last && !shifted);
  if (!shifted) return;
  add_up(slot, entry, given.lanes, {&given.words, 1}, !waiting.begun);
  waiting.begun = true;
}

inline void SlotRing::finish_sums(std::uint32_t slot, const Entry& entry) {
  Facts& facts = entry.facts;
  if (!waiting_.empty()) add_waiting(slot, entry, nullptr, true);
  if (facts.lanes == 0) return;  // whole words need no narrowing
  // R-SLOT-17: from here on, only the narrowed sum is kept and sent.
  const std::size_t given_bytes = std::size_t{facts.given_words} * WORD_BYTES;
  const std::uint32_t shift = narrow_lanes(sums_at(slot), facts.lanes, given_bytes, facts.most, entry.words);
  facts.lanes = lanes_of_result(facts.lanes, shift);
}

inline void SlotRing::close(std::uint32_t slot, Slot& state, const Entry& entry) {
  const Facts& facts = entry.facts;
  const Arrived& arrived = state.arrived()[place(state.open)];
  std::uint8_t* const image = entry.image();
  std::atomic_thread_fence(std::memory_order_release);  // a reader that sees the header in shared memory sees the words
  store_header(image, {.kind = Kind::result,
                       .job = job_,
                       .worker = SWITCH_WORKER,
                       .flags = flags_,
                       .generation = generation_,
                       .slot = slot,
                       .base = state.open,
                       .signature = facts.contributors == 0 ? 0 : facts.signature,
                       .bitmap = arrived.tag == state.open ? arrived.bitmap : 0,
                       .contributors = static_cast<std::uint16_t>(facts.contributors),
                       .code_count = static_cast<std::uint8_t>(facts.code_count),
                       .lanes = facts.lanes});
  const std::span datagram(image, datagram_bytes(facts.code_count, facts.word_count));
  if (flags_ != 0) seal(datagram);
  ++state.open;
  set_count(state, 0);
}

SlotOutcome SlotRing::contribute(std::uint32_t slot, std::uint32_t worker, std::uint32_t base,
                                 const Contribution* given, SwitchQueue& queue, const ContributionHeader& header) {
  Slot& state = slot_at(slot);
  const std::uint32_t open = state.open;
  // R-SLOT-1: a worker that waits for results cannot have sent it.
  if (base > open || base == MAX_BASE) return {.verdict = Verdict::future};
  const std::uint32_t stale = open - base;
  // R-SLOT-2: its sender has long had result `base`, and the entry may belong to a later one.
  if (stale >= history_) return {.verdict = Verdict::ancient};
  Arrived& arrived = state.arrived()[place(base)];
  const std::uint32_t bit = std::uint32_t{1} << worker;
  const std::uint32_t before = arrived.tag == base ? arrived.bitmap : 0;
  // R-SLOT-3, before the bound below: a worker whose result was lost must get it, however far the others are.
  if ((before & bit) != 0)
    return {.verdict = Verdict::duplicate, .answered = stale > 0, .ascends = stale == 0 && complete(slot)};
  // R-SLOT-4: only a worker that left out a base gets here.
  if (stale > history_ - 2) return {.verdict = Verdict::ancient};
  const Entry entry = entry_at(slot, open);
  Facts& facts = entry.facts;
  // R-SLOT-5: words of another shape or collective must not meet in a sum; a pass may tell the collective, too.
  if (given != nullptr && state.count != 0 && facts.contributors != 0 && !takes(facts, *given))
    return {.verdict = Verdict::mismatch};
  if (state.count != 0 && header.signature != 0 && facts.signature != 0 && header.signature != facts.signature)
    return {.verdict = Verdict::mismatch};

  // R-SLOT-6 and R-SLOT-7: an older base in this entry is one whose result every worker has had.
  arrived = {.tag = base, .bitmap = before | bit};
  if ((arrived.bitmap & live_) == live_) ++state.floor;  // R-SLOT-8
  if (state.count == 0) {                                // R-SLOT-9: the ring still holds the round of H numbers before
    if (facts.queue_mark != 0) queue.copy_out(facts.queue_mark);
    facts = {};
    state.bare = 0;
  }
  if (facts.contributors == 0 && facts.signature == 0) facts.signature = header.signature;
  if (header.bare && stale == 0) state.bare |= bit;  // R-SLOT-16: for a late contribution, only the answer may be bare
  // R-SLOT-10: late passes of workers that compute would otherwise close empty rounds without end.
  const std::uint32_t count = state.count + (header.late && given == nullptr ? 0 : 1);
  const bool closes = due(state, count);
  if (given != nullptr) add(slot, entry, *given, closes);
  if (closes) finish_sums(slot, entry);
  set_count(state, count);
  if (closes && uplink_) {  // R-LEAF-1
    make_contribution(slot, state, entry);
    return {.answered = stale > 0, .ascends = true, .number = open};
  }
  if (closes) close(slot, state, entry);
  // R-SLOT-12: no later multicast acknowledges a late contribution.
  return {.closed = closes, .answered = stale > 0, .number = open};
}

bool SlotRing::takes(const Facts& facts, const Contribution& given) const {
  return facts.signature == given.signature && facts.code_count == given.code_count &&
         facts.given_words == given.word_count && without_shift(facts.lanes) == without_shift(given.lanes);
}

std::optional<std::uint32_t> SlotRing::poke(std::uint32_t slot) {
  Slot& state = slot_at(slot);
  // R-SLOT-13: floor first, since the change may have completed several bases at once.
  while (true) {
    const Arrived& arrived = state.arrived()[place(state.floor)];
    // Without live workers the mask test holds for every base, so that a base counts only if it has contributions.
    if (arrived.tag != state.floor || (arrived.bitmap & live_) != live_ || arrived.bitmap == 0) break;
    ++state.floor;
  }
  if (state.count == 0 || !due(state, state.count)) return std::nullopt;
  const std::uint32_t number = state.open;
  const Entry entry = entry_at(slot, number);
  if (entry.facts.finished != 0) return std::nullopt;  // at a leaf: the round was complete before
  finish_sums(slot, entry);
  if (uplink_) {
    make_contribution(slot, state, entry);
    return std::nullopt;
  }
  close(slot, state, entry);
  return number;
}

// Makes the entry's image the packet to the parent, until the result comes.
void SlotRing::make_contribution(std::uint32_t slot, Slot& state, const Entry& entry) const {
  Facts& facts = entry.facts;
  facts.finished = 1;
  std::uint8_t* const image = entry.image();
  store_header(image, {.kind = Kind::contribution,
                       .job = uplink_->job,
                       .worker = uplink_->worker,
                       .flags = static_cast<std::uint8_t>(flags_ | (facts.contributors == 0 ? FLAG_PASS : 0) |
                                                          (all_bare(slot) ? FLAG_BARE : 0)),
                       .generation = uplink_->generation,
                       .slot = slot,
                       .base = state.open,
                       .signature = facts.signature,
                       .contributors = static_cast<std::uint16_t>(facts.contributors),
                       .code_count = static_cast<std::uint8_t>(facts.code_count),
                       .lanes = facts.lanes});
}

std::span<std::uint8_t> SlotRing::ascending(std::uint32_t slot, std::uint32_t order, SwitchQueue& queue) {
  const Entry entry = entry_at(slot, open(slot));
  const Facts& facts = entry.facts;
  if (facts.queue_mark != 0) queue.copy_out(facts.queue_mark);
  std::uint8_t* const image = entry.image();
  const std::span datagram(image, datagram_bytes(facts.code_count, facts.word_count));
  store_be32(image + OFFSET_BITMAP, order);
  store_be32(image + OFFSET_CHECKSUM, 0);
  if (flags_ != 0) seal(datagram);
  parent_keys_.finish(datagram);
  return datagram;
}

bool SlotRing::descend(std::uint32_t slot, std::uint32_t number, const Contribution& given, SwitchQueue& queue) {
  Slot& state = slot_at(slot);
  if (number != state.open || !complete(slot)) return false;  // R-LEAF-4, R-LEAF-5: a repetition, or not waited for
  // R-LEAF-3: the parent's result takes the place of this leaf's part of the sum.
  const Entry entry = entry_at(slot, number);
  Facts& facts = entry.facts;
  if (facts.queue_mark != 0) queue.copy_out(facts.queue_mark);
  facts = {.signature = given.signature,
           .contributors = given.contributors,
           .code_count = static_cast<std::uint16_t>(given.code_count),
           .finished = 0,
           .lanes = given.lanes,
           .word_count = given.word_count,
           .queue_mark = 0,
           .given_words = 0,
           .most = 0};
  std::uint8_t* const codes = entry.words - codes_bytes(given.code_count);
  std::memset(codes, 0, codes_bytes(given.code_count));
  if (given.code_count != 0) std::memcpy(codes, given.codes, given.code_count * CODE_BYTES);
  if (given.word_count != 0) std::memcpy(entry.words, given.words, given.word_count * WORD_BYTES);
  close(slot, state, entry);
  return true;
}

void SlotRing::enter(std::uint32_t slot, std::uint32_t worker) {
  Slot& state = slot_at(slot);
  for (std::uint32_t base = state.floor; base < state.open; ++base) {  // R-SLOT-14: as if it had passed each of them
    Arrived& arrived = state.arrived()[place(base)];
    arrived = {.tag = base, .bitmap = (arrived.tag == base ? arrived.bitmap : 0) | std::uint32_t{1} << worker};
  }
}

std::uint32_t SlotRing::stands(std::uint32_t slot, std::uint32_t worker) const {
  const Slot& state = slot_at(slot);
  for (std::uint32_t base = state.floor; base < state.open; ++base) {
    const Arrived& arrived = state.arrived()[place(base)];
    if (arrived.tag != base || (arrived.bitmap >> worker & 1) == 0) return base;  // R-SLOT-15
  }
  return state.open;
}

std::span<std::uint8_t> SlotRing::result(std::uint32_t slot, std::uint32_t number) const {
  const Facts& facts = facts_at(slot, number);
  std::uint8_t* const words = words_of(std::size_t{slot} * history_ + place(number));
  return {words - codes_bytes(facts.code_count) - HEADER_BYTES, datagram_bytes(facts.code_count, facts.word_count)};
}

std::span<const std::uint8_t> SlotRing::bare_result(std::uint32_t slot, std::uint32_t number) const {
  return result(slot, number).first(datagram_bytes(facts_at(slot, number).code_count, 0));
}

std::uint32_t* SlotRing::queue_mark(std::uint32_t slot, std::uint32_t number) {
  return &entry_at(slot, number).facts.queue_mark;
}

std::uint32_t SlotRing::arrived(std::uint32_t slot, std::uint32_t base) const {
  return slot_at(slot).arrived()[place(base)].bitmap;
}

std::span<const std::uint8_t> SlotRing::memory() const { return {images_.get(), facts_.size() * image_bytes_}; }

}  // namespace fanin

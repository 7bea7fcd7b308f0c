// All slots of one job: the slot machine of switch/machine/slot_machine.py (docs/slot-machine.md, R-SLOT), over memory
// laid out for speed.
//
// A slot's registers are one record; with S = 0 that is half a cache line:
//
//     floor | open | count | bare | arrived[0].tag | arrived[0].bitmap | arrived[1].tag | ...    32 bits each
//
// A ring entry holds one round: facts, and the image of its result. The words are summed up at the place where they
// will be sent from, and stand on a cache line boundary, so header and codes stand right before them, wherever that is
// for a round with and one without codes:
//
//     | ... | header (36) | codes | words ............ |
//     ^ 64-byte line              ^ 64-byte line
//
// Images may lie in memory that workers of this machine read, and may write whatever they like to (shared_memory.hpp):
// nothing there says where the switch reads or writes. Facts and registers are the switch's own.
//
// A round whose lanes are added up one by one (fanin/numerics/wide_sums.py) has no words while it is open. Its
// accumulators are the slot's, since a slot has one open round; they are narrowed to where the words stand when it
// closes or goes up.
//
// Words and codes are in wire order, while the round is open too: what one worker alone contributes is copied, and that
// is all.
//
// Where a contribution lies in memory that lasts (use_images), its words wait there, and several are added in one pass
// when the round closes: what arrived as one of MAX_ADDED is read once, and the sum written once. Lanes with a shift, a
// leaf's, do not wait: those that are added in one pass have one shift. Everything else about a contribution is read
// when it arrives. A process that can write into that memory can change the words until then: that falsifies sums of
// its own job, as before.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "wire/job.hpp"
#include "kernels/kernels.hpp"
#include "wire/packet.hpp"
#include "wire/packet_tag.hpp"
#include "machine/switch_queue.hpp"

namespace fanin {

enum class Verdict : std::uint8_t { future, ancient, duplicate, mismatch, accepted };

// A worker's addition to a round, in wire order.
struct Contribution {
  std::uint32_t signature = 0;
  const std::uint8_t* codes = nullptr;
  std::uint32_t code_count = 0;
  const std::uint8_t* words = nullptr;
  std::uint32_t word_count = 0;
  std::uint32_t contributors = 1;  // contributions in the sum: 1 for a worker, those of its round for a leaf
  std::uint8_t lanes = 0;          // Header.lanes, if lanes are added up one by one
};

// Fields of a packet, with words or a pass, that a slot reads besides worker and base.
struct ContributionHeader {
  bool late = false;            // whether a pass is late
  bool bare = false;            // whether its sender keeps none of the round's words
  std::uint32_t signature = 0;  // 0: none
};

struct SlotOutcome {
  Verdict verdict = Verdict::accepted;
  bool closed = false;    // whether to multicast round `number`
  bool answered = false;  // whether to send the result of its base to the worker
  bool ascends = false;   // at a leaf: whether the round is complete, and may be sent to the parent (again)
  std::uint32_t number = 0;
};

class SlotRing {
 public:
  explicit SlotRing(const JobSpec& spec, const std::optional<Uplink>& uplink = std::nullopt);

  // Memory of the job: JobSpec.pool_bytes.
  static std::uint64_t pool_bytes(const JobSpec& spec);
  // Part of that memory for the images.
  static std::size_t image_bytes(const JobSpec& spec);
  static std::size_t words_at(const JobSpec& spec, std::uint32_t slot, std::uint32_t number);
  // Puts the images into `memory`, of image_bytes bytes; called before the first round. Words of contributions that lie
  // in `lasting`, which is mapped as long as `memory`, stay there until let_go is called for them.
  void use_images(std::shared_ptr<std::uint8_t> memory, std::span<const std::uint8_t> lasting);
  // Memory that use_images takes beside pool_bytes.
  static std::uint64_t waiting_bytes(const JobSpec& spec);
  // Whether words in that memory are still to be added. let_go adds them, because the memory is about to be reused.
  bool waits_in(std::span<const std::uint8_t> memory) const;
  void let_go(std::span<const std::uint8_t> memory);

  std::uint32_t live() const { return live_; }
  void set_live(std::uint32_t mask);
  void set_quorum(std::uint32_t quorum);
  void set_staleness(std::uint32_t staleness) { staleness_ = staleness; }

  // Handles base `base` of `worker`; `given` is null for a pass. Copies a queued result whose ring entry is needed out
  // of the way in `queue`.
  SlotOutcome contribute(std::uint32_t slot, std::uint32_t worker, std::uint32_t base, const Contribution* given,
                         SwitchQueue& queue, const ContributionHeader& header);
  // Mask of the workers that keep no words of the open round or, if that has no contributions, of the latest closed
  // one.
  std::uint32_t bare(std::uint32_t slot) const { return slot_at(slot).bare; }
  // At a leaf, for a complete round: whether no worker keeps any of its words.
  bool all_bare(std::uint32_t slot) const { return (slot_at(slot).bare & live_) == live_; }
  // After a change of live, K or S: closes the open round if it is due now, and returns its number.
  std::optional<std::uint32_t> poke(std::uint32_t slot);

  // At a leaf: whether the open round has all contributions that it needs, and waits for the parent's result.
  bool complete(std::uint32_t slot) const {
    const Slot& state = slot_at(slot);
    return uplink_ && state.count != 0 && due(state, state.count);
  }
  // For a complete round: the packet to the parent, with that order number. A queued copy with another order number is
  // first copied within `queue`.
  std::span<std::uint8_t> ascending(std::uint32_t slot, std::uint32_t order, SwitchQueue& queue);
  // Least number of further contributors that may close a round, at least 1.
  std::uint32_t missing() const;
  std::uint32_t open(std::uint32_t slot) const { return slot_at(slot).open; }
  // At a leaf: closes the round that waits for this result of the parent; true if there was one, to be multicast then.
  bool descend(std::uint32_t slot, std::uint32_t number, const Contribution& given, SwitchQueue& queue);

  // Prepares for `worker`, which is about to be live: it counts as having contributed every base below the open round.
  void enter(std::uint32_t slot, std::uint32_t worker);
  // The base that a live worker has to contribute next (R-SLOT-15).
  std::uint32_t stands(std::uint32_t slot, std::uint32_t worker) const;

  // The datagram of a closed round that is still in the ring, without its keyed tag; below, the bare datagram, and the
  // mark for the queue.
  std::span<std::uint8_t> result(std::uint32_t slot, std::uint32_t number) const;
  std::span<const std::uint8_t> bare_result(std::uint32_t slot, std::uint32_t number) const;
  std::uint32_t* queue_mark(std::uint32_t slot, std::uint32_t number);
  // Mask of the workers whose contribution of `base` was accepted; `base` must still be in the ring.
  std::uint32_t arrived(std::uint32_t slot, std::uint32_t base) const;

  // All images, for SwitchQueue::copy_out_all.
  std::span<const std::uint8_t> memory() const;

 private:
  struct Arrived {
    std::uint32_t tag;
    std::uint32_t bitmap;
  };
  struct Slot {
    std::uint32_t floor;
    std::uint32_t open;
    std::uint32_t count;
    std::uint32_t bare;

    Arrived* arrived() { return reinterpret_cast<Arrived*>(this + 1); }
    const Arrived* arrived() const { return reinterpret_cast<const Arrived*>(this + 1); }
  };
  struct Facts {
    std::uint32_t signature;  // of contributions; without contributions, the first signature of a pass
    std::uint32_t contributors;
    std::uint16_t code_count;
    std::uint8_t finished;  // whether finish_sums was called for an open round, which is complete at a leaf
    std::uint8_t lanes;     // of the words, if closed or sent to the parent; else of the contributions, without shift
    std::uint32_t word_count;  // of the result
    std::uint32_t queue_mark;
    std::uint32_t given_words;  // of each contribution
    std::uint32_t most;         // the largest magnitude among its accumulators
  };
  static_assert(sizeof(Arrived) == ARRIVED_BYTES && sizeof(Slot) == SLOT_BYTES && sizeof(Facts) == ENTRY_FACTS_BYTES);

  struct Entry {
    Facts& facts;
    std::uint8_t* words;

    std::uint8_t* image() const { return words - codes_bytes(facts.code_count) - HEADER_BYTES; }
  };

  // Contributions to a slot's open round whose words are still to be added.
  struct Waiting {
    bool begun = false;    // whether the sum has other contributions already
    bool at_once = false;  // whether all contributions were added when it closed, in sums_at_once_
    std::uint32_t count = 0;
    std::array<const std::uint8_t*, MAX_ADDED - 1> words;

    bool has_any_in(std::span<const std::uint8_t> memory) const;
  };

  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };

  using Accumulators = std::unique_ptr<std::uint8_t, Free>;
  Accumulators accumulators(std::size_t slots) const;

  std::uint32_t place(std::uint32_t number) const { return history_ == 2 ? number & 1 : number % history_; }
  Slot& slot_at(std::uint32_t slot) {
    return *reinterpret_cast<Slot*>(slots_.data() + std::size_t{slot} * slot_words_);
  }
  const Slot& slot_at(std::uint32_t slot) const {
    return *reinterpret_cast<const Slot*>(slots_.data() + std::size_t{slot} * slot_words_);
  }
  Entry entry_at(std::uint32_t slot, std::uint32_t number) {
    const std::size_t index = std::size_t{slot} * history_ + place(number);
    return {facts_[index], words_of(index)};
  }
  const Facts& facts_at(std::uint32_t slot, std::uint32_t number) const {
    return facts_[std::size_t{slot} * history_ + place(number)];
  }
  std::uint8_t* words_of(std::size_t index) const { return images_.get() + index * image_bytes_ + head_bytes_; }
  // R-SLOT-11: with a base of S rounds ago missing, its contribution would land more than S rounds late.
  bool due(const Slot& slot, std::uint32_t count) const {
    return count >= arrivals_to_close_ && slot.open < std::uint64_t{slot.floor} + staleness_;
  }
  [[gnu::always_inline]] void close(std::uint32_t slot, Slot& state, const Entry& entry);
  void set_count(Slot& state, std::uint32_t count) {
    if (synchronous_) {
      --slots_with_[state.count];
      ++slots_with_[count];
    }
    state.count = count;
  }
  void make_contribution(std::uint32_t slot, Slot& state, const Entry& entry) const;
  bool takes(const Facts& facts, const Contribution& given) const;
  [[gnu::always_inline]] void add(std::uint32_t slot, const Entry& entry, const Contribution& given, bool last);
  // Adds the words of these contributions to the open round, or with `begins` starts its sum with them. All have
  // `lanes`.
  void add_up(std::uint32_t slot, const Entry& entry, std::uint8_t lanes, std::span<const std::uint8_t* const> words,
              bool begins);
  // Adds the contributions that wait, and `more` unless null. `last`: finish_sums follows.
  void add_waiting(std::uint32_t slot, const Entry& entry, const std::uint8_t* more, bool last);
  bool lasts(const Contribution& given) const;
  // Completes the words to send: adds waiting contributions, and narrows accumulators.
  [[gnu::always_inline]] void finish_sums(std::uint32_t slot, const Entry& entry);
  LaneSums sums_at(std::uint32_t slot) const {
    const bool at_once = !waiting_.empty() && waiting_[slot].at_once;
    return {at_once ? sums_at_once_.get() : sums_.get() + slot * sums_bytes_, accumulator_bytes_};
  }

  std::optional<Uplink> uplink_;
  std::uint16_t job_;
  std::uint8_t flags_;
  std::uint32_t generation_;
  MemberKeys parent_keys_;
  std::uint32_t slot_count_;
  std::uint32_t staleness_;  // current S; at most history_ - 2
  std::uint32_t history_;
  std::uint32_t quorum_;
  bool synchronous_;
  std::uint32_t live_;
  std::uint32_t arrivals_to_close_;
  std::size_t slot_words_;  // 32-bit words in a slot's record
  std::size_t head_bytes_;  // from an image's start to its words
  std::size_t image_bytes_;
  std::vector<std::uint32_t> slots_;
  std::array<std::uint32_t, MAX_WORKERS + 1> slots_with_{};  // if synchronous: slots by arrivals in their open round
  std::vector<Facts> facts_;
  std::shared_ptr<std::uint8_t> images_;
  std::span<const std::uint8_t> lasting_;
  std::vector<Waiting> waiting_;     // by slot; none without `lasting_`
  std::uint32_t waiting_slots_ = 0;  // number of slots with waiting contributions
  std::uint32_t accumulator_bytes_;
  std::size_t sums_bytes_;     // accumulators of one slot; 0: the job has none
  Accumulators sums_;          // of each slot
  Accumulators sums_at_once_;  // of the round that is added up at once, in the cache; none without `lasting_`
};

}  // namespace fanin

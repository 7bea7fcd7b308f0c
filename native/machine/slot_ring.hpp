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
  std::uint32_t contributors = 1;  // of a switch in a tree: those of its round
  std::uint8_t lanes = 0;          // what the words hold, where lanes are added up one by one: Header.lanes
};

// Fields of the packet, a pass or one with words, that a slot looks at besides worker and base.
struct ContributionHeader {
  bool late = false;            // of a pass
  bool bare = false;            // who sent it keeps none of the round's words
  std::uint32_t signature = 0;  // 0 says nothing
};

struct SlotOutcome {
  Verdict verdict = Verdict::accepted;
  bool closed = false;    // round `number` is to be multicast
  bool answered = false;  // its own base's result is to be sent to the worker
  bool ascends = false;   // at a leaf: the round is complete, and goes up to the parent (again)
  std::uint32_t number = 0;
};

class SlotRing {
 public:
  explicit SlotRing(const JobSpec& spec, const std::optional<Uplink>& uplink = std::nullopt);

  // Memory of the job: JobSpec.pool_bytes.
  static std::uint64_t pool_bytes(const JobSpec& spec);
  // Of that, the images, and where among them the words of a round are.
  static std::size_t image_bytes(const JobSpec& spec);
  static std::size_t words_at(const JobSpec& spec, std::uint32_t slot, std::uint32_t number);
  // From here on they are in that memory, which has as many bytes: before the first round. Contributions whose words
  // lie in `lasting`, which is mapped as long as that is, stay until let_go is called for them.
  void use_images(std::shared_ptr<std::uint8_t> memory, std::span<const std::uint8_t> lasting);
  // Memory of it beside pool_bytes.
  static std::uint64_t waiting_bytes(const JobSpec& spec);
  // Whether words that lie there are still to be added; and adds them, since they are about to go.
  bool waits_in(std::span<const std::uint8_t> memory) const;
  void let_go(std::span<const std::uint8_t> memory);

  std::uint32_t live() const { return live_; }
  void set_live(std::uint32_t mask);
  void set_quorum(std::uint32_t quorum);
  void set_staleness(std::uint32_t staleness) { staleness_ = staleness; }

  // Base `base` of `worker`, or a pass when `given` is null. Copies out of `queue` a result that must make room.
  SlotOutcome contribute(std::uint32_t slot, std::uint32_t worker, std::uint32_t base, const Contribution* given,
                         SwitchQueue& queue, const ContributionHeader& header);
  // Of the open round, or of the last one that closed: the workers that keep none of its words.
  std::uint32_t bare(std::uint32_t slot) const { return slot_at(slot).bare; }
  // At a leaf, of a complete round: whether none of its workers keeps any.
  bool all_bare(std::uint32_t slot) const { return (slot_at(slot).bare & live_) == live_; }
  // The round that can close after a change of live, K or S.
  std::optional<std::uint32_t> poke(std::uint32_t slot);

  // At a leaf: whether the open round holds all that it waits for.
  bool complete(std::uint32_t slot) const {
    const Slot& state = slot_at(slot);
    return uplink_ && state.count != 0 && due(state, state.count);
  }
  // Of such a round: what goes up to the parent, with that order. Copies out of `queue` what still waits there with
  // another.
  std::span<std::uint8_t> ascending(std::uint32_t slot, std::uint32_t order, SwitchQueue& queue);
  // Fewer than so many contributors more close no round, at least 1.
  std::uint32_t missing() const;
  std::uint32_t open(std::uint32_t slot) const { return slot_at(slot).open; }
  // At a leaf: the parent's result of a round. True if it was waited for; it is then closed, and to be multicast.
  bool descend(std::uint32_t slot, std::uint32_t number, const Contribution& given, SwitchQueue& queue);

  // `worker` is about to be live: it counts as having contributed every base below the open round.
  void enter(std::uint32_t slot, std::uint32_t worker);
  // The base that a live worker has to contribute next.
  std::uint32_t stands(std::uint32_t slot, std::uint32_t worker) const;

  // The datagram of a round that has closed and is still in the ring, as it is multicast but for its keyed tag; what it
  // is without its words; and its mark for the queue.
  std::span<std::uint8_t> result(std::uint32_t slot, std::uint32_t number) const;
  std::span<const std::uint8_t> bare_result(std::uint32_t slot, std::uint32_t number) const;
  std::uint32_t* queue_mark(std::uint32_t slot, std::uint32_t number);
  // The workers whose contribution `base` is accepted by now; `base` must still be in the ring.
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
    std::uint32_t signature;  // of contributions; while there is none, the first that a pass has said
    std::uint32_t contributors;
    std::uint16_t code_count;
    std::uint8_t finished;  // finish_sums was called, though the round is open: a leaf's, complete
    std::uint8_t lanes;     // of a round that is closed, or has gone up: its words'; else its contributions', no shift
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
    bool begun = false;    // whether others of the round are in the sum already
    bool at_once = false;  // all accumulators were made when it closed: they are sums_at_once_
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
  void close(std::uint32_t slot, Slot& state, const Entry& entry);
  void set_count(Slot& state, std::uint32_t count) {
    if (synchronous_) {
      --slots_with_[state.count];
      ++slots_with_[count];
    }
    state.count = count;
  }
  void make_contribution(std::uint32_t slot, Slot& state, const Entry& entry) const;
  bool takes(const Facts& facts, const Contribution& given) const;
  void add(std::uint32_t slot, const Entry& entry, const Contribution& given, bool last);
  // Adds so many words to the open round, or begins its sum with them: all in lanes as `lanes`.
  void add_up(std::uint32_t slot, const Entry& entry, std::uint8_t lanes, std::span<const std::uint8_t* const> words,
              bool begins);
  // Adds what waits, and `more` unless null. `last`: finish_sums is what follows.
  void add_waiting(std::uint32_t slot, const Entry& entry, const std::uint8_t* more, bool last);
  bool lasts(const Contribution& given) const;
  // The words that are sent: nothing waits any more, accumulators are narrowed.
  void finish_sums(std::uint32_t slot, const Entry& entry);
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
  std::uint32_t staleness_;  // S now; history_ - 2 is the largest that it may be set to
  std::uint32_t history_;
  std::uint32_t quorum_;
  bool synchronous_;
  std::uint32_t live_;
  std::uint32_t arrivals_to_close_;
  std::size_t slot_words_;  // 32-bit words in a slot's record
  std::size_t head_bytes_;  // from an image's start to its words
  std::size_t image_bytes_;
  std::vector<std::uint32_t> slots_;
  std::array<std::uint32_t, MAX_WORKERS + 1> slots_with_{};  // so many arrivals in the open round; if synchronous
  std::vector<Facts> facts_;
  std::shared_ptr<std::uint8_t> images_;
  std::span<const std::uint8_t> lasting_;
  std::vector<Waiting> waiting_;     // by slot; none without `lasting_`
  std::uint32_t waiting_slots_ = 0;  // that have something
  std::uint32_t accumulator_bytes_;
  std::size_t sums_bytes_;     // accumulators of one slot; 0: the job has none
  Accumulators sums_;          // of each slot
  Accumulators sums_at_once_;  // of whichever round is added up at once: in the cache; none without `lasting_`
};

}  // namespace fanin

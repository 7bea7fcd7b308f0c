// One reduction in progress: its memory, its codec, and the chunks and items into which it is cut. The rules and the
// table stand in host/machine/operation.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.hpp"
#include "wire/job.hpp"
#include "wire/reduction.hpp"
#include "machine/scale_forecast.hpp"
#include "wire/wire_constants.hpp"
#include "codecs/word_codec.hpp"

namespace fanin {

class Operation {
 public:
  Operation() = default;
  // Throws std::invalid_argument for a reduction that would be computed wrongly.
  Operation(std::uint64_t ticket, const Reduction& asked, const JobSpec& spec, std::uint32_t flow,
            std::uint32_t flow_count, std::uint64_t first_item, std::uint32_t place);

  std::uint64_t ticket = 0;
  std::uint64_t first_item = 0;
  std::uint64_t chunks = 0;
  std::uint64_t lead = 0;
  std::uint64_t unfinished_chunks = 0;
  std::uint32_t signature = 0;
  std::uint32_t code_count = 0;  // scale codes in every packet of this operation
  bool forecasts = false;
  bool has_forecast = false;  // whether `forecast`, with which words are quantized, was made; it does not change then
  Forecast forecast;
  // Whether every element is contributed by one worker only.
  bool owned() const { return asked_.owned; }
  bool keeps_all() const { return !owned() && asked_.keep_first == 0 && asked_.keep_count == asked_.count; }
  // Whether every worker contributes to every element and keeps it, and codes are agreed before words are sent.
  bool plain() const { return plain_; }
  // Whether this worker contributes nothing to the item.
  bool passes(std::uint64_t item) const;
  // Whether this worker alone contributes to the item.
  bool is_sole(std::uint64_t item) const;
  // Whether the words of the item's result are needed here, also to tell who has spoiled the sum.
  bool keeps(std::uint64_t item, const std::uint16_t* agreed) const { return keeps_all() || keeps_part(item, agreed); }
  bool keeps_part(std::uint64_t item, const std::uint16_t* agreed) const;
  Shape shape() const { return {asked_.count, asked_.element, codec_->number}; }

  // --- items ---

  std::uint64_t items() const { return chunks + lead; }
  std::uint64_t end_item() const { return first_item + items(); }
  bool contains(std::uint64_t item) const { return item - first_item < items(); }
  bool carries_codes(std::uint64_t item) const { return lead != 0 && item - first_item < chunks; }
  bool carries_words(std::uint64_t item) const { return item - first_item >= lead; }
  std::uint64_t codes_chunk(std::uint64_t item) const { return item - first_item; }
  std::uint64_t words_chunk(std::uint64_t item) const { return item - first_item - lead; }
  // Whether the item carries words of another chunk than the last one, so as many as all of these do.
  bool is_whole(std::uint64_t item) const { return item - first_item - lead < chunks - 1; }
  std::size_t word_count(std::uint64_t item) const {
    return carries_words(item) ? codec_->word_count(packet(words_chunk(item))) : 0;
  }

  std::size_t result_word_count(std::uint64_t item) const {
    return carries_words(item) ? codec_->result_word_count(packet(words_chunk(item))) : 0;
  }
  std::uint8_t lanes() const { return codec_->lanes; }

  // --- numbers; codes are in host order, words in wire order ---

  // This worker's code_count scale codes of a chunk; what lies past the end of the array is 0.
  void own_codes(std::uint64_t chunk, std::uint16_t* codes) const;
  void quantized(std::uint64_t chunk, const std::uint16_t* agreed, std::uint8_t* words) const;
  // Notes, where it is asked for, the workers whose contributions or passes are in a chunk's round.
  void note_arrivals(std::uint64_t chunk, std::uint32_t workers) {
    if (asked_.arrivals != nullptr) asked_.arrivals[packet(chunk)] = workers;
  }
  // Writes a chunk's result to the destination, and the quantization error to the residual.
  // `words`: null if none are kept. `shift`: that of a sum that the switch has narrowed.
  // Returns the newly known workers that have spoiled the sum.
  std::vector<Spoiler> store(std::uint64_t chunk, const std::uint16_t* agreed, const std::uint8_t* words,
                             std::uint32_t contributors, std::uint32_t shift = 0);
  // Writes zeros for a chunk to whose round nobody has contributed, and which has no agreed codes.
  void store_zeros(std::uint64_t chunk);

 private:
  // Whether the words have every rank's floats separately.
  bool sums_exactly() const {
    return asked_.lanes == EXACT && is_floating(asked_.element) && asked_.with == Operator::sum;
  }
  // Whether a block with one of these codes is not finite.
  bool spoiled(const std::uint16_t* agreed) const {
    return code_count != 0 && std::find(agreed, agreed + code_count, CODE_NOT_FINITE) != agreed + code_count;
  }
  // Whether the worker was not known to have spoiled the sum, or only by an element further from its beginning.
  bool is_news(const Spoiler& spoiler);

  // The number of a chunk of this flow among the packets of all flows.
  std::uint64_t packet(std::uint64_t chunk) const { return flow_ + chunk * flow_count_; }
  EncoderInput own(const PacketSpan& at) const {
    return {asked_.source + at.start * element_bytes(asked_.element), at.count, asked_.factor,
            asked_.residual == nullptr ? nullptr : asked_.residual + at.start};
  }
  struct Range {
    std::uint64_t first;
    std::uint64_t last;
    std::uint64_t count() const { return last - first; }
  };
  // The part of a range of elements that this worker owns; an empty part is at one end of the range.
  Range own(Range of) const;
  bool streams() const;
  // Copies this worker's own elements of a packet to the destination, if they are kept and not there already.
  void keep_own(const PacketSpan& at) const;
  Range kept(const PacketSpan& at) const;
  // A packet's result: the words that `collect` has returned, and the codes of its blocks.
  struct Sum {
    const std::uint8_t* words;
    const std::uint16_t* codes;
    std::uint32_t contributors;
    std::uint32_t shift;
  };
  // Writes elements `part` of a packet to the destination.
  [[gnu::always_inline]] void decode(const Sum& sum, const PacketSpan& at, Range part);
  // The destination of a range of a packet's elements.
  Kept place(const PacketSpan& at, Range elements) const;

  // The scale codes of a chunk's blocks: those agreed on, or the one that was given.
  const std::uint16_t* codes(const std::uint16_t* agreed) const {
    return asked_.scale_code == 0 ? agreed : given_codes_.data();
  }
  std::array<std::uint16_t, MAX_CODES> given_codes_{};
  Reduction asked_;
  std::shared_ptr<WordCodec> codec_;
  bool plain_ = false;
  bool streams_ = false;  // whether results are written past the caches
  std::uint64_t flow_ = 0;
  std::uint64_t flow_count_ = 1;
  std::vector<Spoiler> spoilers_;  // for each worker, the first spoiled range that is known
};

}  // namespace fanin

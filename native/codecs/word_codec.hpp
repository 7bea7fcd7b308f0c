// Word codecs: they turn the elements of a reduction into words of packets, and sums of words into elements. The rules
// stand in host/codecs/words/codec.py; each codec is a codec_*.cpp that enters itself into the table here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "wire/job.hpp"
#include "wire/packet.hpp"
#include "wire/reduction.hpp"

namespace fanin {

// The elements to encode for a packet: x * factor + residual, `n` of them. `residual` may be null.
struct EncoderInput {
  const std::uint8_t* x;
  std::size_t n;
  double factor;
  float* residual;
};

// The destination of decoding: elements [skip, skip + count) of a packet's sum are written from `out` on.
struct Kept {
  std::size_t skip;
  std::size_t count;
  std::uint8_t* out;
};

// A worker, by its place among all workers of the job, that has an element in [first, first + count) that is not
// finite.
struct Spoiler {
  std::uint32_t place;
  std::uint64_t first;
  std::uint64_t count;
};

struct PacketSpan {
  std::uint64_t start;
  std::size_t count;
};

// The codec of one reduction. Codes are in host order, words in wire order; no buffer need be aligned.
class WordCodec {
 public:
  virtual ~WordCodec() = default;

  std::uint8_t number = 32;   // identifies the codec and its lanes; ranks must agree on it (Operation::signature)
  std::uint64_t packets = 0;  // of the reduction, over all flows
  std::uint64_t packet_elements = 1;
  std::uint64_t block_elements = 1;  // number of elements that share a scale code
  bool scaled = false;               // whether the ranks agree on scale codes
  std::uint8_t lanes = 0;    // of a codec whose lanes the switch adds up one by one: Header.lanes of contributions
  bool in_one_flow = false;  // whether all packets must travel in the first flow

  virtual PacketSpan span(std::uint64_t packet) const = 0;
  virtual std::size_t word_count(std::uint64_t packet) const = 0;
  std::size_t result_word_count(std::uint64_t packet) const { return words_of_result(lanes, word_count(packet)); }
  // Computes one scale code for each block; only for a codec with `scaled`.
  virtual void codes(const EncoderInput& own, std::uint16_t* codes) const;
  virtual void encode(std::uint64_t packet, const EncoderInput& own, const std::uint16_t* codes,
                      std::uint8_t* words_be) const = 0;
  // Takes the sum of a packet; returns the words for `decode`, or null while these need more packets.
  virtual const std::uint8_t* collect(std::uint64_t packet, const std::uint8_t* words_be);
  // Decodes a packet of `count` elements; divisor 0: divide by the number of contributors.
  virtual void decode(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes,
                      std::uint32_t contributors, double divisor, const Kept& kept) = 0;
  // Decodes in one pass with stores past the caches (streaming.hpp); false, with nothing done, if that is not possible.
  virtual bool stream(const std::uint8_t*, const Kept&) { return false; }
  // Decodes a sum that the switch has narrowed; only for a codec with `lanes`.
  virtual void decode_narrowed(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes,
                               std::uint32_t contributors, double divisor, std::uint32_t shift, const Kept& kept);
  // Marks the blocks of a packet's encoded words that this worker has spoiled (spoilers.hpp), by the agreed codes.
  virtual void mark(const EncoderInput&, const std::uint16_t*, std::uint8_t*) const {}
  // Workers that have spoiled elements of a packet, read from the words that `collect` has returned.
  virtual std::vector<Spoiler> spoilers(std::uint64_t, const std::uint8_t*, const std::uint16_t*, std::uint32_t) const {
    return {};
  }
  // residual = x * factor + residual minus its encoded value. Called before `decode`, which may overwrite x.
  virtual void update_residual(const EncoderInput& own, const std::uint16_t* codes) const = 0;
};

// A codec whose packets have consecutive elements, in blocks of whole words.
class BlockCodec : public WordCodec {
 public:
  PacketSpan span(std::uint64_t packet) const final {
    const std::uint64_t start = packet * packet_elements;
    return {start, static_cast<std::size_t>(std::min(packet_elements, count_ - start))};
  }

 protected:
  void lay_out(std::uint64_t count, std::uint64_t elements_of_block, std::uint64_t blocks);

 private:
  std::uint64_t count_ = 0;
};

// A codec's entry in the table, constructed once as a global of the codec's file.
class CodecEntry {
 public:
  using Takes = bool (*)(Element element, std::uint32_t lanes);
  using Make = std::shared_ptr<WordCodec> (*)(const Reduction& asked, const JobSpec& spec, std::uint32_t place);

  CodecEntry(const char* name, Takes takes, Make make);

  const char* name;
  Takes takes;
  Make make;
};

// All codecs, in no particular order: at most one of them accepts a reduction.
const std::vector<const CodecEntry*>& codec_table();

// Throws std::invalid_argument if the job's switch does not add lanes one by one, or its accumulators cannot hold the
// sum of so many contributions.
void require_wide_sums(const JobSpec& spec, std::uint32_t up, std::uint32_t down);

// The codec of a reduction. Throws std::invalid_argument if no codec accepts it. `place`: this worker's place among all
// workers of the job.
std::shared_ptr<WordCodec> codec_for(const Reduction& asked, const JobSpec& spec, std::uint32_t place);

}  // namespace fanin
